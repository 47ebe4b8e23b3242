// How long a session waits before it connects and greets again (docs/protocol.md, section 3). The caller brings the time,
// in milliseconds. No DOM, no dependencies.

// The first pause and the longest: before a new connection, and before a hello that was refused and may be let in later.
const CONNECT_MS = [100, 2000];
const REFUSED_MS = [1000, 4000];

const growing = ([first, most], before) => Math.min(most, first * 2 ** Math.min(before, 20)) * (0.5 + Math.random() / 2);

export class Pauses {
  constructor() {
    this.forget();
  }

  /** After a welcome they begin anew. */
  forget() {
    Object.assign(this, { lost: 0, refused: 0, until: 0 });
  }

  /** How often it did not come to a welcome. */
  get attempts() {
    return this.lost + this.refused;
  }

  /** A hello was refused: none is said for a while, which doubles each time. */
  refuse(nowMs) {
    this.until = nowMs + growing(REFUSED_MS, this.refused);
    this.refused += 1;
  }

  /** Until the next connection. `lost`: the last one was, or it never came up. */
  next(lost, nowMs) {
    const ms = growing(CONNECT_MS, lost ? this.lost : 0);
    if (lost) this.lost += 1;
    return Math.max(ms, this.until - nowMs);
  }
}
