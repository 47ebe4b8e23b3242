// The client of rtcontrol for browsers and Node: docs/clients.md, and README.md of this package.

export { Client, connect } from "./client.js";
export { ClockOffset, nowNs } from "./clock.js";
export { Crowd } from "./crowd.js";
export { expired, InForce, safeCalls } from "./inforce.js";
export { PhaseLock } from "./phase.js";
export { Session } from "./session.js";
export { decode, encode, LIMITS, PROTOCOL, WireError } from "./wire.js";
