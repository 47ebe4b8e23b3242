"""Request a server's address by HTTP, with GET /connect, on a separate thread (docs/protocol.md, section 1)."""

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

from rtcontrol_client.wire.curve import is_key
from rtcontrol_client.wire.endpoint import Endpoint, EndpointError, is_loopback

MAX_BYTES, MAX_ADDRESS = 4096, 256
ANSWER_S = 2.0
MAX_RETRY_S = 5


@dataclass(frozen=True)
class ServerAddress:
    """A server to connect to: its ZeroMQ address, and its public key (Z85), or None if the client need not use it."""

    address: str
    key: str | None = None


@dataclass(frozen=True)
class NoServer:
    """A /connect response without a server. `why` is the reason for people, `retry_s` the minimum pause to a retry."""

    why: str
    retry_s: int = 0


def read_response(
    url: str, status: int, body: bytes, retry_after: str, *, keys: bool, server_key: bool
) -> ServerAddress | NoServer:
    """Return the server that an HTTP response names, or the reason for no server. `keys` is whether the client has
    CURVE keys, `server_key` whether the user specified the server's key."""
    if status != 200:
        seconds = retry_after.strip()
        retry_s = int(seconds) if re.fullmatch(r"[0-9]{1,9}", seconds) else 0
        return NoServer(f"{url} answered {status}", min(retry_s, MAX_RETRY_S))
    try:
        server = _parse_server(body)
    except (ValueError, RecursionError) as error:
        return NoServer(f"{url} names no server: {error}")
    local = is_loopback(Endpoint.parse(server.address).host)
    if not keys:
        return ServerAddress(server.address) if local else NoServer(f"{url} names {server.address}: that needs keys")
    if server_key:
        return ServerAddress(server.address)
    if server.key is None and not local:
        return NoServer(f"{url} names {server.address} without a server key: give the server's key")
    where = urlsplit(url)
    if server.key is None or where.scheme == "https" or is_loopback(where.hostname or ""):
        return server
    return NoServer(f"{url} is not encrypted, so its server key is not trusted: give the server's key")


def _parse_server(body: bytes) -> ServerAddress:
    """Return the server in the body of a response. Raises ValueError if the body is not valid."""
    if len(body) > MAX_BYTES:
        raise ValueError(f"it answers more than {MAX_BYTES} bytes")
    document = json.loads(body)
    if not isinstance(document, dict):
        raise ValueError("it does not answer a JSON object")
    address, key = document.get("address"), document.get("server_key")
    if not isinstance(address, str) or not _is_address(address):
        raise ValueError("its `address` is not tcp://HOST:PORT")
    if key is not None and not is_key(key):
        raise ValueError("its `server_key` is not 40 characters of Z85")
    return ServerAddress(address, key)


def _is_address(text: str) -> bool:
    if len(text) > MAX_ADDRESS or not re.fullmatch(r"tcp://[!-~]+", text) or set(text[6:]) & set(",;*/"):
        return False
    try:
        return int(Endpoint.parse(text).port) > 0
    except EndpointError:
        return False


def hash_of_tools(tools: Any, agent: str | None) -> str | None:
    """Return the value of the header `x-tools`, a hash of the tools or the agent's name, or None without both."""
    text = json.dumps(tools, sort_keys=True, separators=(",", ":"), ensure_ascii=False) if tools else agent
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() if text else None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments: Any, **options: Any) -> None:
        return None


class ConnectRequest:
    """An HTTP request on a new thread, without redirects or proxies. It sets `result`, then calls `on_response`."""

    def __init__(
        self, url: str, headers: Mapping[str, str], on_response: Callable[[], None], *, keys: bool, server_key: bool
    ) -> None:
        self.result: ServerAddress | NoServer | None = None
        self._url, self._keys, self._on_response = url, {"keys": keys, "server_key": server_key}, on_response
        threading.Thread(target=self._run, args=(headers,), name="rtcontrol-connect", daemon=True).start()

    def _run(self, headers: Mapping[str, str]) -> None:
        request = urllib.request.Request(self._url, headers={"accept": "application/json", **headers})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects())
        try:
            with opener.open(request, timeout=ANSWER_S) as answer:
                self.result = read_response(self._url, answer.status, answer.read(MAX_BYTES + 1), "", **self._keys)
        except urllib.error.HTTPError as error:
            with error:
                retry_after = error.headers.get("retry-after", "")
                self.result = read_response(self._url, error.code, b"", retry_after, **self._keys)
        except Exception as error:  # a server that is not rtcontrol's can cause any error
            self.result = NoServer(f"{self._url} does not answer ({getattr(error, 'reason', None) or error})")
        self._on_response()
