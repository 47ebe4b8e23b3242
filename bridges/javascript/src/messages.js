// The messages of protocol 1.1: fields, their types and bounds (docs/protocol.md, section 4). No DOM, no dependencies.

export const PROTOCOL = [1, 1];

const ITEM_BYTES = { b1: 1, i1: 1, u1: 1, i2: 2, u2: 2, i4: 4, u4: 4, i8: 8, u8: 8, f2: 2, f4: 4, f8: 8 };

/** A message that is refused: `code` as in docs/protocol.md, `field` (a path) where one is to blame. */
export class WireError extends Error {
  constructor(code, message, field = null) {
    super(message);
    this.code = code;
    this.field = field;
  }
}

// Each check takes (value, path) and throws WireError; `optional` marks fields that may be absent.
export const fail = (path, what) => {
  throw new WireError("invalid", `${path}: ${what}`, path);
};
const number = (min, max) => (v, path) => {
  if (typeof v !== "number" && typeof v !== "bigint") fail(path, "not a number");
  if (v < min || v > max) fail(path, `not within ${min} to ${max}`);
};
const integer = (min, max) => (v, path) => {
  if (typeof v !== "bigint" && !Number.isInteger(v)) fail(path, "not an integer");
  if (v < min || v > max) fail(path, `not within ${min} to ${max}`);
};
const string = (min, max) => (v, path) => {
  if (typeof v !== "string") fail(path, "not a string");
  const length = v.length > max ? [...v].length : v.length;
  if (length < min || length > max) fail(path, `not ${min} to ${max} characters`);
};
const boolean = (v, path) => {
  if (typeof v !== "boolean") fail(path, "not a boolean");
};
export const isMap = (v) => typeof v === "object" && v !== null && !Array.isArray(v);
const map = (v, path) => {
  if (!isMap(v)) fail(path, "not a map");
};
const list = (min, max, item) => (v, path) => {
  if (!Array.isArray(v)) fail(path, "not a list");
  if (v.length < min || v.length > max) fail(path, `not ${min} to ${max} items`);
  v.forEach((entry, i) => item(entry, `${path}[${i}]`));
};
const oneOf = (...values) => (v, path) => {
  if (!values.includes(v)) fail(path, `not one of ${values.join(", ")}`);
};
const part = (fields) => (v, path) => {
  map(v, path);
  check(v, fields, path);
};
const optional = (inner) => Object.assign((v, path) => inner(v, path), { optional: true });

const COUNT = integer(0, Number.MAX_SAFE_INTEGER);
const NS = integer(0, 2n ** 63n - 1n);
const MS = number(0, 1e9);
const NAME = string(1, 64);
const TEXT = string(0, 65536);
const TOKEN = string(16, 128);
const HERTZ = number(0.001, 10000);
const PACING = oneOf("server", "client");
const CALL = part({ name: string(1, 256), arguments: optional(map) });
const SAFE_CALLS = optional(list(1, 16, CALL));
const PROGRAM = part({ name: NAME, version: optional(string(0, 64)), language: optional(string(0, 64)) });
const ARRAY = (v, path) => {
  if (!isMap(v)) fail(path.replace(/\[\d+\]$/, ""), "not a list of maps");
  check(v, { name: NAME, dtype: oneOf(...Object.keys(ITEM_BYTES)), shape: list(0, 8, integer(0, 1 << 30)) }, path);
  const data = base64Bytes(v.base64, `${path}.base64`);
  const need = v.shape.reduce((a, b) => a * b, 1) * ITEM_BYTES[v.dtype];
  if (data !== need) fail(path, `${data} bytes, but shape x dtype needs ${need}`);
};

const ON_MISS = oneOf("hold", "safe");
const WORDS = string(0, Infinity);
const each = (check, names) => Object.fromEntries(names.split(" ").map((name) => [name, check]));
const maybe = (check, names) => each(optional(check), names);

const CALL_FIELDS = {
  ...each(COUNT, "tick epoch"),
  seq_obs: optional(COUNT),
  t_obs_ns: optional(NS),
  status: oneOf("fresh", "held", "safe"),
  call: optional(CALL),
  calls: SAFE_CALLS,
  ttl_ms: MS,
  confidence: optional(number(0, 1)),
  cause: optional(WORDS),
  timing: optional(part(maybe(MS, "age_ms decide_ms late_ms"))),
};

// Of a crowd: so many members, and so many parts of a message.
const MOST = 4096;
const PARTS = 1024;
const MEMBERS = integer(1, MOST);
const MEMBER = part({
  id: NAME,
  epoch: optional(COUNT),
  instruction: optional(TEXT),
  hz: optional(HERTZ),
  ...maybe(MS, "deadline_ms ttl_ms"),
  priority: optional(integer(0, 9)),
  every_tick: optional(boolean),
  safe_calls: SAFE_CALLS,
});
const LOOK = part({ id: NAME, seq: COUNT, t_ns: NS, text: optional(TEXT), data: optional(map) });
/** The messages with a part a member, and the list that has them. */
export const WITH_PARTS = { join: "members", observe_many: "looks", call_many: "calls" };

const FIELDS = {
  hello: {
    protocol: list(2, 2, COUNT),
    client: PROGRAM,
    t_client_ns: NS,
    capabilities: optional(list(0, 32, NAME)),
    tools: optional(list(1, 64, map)),
    instruction: optional(TEXT),
    ...maybe(string(0, 256), "agent model"),
    safe_call: optional(CALL),
    safe_calls: SAFE_CALLS,
    pacing: optional(PACING),
    hz: optional(HERTZ),
    ...maybe(MS, "deadline_ms ttl_ms max_age_ms hold_ms"),
    on_miss: optional(ON_MISS),
    robot: optional(NAME),
    crowd: optional(part({ members: optional(MEMBERS) })),
    resume: optional(TOKEN),
  },
  welcome: {
    protocol: list(0, Infinity, COUNT),
    server: PROGRAM,
    session: TOKEN,
    ...each(boolean, "resumed model_trained_on_tools"),
    epoch: COUNT,
    ...each(NS, "t_client_ns t_server_ns"),
    capabilities: optional(list(0, Infinity, NAME)),
    agent: optional(WORDS),
    tools: list(0, Infinity, map),
    ...each(WORDS, "instruction model"),
    trained: optional(boolean),
    release_ns: optional(NS),
    safe_call: optional(CALL),
    safe_calls: SAFE_CALLS,
    pacing: PACING,
    hz: HERTZ,
    ...each(MS, "period_ms deadline_ms ttl_ms max_age_ms hold_ms heartbeat_ms"),
    on_miss: ON_MISS,
    crowd: optional(part(each(MEMBERS, "members parts"))),
    session_grace_s: number(0, Infinity),
    limits: (v, path) => {
      map(v, path);
      for (const [name, limit] of Object.entries(v)) COUNT(limit, `${path}.${name}`);
    },
    warnings: optional(list(0, Infinity, WORDS)),
  },
  observe: {
    session: TOKEN,
    ...each(COUNT, "seq epoch"),
    t_ns: NS,
    text: optional(TEXT),
    data: optional(map),
    arrays: optional(list(0, 16, ARRAY)),
  },
  call: { session: TOKEN, ...CALL_FIELDS, release_ns: optional(NS), ...each(NS, "deadline_ns t_server_ns") },
  executed: {
    session: TOKEN,
    ...each(COUNT, "tick epoch"),
    outcome: oneOf("executed", "expired", "failed", "refused"),
    t_ns: NS,
    ...maybe(TEXT, "result error"),
  },
  instruct: {
    session: TOKEN,
    instruction: TEXT,
    said: optional(TEXT),
    by: optional(WORDS),
    confidence: optional(number(0, 1)),
  },
  reset: {
    session: TOKEN,
    epoch: COUNT,
    ended: optional(
      part({
        seed: optional(integer(-(2n ** 63n), 2n ** 64n - 1n)),
        return: optional(number(-Infinity, Infinity)),
        success: optional(boolean),
        seconds: optional(number(0, Infinity)),
      }),
    ),
  },
  control: {
    session: TOKEN,
    say: optional(oneOf("pause", "resume", "stop", "confirm", "deny")),
    state: optional(oneOf("running", "paused", "stopped")),
    id: optional(COUNT),
    call: optional(CALL),
    instruction: optional(TEXT),
    ttl_ms: optional(MS),
  },
  ping: { id: COUNT, t_ns: NS },
  pong: { id: COUNT, ...each(NS, "t_ping_ns t_received_ns t_sent_ns") },
  error: {
    ...each(WORDS, "code message"),
    ...maybe(WORDS, "remedy field"),
    ...maybe(COUNT, "seq dropped"),
    t_client_ns: optional(NS),
    ...maybe(boolean, "retryable fatal"),
    members: optional(
      list(0, 64, part({ ...each(WORDS, "code message"), ...maybe(WORDS, "id remedy field"), seq: optional(COUNT) })),
    ),
  },
  join: { session: TOKEN, members: list(0, PARTS, MEMBER) },
  leave: { session: TOKEN, ids: list(0, MOST, NAME) },
  observe_many: { session: TOKEN, looks: list(0, PARTS, LOOK) },
  call_many: { session: TOKEN, t_server_ns: NS, calls: list(0, PARTS, part({ id: NAME, ...CALL_FIELDS })) },
  bye: { session: optional(TOKEN), reason: optional(string(0, 1024)), reconnect: optional(boolean) },
};

/** Whether a version is spoken here: of this major version, and no earlier minor one. */
export const spoken = ([major, minor]) => Number(major) === PROTOCOL[0] && !(Number(minor) < PROTOCOL[1]);

/** Throws WireError for a message with a missing or wrong field. */
export function validate(message) {
  const fields = Object.hasOwn(FIELDS, message.type) ? FIELDS[message.type] : null;
  if (!fields) throw new WireError("invalid", `type is ${JSON.stringify(message.type)}`, "type");
  const version = message.type === "hello" && Array.isArray(message.protocol) ? message.protocol : [];
  if (version.length && version.every((part) => Number.isInteger(part) && part >= 0) && !spoken(version)) {
    throw new WireError("version", `version ${version}`, "protocol");
  }
  check(message, fields, "");
  if (message.type === "observe" && !message.text && message.text !== "" && !message.data && !message.arrays?.length) {
    fail("text", "one of text, data and arrays is needed");
  }
}

/** Leaves out the parts that are wrong, each by itself; `first` is asked before the fields. Gives how many there were. */
export function leaveOutWrongParts(message, first) {
  const name = WITH_PARTS[message.type];
  const given = message[name];
  if (!Array.isArray(given) || given.length > PARTS) return 0;
  message[name] = given.filter((one) => {
    try {
      if (isMap(one)) first(one);
      FIELDS[message.type][name]([one], name);
      return true;
    } catch (error) {
      if (error instanceof WireError) return false;
      throw error;
    }
  });
  return given.length - message[name].length;
}

function check(value, fields, path) {
  for (const [name, test] of Object.entries(fields)) {
    const here = path ? `${path}.${name}` : name;
    const given = Object.hasOwn(value, name) ? value[name] : undefined;
    if (given === undefined || given === null) {
      if (!test.optional) fail(here, "missing");
    } else {
      test(given, here);
    }
  }
}

/** How many bytes a base64 text (RFC 4648, padded) stands for. */
function base64Bytes(text, path) {
  const valid = typeof text === "string" && text.length % 4 === 0 && /^[A-Za-z0-9+/]*={0,2}$/.test(text);
  if (!valid) fail(path, "no base64");
  return (text.length / 4) * 3 - (text.endsWith("==") ? 2 : text.endsWith("=") ? 1 : 0);
}
