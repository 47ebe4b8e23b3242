// Runs the vectors of docs/protocol.md, section 13: node conformance.mjs FOLDER. Exit status 1 where one fails.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { InForce, Offset, safeCalls } from './client.mjs';
import { decode, decodeJson, encode, encodeJson, WireError } from './wire.mjs';

const folder = process.argv[2] ?? new URL('../vectors', import.meta.url).pathname;
const passed = {};
const failures = [];
const run = (group, vectors, test) => {
  passed[group] = `0 of ${vectors.length}`;
  let good = 0;
  for (const vector of vectors) {
    try { test(vector); good += 1; } catch (fault) { failures.push(`${group}: ${vector.name}: ${fault.message.slice(0, 600)}`); }
    passed[group] = `${good} of ${vectors.length}`;
  }
};

// Integers of the files beyond 2^53 as BigInt.
const exact = (text) => JSON.parse(
  text.replace(/"(?:[^"\\]|\\.)*"|(?<![\d.eE+-])-?\d{16,}(?![\d.eE])/g, (m) => (m[0] === '"' ? m : `"integer ${m}"`)),
  (_, v) => {
    if (typeof v !== 'string' || !/^integer -?\d+$/.test(v)) return v;
    const big = BigInt(v.slice(8));
    return Number.isSafeInteger(Number(big)) ? Number(big) : big;
  },
);
const load = (name) => exact(readFileSync(join(folder, name), 'utf8'));
// To compare values: keys in order, bytes as hex, -0 as 0.
const plain = (v) => {
  if (v instanceof Uint8Array) return Buffer.from(v).toString('hex');
  if (Array.isArray(v)) return v.map(plain);
  if (typeof v === 'object' && v !== null) return Object.fromEntries(Object.keys(v).sort().map((k) => [k, plain(v[k])]));
  return v === 0 ? 0 : v;
};
const equal = (a, b) => assert.deepEqual(plain(a), plain(b));

run('valid', load('valid.json'), ({ msgpack, json, canonical }) => {
  const text = JSON.stringify(json, (_, v) => (typeof v === 'bigint' ? `big ${v}` : v)).replace(/"big (-?\d+)"/g, '$1');
  const message = decode(msgpack.map((part) => Buffer.from(part, 'hex')));
  equal(message, decodeJson(text));
  equal(message, decode(encode(message).map((part) => Buffer.from(part))));
  equal(message, decodeJson(encodeJson(message)));
  if (canonical) equal(exact(encodeJson(message)), json);
});

const joined = (pieces) => pieces.map(([piece, times]) => piece.repeat(times)).join('');
run('invalid', load('invalid.json').filter(({ by }) => by !== 'server'), ({ msgpack, json, code, field }) => {
  try {
    if (msgpack) decode(msgpack.map((part) => Buffer.from(typeof part === 'string' ? part : joined(part), 'hex')));
    else decodeJson(typeof json === 'string' ? json : joined(json));
  } catch (fault) {
    if (!(fault instanceof WireError)) throw fault;
    assert.equal(fault.code, code, `${fault.code} (${fault.message}) for ${code}`);
    if (code === 'invalid' || code === 'version') assert.equal(fault.field, field);
    return;
  }
  assert.fail('was accepted');
});

const { age, sequences } = load('ttl.json');
run('age', age, ({ t_obs_ns: stamp, ttl_ms, now_ns: now, verdict }) => {
  const call = { name: 'steer', arguments: {} };
  const executed = [];
  const told = new InForce((calls) => { executed.push(...calls); }).call({ tick: 0, epoch: 0, status: 'fresh', call, t_obs_ns: stamp, ttl_ms }, BigInt(now));
  assert.equal(told, verdict === 'execute' ? 'executed' : 'expired');
  assert.equal(executed.length, verdict === 'execute' ? 1 : 0);
});
run('sequences', sequences, ({ epoch, minor, steps, ...own }) => {
  let executed = [];
  const force = new InForce((calls) => { executed = calls; }, { epoch, safeCalls: safeCalls(own) });
  steps.forEach((step, i) => {
    executed = [];
    let told = null;
    if (step.message) told = force.call(decodeJson(JSON.stringify(step.message)), BigInt(step.now_ns));
    else if (step.reset !== undefined && step.reset !== null) force.reset(step.reset);
    else if (step.welcome !== undefined && step.welcome !== null) force.welcome(step.welcome);
    else {
      assert.deepEqual(Object.keys(step).sort(), ['execute', 'expired', 'expires_ns', 'in_force', 'now_ns'], 'an unknown step');
      force.look(BigInt(step.now_ns));
    }
    const now = { execute: minor ? executed : executed[0] ?? null, in_force: force.state, expires_ns: force.expires === null ? null : Number(force.expires), expired: told === 'expired' };
    assert.deepEqual(plain(now), plain({ execute: step.execute, in_force: step.in_force, expires_ns: step.expires_ns, expired: step.expired }), `step ${i}`);
  });
});
run('clock', load('clock.json'), ({ samples, offset_ns, rtt_ns, error_ns }) => {
  const offset = new Offset();
  for (const sample of samples) offset.add(...sample);
  const best = offset.best();
  if (offset_ns === null) return assert.equal(best, null);
  const off = best.offset_ns - BigInt(offset_ns);
  assert.ok(off <= 1n && off >= -1n, `offset ${best.offset_ns} for ${offset_ns}`);
  assert.ok(Math.abs(best.rtt_ns - rtt_ns) <= 1 && Math.abs(best.error_ns - error_ns) <= 1);
});

for (const failure of failures) console.error(failure);
console.log(JSON.stringify({ ...passed, failed: failures.length }));
process.exitCode = failures.length ? 1 : 0;
