// When to look at the world, so that what is seen arrives just in time for the server's next tick (docs/protocol.md,
// section 6). The caller brings the time; all instants are nanoseconds. No DOM, no dependencies.

const KEPT = 64; // ways, and observations that wait for their calls
const YOUNG_NS = 10e9; // ways that count
const LEAST = 8; // of fewer ways the longest one counts
const FIRST_NS = 5e6; // for looking and sending, while no way is known
const MARGIN_NS = 1e6;
const HANDOVER_NS = 5e6; // what was there so long before a tick was there for it

export class PhaseLock {
  constructor() {
    this.forget();
  }

  /** Another server, or a new session: what was learnt is of no use. */
  forget() {
    Object.assign(this, { ways: [], begun: new Map(), due: null, aimed: null, taken: null, learnt: -1, waits: [] });
  }

  /**
   * The next instant to look at the world, by this side's clock; the same one until then, or until `observed`.
   * `releaseNs` is any tick of the grid, by the server's clock; `clock` what ClockOffset.at() gives. Null while neither a
   * way nor the clocks' offset is known.
   */
  next(releaseNs, periodNs, clock, nowNs) {
    const lead = this.#lead(periodNs, clock, nowNs);
    if (lead === null) return null;
    let aimed = releaseNs + (Math.floor((nowNs + lead - releaseNs) / periodNs) + 1) * periodNs;
    if (this.taken !== null && Math.abs(aimed - this.taken) < Math.floor((periodNs + 1) / 2)) aimed += periodNs;
    this.aimed = aimed;
    this.due = aimed - lead;
    return this.due;
  }

  /** An observation is sent: it was begun when it was due, or now where none was due within the last period. */
  observed(seq, periodNs, nowNs) {
    let begun = nowNs;
    if (this.due !== null && nowNs >= this.due && nowNs - this.due < periodNs) {
      begun = this.due;
      this.taken = this.aimed;
      this.due = null;
    }
    this.begun.set(seq, begun);
    if (this.begun.size > KEPT) this.begun.delete(this.begun.keys().next().value);
  }

  /** A fresh call tells when its observation arrived; an older one that was decided upon again tells nothing new. */
  heard(call, periodNs, nowNs) {
    const { status, seq_obs: seq, release_ns: told, t_server_ns: sent, timing } = call;
    const age = timing?.age_ms;
    if (status !== "fresh" || age === undefined || told === undefined || !(seq > this.learnt)) return;
    this.learnt = seq;
    const begun = this.begun.get(seq);
    if (begun === undefined) return;
    this.begun.delete(seq);
    const release = Number(told);
    const arrived = Number(sent) - Math.round(age * 1e6);
    const before = release - periodNs;
    const older = arrived + HANDOVER_NS < before; // a plan's step, say: this tick is not the first that had it
    // Else the tick before did not have it yet, whatever its stamp of arrival says.
    const way = (older ? arrived : Math.max(arrived, before)) - begun;
    this.ways = [...this.ways, { atNs: nowNs, way }].slice(-KEPT);
    if (!older) this.waits = [...this.waits, release - arrived].slice(-KEPT);
  }

  /** How long an observation waited for its tick: the median of the newest, in ms; null where none is known. */
  get waitedMs() {
    const sorted = [...this.waits].sort((a, b) => a - b);
    return sorted.length ? sorted[sorted.length >> 1] / 1e6 : null;
  }

  #lead(periodNs, clock, nowNs) {
    const young = this.ways.filter(({ atNs }) => nowNs - atNs <= YOUNG_NS);
    const ways = young.map(({ way }) => way).sort((a, b) => a - b);
    const n = ways.length;
    if (!n) return clock === null ? null : Math.floor(clock.offsetNs) + Math.floor(clock.rttNs / 2) + FIRST_NS;
    let best = n - 1;
    if (n >= LEAST) {
      // Of the mean age: the way itself, and a period for each that comes later. From the shortest, to stay exact.
      const cost = (i) => n * (ways[i] - ways[0]) + (n - 1 - i) * periodNs;
      for (let i = n - 2; i >= 0; i -= 1) if (cost(i) < cost(best)) best = i;
    }
    return ways[best] + MARGIN_NS;
  }
}
