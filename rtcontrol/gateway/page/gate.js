// The question for the access token: by the code that the server shows, where it pairs, or the token itself. A token
// that a code was exchanged for is this browser's own, and kept in it.

import { askForCode, pair } from "./client/pair.js";
import { isToken } from "./client/socket.js";

const KEPT_AS = "rtcontrol.token";
/** Where the server of this page is. */
export const SOCKET = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws`;

const make = (tag, fields = {}, ...inner) => {
  const one = Object.assign(document.createElement(tag), fields);
  one.append(...inner);
  return one;
};

export class Gate {
  /** `use` is told each token that the visitor brings. The dialog `gate` of the page is filled. */
  constructor(use) {
    this.use = use;
    this.token = inAddress() ?? kept();
    this.asking = false;
    this.dialog = document.getElementById("gate");
    this.#fill();
  }

  /** The server wants a token, or another one than `refused`; a newer one is tried first. */
  async ask(refused) {
    if (this.asking || this.dialog.open || refused !== this.token) return;
    if (refused !== null && refused === inAddress()) leaveOutOfAddress(); // or each reload would try it again
    if (refused !== null && refused === kept()) keep(null); // it was revoked
    const other = kept();
    if (other !== null) {
      this.#take(other);
      return;
    }
    this.asking = true;
    this.why.textContent = "";
    let pairs = false;
    try {
      pairs = await askForCode(SOCKET);
    } catch (error) {
      this.why.textContent = error.message;
      pairs = error.code === "locked";
    }
    this.asking = false;
    this.codeForm.hidden = !pairs;
    this.other.open = !pairs;
    this.dialog.showModal();
    (pairs ? this.code : this.field).focus();
  }

  #fill() {
    this.code = make("input", { id: "code", inputMode: "numeric", autocomplete: "one-time-code", required: true, maxLength: 12 });
    this.why = make("p", { id: "gate-why", role: "status" });
    this.codeForm = make(
      "form",
      { id: "code-form", method: "dialog" },
      make("label", { htmlFor: "code" }, "The six digits that the server shows in its terminal"),
      this.code,
      make("button", { type: "submit" }, "Pair this device"),
    );
    this.field = make("input", { id: "token", type: "password", autocomplete: "off", required: true });
    this.field.pattern = "[A-Za-z0-9_.~\\-]{16,256}";
    this.field.title = "16 to 256 letters, digits, and _ . ~ -";
    const form = make(
      "form",
      { id: "gate-form", method: "dialog" },
      make("label", { htmlFor: "token" }, "The access token, of the file given as --token-file"),
      this.field,
      make("button", { type: "submit" }, "Connect"),
    );
    this.other = make("details", {}, make("summary", {}, "With the access token"), form);
    this.dialog.append(make("h2", {}, "This server lets in whom it knows"), this.codeForm, this.why, this.other);
    form.addEventListener("submit", () => this.#take(this.field.value.trim()));
    this.codeForm.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#pair();
    });
  }

  async #pair() {
    try {
      const { token } = await pair(SOCKET, this.code.value, { name: deviceName() });
      keep(token);
      leaveOutOfAddress();
      this.dialog.close();
      this.#take(token);
    } catch (error) {
      this.why.textContent = error.message;
      this.code.select();
    }
    this.code.focus();
  }

  #take(token) {
    this.token = token;
    this.use(token);
  }
}

/** What its owner finds it by in the server's list. */
function deviceName() {
  const system = navigator.userAgentData?.platform || navigator.platform || "";
  return `browser ${system}`.trim().replace(/[^\w .-]/g, "").slice(0, 64);
}

/** The token of `#token=TOKEN`; null where there is none, or none that could be one. */
function inAddress() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  return isToken(token) ? token : null;
}

/** From the history, too. */
function leaveOutOfAddress() {
  if (location.hash) history.replaceState(history.state, "", location.pathname + location.search);
}

function kept() {
  try {
    const token = localStorage.getItem(KEPT_AS);
    return isToken(token) ? token : null;
  } catch {
    return null; // the browser keeps nothing
  }
}

function keep(token) {
  try {
    if (token === null) localStorage.removeItem(KEPT_AS);
    else localStorage.setItem(KEPT_AS, token);
  } catch {
    // Then it is for this visit.
  }
}
