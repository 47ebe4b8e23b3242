// The client for a game's own loop: a session that looks after its time-to-live and its looks by itself. No DOM.

import { nowNs } from "./clock.js";
import { validate } from "./messages.js";
import { Session } from "./session.js";
import { addressOf } from "./socket.js";
import { PROTOCOL } from "./wire.js";

const LOOK_MS = 20;
const OWED_MS = 5000; // for safe calls that throw, once the session has ended
const VERSION = "0.1.0";

// Options that hello has, by their names there.
const HELLO = {
  agent: "agent",
  tools: "tools",
  instruction: "instruction",
  model: "model",
  pacing: "pacing",
  hz: "hz",
  deadlineMs: "deadline_ms",
  ttlMs: "ttl_ms",
  maxAgeMs: "max_age_ms",
  onMiss: "on_miss",
  holdMs: "hold_ms",
  robot: "robot",
};
const UNSEEN_MS = 10_000; // how often the same fault of a look is told
const OTHERS = ["safeCall", "persist", "token", "name", "WebSocket", "observe", "observeHz"];
const HANDLERS = ["onCall", "onSafe", "onTick", "onState", "onWelcome", "onInstruct", "onError"];

export class Client {
  #session;
  #timer;
  #endedNs = null; // when there was no session any more, for good
  #answers = {};
  #observe;
  #unseen = null; // why the last look that failed did, and when that was told
  #unseenNs = 0;
  #everyNs;
  #dueNs = null;
  #seenNs = -Infinity;

  /** As `connect`. */
  constructor(url, options = {}) {
    const known = [...Object.keys(HELLO), ...OTHERS, ...HANDLERS];
    for (const name of Object.keys(options)) {
      if (!known.includes(name)) throw new Error(`There is no option ${name}. There are ${known.join(", ")}.`);
    }
    for (const name of [...HANDLERS, "observe"]) {
      if (options[name] !== undefined && typeof options[name] !== "function")
        throw new Error(`${name} is no function. Give one, or leave it out.`);
    }
    const { observeHz, WebSocket = globalThis.WebSocket, token = null, persist = true } = options;
    if (observeHz !== undefined && !(observeHz > 0 && observeHz <= 1000))
      throw new Error(`observeHz is ${observeHz}. Give more than 0, up to 1000, or leave it out.`);
    this.#observe = options.observe ?? null;
    this.#everyNs = observeHz === undefined ? null : 1e9 / observeHz;
    const hello = greeting(options);
    validate({ type: "hello", protocol: PROTOCOL, t_client_ns: 0, ...hello });
    this.ready = new Promise((resolve, reject) => {
      this.#answers = { resolve, reject };
    });
    this.ready.catch(() => {}); // whoever waits for it is told; nobody must
    addressOf(url);
    this.#session = new Session(url, hello, this.#handlers(options), { token, persist, WebSocketClass: WebSocket });
    // Not before whoever made it has it: a handler may use it.
    queueMicrotask(() => {
      if (this.#endedNs !== null) return;
      this.#session.open();
      this.#tick();
    });
  }

  /** connecting, opening, live, waiting, refused or closed. */
  get state() {
    return this.#session.state;
  }

  /** What the server said of the session; null where there is none. */
  get welcome() {
    return this.#session.welcome;
  }

  /** Of the newest connection. */
  get address() {
    return this.#session.address;
  }

  /** The number of the episode, from 0. */
  get epoch() {
    return this.#session.inForce.epoch;
  }

  /** Shown to the server with the next connection. */
  set token(token) {
    this.#session.token = token;
  }

  /** The server's clock minus this one, and the round trip, in ms; null where it is not known. */
  get clockOffset() {
    const at = this.#session.clock.at(nowNs());
    return at && { offsetMs: at.offsetNs / 1e6, roundTripMs: at.rttNs / 1e6 };
  }

  /** How long observations waited for their tick: the median of the newest, in ms; null where it is not known. */
  get waitedMs() {
    return this.#session.phase.waitedMs;
  }

  /** Show the world as it is now, a text or a map; false while there is no session. Throws WireError for neither. */
  observe(world) {
    return this.#session.observe(world);
  }

  /** Milliseconds until the next look at the world that arrives just in time for a tick; null where it is not known. */
  nextLookMs() {
    const at = nowNs();
    const due = this.#session.nextLookNs(at);
    return due === null ? null : Math.max(0, (due - at) / 1e6);
  }

  /** What is in force now: { status, call, calls, cause, endsInMs, message }. */
  inForce() {
    const session = this.#session;
    session.look();
    const { kind, calls, expiresNs } = session.inForce;
    const message = session.last;
    const told = { calls, call: calls[0] ?? null, endsInMs: null, message };
    if (kind === "none") {
      const safe = session.inForce.safeCalls;
      return { ...told, status: "safe", calls: safe, call: safe[0] ?? null, cause: "no_call_yet" };
    }
    if (kind === "call") {
      const endsInMs = expiresNs === null ? null : Math.max(0, (expiresNs - nowNs()) / 1e6);
      return { ...told, status: message.status === "held" ? "held" : "fresh", cause: message.cause ?? null, endsInMs };
    }
    return { ...told, status: "safe", cause: session.inForce.cause };
  }

  /** Another goal in words; false while there is no session: then it is said with the next one. */
  instruct(instruction) {
    validate({ type: "instruct", session: "-".repeat(16), instruction });
    return this.#session.instruct(instruction);
  }

  /** A new episode: nothing is in force. `ended`: how the last one ended, { seed, return, success, seconds }. */
  reset(ended) {
    validate({ type: "reset", session: "-".repeat(16), epoch: 0, ended });
    this.#dueNs = null;
    return this.#session.reset(ended);
  }

  /** End the session for good; what is in force becomes safe. */
  close(reason = "") {
    this.#endedNs ??= nowNs();
    this.#session.close(reason);
    this.#answers.reject(new Error("The client was closed before there was a session."));
  }

  #handlers(options) {
    const { onCall, onSafe, onTick, onState, onWelcome, onInstruct, onError } = options;
    return {
      act: (call, kind) => {
        if (kind === "safe" && onSafe) onSafe(call, this.#session.last);
        else if (call) onCall?.(call, this.#session.last);
      },
      call: onTick,
      welcome: (welcome) => {
        this.#answers.resolve(welcome);
        onWelcome?.(welcome);
      },
      state: (state, detail) => {
        if (state === "refused") {
          this.#endedNs ??= nowNs();
          this.#answers.reject(new Error(`The server refused: ${detail}`));
        }
        onState?.(state, detail);
      },
      instruct: onInstruct,
      error: onError,
    };
  }

  /** Ends what is too old, and looks at the world when it is time. */
  #tick() {
    const session = this.#session;
    if (this.#endedNs !== null && (!session.inForce.owed || nowNs() - this.#endedNs > OWED_MS * 1e6)) return;
    this.#timer = setTimeout(() => this.#tick(), LOOK_MS); // before anything that may throw
    session.look();
    if (!this.#observe || !session.hasRoom) return;
    const at = nowNs();
    if (this.#due(at) <= at) {
      this.#seenNs = at;
      this.#see(at);
      this.#dueNs = null;
    }
    if (!session.hasRoom) return;
    const leftMs = (this.#due(nowNs()) - nowNs()) / 1e6;
    if (leftMs >= LOOK_MS) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#tick(), Math.max(0, leftMs));
  }

  // Whatever is wrong with a look costs that look alone: the server misses its ticks, and the safe call follows.
  #see(at) {
    try {
      const seen = this.#observe();
      if (this.#session.hasRoom && seen !== null && seen !== undefined) this.#session.observe(seen, at);
    } catch (error) {
      const told = String(error?.message ?? error);
      if (told === this.#unseen && at - this.#unseenNs < UNSEEN_MS * 1e6) return;
      [this.#unseen, this.#unseenNs] = [told, at];
      console.error("Nothing was observed:", error);
    }
  }

  #due(at) {
    if (this.#dueNs !== null && this.#dueNs > at - this.#session.periodNs) return this.#dueNs;
    const periodNs = this.#everyNs ?? this.#session.periodNs;
    const next = this.#everyNs === null ? this.#session.nextLookNs(at) : null;
    if (next !== null) this.#dueNs = next;
    return next ?? this.#seenNs + periodNs;
  }
}

/**
 * Joins the server's control loop, and stays in it: `url` is ws://HOST:PORT/ws.
 * Throws Error for options that are none, WireError for fields that the protocol forbids.
 */
export function connect(url, options) {
  return new Client(url, options);
}

function greeting(options) {
  const hello = { client: { name: options.name ?? "rtcontrol-client", version: VERSION, language: "javascript" } };
  hello.capabilities = ["executed"];
  for (const [option, field] of Object.entries(HELLO)) {
    if (options[option] !== undefined && options[option] !== null) hello[field] = options[option];
  }
  const safe = [options.safeCall ?? []].flat();
  if (safe.length) {
    hello.safe_call = safe[0];
    if (safe.length > 1) hello.safe_calls = safe;
  }
  return hello;
}
