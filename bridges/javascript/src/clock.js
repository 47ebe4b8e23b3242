// This side's clock, and how far the server's is from it (docs/protocol.md, section 6).

const WINDOW = 16;
const MAX_AGE_NS = 60e9;

// Less is how a wall clock is adjusted.
const LEAST_SLEEP_MS = 250;
const last = { ms: 0, wallMs: Infinity, sleptMs: 0 };

/**
 * Nanoseconds since the page was opened; never set back, and counts while the machine is suspended: the wall clock jumps
 * ahead then, while performance.now() may stand still. A wall clock that is put forward counts, too: calls then end too
 * early, never too late.
 */
export function nowNs() {
  const [ms, wallMs] = [performance.now(), Date.now()];
  const jumpMs = wallMs - last.wallMs - (ms - last.ms);
  if (jumpMs > LEAST_SLEEP_MS) last.sleptMs += jumpMs;
  Object.assign(last, { ms, wallMs });
  return Math.round((ms + last.sleptMs) * 1e6);
}

export class ClockOffset {
  #samples = [];

  /** Asked at t0 and answered at t3 on our clock, received at t1 and sent at t2 on theirs. */
  add(t0, t1, t2, t3) {
    const rttNs = t3 - t0 - (t2 - t1);
    if (rttNs < 0 || t2 < t1) return;
    this.#samples = [...this.#samples, { atNs: t3, offsetNs: (t1 - t0 + (t2 - t3)) / 2, rttNs }].slice(-WINDOW);
  }

  /** { offsetNs: theirs minus ours, rttNs } of the fastest exchange that is young enough; null where there is none. */
  at(tNs) {
    const young = this.#samples.filter(({ atNs }) => tNs - atNs <= MAX_AGE_NS);
    // The newest of equal ones, since clocks drift.
    return young.reduce((best, one) => (best && best.rttNs < one.rttNs ? best : one), null);
  }
}
