// Causes faults around a session with simulated sockets: `node faults.mjs SRC`. Prints "ok" if nothing was thrown.

import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";

const load = (name) => import(pathToFileURL(`${process.argv[2]}/${name}.js`));
const { Session } = await load("session");
const { Crowd } = await load("crowd");
console.error = () => {};
const REST = { name: "move", arguments: { velocity: 0 } };
const MOVE = { name: "move", arguments: { velocity: 2 } };
const SECRET = "a-secret-0123456789";
let socket;

class Socket {
  readyState = 0;
  bufferedAmount = 0;
  sent = [];

  constructor() {
    socket = this;
  }

  send(text) {
    this.sent.push(JSON.parse(text));
  }

  close() {
    this.readyState = 3;
  }

  hear(message) {
    this.onmessage({ data: JSON.stringify(message) });
  }

  newest(type) {
    return this.sent.findLast((message) => message.type === type);
  }
}

function welcomed(session, crowd = {}) {
  const token = "s".repeat(24);
  session.open();
  socket.readyState = 1;
  socket.onopen();
  const ms = { period_ms: 100, deadline_ms: 100, hold_ms: 100, ttl_ms: 0, heartbeat_ms: 60_000, max_age_ms: 60_000 };
  const server = { server: { name: "test" }, tools: [{ name: "move" }], model: "none", limits: {}, safe_call: REST };
  const terms = { pacing: "server", hz: 10, on_miss: "hold", session_grace_s: 30, model_trained_on_tools: false, instruction: "play" };
  const stamps = { epoch: 0, t_server_ns: 0, t_client_ns: socket.newest("hello").t_client_ns };
  socket.hear({ type: "welcome", protocol: [1, 1], session: token, resumed: false, ...crowd, ...ms, ...server, ...terms, ...stamps });
  assert.equal(session.state, "live", JSON.stringify(socket.newest("error")));
  return token;
}

function moving(session, token, more = {}) {
  assert.ok(session.observe({ x: 1 }));
  const { seq, t_ns } = socket.newest("observe");
  const call = { tick: 0, epoch: 0, status: "fresh", call: MOVE, seq_obs: seq, t_obs_ns: t_ns, ttl_ms: 60_000, deadline_ns: 0 };
  socket.hear({ type: "call", session: token, ...call, t_server_ns: 0, ...more });
}

const made = (on) => new Session("ws://a:1/ws", { agent: "paddle", capabilities: ["executed"] }, on, { WebSocketClass: Socket });

// websockets/ws#1207: after a listener threw an error, no further message was read.
{
  let thrown = 0;
  const acts = [];
  const broken = () => {
    thrown += 1;
    throw new Error("It is broken.");
  };
  const names = ["state", "welcome", "call", "instruct", "error"];
  const session = made({ ...Object.fromEntries(names.map((name) => [name, broken])), act: (call, kind) => acts.push([kind, call]) });
  const token = welcomed(session);
  socket.hear({ type: "error", code: "unsure", message: "What?" });
  socket.hear({ type: "instruct", session: token, instruction: "aim high" });
  moving(session, token);
  assert.deepEqual(acts.at(-1), ["call", MOVE]);
  assert.equal(socket.newest("executed").outcome, "executed");
  assert.equal(thrown, ["connecting", "opening", "live"].length + names.length - 1);
  session.close();
}

// socketio/socket.io-client#658: sending from a handler while the connection ends threw an error.
const error = (more) => (token) => socket.hear({ type: "error", code: "state", message: "It stops.", fatal: true, ...more });
const ENDS = {
  closed: (token, session) => session.close(),
  bye: (token) => socket.hear({ type: "bye", session: token }),
  lost: () => ((socket.readyState = 3), socket.onclose()),
  stopped: error({}),
  full: error({ code: "busy", retryable: true }),
};
for (const [name, end] of Object.entries(ENDS)) {
  const safe = [];
  const session = made({
    act: (call, kind) => {
      if (kind !== "safe") return;
      safe.push(call);
      const said = [session.observe({ x: 1 }), session.instruct("stop"), session.nextLookNs(), session.hasRoom];
      assert.deepEqual([...said, session.nextObservationNs(1)], [false, false, null, false, null], name);
    },
  });
  const token = welcomed(session);
  moving(session, token, { ttl_ms: 0 });
  end(token, session);
  session.look();
  session.look();
  assert.deepEqual(safe, [REST], name);
  session.close();
}

// Hy4ri/hermes-mobile#255, duplicati/duplicati#5550: tokens in addresses appeared in logs and crash reports.
for (const token of [`${SECRET} with spaces`, "short", 17, SECRET]) {
  const told = [];
  const Refusing = function (url, protocols) {
    throw new Error(`'${protocols[1]}' of ${url} is invalid.`);
  };
  const options = { token, WebSocketClass: Refusing };
  new Session(`ws://a:1/ws?token=${SECRET}-too`, { agent: "paddle" }, { state: (...event) => told.push(event) }, options).open();
  const text = JSON.stringify(told);
  assert.match(text, /"refused","ws:\/\/a:1\/ws cannot be opened/);
  assert.ok(!text.includes(SECRET) && !text.includes(`${token}`), text);
  assert.equal(text.includes("the access token"), token !== SECRET);
}

// can1357/oh-my-pi#4248, websockets/ws#1620: messages to an open but slow socket pile up without bound.
{
  const crowd = new Crowd("ws://a:1/ws", { agent: "paddle" }, {}, { WebSocketClass: Socket });
  crowd.join("anna");
  crowd.join("bert");
  welcomed(crowd, { crowd: { members: 9, parts: 9 } });
  socket.bufferedAmount = 1e6;
  for (let i = 0; i < 1000; i += 1) assert.equal(crowd.observe({ anna: `look ${i}`, bert: `look ${i}` }), false);
  assert.equal(socket.newest("observe_many"), undefined);
  assert.deepEqual([crowd.looks.size, crowd.count.superseded], [2, 1998]);
  socket.bufferedAmount = 0;
  crowd.look();
  assert.deepEqual(socket.newest("observe_many").looks.map((look) => look.text), ["look 999", "look 999"]);
}

console.log("ok");
process.exit(0);
