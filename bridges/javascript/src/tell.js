// What a session tells its handlers. No DOM, no dependencies.

/** Calls the handler of this name, if there is one; what it throws is reported, for neither call nor connection hangs on it. */
export function tell(on, name, ...given) {
  try {
    on[name]?.(...given);
  } catch (fault) {
    console.error(fault);
  }
}
