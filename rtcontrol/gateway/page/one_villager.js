// The panel of one villager: the goal, the active call, the last calls with their latency, and the observation.

const $ = (id) => document.getElementById(id);
const EVERY_MS = 100;

export class OnePanel {
  /** `choose` is told who was chosen in the list, `tell` whom alone something is to be told. */
  constructor({ crowd, village, shown, choose, tell }) {
    Object.assign(this, { crowd, village, shown, chosen: null, at: 0, rows: "" });
    const option = (value, text) => Object.assign(document.createElement("option"), { value, textContent: text });
    const names = village.villagers.map((one) => option(one.id, `${one.number} ${one.name}, ${one.colour}`));
    $("who").replaceChildren(option("", "nobody"), ...names);
    $("who").addEventListener("change", () =>
      choose(village.villagers.find(({ id }) => id === $("who").value) ?? null),
    );
    $("only").addEventListener("click", () => tell(this.chosen));
  }

  /** Show a villager, or an empty panel (null). */
  choose(one) {
    this.chosen = one;
    this.at = 0;
    $("who").value = one?.id ?? "";
    $("one").hidden = one === null;
    $("one-hint").hidden = one !== null;
    if (one) $("one-colour").style.background = `var(--${one.colour})`;
  }

  /** Update the panel; call this for each frame. */
  show(now) {
    if (!this.chosen || now - this.at < EVERY_MS) return;
    this.at = now;
    const one = this.chosen;
    const { goal, calls, away } = this.shown.get(one);
    const {
      status,
      calls: inForce,
      cause,
      message,
    } = away ? { status: "asleep", calls: [], cause: null, message: null } : this.crowd.call(one.id);
    put("one-goal", goal);
    put("one-call", `${inForce.map(text).join(" ") || "–"}`);
    $("one-call").title = cause ? `${status}: ${cause}` : status;
    const sure = message?.confidence;
    $("sureness").hidden = sure === undefined;
    if (sure !== undefined) {
      put("sure", `${Math.round(sure * 100)} %`);
      $("sure-bar").style.transform = `scaleX(${sure})`;
    }
    put("one-look", this.village.look(one));
    this.#calls(calls, now);
  }

  #calls(calls, now) {
    const rows = calls.map(({ at, message, latencyMs }) => {
      const row = document.createElement("tr");
      row.classList.toggle("missed", Boolean(message.cause));
      const all = message.calls ?? (message.call ? [message.call] : []);
      const what = message.cause
        ? `${message.status}: ${message.cause.replaceAll("_", " ")}`
        : all.map(text).join(" ") || "as before";
      for (const cell of [
        `${((now - at) / 1e3).toFixed(1)} s`,
        what,
        latencyMs === null ? "–" : `${Math.round(latencyMs)} ms`,
      ]) {
        row.append(Object.assign(document.createElement("td"), { textContent: cell }));
      }
      return row;
    });
    $("calls").replaceChildren(...rows);
  }
}

/** Set an element's text if it has changed, as setting the same text costs a layout. */
function put(id, value) {
  if ($(id).textContent !== value) $(id).textContent = value;
}

const text = ({ name, arguments: values = {} }) => `${name}(${Object.values(values).join(", ")})`;
