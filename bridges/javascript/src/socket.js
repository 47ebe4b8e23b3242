// Where a session may connect, the WebSocket to there, and what of both may be shown to people and logs. No DOM.

const SUBPROTOCOL = "rtcontrol.v1";
const TOKEN = /^[A-Za-z0-9_.~-]{16,256}$/;
const FAREWELL_MS = 1000; // for a closing handshake, where a socket can be ended without it

/** A URL of GET /connect as the WebSocket at the same place, which leads to one of its servers. */
const socketOf = (one) => one.replace(/^http(s?):\/\/([^/?#\s]+)\/[^?#\s]+/i, (_, s, place) => `ws${s.toLowerCase()}://${place}/ws`);

/** Where a session connects. Throws Error where that is no address. */
export function addressOf(url) {
  const address = socketOf(String(url).trim());
  if (!/^wss?:\/\/[^/\s,][^\s,]*$/i.test(address))
    throw new Error(`${shown(url) || "Nothing"} is no address. Write ws://HOST:PORT/ws.`);
  return address;
}

/** An address without what may be secret: a query (`?token=`), a fragment, a name with a password. */
export const shown = (url) => String(url).replace(/[?#].*$/s, "").replace(/\/\/[^/]*@/, "//");

/** Whether this can be an access token. */
export const isToken = (token) => typeof token === "string" && TOKEN.test(token);

/** A WebSocket that connects. Throws Error where none can be made there, or with this token; another time neither can. */
export function openSocket(WebSocketClass, address, token) {
  if (token && !isToken(token)) {
    const form = "It has 16 to 256 letters, digits, and _ . ~ -.";
    throw new Error(`${shown(address)} cannot be opened: the access token does not have the form of one. ${form}`);
  }
  const protocols = token ? [SUBPROTOCOL, `rtcontrol.token.${token}`] : [SUBPROTOCOL];
  try {
    return new WebSocketClass(address, protocols);
  } catch {
    // Its own text may have the token.
    throw new Error(`${shown(address)} cannot be opened. Write ws://HOST:PORT/ws, and wss:// from a page of https.`);
  }
}

/** Closes it, if there is one. A peer that hangs answers no closing handshake, and would keep the program from its end. */
export function endSocket(socket) {
  if (!socket || socket.readyState > 2) return;
  if (socket.readyState < 2) socket.close();
  if (socket.terminate) setTimeout(() => socket.terminate(), FAREWELL_MS);
}
