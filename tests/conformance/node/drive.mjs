// A falling craft on a server: node drive.mjs ENDPOINT [--seconds 60] [--hz 16] [--agent NAME] [--instruct TEXT] [--model NAME] [--events]
// [--minor 1] [--stuck 0]
// --instruct changes the goal at half time. A JSON report goes to stdout at the end, also on SIGTERM and SIGINT; --events tells
// on stderr, a JSON object a line, what happens; --stuck: how often safe calls throw at first. Exit status 1 where a call was executed that was too old.
import { parseArgs } from 'node:util';
import { Client, Refused, safeCalls } from './client.mjs';

const { values: given, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    seconds: { type: 'string', default: '60' }, hz: { type: 'string', default: '16' }, agent: { type: 'string' },
    instruct: { type: 'string' }, model: { type: 'string' }, events: { type: 'boolean', default: false },
    minor: { type: 'string', default: '1' }, stuck: { type: 'string', default: '0' },
  },
});
const endpoint = positionals[0] ?? 'tcp://127.0.0.1:5555';
const seconds = Number(given.seconds);

const power = { type: 'integer', minimum: 0, maximum: 100, multipleOf: 25, description: 'Thrust in percent; 50 hovers.' };
const own = {
  tools: [
    { type: 'function', function: { name: 'thrust', description: 'Set the main engine.', parameters: { type: 'object', properties: { power }, required: ['power'] } } },
    {
      name: 'tilt', description: 'Lean to one side.',
      parameters: { type: 'object', properties: { side: { enum: ['left', 'upright', 'right'] }, gently: { type: 'boolean' } }, required: ['side'] },
    },
  ],
  instruction: 'Land softly on the pad at 0.',
  safe_call: { name: 'thrust', arguments: { power: 50 } },
  safe_calls: [{ name: 'thrust', arguments: { power: 50 } }, { name: 'tilt', arguments: { side: 'upright' } }],
};

// The world: height, speed and place of a craft; every landing ends an episode.
const fresh = () => ({ height: 60, rise: 0, x: 10, slide: 0, power: 50, lean: 0, since: performance.now() });
let craft = fresh();
function step(dt) {
  craft.rise += (craft.power / 50 - 1) * 1.6 * dt;
  craft.slide = craft.lean * 2;
  craft.height = Math.min(120, craft.height + craft.rise * dt);
  craft.x += craft.slide * dt;
}
const world = () => (given.agent
  ? { data: { x: craft.x / 100, y: craft.height / 60, vx: craft.slide / 10, vy: craft.rise / 10, angle: -craft.lean / 5, spin: 0, left_leg: false, right_leg: false } }
  : { text: `height ${craft.height.toFixed(1)} rise ${craft.rise.toFixed(1)} x ${craft.x.toFixed(1)} slide ${craft.slide.toFixed(1)} power ${craft.power}` });

const report = {
  calls: { fresh: 0, held: 0, safe: 0 }, causes: {}, executed: {}, outcomes: {}, executed_too_old: 0, oldest_executed_ms: 0,
  ticks_missing: 0, ticks_repeated: 0, worst_gap_ms: 0, safe_actions: 0, safe_after_ms: [], observations: 0, timed: 0, not_sent: 0, episodes: 0, instructs: 0, notices: {},
};
const add = (counts, key) => { counts[key] = (counts[key] ?? 0) + 1; };
const round = (v) => Math.round(v * 1000) / 1000;
const tell = (event, more = {}) => given.events && console.error(JSON.stringify({ event, ...more }));
let tick = null; // of the last call
let came = null; // when
let message = null; // the call message that is being handled
let valid = null; // {stamp, ttl}: of what is in force, kept apart from the client's own reckoning, to judge it
let next = 0n;
let stuck = Number(given.stuck);

const client = new Client(endpoint, {
  client: { name: 'craft', version: '1.0.0', language: 'javascript' }, hz: Number(given.hz),
  ...(given.agent ? { agent: given.agent } : own), ...(given.model && { model: given.model }),
}, {
  welcome(welcome) {
    tell('welcome', { resumed: welcome.resumed, protocol: welcome.protocol, safe_calls: safeCalls(welcome).length, ttl_ms: welcome.ttl_ms, epoch: welcome.epoch });
    Object.assign(report, { model: welcome.model, agent: welcome.agent, hz: welcome.hz, ttl_ms: welcome.ttl_ms, on_miss: welcome.on_miss });
    if (!welcome.resumed) tick = null;
    came = null;
    next = client.now();
  },
  call(m, now) {
    message = m;
    report.calls[m.status] += 1;
    if (m.cause) add(report.causes, m.cause);
    if (tick !== null && m.tick > tick + 1) report.ticks_missing += m.tick - tick - 1;
    if (tick !== null && m.tick <= tick) report.ticks_repeated += 1;
    if (came !== null) report.worst_gap_ms = Math.max(report.worst_gap_ms, Number(now - came) / 1e6);
    [tick, came] = [Math.max(tick ?? 0, m.tick), now];
    if (m.status === 'fresh' && !m.call && valid) valid.stamp = BigInt(m.t_obs_ns);
  },
  execute(call) {
    const age = Number(client.now() - BigInt(message.t_obs_ns)) / 1e6;
    valid = { stamp: BigInt(message.t_obs_ns), ttl: message.ttl_ms };
    report.oldest_executed_ms = Math.max(report.oldest_executed_ms, age);
    if (age > message.ttl_ms + 5) report.executed_too_old += 1; // 5 ms: from the client's look at the clock to here
    if (report.calls.fresh === 1) tell('first');
    return actuate(call);
  },
  safe(call) {
    if (stuck-- > 0) {
      tell('stuck', { name: call?.name });
      throw new Error('stuck');
    }
    report.safe_actions += 1;
    const after = valid && Number(client.now() - valid.stamp) / 1e6;
    if (after !== null) report.safe_after_ms.push(round(after));
    valid = null;
    tell('safe', { name: call?.name, after_ms: after, ttl_ms: client.welcome?.ttl_ms });
    if (call) actuate(call);
  },
  outcome: (outcome) => add(report.outcomes, outcome.outcome),
  instruct(text) { report.instructs += 1; tell('instruct', { text }); },
  notice(text) { add(report.notices, text.slice(0, 160)); tell('notice', { text }); },
  ended(reason) { tell('ended', { reason }); finish(reason); },
}, { again: true, minor: Number(given.minor) });

function actuate({ name, arguments: a }) {
  add(report.executed, `${name}(${Object.values(a).join(', ')})`);
  if (given.agent) return;
  if (name === 'thrust') {
    if (!(a.power >= 0 && a.power <= 100)) throw new Refused(`a power of ${a.power}`);
    craft.power = a.power;
  } else craft.lean = { left: -1, upright: 0, right: 1 }[a.side] * (a.gently ? 0.5 : 1);
}

let last = performance.now();
let lag = 0;
const loop = setInterval(() => {
  const now = performance.now();
  lag = Math.max(lag, now - last - 10);
  step((now - last) / 1000);
  last = now;
  if (craft.height <= 0 || now - craft.since > 20_000) {
    client.reset({ return: -Math.abs(craft.rise), success: craft.rise > -2 && craft.height <= 0, seconds: (now - craft.since) / 1000 });
    valid = null;
    report.episodes += 1;
    craft = fresh();
  }
  if (client.state !== 'live' || client.now() < next) return;
  const period = BigInt(Math.round(client.welcome.period_ms * 1e6));
  const timed = client.nextObservation(20_000_000n);
  report.timed += timed !== null;
  next = timed ?? (next + period > client.now() ? next + period : client.now() + period);
  client.observe(world()).then((sent) => { report[sent ? 'observations' : 'not_sent'] += 1; });
}, 10);

let finished = false;
function finish(reason) {
  if (finished) return;
  finished = true;
  clearInterval(loop);
  const best = client.offset.best();
  console.log(JSON.stringify({
    reason, ...report, oldest_executed_ms: round(report.oldest_executed_ms), worst_gap_ms: round(report.worst_gap_ms), worst_lag_ms: round(lag),
    sessions: client.sessions, resumes: client.resumes,
    offset: best && { offset_ms: round(Number(best.offset_ns) / 1e6), rtt_ms: round(best.rtt_ns / 1e6), error_ms: round(best.error_ns / 1e6) },
  }, null, 1));
  process.exitCode = report.executed_too_old ? 1 : 0;
  setTimeout(() => process.exit(), 200); // a last bye is on its way
}
for (const signal of ['SIGTERM', 'SIGINT']) process.on(signal, () => client.bye(signal));
setTimeout(() => client.bye('done'), seconds * 1000);
if (given.instruct) setTimeout(() => client.instruct(given.instruct), seconds * 500);
client.start();
