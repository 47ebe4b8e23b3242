// Runs a client from the installed npm package: `node driver.mjs URL OPTIONS`. Each input line is a script that can use
// `game` and `client`; each output line is an event as JSON. `stuck` has, for each call by name, how often it still
// throws. With the option `own`, Node's own WebSocket is used.

import { createInterface } from "node:readline";
import * as client from "rtcontrol-client";
import ws from "ws";

const [url, given] = process.argv.slice(2);
const { own, looks, ...options } = JSON.parse(given ?? "{}");
const tell = (event, fields = {}) => console.log(JSON.stringify({ event, ...fields }));
const stuck = {};
console.error = () => {};

function carryOut(kind, call, message) {
  if (stuck[call?.name]-- > 0) {
    tell("stuck", { kind, name: call.name });
    throw new Error("It is stuck.");
  }
  const ageMs = message?.t_obs_ns === undefined ? null : (client.nowNs() - message.t_obs_ns) / 1e6;
  tell(kind, { call, tick: message?.tick ?? null, ageMs, ttlMs: message?.ttl_ms ?? null });
}

const game = client.connect(url, {
  ...(own ? {} : { WebSocket: ws }),
  observe: looks === false ? undefined : () => "left 40 right 10",
  onCall: (call, message) => carryOut("call", call, message),
  onSafe: (call, message) => carryOut("safe", call, message),
  onState: (state, detail) => tell("state", { state, detail: typeof detail === "string" ? detail : null, same: game !== undefined }),
  onWelcome: ({ session, resumed, epoch }) => tell("welcome", { session, resumed, epoch }),
  onError: ({ code, message }) => tell("error", { code, message }),
  ...options,
});
game.ready.then(
  () => tell("ready"),
  ({ message }) => tell("unready", { message }),
);
const lines = createInterface({ input: process.stdin });
for await (const line of lines) {
  if (line === "leave") break;
  let value;
  try {
    value = (await new Function("game", "client", "stuck", `return ${line}`)(game, client, stuck)) ?? null;
  } catch (error) {
    value = { error: error.message, code: error.code ?? null };
  }
  tell("did", { value });
}
lines.close();
process.stdin.destroy();
