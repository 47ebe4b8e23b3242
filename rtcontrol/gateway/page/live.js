// The live view: a run's page (`rtcontrol run --view`), or a server's, one of whose sessions is chosen. What is shown
// comes from /view/ws four times a second; what people say goes back over it.

import { StripChart } from "./chart.js";
import { Gate } from "./gate.js";

const AGAIN_MS = 1000;
const OLD_S = 3; // an older picture is marked as old
const FULL_AGAIN_MS = 10_000; // until the next try where others took this page's place
const [NO_SESSION, TOO_MANY] = [1008, 1013]; // why the server closes the connection
const MOST_CHARACTERS = 4000; // of a text that are shown
const MOST_TICKS = 512; // of a message
// Control characters, and those that turn or hide text: names and texts come from clients.
const ODD = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;
const KEYS = { p: "pause", r: "resume", s: "stop", y: "confirm", n: "deny" };

const $ = (id) => document.getElementById(id);
const chart = new StripChart($("chart"));
const texts = new Map();
const view = { last: null, seen: 0, socket: null, over: false };
const gate = new Gate(() => connect());
let session = new URLSearchParams(location.search).get("session");
let asked = null; // the tick whose call waits for confirmation
let askedAt = 0; // when its question was shown
const READ_MS = 2000; // an answer before this time may be meant for the previous question

/** A text of others, without what would change the page around it. */
function legible(text) {
  const whole = String(text);
  return whole.slice(0, MOST_CHARACTERS).replace(ODD, "\ufffd") + (whole.length > MOST_CHARACTERS ? " …" : "");
}

/** Set an element's text if it has changed. */
function put(id, given) {
  const text = legible(given);
  if (texts.get(id) === text) return;
  texts.set(id, text);
  $(id).textContent = text;
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

function link(state, text) {
  $("link").dataset.state = state;
  put("link-text", text);
}

// ---------------------------------------------------------------------------------------------------- connection

async function connect() {
  const { token } = gate;
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  try {
    const answer = await fetch("view/sessions", { headers });
    if (answer.status === 401) {
      await gate.ask(token);
      return;
    }
    choose(await answer.json());
  } catch {
    link("waiting", "the server does not answer, trying again");
    setTimeout(connect, AGAIN_MS);
    return;
  }
  const query = session ? `?session=${encodeURIComponent(session)}` : "";
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  const protocols = token ? ["rtcontrol.v1", `rtcontrol.token.${token}`] : ["rtcontrol.v1"];
  const socket = new WebSocket(`${scheme}://${location.host}/view/ws${query}`, protocols);
  socket.binaryType = "blob";
  view.socket = socket;
  socket.onopen = () => link("live", "connected");
  socket.onmessage = ({ data }) => {
    try {
      if (typeof data === "string") take(JSON.parse(data));
      else picture(data, socket);
    } catch (error) {
      put("answer", `the server sent a state that cannot be shown (${error.message})`);
    }
  };
  socket.onclose = ({ code }) => {
    if (socket !== view.socket) return;
    if (view.over) link("closed", "the run is over");
    else if (code === NO_SESSION) noSession();
    else if (code === TOO_MANY) link("waiting", "too many viewers: this page was silent for longest; trying again");
    else link("waiting", "connection lost, trying again");
    if (!view.over || session) setTimeout(connect, code === TOO_MANY ? FULL_AGAIN_MS : AGAIN_MS);
  };
}

function noSession() {
  link("waiting", "no session yet");
  put("title", "No session to show yet");
  const game = new URL(".", location.href).href;
  put("lead", `Open ${game} in another tab to start one, or connect a client or robot to this server (docs/clients.md). It appears here.`);
}

/** A server has sessions to choose from; a run has none. */
function choose(sessions) {
  $("session-label").hidden = !sessions.length;
  const options = sessions.map(({ id, client, state }) => {
    const option = document.createElement("option");
    Object.assign(option, { value: id, textContent: legible(`${id} (${client}, ${state})`), selected: id === session });
    return option;
  });
  $("session").replaceChildren(...options);
  if (!sessions.some(({ id }) => id === session)) session = sessions.at(-1)?.id ?? null;
  $("session").value = session ?? "";
}

$("session").addEventListener("change", () => {
  session = $("session").value;
  const { socket } = view;
  Object.assign(view, { last: null, socket: null, over: false });
  $("world").hidden = true; // the picture is from another session's world
  socket?.close();
  chart.calls.length = 0;
  connect();
});

// ------------------------------------------------------------------------------------------------------------ show

function take(told) {
  if (told.answer !== undefined) {
    put("answer", told.answer);
    return;
  }
  view.last = told;
  view.over = Boolean(told.over);
  if (told.counts === undefined) {
    put("lead", told.phase); // the run has sent no state yet
    return;
  }
  view.seen += told.ticks.length;
  const period = 1000 / (told.hz > 0 ? told.hz : 16);
  const now = performance.now();
  const ticks = told.ticks.slice(-MOST_TICKS);
  ticks.forEach((tick, i) => {
    const [latency, decide] = [tick.latency_ms, tick.decide_ms].map((value) => (isNumber(value) ? value : null));
    const at = now - (ticks.length - 1 - i) * period;
    chart.add({ at, latency, age: null, decide, missed: Boolean(tick.cause) });
  });
  chart.deadline = isNumber(told.deadline_ms) ? told.deadline_ms : 0;
  put("title", told.env ?? "A run");
  put("lead", lead(told));
  showState(told);
  showAge(told.picture_age_s);
  put("force", told.instruction ?? "");
  put("text", told.text ?? "not kept in the record");
  put("history", told.history?.length ? `after ${told.history.join("  ")}` : "");
  showCall(told);
  for (const name of ["p50", "p99", "max"]) put(name, ms(told.latency_ms[name]));
  put("decide", ms(told.ticks.at(-1)?.decide_ms));
  put("missed", (told.counts.misses + told.counts.skipped_releases).toLocaleString("en"));
  put("releases", told.counts.releases.toLocaleString("en"));
  showCauses(told);
  showLog(told.log);
  if (told.said && told.said !== view.said) put("answer", told.said);
  view.said = told.said;
}

/** Show the model, the rate and the progress. */
function lead({ agent, model, hz, phase, episodes, judged, successes }) {
  const known = [agent && `agent ${agent}`, model && `model ${model.split("/").at(-1)}`];
  known.push(hz && `${Number(hz.toPrecision(3))} Hz`, phase);
  const judgement = judged ? ` (${successes} of ${judged} successful)` : "";
  known.push(episodes && `${episodes} ${episodes === 1 ? "episode" : "episodes"}${judgement}`);
  return known.filter(Boolean).join(" · ");
}

function showState({ state, asking }) {
  put("state", state === "running" ? "" : state);
  $("state").dataset.state = state;
  for (const button of document.querySelectorAll("[data-say]")) {
    const { say } = button.dataset;
    const idle = { pause: state !== "running", resume: state !== "paused", stop: state === "stopped" };
    button.disabled = Boolean(idle[say]);
  }
  if (asking?.k !== asked) askedAt = performance.now();
  asked = asking?.k ?? null;
  $("ask").hidden = asked === null;
  put("ask-call", asking?.call ?? "");
}

function showCall({ call, confidence, ticks, state, safe_calls: safe }) {
  const last = ticks.at(-1);
  const running = state === "running";
  if (!running) put("kind", "the safe call");
  else if (last) put("kind", last.why ?? (last.cause ? `missed: ${plain(last.cause)}` : last.kind));
  put("call", running ? (call ?? "–") : safe?.join(", ") || "safe");
  $("sureness").hidden = !running || !isNumber(confidence); // part of a decision
  if ($("sureness").hidden) return;
  put("sure", `${Math.round(confidence * 100)} %`);
  $("sure-bar").style.transform = `scaleX(${confidence})`;
}

function showCauses({ causes, subcauses }) {
  const key = JSON.stringify([causes, subcauses]);
  if (key === texts.get("causes")) return;
  texts.set("causes", key);
  const rows = Object.entries(causes).sort((a, b) => b[1] - a[1]).map(([cause, n]) => {
    const row = document.createElement("li");
    const number = document.createElement("i");
    number.textContent = n;
    row.append(legible(plain(cause)), number);
    const kinds = Object.entries(subcauses).filter(([name]) => name.startsWith(`${cause}.`));
    const kind = document.createElement("small");
    kind.textContent = legible(kinds.map(([name, times]) => `${plain(name.slice(cause.length + 1))} ${times}`).join(", "));
    row.append(kind);
    return row;
  });
  $("causes").replaceChildren(...rows);
}

function plain(name) {
  return name.replaceAll("_", " ");
}

/** Show the newest lines first. */
function showLog(lines = []) {
  const newest = lines.slice(-3).reverse();
  const key = newest.join("\n");
  if (key === texts.get("log")) return;
  texts.set("log", key);
  $("told").hidden = !newest.length;
  const rows = newest.map((line) => Object.assign(document.createElement("li"), { textContent: legible(line) }));
  $("log").replaceChildren(...rows);
}

function ms(value) {
  if (!isNumber(value)) return "–";
  return `${value < 9.95 ? value.toFixed(1) : Math.round(value)} ms`;
}

/** Of a picture that the client of a world behind a wire sent: null where there is none, undefined of other worlds. */
function showAge(age) {
  if (age === null) $("world").hidden = true;
  const old = typeof age === "number" && age > OLD_S;
  put("picture-age", old ? `${Math.round(age)} s old` : "");
  $("picture").classList.toggle("old", old);
}

async function picture(blob, socket) {
  let image;
  try {
    image = await createImageBitmap(blob);
  } catch {
    put("answer", "the world's picture cannot be shown: its file is damaged");
    return;
  }
  if (socket !== view.socket) return;
  const canvas = $("picture");
  $("world").hidden = false;
  if (canvas.width !== image.width) Object.assign(canvas, { width: image.width, height: image.height });
  canvas.getContext("2d").drawImage(image, 0, 0);
  view.pictures = (view.pictures ?? 0) + 1;
}

// ------------------------------------------------------------------------------------------------------------- say

function send(what) {
  if (view.socket?.readyState === WebSocket.OPEN) view.socket.send(JSON.stringify(what));
  else put("answer", "not connected: nothing was said");
}

function say(word) {
  const about = word === "confirm" || word === "deny";
  if (about && asked === null) return;
  const read = performance.now() - askedAt >= READ_MS;
  send(about && read ? { say: word, k: asked } : { say: word });
}

for (const button of document.querySelectorAll("[data-say]")) {
  button.addEventListener("click", () => say(button.dataset.say));
}

$("tell").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("instruction").value.trim();
  if (text) send({ instruct: text });
  $("instruction").select(); // so that the next one replaces it
});

addEventListener("keydown", (event) => {
  const typing = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
  if (typing && event.key === "Escape") event.target.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    event.preventDefault();
    $("instruction").focus();
  } else if (KEYS[event.key]) say(KEYS[event.key]);
});

let colours = {};
function readColours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["line", "ink", "muted", "you", "model", "bad", "mono"];
  colours = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}
readColours();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", readColours);

let drawnAt = 0;
function frame(now) {
  if (now - drawnAt > 60) {
    drawnAt = now;
    chart.draw(now, colours, Math.min(devicePixelRatio || 1, 3));
  }
  requestAnimationFrame(frame);
}

window.rtcontrol = view; // for tests and for use in the console
connect();
requestAnimationFrame(frame);
