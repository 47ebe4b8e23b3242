// Messages of docs/protocol.md, sections 2, 4 and 10: bytes to checked messages and back. No socket, no state.
import { decode as unpack, encode as pack } from '@msgpack/msgpack';

export const LIMITS = {
  max_parts: 8, max_message_bytes: 1048576, max_depth: 16,
  max_string_bytes: 65536, max_items: 4096, max_total_items: 16384,
};
const DTYPES = { b1: 1, i1: 1, u1: 1, i2: 2, u2: 2, f2: 2, i4: 4, u4: 4, f4: 4, i8: 8, u8: 8, f8: 8 };

export class WireError extends Error {
  constructor(code, field, message) {
    super(`${field ?? 'message'}: ${message}`);
    this.code = code;
    this.field = field;
  }
}
const refuse = (code, field, message) => { throw new WireError(code, field, message); };
const invalid = (field, message) => refuse('invalid', field, message);

// Integers are numbers where a double holds them exactly, else BigInts.
const isInt = (v) => typeof v === 'bigint' || Number.isInteger(v);
const slim = (v) => (v >= Number.MIN_SAFE_INTEGER && v <= Number.MAX_SAFE_INTEGER ? Number(v) : v);
const isMap = (v) => typeof v === 'object' && v !== null && !Array.isArray(v);
const bytesOf = (text) => Buffer.byteLength(text, 'utf8');
const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

// Kinds of fields: each returns the value to keep, or refuses it.
const integer = (min, max) => (v, path) =>
  isInt(v) && v >= min && v <= max ? slim(BigInt(v)) : invalid(path, `must be an integer from ${min} to ${max}`);
const number = (min, max, above = false) => (v, path) =>
  (typeof v === 'number' || typeof v === 'bigint') && (above ? v > min : v >= min) && v <= max
    ? v : invalid(path, `must be a number from ${min} to ${max}`);
const string = (min, max, maxBytes = Infinity) => (v, path) => {
  if (typeof v !== 'string') invalid(path, 'must be a string');
  const length = [...v].length;
  if (length < min || length > max || bytesOf(v) > maxBytes) invalid(path, 'is too short or too long');
  return v;
};
const bool = (v, path) => (typeof v === 'boolean' ? v : invalid(path, 'must be true or false'));
const free = (v) => v;
const anyMap = (v, path) => (isMap(v) ? v : invalid(path, 'must be a map'));
const oneOf = (...values) => (v, path) => (values.includes(v) ? v : invalid(path, `must be one of ${values.join(', ')}`));
const list = (kind, min = 0, max = Infinity) => (v, path) =>
  Array.isArray(v) && v.length >= min && v.length <= max
    ? v.map((item, i) => kind(item, `${path}[${i}]`)) : invalid(path, `must be a list of ${min} to ${max}`);
const mapOf = (kind) => (v, path) =>
  Object.fromEntries(Object.entries(anyMap(v, path)).map(([k, item]) => [k, kind(item, `${path}.${k}`)]));
const record = (fields) => (v, path) => {
  anyMap(v, path);
  const kept = {};
  for (const [name, kind] of Object.entries(fields)) {
    const at = path ? `${path}.${name}` : name;
    const value = v[name] ?? kind.default;
    if (value !== undefined) kept[name] = kind(value, at);
    else if (!kind.optional) invalid(at, 'is missing');
  }
  return kept; // unknown fields and nulls are left behind
};
const may = (kind, value) => Object.assign((v, path) => kind(v, path), { optional: true, default: value });

const count = integer(0, Number.MAX_SAFE_INTEGER);
const instant = integer(0n, 2n ** 63n - 1n);
const duration = number(0, 1e9);
const token = string(16, 128);
const any = string(0, Infinity);
const long = string(0, Infinity, 65536);
const callMap = record({ name: string(1, 256), arguments: may(anyMap, {}) });
const safeCalls = may(list(callMap, 1, 16));
const peer = record({ name: string(1, 64), version: may(string(0, 64)), language: may(string(0, 64)) });
const pacing = oneOf('server', 'client');
const onMiss = oneOf('hold', 'safe');
const session = { type: free, session: token };
const bytes = (v, path) => (v instanceof Uint8Array ? v : invalid(path, 'must be bytes'));
const arrayEntry = (v, path) => {
  const array = record({
    name: string(1, 64), dtype: oneOf(...Object.keys(DTYPES)), shape: list(integer(0, 2 ** 30), 0, 8), bytes,
  })(v, path);
  const size = array.shape.reduce((a, n) => a * BigInt(n), BigInt(DTYPES[array.dtype]));
  if (size !== BigInt(array.bytes.length)) invalid(path, `needs ${size} bytes, has ${array.bytes.length}`);
  return array;
};

const MESSAGES = {
  hello: {
    type: free, protocol: list(count, 2, 2), client: peer, t_client_ns: instant,
    capabilities: may(list(string(1, 64), 0, 32)), agent: may(string(0, 256)), tools: may(list(anyMap, 1, 64)),
    instruction: may(long), model: may(string(0, 256)), safe_call: may(callMap), safe_calls: safeCalls, pacing: may(pacing),
    hz: may(number(0.001, 10000)), deadline_ms: may(number(0, 1e9, true)), ttl_ms: may(duration),
    max_age_ms: may(number(0, 1e9, true)), on_miss: may(onMiss), hold_ms: may(duration),
    robot: may(string(1, 64)), resume: may(token),
  },
  welcome: {
    type: free, protocol: list(count, 2), server: peer, session: token, resumed: bool, epoch: count,
    t_client_ns: instant, t_server_ns: instant, capabilities: may(list(any)), agent: may(any), tools: list(anyMap),
    instruction: any, model: any, model_trained_on_tools: bool, trained: may(bool), release_ns: may(instant), safe_call: may(callMap), safe_calls: safeCalls, pacing,
    hz: number(0, Infinity), period_ms: duration, deadline_ms: duration, ttl_ms: duration, max_age_ms: duration,
    hold_ms: duration, on_miss: onMiss, heartbeat_ms: duration, session_grace_s: number(0, Infinity),
    limits: mapOf(integer(-(2n ** 63n), 2n ** 64n - 1n)), warnings: may(list(any)),
  },
  observe: {
    ...session, seq: count, epoch: count, t_ns: instant, text: may(long), data: may(anyMap),
    arrays: may(list(arrayEntry, 0, 16)),
  },
  call: {
    ...session, tick: count, epoch: count, seq_obs: may(count), t_obs_ns: may(instant),
    status: oneOf('fresh', 'held', 'safe'), call: may(callMap), calls: safeCalls, ttl_ms: duration, release_ns: may(instant), deadline_ns: instant,
    t_server_ns: instant, confidence: may(number(0, 1)), cause: may(any),
    timing: may(record({ age_ms: may(duration), decide_ms: may(duration), late_ms: may(duration) })),
  },
  executed: {
    ...session, tick: count, epoch: count, outcome: oneOf('executed', 'expired', 'failed', 'refused'),
    t_ns: instant, result: may(long), error: may(long),
  },
  instruct: { ...session, instruction: long, said: may(long), by: may(any), confidence: may(number(0, 1)) },
  reset: {
    ...session, epoch: count,
    ended: may(record({
      seed: may(integer(-(2n ** 63n), 2n ** 64n - 1n)), return: may(number(-Infinity, Infinity)),
      success: may(bool), seconds: may(number(0, Infinity)),
    })),
  },
  ping: { type: free, id: count, t_ns: instant },
  pong: { type: free, id: count, t_ping_ns: instant, t_received_ns: instant, t_sent_ns: instant },
  error: {
    type: free, code: any, message: any, remedy: may(any), field: may(any), seq: may(count), t_client_ns: may(instant),
    retryable: may(bool), fatal: may(bool), dropped: may(count),
  },
  bye: { type: free, session: may(token), reason: may(string(0, 1024)) },
};

// Fields of a message: the checked copy without nulls and unknown fields. Another major version is told first.
export function check(message) {
  const known = typeof message.type === 'string' && Object.hasOwn(MESSAGES, message.type);
  const fields = known ? MESSAGES[message.type] : invalid('type', 'is unknown');
  const { protocol } = message;
  if (fields.protocol && Array.isArray(protocol) && isInt(protocol[0]) && protocol[0] !== 1) {
    refuse('version', 'protocol', 'the major version must be 1');
  }
  const kept = record(fields)(message, '');
  if (kept.type === 'observe' && kept.text === undefined && kept.data === undefined && !kept.arrays?.length) {
    invalid('text', 'an observation needs text, data or arrays');
  }
  return kept;
}

// Values of section 2 and the limits of section 10, for whatever was decoded; strings come out of their raw bytes.
function values(root, limits) {
  let total = 0;
  const walk = (v, path, depth) => {
    if (v instanceof Uint8Array) {
      try { v = utf8.decode(v); } catch { refuse('malformed', path, 'is not UTF-8'); }
    }
    if (typeof v === 'string') {
      if (!v.isWellFormed()) refuse('malformed', path, 'has a lone surrogate');
      if (!/^arrays\[\d+\]\.base64$/.test(path) && bytesOf(v) > limits.max_string_bytes) refuse('too_large', path, 'is too long a string');
      return v;
    }
    if (typeof v === 'number' && !Number.isFinite(v)) invalid(path, 'must be finite');
    if (typeof v === 'bigint' && (v < -(2n ** 63n) || v >= 2n ** 64n)) invalid(path, 'must be within 64 bits');
    if (typeof v === 'bigint') return slim(v);
    if (typeof v !== 'object' || v === null) return v;
    if (depth > limits.max_depth) refuse('too_large', path, 'is nested too deeply');
    const entries = Object.entries(v);
    total += entries.length;
    if (entries.length > limits.max_items || total > limits.max_total_items) refuse('too_large', path, 'has too many items');
    if (Array.isArray(v)) return v.map((item, i) => walk(item, `${path}[${i}]`, depth + 1));
    return Object.fromEntries(entries.map(([k, item]) => [walk(k, path), walk(item, path ? `${path}.${k}` : k, depth + 1)]));
  };
  return walk(root, '', 1);
}

// Swap each array's `part` or `base64` for its bytes.
function attach(header, bytesFor) {
  if (!Array.isArray(header.arrays) || header.type !== 'observe') return header;
  if (!header.arrays.every(isMap)) invalid('arrays', 'must be maps');
  return { ...header, arrays: header.arrays.map((a, i) => ({ ...a, bytes: bytesFor(a, `arrays[${i}]`) })) };
}

export function decode(parts, limits = LIMITS) {
  if (!parts.length) refuse('malformed', null, 'there is no header');
  const size = parts.reduce((sum, p) => sum + p.length, 0);
  if (parts.length > limits.max_parts || size > limits.max_message_bytes) refuse('too_large', null, 'is too large');
  let raw;
  try {
    const options = {
      useBigInt64: true, maxArrayLength: limits.max_items, maxMapLength: limits.max_items,
      mapKeyConverter: (key) => (typeof key === 'string' ? key : refuse('malformed', null, 'has a key that is no string')),
    };
    unpack(parts[0], { ...options, maxBinLength: -1, maxExtLength: -1 }); // refuses bin and ext, also empty ones
    raw = unpack(parts[0], { ...options, rawStrings: true }); // what is bytes now is strings, whose UTF-8 is still unchecked
  } catch (fault) {
    if (fault instanceof WireError) throw fault;
    refuse(/Max length exceeded: (array|map)/.test(fault.message) ? 'too_large' : 'malformed', null, fault.message);
  }
  if (!isMap(raw) || raw instanceof Uint8Array) refuse('malformed', null, 'the header is no map');
  const used = new Set();
  const header = attach(values(raw, limits), (array, path) => {
    const part = array.part;
    if (!Number.isInteger(part) || part < 1 || part >= parts.length || used.has(part)) invalid(`${path}.part`, 'names no part of its own');
    used.add(part);
    return parts[part];
  });
  const message = check(header);
  if (used.size !== parts.length - 1) refuse('malformed', null, 'a part belongs to no array');
  return message;
}

// Integers beyond 32 bits as BigInt: the packer writes such numbers as floats otherwise.
const widen = (v) => {
  if (Number.isInteger(v) && Math.abs(v) >= 2 ** 31 && Math.abs(v) < 2 ** 63) return BigInt(v);
  if (Array.isArray(v)) return v.map(widen);
  return isMap(v) ? Object.fromEntries(Object.entries(v).map(([k, item]) => [k, widen(item)])) : v;
};

export function encode(message) {
  const { arrays, ...header } = check(message);
  const parts = arrays?.map((a) => a.bytes) ?? [];
  if (arrays) header.arrays = arrays.map(({ bytes: _, ...a }, i) => ({ ...a, part: i + 1 }));
  return [pack(widen(header), { useBigInt64: true }), ...parts];
}

// JSON, for the vectors (this client speaks ZeroMQ): whole numbers stay exact, NaN and Infinity are read to be refused.
const TAG = `number ${crypto.randomUUID()} `;
export function decodeJson(text, limits = LIMITS) {
  if (bytesOf(text) > limits.max_message_bytes) refuse('too_large', null, 'is too large');
  let depth = 0;
  const tagged = text.replace(/"(?:[^"\\]|\\.)*"|[[\]{}]|-?Infinity|NaN|(?<![\d.eE+-])-?\d{16,}(?![\d.eE])/g, (m) => {
    if (m === '[' || m === '{') depth += 1;
    if (m === ']' || m === '}') depth -= 1;
    if (depth > limits.max_depth) refuse('too_large', null, 'is nested too deeply');
    return /^["[\]{}]/.test(m) ? m : `"${TAG}${m}"`;
  });
  let raw;
  try {
    raw = JSON.parse(tagged, (_, v) => {
      if (typeof v !== 'string' || !v.startsWith(TAG)) return v;
      const digits = v.slice(TAG.length);
      return /\d/.test(digits) ? BigInt(digits) : Number(digits);
    });
  } catch (fault) { refuse('malformed', null, fault.message); }
  if (!isMap(raw)) refuse('malformed', null, 'is no object');
  return check(attach(values(raw, limits), (array, path) => {
    const decoded = typeof array.base64 === 'string' ? Buffer.from(array.base64, 'base64') : null;
    if (decoded?.toString('base64') !== array.base64) invalid(`${path}.base64`, 'is not padded base64');
    return decoded;
  }));
}

export function encodeJson(message) {
  const bigs = [];
  const text = JSON.stringify(check(message), function (key, v) {
    if (typeof v === 'bigint') return `${TAG}${bigs.push(v) - 1}`;
    if (key === 'arrays' && this.type === 'observe') return v.map(({ bytes: b, ...a }) => ({ ...a, base64: Buffer.from(b).toString('base64') }));
    return v;
  });
  return text.replace(new RegExp(`"${TAG}(\\d+)"`, 'g'), (_, i) => bigs[i]);
}
