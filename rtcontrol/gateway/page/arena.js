// The page `/crowd`: instruct fifty villagers over one connection, all together, by group or one by one.

import { CAUSES } from "./causes.js";
import { nowNs } from "./client/clock.js";
import { Crowd } from "./client/crowd.js";
import { showLink, SOCKET } from "./link.js";
import { OnePanel } from "./one_villager.js";
import { count, meant } from "./sayings.js";
import { TOOLS } from "./village_tools.js";
import { Village } from "./village.js";
import { VillageView } from "./village_view.js";

const HZ = 4;
const TTL_MS = 1500;
const LOOKS_MS = 50; // between two observations, and so the greatest age of one at a tick
const STEP_S = 1 / 60;
const LONGEST_MS = 100; // most time to catch up after the tab was hidden
const STAY = [{ name: "stay", arguments: {} }];
const SURE = 0.51; // an unknown word halves the model's confidence
const FIRST = "wander about";
const SLEEP = /^(?:please )?(?:go to sleep|sleep|sleep now)$/;
const EXAMPLES = [
  "everyone, gather at the well",
  "those in red, run to the mill",
  "blue and green: go to the market",
  "red and yellow: chase the fox",
  "villager 7, run home",
  "those near the well, look at the church",
  "go home",
  "wander about",
];

const $ = (id) => document.getElementById(id);
const options = new URLSearchParams(location.hash.slice(1));
const seed = Number(options.get("seed") ?? Math.floor(Math.random() * 1e6));
const village = new Village(seed, Math.min(Math.max(Math.trunc(Number(options.get("villagers") ?? 50)) || 50, 1), 50));
const view = new VillageView($("village"));
const byId = new Map(village.villagers.map((one) => [one.id, one]));
// The display state of each villager: goal, last calls, and the times of the last miss and instruction.
const shown = new Map(
  village.villagers.map((one) => [
    one,
    { goal: FIRST, calls: [], missedAt: NaN, heardAt: NaN, away: false, unsure: false },
  ]),
);
const counts = { ticks: 0, misses: 0, causes: new Map(), frames: 0 };

// ---------------------------------------------------------------------------------------------------- connection

const crowd = new Crowd(
  SOCKET,
  {
    tools: TOOLS,
    instruction: FIRST,
    hz: HZ,
    ttl_ms: TTL_MS,
    safe_calls: STAY,
    crowd: { members: village.villagers.length },
  },
  { welcome: onWelcome, call: onCall, act: onAct, error: onError },
);
showLink(crowd);
const panel = new OnePanel({ crowd, village, shown, choose, tell: aimAt });

function onWelcome({ model, trained }) {
  $("model-name").textContent = `${model}${trained === false ? " (not trained for this)" : ""}, ${HZ} Hz each`;
}

function onError({ code, message, remedy, members }) {
  const first = members?.[0];
  $("force").textContent =
    `Not taken: ${first ? `${first.id}: ${first.message} ${first.remedy ?? ""}` : `${message} ${remedy ?? ""}`}`;
  console.warn(`rtcontrol: ${code}: ${message} ${remedy ?? ""}`);
}

// ---------------------------------------------------------------------------------------------------------- calls

function onCall(id, message, latencyMs) {
  const it = shown.get(byId.get(id));
  const at = performance.now();
  counts.ticks += 1;
  if (message.cause) {
    counts.misses += 1;
    counts.causes.set(message.cause, (counts.causes.get(message.cause) ?? 0) + 1);
    it.missedAt = at;
  }
  it.calls = [{ at, message, latencyMs }, ...it.calls].slice(0, 8);
  it.unsure = message.status === "fresh" ? message.confidence < SURE : it.unsure;
}

/** Let a villager act on a call, unless the model's confidence is low. */
function onAct(id, call) {
  const one = byId.get(id);
  village.act(one, call && shown.get(one).unsure ? STAY[0] : call);
}

/** Return the display state of a villager. */
function stateOf(one) {
  const it = shown.get(one);
  const status = it.away || !crowd.members.has(one.id) ? "safe" : crowd.call(one.id).status;
  return { ...it, status, selected: one === panel.chosen };
}

// ---------------------------------------------------------------------------------------------------------- words

function tell(sentence) {
  const { error, villagers, goal, who } = meant(sentence, village);
  if (error) {
    $("force").textContent = error;
    return;
  }
  const sleep = SLEEP.test(goal);
  for (const one of villagers) {
    Object.assign(shown.get(one), { goal, heardAt: performance.now(), away: sleep });
    if (!sleep && !crowd.members.has(one.id)) crowd.join(one.id, { instruction: goal });
  }
  const ids = villagers.map(({ id }) => id);
  if (sleep) crowd.leave(...ids);
  else crowd.instruct(goal, ...ids);
  const quote = document.createElement("q");
  quote.textContent = goal;
  const asked = sleep ? "asleep: out of the crowd until they are told something else," : "told";
  $("force").replaceChildren(
    `${who}: ${count(villagers)} ${asked} `,
    quote,
    crowd.state === "live" ? "" : " as soon as they are connected",
  );
  for (const chip of $("chips").children) chip.setAttribute("aria-pressed", String(chip.textContent === sentence));
}

for (const text of EXAMPLES) {
  const chip = document.createElement("button");
  chip.type = "button";
  chip.textContent = text;
  chip.addEventListener("click", () => {
    $("instruction").value = text;
    tell(text);
  });
  $("chips").append(chip);
}

$("tell").addEventListener("submit", (event) => {
  event.preventDefault();
  tell($("instruction").value);
  $("instruction").select();
});

/** Put a villager's name at the start of the text box. */
function aimAt(one) {
  $("instruction").value = `${one.name}, `;
  $("instruction").focus();
}

// --------------------------------------------------------------------------------------------------- choosing one

function choose(one) {
  panel.choose(one);
}

$("village").addEventListener("click", (event) => choose(view.at(event.clientX, event.clientY, village)));
addEventListener("keydown", (event) => {
  const typing = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
  if (typing && event.key === "Escape") $("village").focus();
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (event.key === "/") {
    event.preventDefault();
    $("instruction").focus();
    $("instruction").select();
  } else if (event.key === "Escape") {
    choose(null);
  } else if (by && event.target === $("village")) {
    event.preventDefault();
    const all = village.villagers;
    const next = panel.chosen ? all.indexOf(panel.chosen) + by : by > 0 ? 0 : -1;
    choose(all.at(next % all.length));
  }
});

// ---------------------------------------------------------------------------------------------------------- frames

document.addEventListener("visibilitychange", () => {
  // A hidden tab is not drawn, so the village pauses, and the session ends instead of missing deadlines.
  if (document.hidden) crowd.close("the page is hidden");
  else crowd.open();
});

const NAMES =
  "paper ink line bad grass meadow blade flower path shore water ripple wall wall-shade roof roof-dark " +
  "thatch wood stone stone-light window leaf leaf-light awning sail fox skin hair eye shadow outline label " +
  "halo heard red blue green yellow purple serif";
let colours = {};
function readColours() {
  const style = getComputedStyle(document.documentElement);
  const camel = (name) => name.replace(/-(.)/, (_, letter) => letter.toUpperCase());
  colours = Object.fromEntries(
    NAMES.split(" ").map((name) => [camel(name), style.getPropertyValue(`--${name}`).trim()]),
  );
}
readColours();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", readColours);

let before = performance.now();
let owed = 0; // seconds that the village still has to simulate
let lookedAt = 0;
let figuresAt = before;
let figures = { frames: 0, ticks: 0 };

function frame(now) {
  owed += Math.min(Math.max(now - before, 0), LONGEST_MS) / 1e3;
  before = now;
  crowd.look();
  for (; owed >= STEP_S; owed -= STEP_S) village.step(STEP_S);
  if (now - lookedAt >= LOOKS_MS && crowd.hasRoom) {
    lookedAt = now;
    const there = village.villagers.filter(({ id }) => crowd.members.has(id));
    crowd.observe(Object.fromEntries(there.map((one) => [one.id, village.look(one)])), nowNs());
  }
  view.draw(village, stateOf, { colours, dpr: Math.min(devicePixelRatio || 1, 3), now: performance.now() });
  counts.frames += 1;
  if (now - figuresAt > 1000) showFigures(now);
  panel.show(now);
  requestAnimationFrame(frame);
}

const ms = (value) => (value === null ? "–" : `${value < 9.95 ? value.toFixed(1) : Math.round(value)} ms`);

function showFigures(now) {
  const seconds = (now - figuresAt) / 1e3;
  const { p50, p99 } = crowd.statistics();
  $("p50").textContent = ms(p50);
  $("p99").textContent = ms(p99);
  $("frames").textContent = Math.round((counts.frames - figures.frames) / seconds);
  $("rate").textContent = Math.round((counts.ticks - figures.ticks) / seconds);
  for (const name of ["ticks", "misses"]) $(name).textContent = counts[name].toLocaleString("en");
  const rows = [...counts.causes]
    .sort((a, b) => b[1] - a[1])
    .map(([cause, n]) => {
      const row = document.createElement("li");
      row.title = CAUSES[cause] ?? "";
      const number = document.createElement("i");
      number.textContent = n;
      row.append(cause.replaceAll("_", " "), number);
      return row;
    });
  $("causes").replaceChildren(...rows);
  figuresAt = now;
  figures = { ...counts };
  const lost = village.villagers.filter((one) => shown.get(one).unsure).length;
  $("unsure").hidden = lost === 0;
  $("unsure").textContent =
    `${lost} ${lost === 1 ? "does" : "do"} not understand what they were told, and stand still.`;
}

for (const one of village.villagers) crowd.join(one.id, { instruction: FIRST });
// For tests and for use in the console.
window.rtcontrol = { crowd, village, view, counts, shown, panel, tell };
if (!document.hidden) crowd.open();
requestAnimationFrame(frame);
