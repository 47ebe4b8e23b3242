// The JSON side of the conformance vectors, in Node and in browsers. `load(name)` returns a file's text, `client` is
// the module. Returns the valid messages, encoded again, and all errors.

export function check(load, { decode, encode, WireError, ClockOffset, PhaseLock, expired }) {
  const validLines = (name) => load(name).split('\n"invalid"')[0].split("\n").filter((line) => line.startsWith('{"name"'));
  const wrong = [];
  const again = [];

  // The vectors' own integers beyond 2^53 must not be rounded on the way in: their texts are cut out of the file.
  for (const line of ["valid", "crowd"].flatMap(validLines)) {
    const { name } = JSON.parse(line.replace(/,$/, ""));
    const text = line.slice(line.indexOf('"json": ') + 8, line.lastIndexOf(', "msgpack": '));
    try {
      again.push([name, encode(decode(text))]);
    } catch (error) {
      wrong.push(`${name}: ${error}`);
    }
  }

  const expand = (text) => (typeof text === "string" ? text : text.map(([t, n]) => t.repeat(n)).join(""));
  for (const { name, json, code, field, by } of [...JSON.parse(load("invalid")), ...JSON.parse(load("crowd")).invalid]) {
    if (json === undefined || by === "server") continue;
    try {
      decode(expand(json));
      wrong.push(`${name}: taken`);
    } catch (error) {
      if (!(error instanceof WireError)) wrong.push(`${name}: ${error.stack}`);
      else if (error.code !== code) wrong.push(`${name}: ${error.code} instead of ${code}`);
      else if (field !== null && error.field !== field) wrong.push(`${name}: ${error.field} instead of ${field}`);
    }
  }
  for (const { name, t_obs_ns, ttl_ms, now_ns, verdict } of JSON.parse(load("ttl")).age) {
    // Instants of the client's clock stay far below 2^53.
    if (name.startsWith("big")) continue;
    const got = expired(t_obs_ns, ttl_ms, now_ns) ? "expire" : "execute";
    if (got !== verdict) wrong.push(`${name}: ${got}`);
  }
  for (const { name, samples, offset_ns, rtt_ns } of JSON.parse(load("clock"))) {
    if (name.startsWith("big")) continue;
    const clock = new ClockOffset();
    for (const sample of samples) clock.add(...sample);
    const at = clock.at(samples.at(-1)?.[3] ?? 0);
    const off = offset_ns === null ? at : Math.abs(at.offsetNs - offset_ns) > 1 || Math.abs(at.rttNs - rtt_ns) > 1;
    if (off) wrong.push(`${name}: ${JSON.stringify(at)}`);
  }
  let looks = 0;
  for (const { name, period_ns: periodNs, steps } of JSON.parse(load("phase"))) {
    if (name.startsWith("big")) continue;
    const clock = new ClockOffset();
    const lock = new PhaseLock();
    steps.forEach((step, i) => {
      if (step.ping) clock.add(...step.ping);
      else if (step.next !== undefined) {
        looks += 1;
        const due = lock.next(step.release_ns, periodNs, clock.at(step.next), step.next);
        const off = step.due_ns === null || due === null ? due !== step.due_ns : Math.abs(due - step.due_ns) > 1;
        if (off) wrong.push(`${name}, step ${i}: ${due} instead of ${step.due_ns}`);
      } else if (step.observed !== undefined) lock.observed(step.observed, periodNs, step.now_ns);
      else if (step.heard) lock.heard(step.heard, periodNs, step.now_ns);
      else wrong.push(`${name}, step ${i}: unknown (${Object.keys(step)})`);
    });
  }
  if (!looks) wrong.push("phase: no vector asks for a look");
  return { wrong, again };
}
