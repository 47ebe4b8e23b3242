// Protocol 1.1 as JSON texts: encode, decode and check every message (docs/protocol.md). No DOM, no dependencies.

import { fail, isMap, leaveOutWrongParts, PROTOCOL, validate, WireError, WITH_PARTS } from "./messages.js";

export { PROTOCOL, WireError };
export const LIMITS = {
  max_parts: 8,
  max_message_bytes: 1 << 20,
  max_depth: 16,
  max_string_bytes: 1 << 16,
  max_items: 4096,
  max_total_items: 16384,
};

// JSON.parse rounds integers beyond 2^53, and knows no NaN. Such numbers travel through it as marked strings; the mark
// is random, so that no text of a message can be taken for one.
const MARK = `${Math.random()}${Math.random()}:`;
const TOKENS = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|-?Infinity|NaN/g;
const UNSAFE = /^(?:-?\d{16,}|-?Infinity|NaN)$/;
const MARKED = new RegExp(`"${MARK.replaceAll(".", "\\.")}(-?\\d+)"`, "g");

/** The message as one JSON text; fields that are null or undefined are left out. Throws WireError. */
export function encode(message) {
  const present = Object.fromEntries(Object.entries(message).filter(([, v]) => v !== null && v !== undefined));
  validate(present);
  const text = JSON.stringify(present, sayable);
  return text.includes(MARK) ? text.replace(MARKED, "$1") : text;
}

/** As JSON has it. What JSON would leave out, or turn into null or {}, without a word is refused. */
function sayable(key, value) {
  if (typeof value === "bigint") return MARK + value;
  if (typeof value === "number" && !Number.isFinite(value)) fail(key, "not finite");
  if (typeof value === "function" || typeof value === "symbol") fail(key, `a ${typeof value}`);
  if (ArrayBuffer.isView(value) || value instanceof Map || value instanceof Set)
    fail(key, `a ${value.constructor.name}: give a list or a map, as [...values] is`);
  return value;
}

/** The message of a JSON text, null fields left out; integers beyond 2^53 are BigInt. Throws WireError. */
export function decode(text, limits = LIMITS) {
  if (utf8Bytes(text, limits.max_message_bytes) > limits.max_message_bytes) {
    throw new WireError("too_large", `a message above max_message_bytes = ${limits.max_message_bytes}`);
  }
  let value;
  try {
    value = JSON.parse(text.replace(TOKENS, (token) => (UNSAFE.test(token) ? `"${MARK}${token}"` : token)));
  } catch {
    throw new WireError("malformed", "no JSON");
  }
  if (!isMap(value)) throw new WireError("malformed", "not a map");
  const wrong = checkParts(value, limits);
  const message = Object.fromEntries(Object.entries(value).filter(([, v]) => v !== null));
  validate(message);
  if (wrong) message.faults = wrong;
  return message;
}

/** `checkValue` of a message; where it has a part a member, wrong parts are left out. Gives how many there were. */
function checkParts(value, limits) {
  const name = Object.hasOwn(WITH_PARTS, value.type) ? WITH_PARTS[value.type] : null;
  if (name === null || !Array.isArray(value[name])) {
    checkValue(value, limits);
    return 0;
  }
  let total = checkValue({ ...value, [name]: value[name].map(() => null) }, limits);
  const inner = { ...limits, max_depth: limits.max_depth - 2 };
  const wrong = leaveOutWrongParts(value, (one) => {
    total += checkValue(one, inner);
  });
  if (total > limits.max_total_items) {
    throw new WireError("too_large", `above max_total_items = ${limits.max_total_items}`);
  }
  return wrong;
}

/** Depth, lengths, item counts and numbers, without recursion; marked numbers become numbers. Gives how many items. */
function checkValue(root, limits) {
  const stack = [[root, 1, ""]];
  let total = 0;
  const large = (path, name) => {
    throw new WireError("too_large", `${path}: above ${name} = ${limits[name]}`, path || null);
  };
  const text = (s, path) => {
    if (utf8Bytes(s, limits.max_string_bytes) > limits.max_string_bytes) large(path, "max_string_bytes");
    if (LONE.test(s)) throw new WireError("malformed", `${path}: a lone surrogate`, path || null);
  };
  while (stack.length) {
    const [value, depth, path] = stack.pop();
    const isList = Array.isArray(value);
    const keys = Object.keys(value);
    total += keys.length;
    if (depth > limits.max_depth) large(path, "max_depth");
    if (keys.length > limits.max_items) large(path, "max_items");
    if (total > limits.max_total_items) large("", "max_total_items");
    for (const key of keys) {
      if (!isList) text(key, path);
      const here = isList ? `${path}[${key}]` : path ? `${path}.${key.slice(0, 40)}` : key.slice(0, 40);
      // A buffer is bounded by the message's size, not as a text.
      if (key === "base64" && BUFFER.test(path)) continue;
      let inner = value[key];
      if (typeof inner === "string" && inner.startsWith(MARK)) inner = value[key] = unmarked(inner, here);
      if (typeof inner === "string") text(inner, here);
      else if (typeof inner === "number" && !Number.isFinite(inner)) fail(here, "not finite");
      else if (typeof inner === "object" && inner !== null) stack.push([inner, depth + 1, here]);
    }
  }
  return total;
}

const LONE = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/;
const BUFFER = /^arrays\[\d+\]$/;

function unmarked(marked, path) {
  const digits = marked.slice(MARK.length);
  if (!/^-?\d+$/.test(digits)) fail(path, "not finite");
  const value = digits.length <= 21 ? BigInt(digits) : 2n ** 64n;
  if (value < -(2n ** 63n) || value >= 2n ** 64n) fail(path, "an integer beyond 64 bits");
  const near = Number(value);
  return Number.isSafeInteger(near) ? near : value;
}

/** Bytes of UTF-8, counted only where the answer could be above `limit`. */
function utf8Bytes(text, limit) {
  return 3 * text.length <= limit ? text.length : new TextEncoder().encode(text).length;
}
