// What is in force at the client now: the time-to-live rule (docs/protocol.md, section 7). The caller brings the time,
// in nanoseconds of its own clock, and carries out what is returned:
// { act: null | "call" | "safe", execute, expired, tick } (`safe` without `execute`: stop in your own way).

const nothing = () => ({ act: null, execute: null, expired: false, tick: null });

/** Whether a call that answers an observation of `tObsNs` is too old at `nowNs`. A `ttlMs` of 0 is no limit. */
export function expired(tObsNs, ttlMs, nowNs) {
  if (tObsNs === undefined || tObsNs === null || nowNs < tObsNs) return true;
  return ttlMs !== 0 && nowNs > expiresNs(tObsNs, ttlMs);
}

/** The last instant at which such a call is in force. */
export const expiresNs = (tObsNs, ttlMs) => tObsNs + Math.trunc(ttlMs * 1e6);

export class InForce {
  constructor(epoch = 0, safeCall = null) {
    Object.assign(this, { epoch, safeCall, kind: "none", call: null, expiresNs: null, lastTick: -1 });
  }

  /** The welcome of a new session: ticks begin anew, and a call of the session before ends: nobody would end it later. */
  newSession(epoch, safeCall = null) {
    this.safeCall = safeCall;
    const step = this.kind === "call" ? this.#safe(null, null) : nothing();
    this.reset(epoch);
    this.lastTick = -1;
    return step;
  }

  /** A new episode: nothing is in force in it yet. */
  reset(epoch) {
    this.epoch = epoch;
    this.#set("none", null, null);
  }

  /** A call message arrived. */
  receive(message, nowNs) {
    if (message.epoch !== this.epoch || message.tick <= this.lastTick) return this.look(nowNs);
    this.lastTick = message.tick;
    if (message.status === "safe") {
      return this.kind === "safe" ? nothing() : this.#safe(message.call, message.tick);
    }
    if (message.status === "held") return this.look(nowNs);
    const call = message.call ?? null;
    if (expired(message.t_obs_ns, message.ttl_ms, nowNs)) {
      const step = this.look(nowNs);
      return call === null ? step : { ...step, expired: true, tick: message.tick };
    }
    const until = message.ttl_ms ? expiresNs(message.t_obs_ns, message.ttl_ms) : null;
    if (call !== null) {
      this.#set("call", call, until);
      return { act: "call", execute: call, expired: false, tick: message.tick };
    }
    // A decision to go on does not revive what has run out.
    const step = this.look(nowNs);
    if (step.act === null && this.kind === "call") this.expiresNs = until;
    return step;
  }

  /** Nothing arrived: has what is in force run out? */
  look(nowNs) {
    return this.expiresNs !== null && nowNs > this.expiresNs ? this.#safe(null, null) : nothing();
  }

  /** The server is dead: a call with a time-to-live lives on for it, one without ends now. */
  serverLost() {
    return this.kind === "call" && this.expiresNs === null ? this.#safe(null, null) : nothing();
  }

  /** The session has ended: act safe. */
  serverLeft() {
    return this.kind === "safe" ? nothing() : this.#safe(null, null);
  }

  #safe(call, tick) {
    const execute = call ?? this.safeCall;
    this.#set("safe", execute, null);
    return { act: "safe", execute, expired: false, tick };
  }

  #set(kind, call, until) {
    Object.assign(this, { kind, call, expiresNs: until });
  }
}
