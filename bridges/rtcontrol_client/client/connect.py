"""GET /connect (docs/protocol.md, section 1): read the answer that names a server; request it on another thread."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from zmq.utils import z85

from rtcontrol_client.wire.endpoint import Endpoint, EndpointError, is_loopback

MOST_BYTES = 4096
MOST_ADDRESS = 256
ANSWER_S = 2.0
MOST_RETRY_S = 5


@dataclass(frozen=True)
class NamedServer:
    """A server to connect to: its ZeroMQ address, and its public key (Z85) if the client is to use that one."""

    address: str
    key: str | None = None


@dataclass(frozen=True)
class NoServer:
    """No server now: why, for people, and how many seconds to wait at least."""

    why: str
    retry_s: int = 0


def read_answer(
    url: str, status: int, body: bytes, retry_after: str, *, keys: bool, server_key: bool
) -> NamedServer | NoServer:
    """Return the server that an HTTP answer names, or why there is none. `keys`: the client has its own; `server_key`:
    a person gave it the server's."""
    if status != 200:
        seconds = retry_after.strip()
        retry_s = int(seconds) if re.fullmatch(r"[0-9]{1,9}", seconds) else 0
        return NoServer(f"{url} answered {status}", min(retry_s, MOST_RETRY_S))
    try:
        found = _named(body)
    except (ValueError, RecursionError) as error:
        return NoServer(f"{url} names no server: {error}")
    local = is_loopback(Endpoint.parse(found.address).host)
    if not keys:
        return NamedServer(found.address) if local else NoServer(f"{url} names {found.address}: that needs keys")
    if server_key:
        return NamedServer(found.address)
    if found.key is None:
        return found if local else NoServer(f"{url} names {found.address} without a server key: give the server's key")
    where = urlsplit(url)
    if where.scheme == "https" or is_loopback(where.hostname or ""):
        return found
    return NoServer(f"{url} is not encrypted, so its server key is not trusted: give the server's key")


def _named(body: bytes) -> NamedServer:
    """Return what a body says, checked. Raises ValueError."""
    if len(body) > MOST_BYTES:
        raise ValueError(f"it answers more than {MOST_BYTES} bytes")
    document = json.loads(body)
    if not isinstance(document, dict):
        raise ValueError("it answers no JSON object")
    address, key = document.get("address"), document.get("server_key")
    if not isinstance(address, str) or not _is_address(address):
        raise ValueError("its `address` is not tcp://HOST:PORT")
    if key is not None and not _is_key(key):
        raise ValueError("its `server_key` is not 40 characters of Z85")
    return NamedServer(address, key)


def _is_address(text: str) -> bool:
    if len(text) > MOST_ADDRESS or not re.fullmatch(r"tcp://[!-~]+", text) or set(text[6:]) & set(",;*/"):
        return False
    try:
        found = Endpoint.parse(text)
    except EndpointError:
        return False
    return found.port.isdigit() and int(found.port) > 0


def _is_key(key: Any) -> bool:
    if not isinstance(key, str) or len(key) != 40 or not key.isascii():
        return False
    try:
        return len(z85.decode(key.encode())) == 32
    except Exception:  # z85 raises several kinds for what is not Z85
        return False


def tools_hint(tools: Any, agent: str | None) -> str | None:
    """Return the value of `x-tools` for a hello with these tools or this agent, None with neither."""
    text = json.dumps(tools, sort_keys=True, separators=(",", ":"), ensure_ascii=False) if tools else agent
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() if text else None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *given: Any, **named: Any) -> None:
        return None


class Enquiry:
    """One request on a thread of its own: redirects are not followed, proxies not used. `done` is called there, once
    there is a `result`."""

    def __init__(
        self, url: str, headers: Mapping[str, str], done: Callable[[], None], *, keys: bool, server_key: bool
    ) -> None:
        self.url, self.result = url, None  # type: str, NamedServer | NoServer | None
        self._keys, self._server_key, self._done = keys, server_key, done
        threading.Thread(target=self._run, args=(headers,), name="rtcontrol-connect", daemon=True).start()

    def _run(self, headers: Mapping[str, str]) -> None:
        request = urllib.request.Request(self.url, headers={"accept": "application/json", **headers})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects())
        try:
            with opener.open(request, timeout=ANSWER_S) as found:
                self.result = self._read(found.status, found.read(MOST_BYTES + 1), "")
        except urllib.error.HTTPError as error:
            with error:
                self.result = self._read(error.code, b"", error.headers.get("retry-after", ""))
        except Exception as error:  # whatever a wrong server provokes: OSError, HTTPException, ValueError
            self.result = NoServer(f"{self.url} does not answer ({getattr(error, 'reason', None) or error})")
        self._done()

    def _read(self, status: int, body: bytes, retry_after: str) -> NamedServer | NoServer:
        return read_answer(self.url, status, body, retry_after, keys=self._keys, server_key=self._server_key)
