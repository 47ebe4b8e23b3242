// A crowd of the page, driven from outside: `node --experimental-websocket crowd.mjs PAGE URL HELLO`. Each line of the
// input is run with `crowd` in reach; each line of the output is an event as JSON. `crowd.stuck` counts, by member, how
// often its next calls are to throw.

import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [page, url, hello] = process.argv.slice(2);
const { Crowd, inMessages } = await import(pathToFileURL(`${page}/client/crowd.js`));
const tell = (...event) => console.log(JSON.stringify(event));
console.error = () => {};
const crowd = new Crowd(url, JSON.parse(hello), {
  state: (name, detail) => tell("state", name, ...(typeof detail === "string" ? [detail] : [])),
  act,
  call: (id, { status, cause }) => tell("call", id, status, cause ?? null),
  refused: ({ id, code }) => tell("refused", id, code),
});
crowd.stuck = {};
crowd.inMessages = (parts) => [...inMessages(parts)].map((some) => some.length);

function act(id, call, kind) {
  if (crowd.stuck[id]-- > 0) throw new Error("It is stuck.");
  tell("act", id, kind, call);
}

crowd.open();
setInterval(() => crowd.look(), 20);
for await (const line of createInterface({ input: process.stdin })) {
  let found;
  try {
    found = new Function("crowd", `return ${line}`)(crowd) ?? null;
  } catch (error) {
    found = `${error}`;
  }
  tell("did", found);
}
process.exit(0);
