// Runs a client through the behaviour table (bridges/behaviour): `node behaviour.mjs MODULE`. Time and sockets are
// simulated. Each input line has a case's options, or a step; each answer has the client's actions and its state.

import { createInterface } from "node:readline";

let now = 0;
let slept = 0; // of it, while the machine was suspended
let timers = [];
let up = false;
let game;
let crowd = false;
let sends = [];
let acts = [];
let sockets = [];
let connections = 0;

const later = (run, ms, every) => {
  const timer = { at: now + Math.max(0, ms), run, every };
  timers.push(timer);
  return timer;
};
const never = (timer) => {
  timers = timers.filter((one) => one !== timer);
};
Object.defineProperty(globalThis, "performance", { value: { now: () => now - slept } });
Date.now = () => now;
Object.assign(globalThis, {
  setTimeout: (run, ms) => later(run, ms),
  setInterval: (run, ms) => later(run, ms, ms),
  clearTimeout: never,
  clearInterval: never,
});
console.error = () => {};

class Socket {
  readyState = 0;
  bufferedAmount = 0;

  constructor() {
    sockets.push(this);
    if (up) later(() => this.open(), 0);
  }

  open() {
    if (this.readyState !== 0) return;
    this.readyState = 1;
    connections += 1;
    this.onopen();
  }

  send(text) {
    sends.push(JSON.parse(text));
  }

  close() {
    this.readyState = 3;
  }
}

function advance(ms) {
  for (;;) {
    timers.sort((a, b) => a.at - b.at);
    const [next] = timers;
    if (!next || next.at > ms) break;
    now = next.at;
    if (next.every) next.at += next.every;
    else never(next);
    next.run();
  }
  now = ms;
}

/** Suspend the machine: timers and performance.now() pause. */
function sleep(ms) {
  for (const timer of timers) timer.at += ms - now;
  slept += ms - now;
  now = ms;
}

function put(step) {
  const socket = sockets.at(-1);
  if (step.net) {
    up = step.net === "up";
    if (up) socket.open();
    else if (socket.readyState === 1) {
      socket.readyState = 3;
      socket.onclose();
    }
  }
  if (step.receive) socket.onmessage({ data: JSON.stringify(step.receive) });
  if (step.bytes !== undefined) socket.onmessage({ data: step.bytes });
  if (step.observe) game.observe(step.observe);
  if (step.instruct) game.instruct(step.instruct);
  if (step.reset) game.reset(step.reset);
  if (step.join) game.join(step.join.id, step.join);
  if (step.leave) game.leave(step.leave);
  if (step.looks) game.observe(step.looks);
}

function active({ status, cause, calls }) {
  if (status === "safe") return cause === "no_call_yet" ? "none" : `safe ${cause}`;
  return `call ${calls.map((call) => call.name).join("+")}`;
}

function seen() {
  advance(now);
  const members = Object.fromEntries([...(crowd ? game.members.keys() : [])].map((id) => [id, active(game.call(id))]));
  const state = { live: "live", refused: "ended", closed: "ended" }[game.state] ?? "away";
  const told = { sends, acts, state, members, active: crowd ? "none" : active(game.inForce()) };
  [sends, acts] = [[], []];
  return { ...told, offset_ms: game.clockOffset?.offsetMs ?? null, connections };
}

const { connect, Crowd } = await import(process.argv[2]);
for await (const line of createInterface({ input: process.stdin })) {
  const given = JSON.parse(line);
  if (given.options) {
    const { tools, instruction, safe_calls: safeCall, ttl_ms: ttlMs, persist, fails } = given.options;
    [now, timers, up, sends, acts, sockets, connections] = [1000, [], false, [], [], [], 0];
    const act = (call) => {
      if (call) acts.push(call.name);
      if (fails.includes(call?.name)) throw new Error("No.");
    };
    const hello = { tools, instruction, safe_call: safeCall[0], safe_calls: safeCall, ttl_ms: ttlMs };
    crowd = given.options.crowd;
    game = crowd && new Crowd("ws://127.0.0.1:1/ws", hello, {}, { persist, WebSocketClass: Socket });
    if (crowd) [game.open(), later(() => game.look(), 10, 10)];
    game ||= connect("ws://127.0.0.1:1/ws", { tools, instruction, safeCall, ttlMs, persist, WebSocket: Socket, onCall: act, onSafe: act });
    await null;
  } else {
    if (given.sleeps) sleep(given.ms);
    advance(given.ms);
    put(given);
  }
  console.log(JSON.stringify(seen()));
}
