// A session of the page, driven from outside: `node --experimental-websocket session.mjs PAGE URL`. Each line of the
// input is run with `session` in reach; each line of the output is an event as JSON. `session.stuck` counts, by the names
// of calls, how often each is still to throw.

import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [page, url] = process.argv.slice(2);
const { Session } = await import(pathToFileURL(`${page}/client/session.js`));
const tell = (...event) => console.log(JSON.stringify(event));
const session = new Session(
  url,
  { agent: "paddle", capabilities: ["executed"] },
  { state: (name) => tell("state", name), act, instruct: (text) => tell("instruct", text) },
);
session.stuck = {};

function act(call, kind) {
  if (session.stuck[call?.name]-- > 0) {
    tell("stuck", kind, call.name);
    throw new Error("It is stuck.");
  }
  tell("act", kind, call);
}
session.open();
setInterval(() => session.look(), 20);
for await (const line of createInterface({ input: process.stdin })) {
  tell("did", new Function("session", `return ${line}`)(session) ?? null);
}
process.exit(0);
