// A code that a server shows (`rtcontrol serve --pair`), for an access token of this device's own. No DOM.

import { shown } from "./socket.js";

const PATIENCE_MS = 10_000;

/** Why there is no token: `code` for programs, `status` of HTTP where there is one, `waitS` where one must wait. */
export class PairingError extends Error {
  constructor(code, message, status = null, waitS = null) {
    super(message);
    Object.assign(this, { name: "PairingError", code, status, waitS });
  }
}

/** Where to pair with the server of a WebSocket's address, or the first one of a list. Throws Error for what is none. */
export function pairAddress(url) {
  const first = String(url).split(",")[0].trim();
  const found = /^(ws|http)(s?):\/\/([^/?#\s]+)/i.exec(first);
  if (!found) throw new Error(`${shown(first) || "Nothing"} is no address. Write ws://HOST:PORT/ws.`);
  return `http${found[2].toLowerCase()}://${found[3]}/pair`;
}

/**
 * { token, name }: keep the token as a secret, and connect with it. Spaces and - in the code do not matter. `name` is
 * what people read in the server's list; without one it is "device". Throws PairingError, and tries nothing twice.
 */
export async function pair(url, code, { name, fetch = globalThis.fetch } = {}) {
  const digits = String(code).replace(/[\s-]/g, "");
  if (!/^\d{6}$/.test(digits)) throw new PairingError("code_form", "A code has six digits. Type those that the server shows.");
  const answer = await post(fetch, pairAddress(url), { code: digits, name });
  if (typeof answer.token !== "string") throw new PairingError("answer", "The server's answer has no token. Update it, or this client.");
  return { token: answer.token, name: String(answer.name ?? name ?? "") };
}

/** Whether the server pairs; if so, it shows a code from now on. Throws PairingError where it says why not, or nothing. */
export async function askForCode(url, { fetch = globalThis.fetch } = {}) {
  try {
    await post(fetch, pairAddress(url), {});
  } catch (error) {
    if (error.code === "code") return true;
    if (error.status === 404 || error.status === 405) return false;
    throw error;
  }
  return false;
}

async function post(fetch, url, body) {
  let answer, told;
  try {
    answer = await fetch(url, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
      redirect: "error",
      credentials: "omit",
      cache: "no-store",
      signal: AbortSignal.timeout(PATIENCE_MS),
    });
    told = await answer.json().catch(() => ({}));
  } catch (error) {
    throw new PairingError("unreachable", `${url} does not answer (${error.message}). Is the server there, and the address right?`);
  }
  if (answer.ok) return told;
  const none = answer.status === 404 ? " It gives no codes: start it with --pair." : "";
  const text = typeof told.error === "string" ? told.error : `The server answers ${answer.status}.${none}`;
  const wait = Number(answer.headers.get("retry-after"));
  throw new PairingError(String(told.code ?? answer.status), text, answer.status, wait > 0 ? wait : null);
}
