// A client of the rtcontrol protocol over ZeroMQ, written from docs/protocol.md; the numbers in comments are its sections.
import { Dealer } from 'zeromq';
import { decode, encode, WireError } from './wire.mjs';

const big = (v) => (v === undefined || v === null ? null : BigInt(v));
const ttlNs = (ms) => BigInt(Math.floor(ms * 1e6));

// Of a safe message, or of a welcome: 1.0 has one at most.
export const safeCalls = ({ calls, call, safe_calls, safe_call }) => calls ?? safe_calls ?? [call ?? safe_call ?? []].flat();

// 7: what is in force, and until when. `act` is called with a list of call maps (none: stop in your own way) and why; it
// returns those that could not be carried out, or null. Safe ones of them are tried again with each look.
export class InForce {
  constructor(act, { epoch = 0, safeCalls: own = [] } = {}) {
    Object.assign(this, { act, epoch, safeCalls: own, state: 'none', expires: null, owed: null, lastTick: -1 });
  }

  welcome(epoch) { // of a new session, not of a resumed one
    if (this.state === 'call') this.actSafe();
    Object.assign(this, { state: 'none', expires: null, epoch, lastTick: -1 });
  }

  reset(epoch) {
    Object.assign(this, { state: 'none', expires: null, owed: null, epoch });
  }

  // A call message: 'executed' or 'expired' where that is to be acknowledged, else null.
  call(message, now) {
    if (message.epoch !== this.epoch || message.tick <= this.lastTick) return this.look(now);
    this.lastTick = message.tick;
    if (message.status === 'safe') {
      if (this.state === 'safe') return this.look(now);
      this.actSafe(safeCalls(message));
      return 'executed';
    }
    let told = null;
    if (message.status === 'fresh') {
      const stamp = big(message.t_obs_ns);
      const until = stamp === null || message.ttl_ms === 0 ? null : stamp + ttlNs(message.ttl_ms);
      if (stamp === null || stamp > now || (until !== null && now > until)) {
        told = message.call ? 'expired' : null;
      } else if (message.call) {
        Object.assign(this, { state: 'call', expires: until, owed: null });
        this.act([message.call], 'call');
        return 'executed';
      } else if (this.state === 'call' && !this.expired(now)) {
        this.expires = until;
      }
    }
    this.look(now);
    return told;
  }

  expired(now) {
    return this.expires !== null && now > this.expires;
  }

  look(now) {
    if (this.owed) this.owed = this.act(this.owed, 'safe');
    else if (this.state === 'call' && this.expired(now)) this.actSafe();
    return null;
  }

  actSafe(calls = []) {
    Object.assign(this, { state: 'safe', expires: null });
    this.owed = this.act(calls.length ? calls : this.safeCalls, 'safe');
  }
}

// 6: the other side's clock minus one's own.
export class Offset {
  samples = [];

  add(...instants) {
    const [t0, t1, t2, t3] = instants.map(BigInt);
    const rtt = t3 - t0 - (t2 - t1);
    if (rtt < 0n || t2 < t1) return;
    this.samples.push({ rtt, twice: t1 - t0 + (t2 - t3), at: t3 });
    if (this.samples.length > 16) this.samples.shift();
  }

  // {offset_ns, rtt_ns, error_ns}, or null where there is no sample.
  best() {
    const newest = this.samples.at(-1)?.at;
    const recent = this.samples.filter((s) => newest - s.at <= 60_000_000_000n);
    const best = recent.reduce((a, b) => (a && a.rtt < b.rtt ? a : b), null);
    return best && { offset_ns: best.twice / 2n, rtt_ns: Number(best.rtt), error_ns: Number(best.rtt) / 2 };
  }
}

export class Refused extends Error {} // thrown by `execute`: against the client's own bounds

/* settings: the fields of hello (4) but type, protocol and t_client_ns; `tools` and `instruction`, or `agent`.
   on: execute(call) does it and may return a result; safe(call or null) makes it safe, of several safe calls each; and, all
   optional, welcome(message), call(message), instruct(text), notice(text), ended(reason).
   options: curve {server, publicKey, secretKey}; again: begin a new session after the server's bye; minor: the version. */
export class Client {
  offset = new Offset();
  seq = 0;
  state = 'idle'; // greeting, live, ended
  session = null;
  resumes = 0;
  sessions = 0;

  constructor(endpoint, settings, on, options = {}) {
    const { client = { name: 'node' }, ...rest } = settings;
    if (options.minor === 0) delete rest.safe_calls;
    Object.assign(this, { endpoint, on, options, pauseMs: 100, pings: 0, lastSent: 0n });
    this.hello = { type: 'hello', protocol: [1, options.minor ?? 1], client, capabilities: ['executed'], ...rest };
    this.inForce = new InForce((calls, why) => this.act(calls, why), { safeCalls: safeCalls(rest) });
    this.origin = process.hrtime.bigint();
  }

  now() { return process.hrtime.bigint() - this.origin; } // from its own start: exact in a double
  sinceMs(then) { return Number(this.now() - then) / 1e6; }

  start() {
    this.open();
    this.timer = setInterval(() => this.look(), 10);
  }

  open() {
    const curve = this.options.curve;
    this.socket = new Dealer({
      maxMessageSize: 1048576, sendHighWaterMark: 64, receiveHighWaterMark: 64, linger: 0, immediate: true,
      reconnectInterval: 100, reconnectMaxInterval: 2000, sendTimeout: 0,
      ...(curve && { curveServerKey: curve.server, curvePublicKey: curve.publicKey, curveSecretKey: curve.secretKey }),
    });
    this.socket.connect(this.endpoint);
    this.read(this.socket);
    this.lastHeard = this.now();
    this.greet();
  }

  async read(socket) {
    try {
      for await (const parts of socket) if (socket === this.socket) this.receive(parts);
    } catch (fault) {
      if (socket === this.socket && this.state !== 'ended') throw fault;
    }
  }

  // Sends without blocking; what cannot be sent now is dropped, and false.
  async send(message) {
    try {
      await this.socket.send(encode(message));
      this.lastSent = this.now();
      return true;
    } catch (fault) {
      if (fault instanceof WireError) throw fault;
      return false;
    }
  }

  greet(again = false) {
    this.state = 'greeting';
    this.greeted = this.now();
    if (!again) this.firstHello = this.greeted;
    this.send({ ...this.hello, t_client_ns: this.greeted, ...(this.session && { resume: this.session }) })
      .then((sent) => { if (!sent) this.greeted = this.now() - 900_000_000n; }); // not connected: soon again
  }

  // 8: the server is dead, or does not answer. The time-to-live of what is in force goes on.
  lost() {
    this.on.notice?.('connection lost');
    if (this.inForce.state === 'call' && this.inForce.expires === null) this.inForce.actSafe();
    this.later(() => this.open());
  }

  later(what) {
    this.state = 'waiting';
    this.socket.close();
    const pause = this.pauseMs * (1 + Math.random() / 2);
    this.pauseMs = Math.min(2000, this.pauseMs * 2);
    this.again = setTimeout(what, pause);
  }

  // Every 10 ms: does what is in force go on, is the server there, is a ping or a hello due?
  look() {
    this.inForce.look(this.now());
    const beat = this.welcome?.heartbeat_ms ?? 1000;
    if (this.state !== 'live' && this.state !== 'greeting') return;
    if (this.sinceMs(this.lastHeard) > 3 * beat && (this.state === 'live' || this.session)) this.lost();
    else if (this.state === 'greeting' && this.sinceMs(this.greeted) > 1000) this.greet(true);
    else if (this.state === 'live' && this.sinceMs(this.lastPing) > beat) this.ping(); // also for the offset, so not only when idle
  }

  ping() {
    this.lastPing = this.now();
    this.pings += 1;
    this.send({ type: 'ping', id: this.pings, t_ns: this.lastPing });
  }

  receive(parts) {
    const now = this.now();
    this.lastHeard = now;
    let message;
    try {
      message = decode(parts);
    } catch (fault) {
      if (!(fault instanceof WireError)) throw fault;
      if (fault.code === 'version') this.end(fault.message);
      else if (fault.field !== 'type') { // types of a later minor version are ignored
        this.on.notice?.(`unreadable: ${fault.message}`);
        this.send({ type: 'error', code: fault.code, message: fault.message, ...(fault.field && { field: fault.field }) });
      }
      return;
    }
    const mine = this.state === 'live' && message.session === this.session;
    if (message.type === 'welcome') this.welcomed(message);
    else if (message.type === 'error') this.refused(message);
    else if (message.type === 'ping') this.send({ type: 'pong', id: message.id, t_ping_ns: message.t_ns, t_received_ns: now, t_sent_ns: this.now() });
    else if (message.type === 'pong') this.offset.add(message.t_ping_ns, message.t_received_ns, message.t_sent_ns, now);
    else if (message.type === 'call' && mine) this.called(message, now);
    else if (message.type === 'instruct' && mine) this.on.instruct?.(message.instruction);
    else if (message.type === 'bye' && (mine || !message.session)) this.end(`bye: ${message.reason ?? ''}`, this.options.again);
  }

  welcomed(message) {
    if (this.state === 'live') return; // the answer to a hello that was repeated
    const old = this.session;
    Object.assign(this, { welcome: message, session: message.session, state: 'live', pauseMs: 100 });
    const own = safeCalls(this.hello);
    this.inForce.safeCalls = own.length ? own : safeCalls(message);
    this.release = big(message.release_ns);
    if (message.resumed || message.session === old) {
      this.resumes += 1;
      for (let epoch = message.epoch + 1; epoch <= this.inForce.epoch; epoch += 1) this.send({ type: 'reset', session: this.session, epoch });
    } else {
      this.sessions += 1;
      this.offset = new Offset(); // maybe another machine's
      this.inForce.welcome(message.epoch);
    }
    message.warnings?.forEach((warning) => this.on.notice?.(warning));
    this.ping();
    this.on.welcome?.(message);
  }

  refused(error) {
    const { code, retryable, fatal, message, remedy = '' } = error;
    this.on.notice?.(`${code}: ${message} ${remedy}`.trim());
    const stamp = error.t_client_ns;
    if (stamp !== undefined && (this.state !== 'greeting' || stamp < this.firstHello)) return; // of a hello before
    if (fatal) this.end(`${code}: ${message}`, retryable);
    else if (!retryable && (code === 'session' || (code === 'state' && this.state === 'greeting'))) {
      this.later(() => this.open()); // this connection has another session
    } else if (this.state === 'live' && (code === 'session' || (code === 'state' && retryable))) this.greet(); // 8: another connection
    else if (this.state === 'greeting' && code === 'session' && this.session) {
      this.session = null; // cannot be resumed: a new one
      this.greet();
    }
  }

  act(calls, why) {
    const failed = [];
    this.outcome = { outcome: 'executed' };
    for (const call of calls.length ? calls : [null]) {
      try {
        const result = why === 'safe' ? this.on.safe(call) : this.on.execute(call);
        if (result !== undefined) this.outcome.result = String(result);
      } catch (fault) {
        failed.push(call);
        const several = calls.length > 1;
        const error = [this.outcome.error ?? [], several ? `${call.name}: ${fault.message}` : `${fault.message}`].flat().join('; ');
        this.outcome = { outcome: fault instanceof Refused && !several ? 'refused' : 'failed', error };
      }
    }
    return failed.length ? failed.filter(Boolean) : null;
  }

  called(message, now) {
    this.release = big(message.release_ns) ?? this.release;
    // A server of 1.0 knows the first of our safe calls alone.
    const calls = message.status === 'safe' && !(this.welcome.protocol[1] >= 1) ? this.hello.safe_calls : undefined;
    this.on.call?.(message, now);
    const told = this.inForce.call(calls ? { ...message, calls } : message, now);
    if (!told) return;
    const outcome = told === 'expired' ? { outcome: 'expired' } : this.outcome;
    // What was done before would else go on for as long as this call.
    if (this.inForce.state === 'call' && outcome.outcome === 'failed') this.inForce.actSafe();
    this.on.outcome?.(outcome, message);
    this.send({ type: 'executed', session: this.session, tick: message.tick, epoch: message.epoch, t_ns: this.now(), ...outcome });
  }

  // {text, data, arrays}: the world as it was looked at at `stamp`. False where it could not be sent.
  async observe(world, stamp = this.now()) {
    if (this.state !== 'live') return false;
    this.seq += 1;
    return this.send({ type: 'observe', session: this.session, seq: this.seq, epoch: this.inForce.epoch, t_ns: stamp, ...world });
  }

  // 6: the next instant that lies `lead` before a tick's release; null where the ticks or their clock are not known.
  nextObservation(lead, now = this.now()) {
    const clock = this.offset.best();
    if (this.state !== 'live' || this.release === null || !clock) return null;
    const period = BigInt(Math.round(this.welcome.period_ms * 1e6)) || 1n;
    const since = (now - (this.release - clock.offset_ns - lead)) % period;
    return now + period - (since < 0n ? since + period : since);
  }

  async instruct(instruction) {
    return this.state === 'live' && this.send({ type: 'instruct', session: this.session, instruction });
  }

  async reset(ended) { // also while disconnected: it is told after resuming
    this.inForce.reset(this.inForce.epoch + 1);
    return this.state === 'live' && this.send({ type: 'reset', session: this.session, epoch: this.inForce.epoch, ...(ended && { ended }) });
  }

  // The session is over: safe. `again`: a new one, after a pause.
  end(reason, again = false) {
    if (this.inForce.state === 'call') this.inForce.actSafe();
    this.session = null;
    if (again) return this.later(() => this.open());
    this.close();
    this.on.ended?.(reason);
  }

  async bye(reason = 'done') {
    const { socket, session } = this;
    socket.linger = 100;
    if (this.state === 'live') await this.send({ type: 'bye', session, reason });
    this.end(reason);
  }

  close() {
    this.state = 'ended';
    clearInterval(this.timer);
    clearTimeout(this.again);
    this.socket.close();
  }
}
