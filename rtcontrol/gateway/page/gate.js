// The dialog that asks for the access token.

import { isToken } from "./client/socket.js";

/** The WebSocket address of this page's server. */
export const SOCKET = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws`;

const make = (tag, fields = {}, ...inner) => {
  const one = Object.assign(document.createElement(tag), fields);
  one.append(...inner);
  return one;
};

export class Gate {
  /** `use` gets each token that the visitor types. Fills the page's dialog `gate`. */
  constructor(use) {
    this.use = use;
    this.token = inAddress();
    this.dialog = document.getElementById("gate");
    this.#fill();
  }

  /** Ask for a token, or for another one after the server `refused` one. */
  ask(refused) {
    if (this.dialog.open || refused !== this.token) return;
    if (refused !== null && refused === inAddress()) leaveOutOfAddress(); // or each reload would try it again
    this.dialog.showModal();
    this.field.focus();
  }

  #fill() {
    this.field = make("input", { id: "token", type: "password", autocomplete: "off", required: true });
    this.field.pattern = "[A-Za-z0-9_.~\\-]{16,256}";
    this.field.title = "16 to 256 letters, digits, and _ . ~ -";
    const form = make(
      "form",
      { id: "gate-form", method: "dialog" },
      make("label", { htmlFor: "token" }, "The access token, of the file given as serve.token_file"),
      this.field,
      make("button", { type: "submit" }, "Connect"),
    );
    form.addEventListener("submit", () => {
      this.token = this.field.value.trim();
      this.use(this.token);
    });
    this.dialog.append(make("h2", {}, "This server needs an access token"), form);
  }
}

/** Return the token of `#token=TOKEN`; null if it is missing or malformed. */
function inAddress() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  return isToken(token) ? token : null;
}

/** Remove the token from the address and from the history. */
function leaveOutOfAddress() {
  if (location.hash) history.replaceState(history.state, "", location.pathname + location.search);
}
