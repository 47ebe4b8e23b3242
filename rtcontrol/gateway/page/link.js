// What the pages of games have in common of their connection: its line in the header, and the question for the token.

const STATES = {
  connecting: "connecting",
  opening: "connected, waking the model",
  live: "connected",
  waiting: "connection lost, trying again",
  closed: "disconnected while this tab is hidden",
};

const $ = (id) => document.getElementById(id);

/** Where the server of this page is. */
export const SOCKET = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws`;

/** The line tells the state of a session or crowd from now on; a token that is given is used by its next connection. */
export function showLink(session) {
  session.on.state = (state, detail) => {
    $("link").dataset.state = state;
    $("link-text").textContent = state === "refused" ? `refused: ${detail}` : STATES[state];
    if (state === "waiting" && !detail.opened) askForToken(session.token);
  };
  $("gate-form").addEventListener("submit", () => {
    session.token = $("token").value.trim();
  });
}

/** A browser does not say why a handshake failed: ask over HTTP. */
async function askForToken(token) {
  try {
    const answer = await fetch("health", { headers: token ? { authorization: `Bearer ${token}` } : {} });
    if (answer.status === 401 && !$("gate").open) $("gate").showModal();
  } catch {
    // The server is away; the session tries again by itself.
  }
}
