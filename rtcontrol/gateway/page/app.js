// The page: a match between the visitor (left) and the model (right), which is an ordinary client of /ws.

import { CAUSES } from "./causes.js";
import { StripChart } from "./chart.js";
import { nowNs } from "./client/clock.js";
import { CourtView } from "./court.js";
import { LEVEL_SPEED, STEPS_A_SECOND, World } from "./game.js";
import { showLink, SOCKET } from "./link.js";
import { Pilot } from "./pilot.js";
import { Session } from "./client/session.js";

const HZ = 30;
const SCRIPTS = ["expert", "noop", "random"];
const SUGGESTIONS = ["return every ball", "miss every ball on purpose", "aim high", "aim low"];
SUGGESTIONS.push("stay at the top", "stay at the bottom", "do what I do");

const $ = (id) => document.getElementById(id);

const world = new World(Math.floor(Math.random() * 1e6));
const pilot = new Pilot($("court"));
const view = new CourtView($("court"));
const chart = new StripChart($("chart"));
const counts = { ticks: 0, misses: 0, causes: new Map() };
let paused = false;
let told = null; // the instruction that is not active yet
let last = null; // the last call message
let shown = ""; // the text of the call that the page shows

// ---------------------------------------------------------------------------------------------------- connection

const session = new Session(
  SOCKET,
  { agent: "paddle", pacing: "server", hz: HZ, capabilities: ["executed"] },
  { welcome: onWelcome, call: onCall, act: onAct, instruct: (text, said) => onInstruct(text, false, said), error: onError },
);

showLink(session);

function onWelcome(welcome) {
  chart.deadline = welcome.deadline_ms;
  const trained = welcome.protocol[1] >= 1 ? welcome.trained : welcome.model_trained_on_tools;
  const untrained = trained === false ? " (not trained for this)" : "";
  const skill = SCRIPTS.includes(welcome.model) ? " (a script)" : untrained;
  $("model-name").textContent = `${welcome.model}${skill} at ${Number(welcome.hz.toPrecision(3))} Hz`;
  if (!$("instruction").value) $("instruction").value = welcome.instruction;
  if (session.untold === null) onInstruct(welcome.instruction, true);
}

function onError(message) {
  if (told !== null && message.code === "instruction") {
    $("force").textContent = `Not taken: ${message.message} ${message.remedy ?? ""}`;
    told = null;
  } else if (message.code === "unsure") {
    $("force").textContent = message.message;
  } else {
    console.warn(`rtcontrol: ${message.code}: ${message.message} ${message.remedy ?? ""}`);
  }
}

// ---------------------------------------------------------------------------------------------------------- calls

function onCall(message, latency) {
  counts.ticks += 1;
  if (message.cause) {
    counts.misses += 1;
    counts.causes.set(message.cause, (counts.causes.get(message.cause) ?? 0) + 1);
  }
  const decide = message.timing?.decide_ms ?? null;
  const age = message.timing?.age_ms ?? null;
  chart.add({ at: performance.now(), latency, age, decide, missed: Boolean(message.cause) });
  last = message;
}

/** Execute a call: the paddle keeps its velocity until the next call, and without a call does not move. */
function onAct(call) {
  world.setOwn(call?.name === "move" ? LEVEL_SPEED * (call.arguments?.velocity ?? 0) : 0);
}

const texts = new Map();

/** Set an element's text if it has changed, as setting the same text costs a layout. */
function put(id, text) {
  if (texts.get(id) === text) return;
  texts.set(id, text);
  $(id).textContent = text;
}

function showCall() {
  const { calls: [call], kind } = session.inForce;
  const values = Object.entries(call?.arguments ?? {}).map(([k, v]) => `${k}=${JSON.stringify(v)}`);
  const text = call ? `${call.name}(${values.join(", ")})` : "";
  if (text !== shown) {
    const name = document.createElement("span");
    name.className = "name";
    name.textContent = call?.name ?? "–";
    $("call").replaceChildren(name, text.slice(name.textContent.length));
    shown = text;
  }
  const status = session.state !== "live" || !last ? "" : kind === "safe" ? "safe" : last.status;
  if ($("status").dataset.status !== status) {
    $("status").dataset.status = status;
    $("status").textContent = status;
  }
  const sure = last?.confidence;
  if (sure === undefined) return;
  $("sureness").hidden = false;
  put("sure", `${Math.round(sure * 100)} %`);
  $("sure-bar").style.transform = `scaleX(${sure})`;
}

function showCauses() {
  const key = JSON.stringify([...counts.causes]);
  if (key === texts.get("causes")) return;
  texts.set("causes", key);
  const rows = [...counts.causes].sort((a, b) => b[1] - a[1]).map(([cause, n]) => {
    const row = document.createElement("li");
    row.title = CAUSES[cause] ?? "";
    const number = document.createElement("i");
    number.textContent = n;
    row.append(cause.replaceAll("_", " "), number);
    return row;
  });
  $("causes").replaceChildren(...rows);
}

function ms(value) {
  if (value === null || value === undefined) return "–";
  return `${value < 9.95 ? value.toFixed(1) : Math.round(value)} ms`;
}

function showFigures() {
  const figures = chart.figures();
  for (const name of ["p50", "p99", "decide", "wire"]) put(name, ms(figures?.[name]));
  for (const name of ["ticks", "misses"]) put(name, counts[name].toLocaleString("en"));
  showCauses();
  $("pilot").hidden = pilot.manual;
}

// ---------------------------------------------------------------------------------------------------- instruction

for (const text of SUGGESTIONS) {
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
  tell($("instruction").value.trim());
  $("instruction").select();
});

function tell(text) {
  if (!text) return;
  told = text;
  $("force").textContent = session.instruct(text) ? "sent" : "will be told when the connection is back";
}

function onInstruct(text, quiet = false, said = undefined) {
  told = null;
  const quote = document.createElement("q");
  quote.textContent = text;
  $("force").replaceChildren(said === undefined || said === text ? "In force: " : "Understood as: ", quote);
  for (const chip of $("chips").children) chip.setAttribute("aria-pressed", String(chip.textContent === text));
  if (!quiet) chart.marks.push(performance.now());
}

// ----------------------------------------------------------------------------------------------------------- play

function pause(on = !paused) {
  paused = on;
  $("pause").setAttribute("aria-pressed", String(paused));
  $("pause").textContent = paused ? "Play" : "Pause";
}

$("pause").addEventListener("click", () => pause());
addEventListener("keydown", (event) => {
  const typing = event.target instanceof HTMLInputElement;
  if (typing && event.key === "Escape") $("court").focus();
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    event.preventDefault();
    $("instruction").focus();
    $("instruction").select();
  } else if (event.key === " " && !(event.target instanceof HTMLButtonElement)) {
    event.preventDefault();
    pause();
  }
});

document.addEventListener("visibilitychange", () => {
  // A hidden tab is not drawn, so the match pauses, and the session ends instead of missing deadlines.
  if (document.hidden) session.close("the page is hidden");
  else session.open();
});

let colours = {};
function readColours() {
  const style = getComputedStyle(document.documentElement);
  const get = (name) => style.getPropertyValue(`--${name}`).trim();
  colours = Object.fromEntries(
    ["paper", "court", "ink", "muted", "line", "you", "model", "bad", "mono", "serif"].map((n) => [n, get(n)]),
  );
}
readColours();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", readColours);

let before = performance.now();
let owed = 0; // steps that the world still has to make
let observedAt = 0;
let observeNs = null; // when to send the observation for the server's next tick
let chartAt = 0;
let figuresAt = 0;

function frame(now) {
  // After a long absence of the tab, the world does not catch up.
  owed += paused ? 0 : (Math.min(now - before, 100) * STEPS_A_SECOND) / 1e3;
  before = now;
  session.look();
  for (; owed >= 1; owed -= 1) {
    world.setOther(pilot.velocity(world));
    world.step();
  }
  // Just before each tick; while its phase is not known once a frame, but not more often on screens of 120 Hz.
  const due = observeNs === null ? now - observedAt > 14 : nowNs() >= observeNs;
  if (due && session.observe(world.observe(), nowNs())) {
    observedAt = now;
    observeNs = session.nextLookNs();
  }
  const dpr = Math.min(devicePixelRatio || 1, 3);
  const level = Math.round(world.own_v / LEVEL_SPEED);
  view.draw(world, owed, { colours, dpr, paused, level });
  // The strip moves with the calls, 30 times a second at most.
  if (now - chartAt > 32) {
    chartAt = now;
    chart.draw(now, colours, dpr);
    showCall();
  }
  if (now - figuresAt > 250) {
    figuresAt = now;
    showFigures();
  }
  requestAnimationFrame(frame);
}

// For tests and for use in the console.
window.rtcontrol = { session, world, chart, counts, pilot };
if (!document.hidden) session.open();
requestAnimationFrame(frame);
