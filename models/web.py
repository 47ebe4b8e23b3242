"""JSON over HTTP from untrusted servers: with a time limit, a bounded size, and no compression.

A compressed answer is refused before it is unpacked: 65 kB of zstd hold gigabytes. The time limit is for the whole
request, so that headers or a body that arrive byte by byte end with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from rtcontrol.models.loop_thread import LoopThread

MOST_BYTES = 1 << 20
ENCODING = {"accept-encoding": "identity"}


class WebError(Exception):
    """An answer that cannot be used: `loss` is "timeout", "connection", or "malformed" for a fault of the server."""

    def __init__(self, loss: str, message: str) -> None:
        super().__init__(message)
        self.loss = loss


@dataclass(frozen=True)
class WebAnswer:
    """An answer; `headers` by their names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """Return the JSON value. Raises ValueError for invalid or too deep JSON."""
        # Python's own parser goes as deep as its stack.
        return from_json(self.body)


def packed_by(headers: Mapping[str, str]) -> str | None:
    """Return the compression that these headers name; None without one."""
    named = headers.get("content-encoding", "").strip()
    return None if named.lower() in ("", "identity") else named[:80]


class WebClient:
    """Posts JSON to one address, or gets it, on persistent connections and a separate thread; thread-safe. Without
    `proxies` those of the environment are ignored."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        connections: int = 1,
        most_bytes: int = MOST_BYTES,
        proxies: bool = True,
    ):
        import httpx

        self._url, self._most_bytes = url, most_bytes
        limits = httpx.Limits(max_connections=connections)
        sent = {"content-type": "application/json", **ENCODING, **headers}
        self._client = httpx.AsyncClient(headers=sent, timeout=None, limits=limits, trust_env=proxies)
        self._thread = LoopThread("web client")

    def post(self, body: Any, limit_s: float) -> Future[WebAnswer]:
        """Return a future of the answer; cancelling it closes the request. It raises WebError, as this method does
        after `close`."""
        return self._start("POST", limit_s, json=body)

    def get(self, limit_s: float) -> Future[WebAnswer]:
        """Send a GET request, as `post` without a body."""
        return self._start("GET", limit_s)

    def _start(self, method: str, limit_s: float, **content: Any) -> Future[WebAnswer]:
        future = self._thread.start(self._request, method, limit_s, **content)
        if future is None:
            raise WebError("connection", "the client was closed")
        return future

    async def _request(self, method: str, limit_s: float, **content: Any) -> WebAnswer:
        import httpx

        body = bytearray()
        try:
            async with asyncio.timeout(limit_s), self._client.stream(method, self._url, **content) as answer:
                if packed := packed_by(answer.headers):
                    raise WebError(
                        "malformed",
                        f"the server sent a compressed answer ({packed}), although the request does not allow it",
                    )
                async for part in answer.aiter_raw():
                    body += part
                    if len(body) > self._most_bytes:
                        raise WebError("malformed", f"the answer is larger than {self._most_bytes} bytes")
        except TimeoutError:
            raise WebError("timeout", f"no answer within {limit_s * 1e3:.0f} ms") from None
        except httpx.HTTPError as error:
            raise WebError("connection", f"{type(error).__name__}: {error}") from None
        return WebAnswer(answer.status_code, answer.headers, bytes(body))

    def close(self) -> None:
        """Close the connections and cancel open requests."""
        self._thread.end(self._client.aclose)

    def __del__(self) -> None:
        if hasattr(self, "_thread"):
            self.close()
