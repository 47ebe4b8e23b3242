"use strict";
// Each run's charts, what is selected in them, and what is told of it.

const DATA = JSON.parse(document.getElementById("data").textContent);

// An element with text and children; never markup.
function make(tag, text, ...children) {
  const made = document.createElement(tag);
  if (text != null) made.textContent = text;
  made.append(...children);
  return made;
}

function show(article) {
  const run = DATA.runs[+article.dataset.run], ticks = new Ticks(run);
  const state = { row: -1, cause: null };
  const part = (name) => article.querySelector(name);
  const stage = part(".timeline"), detail = part(".detail");
  let below = null;
  const hooks = {
    // What is seen of the one is seen of the other.
    setScale: [(u, key) => key === "x" && below && below.setScale("x", { min: u.scales.x.min, max: u.scales.x.max })],
  };
  const chart = timeline(stage, ticks, state, hooks);
  const whole = [ticks.t[0], Math.max(ticks.t[ticks.length - 1], ticks.t[0] + 0.1)];
  if ("jitter_ms" in run.numbers) below = jitter(part(".jitter"), ticks);
  else part(".jitter").remove();
  const curve = curves(part(".curves"), run, DATA.nines);

  function view(from, to) {
    const least = 4 / (run.hz || 16), middle = (from + to) / 2, half = Math.max(least, to - from) / 2;
    chart.setScale("x", { min: Math.max(whole[0] - 1, middle - half), max: Math.min(whole[1] + 1, middle + half) });
  }

  function select(row) {
    if (row < 0 || row >= ticks.length) return;
    state.row = row;
    const t = ticks.t[row], { min, max } = chart.scales.x;
    if (t < min || t > max) view(t - (max - min) / 2, t + (max - min) / 2);
    detail.replaceChildren(...told(ticks, row));
    detail.style.setProperty("--of", ticks.cause[row] ? ink(ticks.causes[ticks.cause[row]]) : ink("on-time"));
    chart.redraw(false);
  }

  function zoom(factor) {
    const { min, max } = chart.scales.x;
    const t = state.row >= 0 && ticks.t[state.row] >= min && ticks.t[state.row] <= max ? ticks.t[state.row] : (min + max) / 2;
    view(t - ((max - min) * factor) / 2, t + ((max - min) * factor) / 2);
  }

  const step = (by) => select(ticks.miss(state.row < 0 && by < 0 ? ticks.length : state.row, by, state.cause));
  const acts = {
    before: () => step(-1),
    after: () => step(1),
    in: () => zoom(0.5),
    out: () => zoom(2),
    all: () => chart.setScale("x", { min: whole[0], max: whole[1] }),
  };
  const keys = {
    ArrowLeft: (e) => (e.shiftKey ? select(state.row - 1) : acts.before()),
    ArrowRight: (e) => (e.shiftKey ? select(state.row + 1) : acts.after()),
    Home: () => select(ticks.miss(-1, 1, state.cause)),
    End: () => select(ticks.miss(ticks.length, -1, state.cause)),
    "+": acts.in,
    "=": acts.in,
    "-": acts.out,
    0: acts.all,
    Escape: () => {
      state.row = -1;
      detail.replaceChildren();
      chart.redraw(false);
    },
  };
  stage.addEventListener("keydown", (e) => {
    if (keys[e.key] && !e.ctrlKey && !e.metaKey && !e.altKey) {
      e.preventDefault();
      keys[e.key](e);
    }
  });
  for (const button of article.querySelectorAll("[data-do]")) button.onclick = acts[button.dataset.do];

  let pressed = 0;
  chart.over.addEventListener("mousedown", (e) => (pressed = e.clientX));
  chart.over.addEventListener("click", (e) => {
    if (Math.abs(e.clientX - pressed) > 5) return; // it was a zoom
    const t = chart.posToVal(e.clientX - chart.over.getBoundingClientRect().left, "x");
    const near = (chart.posToVal(8, "x") - chart.posToVal(0, "x")), middle = ticks.at(t);
    let best = -1;
    // The nearest miss that a finger may have meant, or else the nearest tick.
    for (let i = ticks.at(t - near); i < ticks.length && ticks.t[i] <= t + near; i++)
      if (ticks.cause[i] && (best < 0 || Math.abs(ticks.t[i] - t) < Math.abs(ticks.t[best] - t))) best = i;
    if (best < 0) best = middle > 0 && (middle >= ticks.length || t - ticks.t[middle - 1] < ticks.t[middle] - t) ? middle - 1 : middle;
    select(best);
  });

  for (const button of article.querySelectorAll("[data-cause]")) {
    button.style.setProperty("--of", `var(--${button.dataset.cause}, var(--unknown))`);
    button.onclick = () => {
      state.cause = state.cause === button.dataset.cause ? null : button.dataset.cause;
      for (const one of article.querySelectorAll("[data-cause]"))
        one.setAttribute("aria-pressed", String(one.dataset.cause === state.cause));
      chart.redraw(false);
    };
  }

  const charts = [[chart, stage], [below, part(".jitter")], [curve, part(".curves")]].filter(([one]) => one);
  new ResizeObserver(() => {
    for (const [one, element] of charts)
      if (one.width !== element.clientWidth) one.setSize({ width: element.clientWidth, height: one.height });
  }).observe(article);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const [one] of charts) one.redraw(false);
  });
}

// What is known of one tick.
function told(ticks, row) {
  const missed = ticks.run.missed[row] || {}, evidence = missed.evidence || {};
  const both = (...words) => words.filter(Boolean).join(", "), known = (name) => ticks.number(name, row);
  const cause = ticks.cause[row] ? ticks.causes[ticks.cause[row]] : "";
  const latency = ticks.number("latency_ms", row), list = make("dl");
  const say = (name, ...values) => list.append(make("dt", name), make("dd", null, ...values));
  const ms = (value) => `${(+value).toFixed(2)} ms`;
  const kind = both(ticks.word("kind", row), ticks.word("why", row));
  const verdict = cause ? `missed: ${both(cause, ticks.word("subcause", row))}` : `on time (${kind})`;
  const head = make("h4", `Tick ${ticks.k[row]} at ${ticks.t[row].toFixed(3)} s: ${verdict}`);
  const known_names = [both(cause, ticks.word("subcause", row)).replace(", ", "."), cause];
  const advice = DATA.advice[known_names.find((name) => name in DATA.advice)];
  if (advice) say("meaning", advice[0]);
  if (advice) say("do this", advice[1]);
  say("latency", latency === latency ? `${ms(latency)} of ${ms(ticks.run.deadline_ms)}` : `no effect by ${ms(ticks.run.deadline_ms)}`);
  if (evidence.late_ms > 0) {
    const explained = evidence.explained_ms != null ? `; ${cause} accounts for ${ms(evidence.explained_ms)}` : cause === "unknown" ? "; nothing accounts for half of it" : "";
    say("late by", ms(evidence.late_ms) + explained);
  }
  const captured = known("captured");
  if (captured === captured) say("observed", `${ms(Math.abs(captured))} ${captured < 0 ? "before" : "after"} its release`);
  if (missed.saw) {
    say("saw", make("pre", missed.saw.observation));
    if (missed.saw.instruction) say("instruction", missed.saw.instruction);
    if (missed.saw.history && missed.saw.history.length) say("history", make("pre", missed.saw.history.join("\n")));
  } else if (cause) say("saw", known("woke") === known("woke") && !(known("submitted") === known("submitted")) ? "nothing: the decoder was not asked" : "not in this page, or not kept by the record");
  const confidence = known("confidence"), by = ticks.word("decided_by", row);
  const sure = confidence === confidence ? ` (confidence ${confidence.toFixed(3)})` : "";
  say("decided", ticks.word("call", row) ? make("code", ticks.word("call", row)) : "no call in time", sure, by ? ` by the ${by}` : "");
  const stages = spans(ticks, row);
  if (stages) say("spans", stages);
  const t = ticks.t[row], until = t + ticks.run.deadline_ms / 1e3;
  const befell = ticks.run.marks.filter(([at]) => at > t - 2 && at <= until).slice(-5);
  if (befell.length) say("events near it", make("pre", befell.map(([at, what]) => `${at.toFixed(2)} s: ${what}`).join("\n")));
  if (ticks.word("action", row)) say("fallback", ticks.word("action", row));
  const skipped = ticks.number("skipped", row);
  if (skipped > 0) say("skipped before", `${skipped} (${both(ticks.word("skip_cause", row), ticks.word("skip_subcause", row))})`);
  if (missed.error) say("error", make("pre", missed.where ? `${missed.error}\n${missed.where}` : missed.error));
  if (missed.result !== undefined) say("result", make("pre", JSON.stringify(missed.result)));
  const rest = Object.entries(evidence).filter(([name]) => name !== "late_ms" && name !== "explained_ms");
  if (rest.length) say("evidence", make("pre", rest.map(([name, value]) => `${name}: ${flat(value)}`).join("\n")));
  return [head, list];
}

// A value on one line, as people read it.
function flat(value) {
  if (Array.isArray(value)) return value.map((one) => (Array.isArray(one) ? `[${one.join(", ")}]` : flat(one))).join("  ");
  if (value && typeof value === "object") return Object.entries(value).map(([name, one]) => `${name} ${flat(one)}`).join(", ");
  return String(value);
}

// Its stages as bars, from the release to the deadline or beyond; null where nothing was measured.
function spans(ticks, row) {
  const known = [];
  let from = 0;
  for (const [name, [begin, end]] of Object.entries(DATA.stages)) {
    const starts = begin ? ticks.number(begin, row) : 0, ends = ticks.number(end, row);
    if (starts === starts && ends === ends) known.push([name, starts, ends]);
  }
  if (!known.length)
    for (const name of ["wake", "decide", "execute"]) {
      const took = ticks.number(`${name}_ms`, row);
      if (took === took) known.push([name, from, (from += took)]);
    }
  if (!known.length) return null;
  // The step that had not ended when the tick was over.
  const names = Object.keys(DATA.stages), steps = ((ticks.run.missed[row] || {}).evidence || {}).steps_ms || {};
  const open = names.filter((name) => name in steps).pop(), [newest, , reached] = known[known.length - 1];
  if (open && steps[open] > 0.01 && names.indexOf(open) > names.indexOf(newest)) known.push([open, reached, reached + steps[open], true]);
  const deadline = ticks.run.deadline_ms, last = Math.max(deadline, ...known.map(([, , ends]) => ends)) * 1.04;
  const made = make("div");
  made.className = "spans";
  for (const [name, starts, ends, unfinished] of known) {
    const bar = make("span"), filled = make("b"), mark = make("s");
    bar.className = "bar";
    filled.style.left = `${(100 * Math.max(0, starts)) / last}%`;
    filled.style.width = `${(100 * Math.max(0, ends - Math.max(0, starts))) / last}%`;
    mark.style.left = `${(100 * deadline) / last}%`;
    bar.append(filled, mark);
    if (unfinished) filled.className = "open";
    made.append(make("span", name), bar, make("span", `${unfinished ? "≥ " : ""}${Math.max(0, ends - starts).toFixed(2)} ms`));
  }
  return made;
}

for (const article of document.querySelectorAll(".run")) show(article);
// For whoever looks at the page from outside: when it could be read, in ms from its opening.
const rtcontrol = { opened_ms: performance.now() };
