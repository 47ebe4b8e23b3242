// The connection of the game pages: the status line in the header, and the request for a token.

import { Gate } from "./gate.js";

export { SOCKET } from "./gate.js";

const STATES = {
  connecting: "connecting",
  opening: "connected, waking the model",
  live: "connected",
  waiting: "connection lost, trying again",
  closed: "disconnected while this tab is hidden",
};

const $ = (id) => document.getElementById(id);

/** Show the state of a session or crowd in the line, and use an entered token for the next connection. */
export function showLink(session) {
  const gate = new Gate((token) => {
    session.token = token;
  });
  session.token = gate.token;
  session.on.state = (state, detail) => {
    $("link").dataset.state = state;
    $("link-text").textContent = state === "refused" ? `refused: ${detail}` : STATES[state];
    if (state === "waiting" && !detail.opened) askForToken(gate, session.token);
  };
}

/** A browser does not say why a handshake failed: ask over HTTP. */
async function askForToken(gate, token) {
  try {
    const answer = await fetch("health", { headers: token ? { authorization: `Bearer ${token}` } : {} });
    if (answer.status === 401) await gate.ask(token);
  } catch {
    // The server is away; the session tries again by itself.
  }
}
