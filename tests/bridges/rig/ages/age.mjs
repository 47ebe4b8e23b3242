// node age.mjs CLIENT URL TIMED SECONDS: how old each call's observation is when the call is carried out, in ms, as JSON.
import { createRequire } from "node:module";
const [, , source, url, timed, seconds] = process.argv;
const { connect } = await import(source);
const { flight } = await import("./flight.mjs");
const WebSocket = globalThis.WebSocket ?? createRequire(`${process.cwd()}/`)("ws");
const { ages, client } = flight(connect, url, timed === "1", { WebSocket });
await client.ready;
setTimeout(() => {
  client.close();
  console.log(JSON.stringify(ages));
  setTimeout(() => process.exit(0), 200);
}, 1000 * seconds);
