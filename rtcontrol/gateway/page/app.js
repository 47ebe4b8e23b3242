// The page: a match between the visitor (left) and the model (right), which is an ordinary client of /ws.

import { StripChart } from "./chart.js";
import { CourtView } from "./court.js";
import { Match } from "./match.js";
import { Pilot } from "./pilot.js";
import { Session, nowNs } from "./session.js";
import { HZ, SUGGESTIONS } from "./agent.js";

const $ = (id) => document.getElementById(id);
const params = new URLSearchParams(location.hash.slice(1));
let token = params.get("token");

const match = new Match();
const pilot = new Pilot($("court"), match);
const view = new CourtView($("court"));
const chart = new StripChart($("chart"));
const counts = { ticks: 0, misses: 0, causes: new Map() };
let paused = false;
let told = null; // the instruction that waits to come into force

// ---------------------------------------------------------------------------------------------------- connection

const STATES = {
  connecting: "connecting",
  live: "connected",
  waiting: "connection lost, trying again",
  refused: "refused",
  closed: "disconnected while this tab is hidden",
};

const session = new Session(
  `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws`,
  { agent: "paddle", pacing: "server", hz: HZ, capabilities: ["executed"] },
  { state: onState, welcome: onWelcome, call: onCall, instruct: onInstruct, error: onError },
  { token },
);

function onState(state, detail) {
  $("link").dataset.state = state;
  $("link-text").textContent = state === "refused" ? `refused: ${detail}` : STATES[state];
  if (state === "waiting" && !detail.opened) whyNot();
}

/** A browser does not say why a handshake failed: ask over HTTP. */
async function whyNot() {
  try {
    const headers = session.token ? { authorization: `Bearer ${session.token}` } : {};
    const answer = await fetch("health", { headers });
    if (answer.status === 401 && !$("gate").open) $("gate").showModal();
  } catch {
    // The server is away; the session tries again by itself.
  }
}

$("gate-form").addEventListener("submit", () => {
  session.token = $("token").value.trim();
});

function onWelcome(welcome) {
  chart.deadline = welcome.deadline_ms;
  $("deadline").textContent = ms(welcome.deadline_ms);
  $("model-name").textContent = `${welcome.model}, ${Number(welcome.hz.toPrecision(3))} calls a second`;
  if (!welcome.model_trained_on_tools) $("model-name").textContent += ", not trained for this";
  if (!$("instruction").value) $("instruction").value = welcome.instruction;
  onInstruct(welcome.instruction, true);
  match.welcome(session);
}

function onError(message) {
  if (told !== null && message.code === "instruction") {
    $("force").textContent = `Not taken: ${message.message}`;
    told = null;
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
    showCauses();
  }
  const decide = message.timing?.decide_ms ?? null;
  chart.add({ at: performance.now(), latency, decide, missed: Boolean(message.cause) });
  if (message.status === "fresh" && message.call) session.executed(message.tick, "executed");
  live = message;
}

let live = null;
let shown = "";

function showCall() {
  const { call, expired } = session.current();
  const text = call ? `${call.name}(${Object.entries(call.arguments ?? {}).map(([k, v]) => `${k}=${JSON.stringify(v)}`).join(", ")})` : "–";
  if (text !== shown) {
    const name = document.createElement("span");
    name.className = "name";
    name.textContent = call ? call.name : "";
    $("call").replaceChildren(name, call ? text.slice(call.name.length) : "–");
    shown = text;
  }
  const status = session.state !== "live" ? "" : expired ? "expired" : (live?.status ?? "");
  if ($("status").dataset.status !== status) {
    $("status").dataset.status = status;
    $("status").textContent = status;
  }
  const sure = live?.confidence;
  $("sure").textContent = sure === undefined ? "–" : `${Math.round(sure * 100)} %`;
  $("sure-bar").style.transform = `scaleX(${sure ?? 0})`;
}

function showCauses() {
  const rows = [...counts.causes].sort((a, b) => b[1] - a[1]).map(([cause, n]) => {
    const row = document.createElement("li");
    const number = document.createElement("i");
    number.textContent = n;
    row.append(cause.replaceAll("_", " "), number);
    return row;
  });
  $("causes").replaceChildren(...rows);
}

const ms = (value) => (value === null || value === undefined ? "–" : `${value < 9.95 ? value.toFixed(1) : Math.round(value)} ms`);

function showFigures() {
  const figures = chart.figures();
  $("p50").textContent = ms(figures?.p50);
  $("p99").textContent = ms(figures?.p99);
  $("decide").textContent = ms(figures?.decide);
  $("ticks").textContent = counts.ticks.toLocaleString("en");
  $("misses").textContent = counts.misses.toLocaleString("en");
  $("pilot").textContent = pilot.manual ? "" : "autopilot, until you move";
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
});

function tell(text) {
  if (!text) return;
  told = text;
  $("force").textContent = session.instruct(text) ? "sent" : "will be told when the connection is back";
}

function onInstruct(text, quiet = false) {
  told = null;
  const quote = document.createElement("q");
  quote.textContent = text;
  $("force").replaceChildren("In force: ", quote);
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
  // A hidden tab is not drawn, so the match stands still; the session ends rather than miss its deadlines.
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

let last = performance.now();
let figuresAt = 0;
function frame(now) {
  // A tab that was away for long does not catch up.
  const elapsed = Math.min(now - last, 100);
  last = now;
  if (!paused) match.advance(elapsed / 1e3, pilot, () => session.current().call);
  if (match.rally !== session.rally) {
    session.rally = match.rally;
  }
  session.observe(match.observation(), nowNs());
  const dpr = Math.min(devicePixelRatio || 1, 3);
  view.draw(match, colours, dpr, paused);
  chart.draw(now, colours, dpr);
  showCall();
  if (now - figuresAt > 250) {
    figuresAt = now;
    showFigures();
  }
  requestAnimationFrame(frame);
}

// For tests and for whoever is curious in the console.
window.rtcontrol = { session, match, chart, counts, pilot };
if (!document.hidden) session.open();
requestAnimationFrame(frame);
