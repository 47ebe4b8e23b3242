// Many characters of one agent over one connection (docs/crowds.md): a session whose members have each a goal, a
// time-to-live and safe calls of their own. Connection, clock and what is in force are those of session.js. No DOM.

import { nowNs } from "./clock.js";
import { InForce, safeCalls } from "./inforce.js";
import { isMap, validate } from "./messages.js";
import { Session } from "./session.js";
import { tell } from "./tell.js";

const NOBODY = "-".repeat(16); // a token's place, where a message is only tried
const STAMPS = 64; // newest looks of a member, whose calls may still come
const KEPT = 256; // refusals
const LATENCIES = 4096;
const GONE = 4096; // who left lately
// Of a message: parts, items and bytes of text, far within the limits.
const PARTS = 256;
const ITEMS = 8192;
const TEXT_BYTES = 160_000;

class CharacterState {
  constructor(terms, safe, ownTtlMs) {
    Object.assign(this, { terms, seq: 0, stamps: new Map(), refused: null, last: null });
    this.inForce = new InForce(terms.epoch, safe, ownTtlMs);
  }
}

export class Crowd extends Session {
  /**
   * As a session, for members that bring nothing else; `hello.crowd` may say how many `members` there will be. `on` is
   * also told: { act(id, call, kind), call(id, message, latencyMs), refused(part) }, each optional, as a session's
   * `act` and `call`; `refused` of what the server refused of one member.
   */
  constructor(url, hello, on = {}, options = {}) {
    super(url, { ...hello, crowd: hello.crowd ?? {} }, on, options);
    this.members = new Map();
    this.refusals = [];
    this.count = { observed: 0, superseded: 0, fresh: 0, held: 0, safe: 0, expired: 0, ignored: 0 };
    this.latencyMs = []; // from a look's stamp to the arrival of its call, of fresh ones
    this.lives = 0; // a life has a higher number than all before it, whoever's they were
    this.looks = new Map(); // the newest of each that was not said
    this.gone = [];
  }

  /**
   * A member comes in: instruction, hz, deadline_ms, ttl_ms, priority, every_tick, safe_calls, each optional. Throws
   * WireError for fields that the protocol forbids, Error where there is one of that name.
   */
  join(id, terms = {}) {
    if (this.members.has(id))
      throw new Error(`There is a member ${id} already. Let it leave first, or use instruct().`);
    const made = { ...terms, id, epoch: this.lives };
    validate({ type: "join", session: NOBODY, members: [made] });
    this.lives += 1;
    this.members.set(id, new CharacterState(made, this.#safeCalls(made), made.ttl_ms ?? this.hello.ttl_ms));
    if (this.hasSession) this.#sayTerms([this.members.get(id)]);
  }

  /** They are gone at once, and nothing of theirs is in force; of one that is not there, nothing. */
  leave(...ids) {
    const gone = [...new Set(ids)].filter((id) => this.members.has(id));
    for (const id of gone) {
      const member = this.members.get(id);
      if (member) this.#carryOut(member, member.inForce.serverLeft());
      this.members.delete(id);
      this.looks.delete(id);
    }
    this.gone = [...this.gone, ...gone].slice(-GONE);
    if (gone.length && this.hasSession) this.send({ type: "leave", session: this.welcome.session, ids: gone });
  }

  /**
   * What members saw, by id: a text or a map. Only the newest of each counts; while the line is full it waits. False
   * where nothing could be said yet. Throws Error, and says nothing: no such member, a field that the protocol forbids.
   */
  observe(looks, tNs = nowNs()) {
    const made = Object.entries(looks).map(([id, look]) => [
      this.#member(id),
      { id, seq: this.#member(id).seq + 1, t_ns: tNs, ...(isMap(look) ? { data: look } : { text: look }) },
    ]);
    for (const [, look] of made) validate({ type: "observe_many", session: NOBODY, looks: [look] });
    for (const [member, look] of made) {
      if (member.refused) {
        this.count.ignored += 1;
        continue;
      }
      member.seq = look.seq;
      member.stamps.set(look.seq, tNs);
      if (member.stamps.size > STAMPS) member.stamps.delete(member.stamps.keys().next().value);
      this.count.observed += 1;
      this.count.superseded += this.looks.has(look.id);
      this.looks.set(look.id, look);
    }
    return this.#flush();
  }

  /** Another goal of these members, or of all and of those to come. */
  instruct(instruction, ...ids) {
    const some = ids.length ? ids : [...this.members.keys()];
    const terms = some.map((id) => ({ ...this.#member(id).terms, instruction }));
    validate({ type: "join", session: NOBODY, members: terms.slice(0, 1) });
    for (const made of terms) this.members.get(made.id).terms = made;
    if (!ids.length) super.instruct(instruction);
    if (this.hasSession) this.#sayTerms(some.map((id) => this.members.get(id)));
    return this.hasSession;
  }

  /** What is in force for a member: { status: "fresh" | "held" | "safe", calls, cause, message }. */
  call(id, tNs = nowNs()) {
    const member = this.#member(id);
    const { inForce, last, refused } = member;
    this.#carryOut(member, inForce.look(tNs));
    if (refused) return { status: "safe", calls: inForce.safeCalls, cause: "refused", message: null };
    if (inForce.kind === "none")
      return { status: "safe", calls: inForce.safeCalls, cause: "no_call_yet", message: null };
    if (inForce.kind === "call")
      return { status: last.status, calls: inForce.calls, cause: last.cause ?? null, message: last };
    return { status: "safe", calls: inForce.calls, cause: inForce.cause, message: last };
  }

  /** Counts over all members, with the newest latencies' p50 and p99 (null: none yet). */
  statistics() {
    const sorted = [...this.latencyMs].sort((a, b) => a - b);
    const at = (share) => sorted[Math.min(sorted.length - 1, Math.floor((sorted.length - 1) * share + share))] ?? null;
    return { ...this.count, members: this.members.size, p50: at(0.5), p99: at(0.99) };
  }

  /** To be called at least every 50 ms: whatever has outlived its time-to-live ends, and looks that wait are said. */
  look(tNs = nowNs()) {
    for (const member of this.members.values()) {
      const step = member.inForce.look(tNs);
      if (step.act !== null && !member.inForce.owed) this.count.expired += 1;
      this.#carryOut(member, step);
    }
    this.#flush();
  }

  // What the session says.

  begun(welcome) {
    if (!welcome.crowd) return this.refuse("The server knows no crowds. Update it, or open a session for each.");
    this.looks.clear(); // as old as the gap
    const gone = this.gone.filter((id) => !this.members.has(id));
    if (welcome.resumed && gone.length) this.send({ type: "leave", session: welcome.session, ids: [...new Set(gone)] });
    this.#sayTerms([...this.members.values()]);
    for (const member of this.members.values()) {
      const { inForce, terms } = member;
      const safe = this.#safeCalls(terms);
      if (welcome.resumed) inForce.safeCalls = safe;
      else this.#carryOut(member, inForce.newSession(terms.epoch, safe));
    }
  }

  ended(rule) {
    for (const member of this.members.values()) this.#carryOut(member, member.inForce[rule]());
  }

  heard(message, tNs) {
    if (message.type !== "call_many" || message.session !== this.welcome?.session) return;
    this.count.ignored += message.faults ?? 0;
    for (const call of message.calls) {
      if (message.session !== this.welcome?.session) return; // whoever heard the last one ended it
      this.#called(call, tNs);
    }
  }

  refused(message) {
    if (!message.members?.length) return super.refused(message);
    tell(this.on, "error", message);
    this.refusals = [...this.refusals, ...message.members].slice(-KEPT);
    for (const one of message.members) {
      const member = this.members.get(one.id);
      if (member && one.seq === undefined && member.inForce.lastTick < 0) member.refused = one; // it was not let in
      tell(this.on, "refused", one);
    }
  }

  #called(call, tNs) {
    const member = this.members.get(call.id);
    const { inForce } = member ?? {};
    // A stamp that is not its look's: it would live longer, or shorter, than that allows.
    const stamp = member?.stamps.get(call.seq_obs) ?? call.t_obs_ns;
    const fits = member && call.epoch === inForce.epoch && call.tick > inForce.lastTick;
    if (!fits || (call.status === "fresh" && stamp !== call.t_obs_ns)) {
      this.count.ignored += 1;
      return;
    }
    member.refused = null;
    this.count[call.status] += 1;
    const latencyMs = call.status === "fresh" && call.t_obs_ns !== undefined ? (tNs - call.t_obs_ns) / 1e6 : null;
    if (latencyMs !== null) {
      this.latencyMs.push(latencyMs);
      if (this.latencyMs.length > LATENCIES) this.latencyMs.splice(0, LATENCIES / 8);
    }
    inForce.ownTtlMs = member.terms.ttl_ms ?? this.inForce.ownTtlMs; // of a member without one: the crowd's
    const step = inForce.receive(call, tNs);
    member.last = call;
    this.count.expired += step.expired;
    this.#carryOut(member, step);
    if (!this.welcome || this.members.get(call.id) !== member) return; // whoever carried it out ended it, or let it leave
    tell(this.on, "call", call.id, call, latencyMs);
  }

  #carryOut(member, step) {
    if (step.act === null) return;
    const { inForce, terms } = member;
    const { failed } = inForce.carryOut(step, (call, kind) => this.on.act?.(terms.id, call, kind));
    // What was done before would else go on for as long as this call.
    if (step.act === "call" && failed.length) this.#carryOut(member, inForce.serverLeft("failed"));
  }

  #member(id) {
    const member = this.members.get(id);
    if (!member) throw new Error(`There is no member ${id}. Let it join() first.`);
    return member;
  }

  #safeCalls(terms) {
    const own = terms.safe_calls ?? safeCalls(this.hello);
    return own.length || !this.welcome ? own : safeCalls(this.welcome);
  }

  #flush() {
    if (!this.hasRoom) return false;
    const looks = [...this.looks.values()];
    this.looks.clear();
    this.#say("observe_many", "looks", looks);
    return true;
  }

  #sayTerms(members) {
    for (const member of members) member.refused = null; // whoever is refused again is told so again
    const terms = members.map((member) => member.terms);
    this.#say("join", "members", terms);
  }

  #say(type, list, parts) {
    for (const some of inMessages(parts)) this.send({ type, session: this.welcome.session, [list]: some });
  }
}

/** The parts by messages, in order: as many as one may have. */
export function* inMessages(parts) {
  let some = [];
  let [items, bytes] = [0, 0];
  for (const part of parts) {
    const [more, text] = weight(part);
    if (some.length && (some.length >= PARTS || items + more > ITEMS || bytes + text > TEXT_BYTES)) {
      yield some;
      [some, items, bytes] = [[], 0, 0];
    }
    some.push(part);
    items += more;
    bytes += text;
  }
  if (some.length) yield some;
}

/** Items, and bytes of text at most. */
function weight(value) {
  if (typeof value === "string") return [1, 3 * value.length];
  if (typeof value !== "object" || value === null) return [1, 8];
  const inner = [...Object.values(value), ...(Array.isArray(value) ? [] : Object.keys(value))].map(weight);
  return inner.reduce(([items, bytes], [more, text]) => [items + more, bytes + text], [1, 0]);
}
