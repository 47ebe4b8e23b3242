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


@dataclass(frozen=True)
class Keys:
    """What the client has: keys of its own, and a server key that a person gave it."""

    own: bool
    server: bool


@dataclass(frozen=True)
class ConnectAnswer:
    """An HTTP answer. `retry_after` is that header's text."""

    status: int
    body: bytes
    retry_after: str = ""


def read_answer(url: str, answer: ConnectAnswer, keys: Keys) -> NamedServer | NoServer:
    """Return the server that an answer names, or why there is none."""
    if answer.status != 200:
        seconds = answer.retry_after.strip()
        retry_s = int(seconds) if re.fullmatch(r"[0-9]{1,9}", seconds) else 0
        return NoServer(f"{url} answered {answer.status}", min(retry_s, MOST_RETRY_S))
    try:
        found = _named(answer.body)
    except ValueError as error:
        return NoServer(f"{url} names no server: {error}")
    local = is_loopback(Endpoint.parse(found.address).host)
    if not keys.own:
        return NamedServer(found.address) if local else NoServer(f"{url} names {found.address}: that needs keys")
    if keys.server:
        return NamedServer(found.address)
    if found.key is None:
        return found if local else NoServer(f"{url} names {found.address} without a server key: give the server's key")
    where = urlsplit(url)
    if where.scheme == "https" or is_loopback(where.hostname or ""):
        return found
    return NoServer(f"{url} is not encrypted, so its server key is not trusted: give the server's key")


def tools_hint(tools: Any, agent: str | None) -> str | None:
    """Return the value of `x-tools` for a hello with these tools or this agent, None with neither."""
    if tools:
        text = json.dumps(tools, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    elif agent:
        text = agent
    else:
        return None
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def get(url: str, headers: Mapping[str, str], limit_s: float = ANSWER_S) -> ConnectAnswer | NoServer:
    """Request the URL and return its answer, or why there is none. Redirects are not followed, proxies not used."""
    request = urllib.request.Request(url, headers={"accept": "application/json", **headers})
    try:
        with _opener().open(request, timeout=limit_s) as found:
            return ConnectAnswer(found.status, found.read(MOST_BYTES + 1))
    except urllib.error.HTTPError as error:
        with error:
            return ConnectAnswer(error.code, b"", error.headers.get("retry-after", ""))
    except Exception as error:  # whatever a wrong server provokes: OSError, HTTPException, ValueError
        reason = getattr(error, "reason", None) or error
        return NoServer(f"{url} does not answer ({reason})")


class Enquiry:
    """One request on a thread of its own. `done` is called there, once there is a result."""

    def __init__(self, url: str, headers: Mapping[str, str], keys: Keys, done: Callable[[], None]) -> None:
        self.url, self.result = url, None  # type: str, NamedServer | NoServer | None
        work = threading.Thread(target=self._run, args=(headers, keys, done), name="rtcontrol-connect", daemon=True)
        work.start()

    def _run(self, headers: Mapping[str, str], keys: Keys, done: Callable[[], None]) -> None:
        answer = get(self.url, headers)
        self.result = answer if isinstance(answer, NoServer) else read_answer(self.url, answer, keys)
        done()


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *given: Any, **named: Any) -> None:
        return None


def _opener() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects())


def _named(body: bytes) -> NamedServer:
    """Return what a body says, checked. Raises ValueError."""
    if len(body) > MOST_BYTES:
        raise ValueError(f"it answers more than {MOST_BYTES} bytes")
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("it answers no JSON") from None
    if not isinstance(document, dict):
        raise ValueError("it answers no JSON object")
    address, key = document.get("address"), document.get("server_key")
    if not isinstance(address, str) or not _is_address(address):
        raise ValueError("its `address` is not tcp://HOST:PORT")
    if key is not None and not _is_key(key):
        raise ValueError("its `server_key` is not 40 characters of Z85")
    return NamedServer(address, key)


def _is_address(text: str) -> bool:
    if len(text) > MOST_ADDRESS or not text.isascii() or not text.isprintable() or set(text) & set(" ,;*/") - {"/"}:
        return False
    try:
        found = Endpoint.parse(text)
    except EndpointError:
        return False
    return found.scheme == "tcp" and "/" not in found.host and found.port.isdigit() and int(found.port) > 0


def _is_key(key: Any) -> bool:
    if not isinstance(key, str) or len(key) != 40 or not key.isascii():
        return False
    try:
        return len(z85.decode(key.encode())) == 32
    except Exception:  # z85 raises several kinds for what is not Z85
        return False
