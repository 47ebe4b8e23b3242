// A client of protocol 1.1 over a WebSocket: says hello, reconnects and resumes, keeps the heartbeat, and enforces the
// time-to-live of calls on its own clock. No DOM, so that it runs (and is tested) outside a browser too.

import { ClockOffset, nowNs } from "./clock.js";
import { InForce, safeCalls } from "./inforce.js";
import { isMap, spoken } from "./messages.js";
import { Pauses } from "./pauses.js";
import { PhaseLock } from "./phase.js";
import { addressOf, endSocket, openSocket, shown } from "./socket.js";
import { tell } from "./tell.js";
import { decode, encode, PROTOCOL, WireError } from "./wire.js";

const CONNECT_MS = 10_000; // in which a connection must come up
const HELLO_MS = 1000; // until it is answered
const SILENCE_MS = 10_000; // a welcome may take longer, but not an answer to our pings
const FULL_BYTES = 65536; // that wait in the socket
const REASON = 1024; // characters
const STAMPS = 1024; // of observations, whose calls may still come
const RESETS = 256; // that are said again after a resume
const LEAST_PERIOD_NS = 1e5; // of ticks: the protocol's fastest rate

export class Session {
  /**
   * `url`: ws://HOST:PORT/ws. http://HOST:PORT/connect is ws://HOST:PORT/ws. Throws Error for what is no address.
   * `hello`: the fields beside protocol, client and stamps. `on`: { state(name, detail), welcome(message),
   * call(message, latencyMs), act(call, kind), instruct(text, said), error(message) }, each optional. `act` is told what to
   * execute from now on, of several safe calls each by itself; null: nothing is known to be safe, stop in your own way.
   * Where it throws, safe follows; a safe call is tried again with each look until it no longer throws. What another one
   * throws goes to the console. A call is carried out before it is told.
   * `persist`: greet again, for a new session, also after the server's bye. `WebSocketClass`: where there is no WebSocket, as in older Node: that of the package ws, say. Throws Error without one.
   * States: connecting, opening (until the welcome), live, waiting (for the next attempt), refused, closed.
   */
  constructor(url, hello, on = {}, { token = null, persist = true, WebSocketClass = globalThis.WebSocket } = {}) {
    if (typeof WebSocketClass !== "function")
      throw new Error("There is no WebSocket here. Give one: that of the package ws, or start Node with --experimental-websocket.");
    Object.assign(this, { url: addressOf(url), hello, on, token, persist, WebSocketClass });
    this.state = "closed";
    this.welcome = null;
    this.inForce = new InForce(0, safeCalls(hello), hello.ttl_ms); // which need no server
    this.untold = null; // an instruction that the server has not answered
    this.taken = null; // the last one that it has confirmed
    this.last = null; // the newest call message that counted
    this.seq = 0;
    this.stamps = new Map(); // of the newest observations, by seq
    this.pauses = new Pauses();
    this.lastHeard = 0;
    this.pingId = 0;
    this.clock = new ClockOffset();
    this.phase = new PhaseLock();
    this.releaseNs = null; // of any of the session's ticks, on the server's clock
  }

  /** Connect; of a session that is open nothing changes. */
  open() {
    if (this.wanted) return;
    this.wanted = true;
    this.#connect();
  }

  /** Where it connects, without a query. */
  get address() {
    return shown(this.url);
  }

  /** End the session for good: it cannot be resumed. Of `reason` so much is said as a message may have. */
  close(reason = "") {
    this.wanted = false;
    clearTimeout(this.retry);
    const cut = [...String(reason ?? "")].slice(0, REASON).join("");
    if (this.welcome) this.send({ type: "bye", session: this.welcome.session, reason: cut });
    this.#drop();
    this.ended("serverLeft");
    if (this.wanted) return; // whoever carried it out opened it again
    this.welcome = null;
    this.#become("closed");
  }

  /** End it for good, because it is of no use: `why` is for people. */
  refuse(why) {
    this.close(why);
    if (!this.wanted) this.#become("refused", why);
  }

  /** Whether there is a session, and it is not about to end: while its end is carried out there is none any more. */
  get hasSession() {
    return this.state === "live" && Boolean(this.welcome && this.socket);
  }

  /** Whether something may be said now: there is a session, and the line is not full. */
  get hasRoom() {
    return this.hasSession && this.socket.bufferedAmount <= FULL_BYTES;
  }

  /**
   * Show the world as it is now, as a text or a map; false while there is no session or the line is full. `tNs` is when
   * it was looked at. Throws WireError for what cannot be said.
   */
  observe(world, tNs = nowNs()) {
    if (!this.hasRoom) return false;
    this.seq += 1;
    const [session, epoch] = [this.welcome.session, this.inForce.epoch];
    const seen = isMap(world) ? { data: world } : { text: world };
    this.stamps.set(this.seq, tNs);
    this.stamps.delete(this.seq - STAMPS);
    const sent = this.send({ type: "observe", session, seq: this.seq, epoch, t_ns: tNs, ...seen });
    this.phase.observed(this.seq, this.periodNs, nowNs());
    return sent;
  }

  /**
   * A new episode: nothing is in force in it yet. `ended` tells how the one before ended: { seed, return, success,
   * seconds }, each optional. Said again after a lost connection where the server does not know it.
   */
  reset(ended = undefined) {
    this.inForce.reset(this.inForce.epoch + 1);
    return this.#sayReset(this.inForce.epoch, ended);
  }

  #sayReset(epoch, ended) {
    return this.hasSession && this.send({ type: "reset", session: this.welcome.session, epoch, ended });
  }

  /** Change the goal; false while there is no session. It is said (again) after each welcome until it is answered. */
  instruct(instruction) {
    this.untold = instruction;
    return this.#instruct();
  }

  #instruct() {
    return this.hasSession && this.send({ type: "instruct", session: this.welcome.session, instruction: this.untold });
  }

  /** The server says what is in force: also of free words, which it understood as something else, this is the answer. */
  #instructed(instruction) {
    this.taken = instruction;
    this.untold = null;
  }

  /** A tick's period; 0 where there is no session. */
  get periodNs() {
    return this.welcome ? Math.max(LEAST_PERIOD_NS, Math.round(this.welcome.period_ms * 1e6)) : 0;
  }

  /** Between pings, within bounds: with none a server would be dead at once, with days never. */
  get #beatMs() {
    return Math.min(10_000, Math.max(50, this.welcome?.heartbeat_ms ?? HELLO_MS));
  }

  /**
   * The instant of the next look at the world, so that it arrives just in time for a tick: learnt from the calls. Ask
   * again after `observe`. Null while it is not known: then look a period after the last time.
   */
  nextLookNs(tNs = nowNs()) {
    if (!this.hasSession || this.releaseNs === null || this.welcome.pacing !== "server") return null;
    return this.phase.next(this.releaseNs, this.periodNs, this.clock.at(tNs), tNs);
  }

  /**
   * The next instant that lies `leadNs` before a tick's release: what is seen then is fresh when it is decided upon. The
   * lead is for the way, and for how late one looks. Null while the phase of the ticks is not known.
   */
  nextObservationNs(leadNs, tNs = nowNs()) {
    const clock = this.clock.at(tNs);
    if (!this.hasSession || clock === null || this.releaseNs === null) return null;
    const someNs = this.releaseNs - clock.offsetNs - leadNs;
    return someNs + (Math.floor((tNs - someNs) / this.periodNs) + 1) * this.periodNs;
  }

  /** To be called at least every 50 ms: whatever has outlived its time-to-live ends. */
  look(tNs = nowNs()) {
    this.#carryOut(this.inForce.look(tNs));
  }

  #connect() {
    this.#become("connecting");
    if (!this.wanted || this.socket) return; // whoever heard it ended it, or began it anew
    let socket;
    try {
      socket = openSocket(this.WebSocketClass, this.url, this.token);
    } catch (error) {
      return this.refuse(error.message);
    }
    this.socket = socket;
    this.opened = false;
    clearTimeout(this.patience);
    this.patience = setTimeout(() => socket === this.socket && this.#lost(), CONNECT_MS);
    socket.onopen = () => {
      if (socket !== this.socket) return;
      clearTimeout(this.patience);
      this.opened = true;
      this.#become("opening");
      if (socket === this.socket) this.#greet();
    };
    socket.onmessage = (event) => socket === this.socket && this.#receive(event.data);
    socket.onclose = () => socket === this.socket && this.#lost();
    socket.onerror = () => {};
  }

  #greet() {
    this.lastHeard = nowNs() / 1e6;
    clearInterval(this.heart);
    this.heart = setInterval(() => this.#beat(), HELLO_MS);
    this.helloNs = null;
    this.#hello();
  }

  #hello() {
    const resume = this.welcome?.session;
    const client = { name: "page", version: "1", language: "javascript" };
    const stamp = { t_client_ns: nowNs() };
    // A hello is repeated as it was. A new session begins with the newest instruction, a resumed one keeps its own.
    if (this.helloNs === null) this.greeting = this.untold ?? this.taken ?? this.hello.instruction;
    const instruction = resume ? undefined : this.greeting;
    this.helloNs ??= stamp.t_client_ns; // of this greeting's first: the answer to any of them counts
    this.send({ type: "hello", protocol: PROTOCOL, client, ...stamp, ...this.hello, instruction, resume });
  }

  #beat() {
    const deadMs = this.state === "live" ? 3 * this.#beatMs + 500 : SILENCE_MS;
    if (nowNs() / 1e6 - this.lastHeard > deadMs) {
      this.#lost();
    } else {
      if (this.state === "opening") this.#hello();
      this.#ping();
    }
  }

  #ping() {
    this.send({ type: "ping", id: (this.pingId += 1), t_ns: nowNs() });
  }

  #receive(text) {
    const tNs = nowNs();
    this.lastHeard = nowNs() / 1e6;
    let message;
    try {
      message = decode(text);
    } catch (error) {
      if (!(error instanceof WireError)) throw error;
      this.send({ type: "error", code: error.code, message: error.message, field: error.field });
      return;
    }
    switch (message.type) {
      case "welcome":
        // Live, it is the answer to a hello that was said again, or to one of before.
        return this.state === "live" || message.t_client_ns < this.helloNs ? undefined : this.#welcomed(message);
      case "call":
        return this.#called(message, tNs);
      case "ping":
        return this.send({ type: "pong", id: message.id, t_ping_ns: message.t_ns, t_received_ns: tNs, t_sent_ns: nowNs() });
      case "pong":
        return this.clock.add(...["t_ping_ns", "t_received_ns", "t_sent_ns"].map((key) => Number(message[key])), tNs);
      case "instruct":
        if (message.session !== this.welcome?.session) return;
        this.#instructed(message.instruction);
        return tell(this.on, "instruct", message.instruction, message.said);
      case "error":
        return this.refused(message);
      case "bye":
        return this.#left(message);
      default:
        return this.heard(message, tNs);
    }
  }

  #left({ session, reason = "", reconnect }) {
    if (session !== undefined && session !== this.welcome?.session) return;
    const { socket } = this;
    this.welcome = null;
    this.ended("serverLeft");
    if (socket !== this.socket) return; // whoever carried it out ended it
    if (this.persist || reconnect) this.#lost();
    else this.#end(`The server ended the session. ${reason}`.trim());
  }

  /** For good: `why` is for people. */
  #end(why) {
    this.wanted = false;
    this.#drop();
    this.#become("refused", why);
  }

  /** Another server, maybe of another machine. */
  #forgetTimes() {
    this.clock = new ClockOffset();
    this.phase.forget();
    this.releaseNs = null;
  }

  #welcomed(message) {
    if (message.resumed && message.session !== this.welcome?.session) return;
    const { socket } = this;
    if (!spoken(message.protocol)) {
      this.ended("serverLeft");
      return socket === this.socket && this.#end(`The server speaks protocol ${message.protocol}, not ${PROTOCOL}.`);
    }
    if (!message.resumed) this.#forgetTimes();
    this.welcome = message;
    this.begun(message);
    if (socket !== this.socket) return; // whoever carried it out ended it
    this.releaseNs = message.release_ns === undefined ? null : Number(message.release_ns);
    this.pauses.forget();
    clearInterval(this.heart);
    this.heart = setInterval(() => this.#beat(), this.#beatMs);
    this.#become("live");
    if (socket !== this.socket) return;
    const last = Math.min(this.inForce.epoch, message.epoch + RESETS);
    for (let epoch = message.epoch + 1; epoch <= last; epoch += 1) this.#sayReset(epoch);
    const answered = !message.resumed && this.untold === this.greeting; // as it was understood
    if (answered || message.instruction === this.untold) this.#instructed(message.instruction);
    tell(this.on, "welcome", message);
    if (socket !== this.socket) return;
    if (this.untold !== null) this.#instruct();
    this.#ping(); // for the clocks
  }

  #called(message, tNs) {
    if (message.session !== this.welcome?.session) return;
    // With a stamp that is not its observation's it would live longer, or shorter, than it may.
    const stamp = this.stamps.get(message.seq_obs) ?? message.t_obs_ns;
    if (message.status === "fresh" && stamp !== message.t_obs_ns) return;
    if (message.release_ns !== undefined) this.releaseNs = Number(message.release_ns);
    this.phase.heard(message, this.periodNs, tNs);
    if (message.epoch === this.inForce.epoch && message.tick > this.inForce.lastTick) this.last = message;
    this.#carryOut(this.inForce.receive(message, tNs));
    if (message.session !== this.welcome?.session) return; // whoever carried it out ended it
    tell(this.on, "call", message, message.t_obs_ns === undefined ? null : (tNs - message.t_obs_ns) / 1e6);
  }

  #carryOut(step) {
    const { act, expired, tick } = step;
    const [session, epoch] = [this.welcome?.session, this.inForce.epoch];
    const { failed, errors } = this.inForce.carryOut(step, this.on.act);
    // A tick is of its own session and episode, which may have ended meanwhile.
    if (tick !== null && this.hasSession && this.welcome.session === session && this.inForce.epoch === epoch) {
      const [outcome, error] = expired ? ["expired"] : failed.length ? ["failed", errors.join("; ")] : ["executed"];
      this.send({ type: "executed", session, tick, epoch, outcome, t_ns: nowNs(), error });
    }
    // What was done before would else go on for as long as this call.
    if (act === "call" && failed.length) this.#carryOut(this.inForce.serverLeft("failed"));
  }

  // What a client of many characters (crowd.js) has of its own.

  /** A session is there: resumed, or a new one, whose ticks begin anew. */
  begun(welcome) {
    this.inForce.ownTtlMs = this.hello.ttl_ms ?? welcome.ttl_ms;
    if (welcome.resumed) return;
    const own = safeCalls(this.hello);
    this.#carryOut(this.inForce.newSession(welcome.epoch, own.length ? own : safeCalls(welcome)));
    this.stamps.clear();
    this.seq = 0;
  }

  /** The server is dead, or the session has ended: `rule` is that of what is in force. */
  ended(rule) {
    this.#carryOut(this.inForce[rule]());
  }

  /** A message of a type that only others know. */
  heard() {}

  /** The server refused something. */
  refused(message) {
    const { code, fatal, retryable } = message;
    const [live, believed, { socket }] = [this.state === "live", this.welcome !== null, this];
    // In greeting these answer what was said before the hello, or an earlier one.
    const stray = !live && (message.seq !== undefined || (code === "state" && retryable));
    if (stray || message.t_client_ns < this.helloNs) return tell(this.on, "error", message);
    const reworded = !live && code === "instruction" && this.untold !== null;
    if (code === "instruction") this.untold = null; // refused: not said again
    // Live, this connection has no session any more, as after a takeover: resume it. Resuming, nobody knows it: anew.
    const unbound = code === "session" || (live && code === "state" && retryable);
    const foreign = !live && code === "state" && !fatal; // this connection has another session
    const never = !retryable && !reworded && !foreign && (fatal || !(live || unbound));
    if (!reworded && (fatal || (unbound && !live))) this.welcome = null;
    if (never || (fatal && !reworded)) this.ended("serverLeft");
    tell(this.on, "error", message);
    if (socket !== this.socket) return; // whoever was told ended it
    if (reworded) {
      this.helloNs = null;
      this.#hello();
    } else if (never) {
      this.#end(`${message.message} ${message.remedy ?? ""}`.trim());
    } else if (unbound && believed) {
      this.#lost(false);
    } else if (!live && retryable) {
      this.pauses.refuse(nowNs() / 1e6);
      this.#lost(false);
    } else if (fatal || foreign) {
      this.#lost();
    }
  }

  /** The connection is given up, and another one made later; `counts`: the pauses before it grow. */
  #lost(counts = true) {
    this.#drop();
    this.ended("serverLost");
    if (!this.wanted) return this.state !== "refused" && this.#become("closed");
    if (this.socket) return; // whoever carried it out opened it again
    this.retry = setTimeout(() => this.#connect(), this.pauses.next(counts, nowNs() / 1e6));
    this.#become("waiting", { attempts: this.pauses.attempts, opened: this.opened });
  }

  #drop() {
    clearInterval(this.heart);
    clearTimeout(this.patience);
    const { socket } = this;
    this.socket = null;
    endSocket(socket);
  }

  /** Say it; false where there is no connection. Throws WireError for what is no message. */
  send(message) {
    if (this.socket?.readyState !== 1) return false;
    this.socket.send(encode(message));
    return true;
  }

  #become(state, detail = null) {
    if (state === this.state && detail === null) return;
    this.state = state;
    tell(this.on, "state", state, detail);
  }
}
