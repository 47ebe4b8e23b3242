// What is in force at the client now: the time-to-live rule (docs/protocol.md, section 7). The caller brings the time,
// in nanoseconds of its own clock, and carries out what is returned:
// { act: null | "call" | "safe", calls, expired, tick }: all of `calls` in order (`safe` without any: stop in your own
// way). Safe calls that could not be carried out are put into `owed`; the next look returns them again.

const nothing = () => ({ act: null, calls: [], expired: false, tick: null });

/** Whether a call that answers an observation of `tObsNs` is too old at `nowNs`. A `ttlMs` of 0 is no limit. */
export function expired(tObsNs, ttlMs, nowNs) {
  if (tObsNs === undefined || tObsNs === null || nowNs < tObsNs) return true;
  return ttlMs !== 0 && nowNs > expiresNs(tObsNs, ttlMs);
}

/** The last instant at which such a call is in force. */
export const expiresNs = (tObsNs, ttlMs) => tObsNs + Math.trunc(ttlMs * 1e6);

/** The safe calls of a `safe` message or a welcome. */
export const safeCalls = ({ calls, safe_calls, call, safe_call }) =>
  calls ?? safe_calls ?? [call ?? safe_call ?? []].flat();

export class InForce {
  /** No call outlives its arrival by more than `ownTtlMs`, whatever its message says (null or 0: no such limit). */
  constructor(epoch = 0, safe = [], ownTtlMs = null) {
    Object.assign(this, { epoch, safeCalls: safe, ownTtlMs, kind: "none", cause: null, calls: [], expiresNs: null, capturedNs: -1, lastTick: -1, owed: null });
  }

  /** The welcome of a new session: ticks begin anew, and a call of the session before ends: nobody would end it later. */
  newSession(epoch, safe = []) {
    this.safeCalls = safe;
    const step = this.kind === "call" ? this.#safe("new_session") : nothing();
    const { owed } = this;
    this.reset(epoch);
    return Object.assign(this, { owed, lastTick: -1 }) && step;
  }

  /** A new episode, whose world is at rest: nothing is in force in it yet. */
  reset(epoch) {
    this.epoch = epoch;
    this.#set("none", [], null);
  }

  /** A call message arrived. */
  receive(message, nowNs) {
    if (message.epoch !== this.epoch || message.tick <= this.lastTick) return this.look(nowNs);
    this.lastTick = message.tick;
    if (message.status === "safe") {
      return this.kind === "safe" ? this.look(nowNs) : this.#safe(message.cause, safeCalls(message), message.tick);
    }
    if (message.status === "held") return this.look(nowNs);
    const call = message.call ?? null;
    if (expired(message.t_obs_ns, message.ttl_ms, nowNs)) {
      const step = this.look(nowNs);
      return call === null ? step : { ...step, expired: true, tick: message.tick };
    }
    const ends = message.ttl_ms ? [expiresNs(message.t_obs_ns, message.ttl_ms)] : [];
    if (this.ownTtlMs) ends.push(expiresNs(nowNs, this.ownTtlMs));
    const until = ends.length ? Math.min(...ends) : null;
    if (call !== null) {
      this.#set("call", [call], until);
      this.capturedNs = message.t_obs_ns;
      return { act: "call", calls: this.calls, expired: false, tick: message.tick };
    }
    // A decision to go on does not revive what has run out, and renews by a newer observation only.
    const step = this.look(nowNs);
    if (step.act === null && this.kind === "call" && message.t_obs_ns > this.capturedNs)
      Object.assign(this, { expiresNs: until, capturedNs: message.t_obs_ns });
    return step;
  }

  /** Nothing arrived: has what is in force run out, or is a safe call to be tried again? */
  look(nowNs) {
    if (this.owed) return { ...nothing(), act: "safe", calls: this.owed };
    return this.expiresNs !== null && nowNs > this.expiresNs ? this.#safe("expired") : nothing();
  }

  /**
   * Carry out what was returned: `act(call, kind)` for each of its calls, null where nothing is known to be safe. Gives
   * the calls for which it threw, and what it threw; a safe call that could not be carried out is owed.
   */
  carryOut({ act: kind, calls }, act) {
    const again = calls === this.owed;
    if (again) this.owed = null; // whoever looks while it is carried out does not carry it out once more
    const failed = [];
    const errors = [];
    for (const call of kind === null || calls.length ? calls : [null]) {
      try {
        act?.(call, kind);
      } catch (fault) {
        failed.push(call);
        errors.push(calls.length > 1 ? `${call.name}: ${fault}` : `${fault}`);
        if (!again) console.error(fault);
      }
    }
    // What could not be made safe is tried again; nothing of it counts as in force before.
    if (kind === "safe") this.owed = failed.length ? failed.filter(Boolean) : null;
    return { failed, errors };
  }

  /** The server is dead: a call with a time-to-live lives on for it, one without ends now. */
  serverLost() {
    return this.kind === "call" && this.expiresNs === null ? this.#safe("server_lost") : nothing();
  }

  /** The session has ended, or the call in force could not be carried out: act safe. */
  serverLeft(cause = "session_ended") {
    return this.kind === "safe" ? nothing() : this.#safe(cause);
  }

  #safe(cause = null, told = [], tick = null) {
    this.#set("safe", told.length ? told : this.safeCalls, null, cause);
    return { act: "safe", calls: this.calls, expired: false, tick };
  }

  #set(kind, calls, until, cause = null) {
    Object.assign(this, { kind, calls, expiresNs: until, cause, owed: null });
  }
}
