"""Send HTTP requests to untrusted servers that answer with JSON, with limits for the time and size of an answer.

Compressed answers are rejected without decompressing them, because 65 kB of zstd can expand to gigabytes. The time
limit applies to the whole request, so a server that sends an answer byte by byte cannot exceed the limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from rtcontrol.models.loop_thread import LoopThread

MAX_BYTES = 1 << 20
ENCODING = {"accept-encoding": "identity"}


class WebError(Exception):
    """A request without a usable answer. `loss` is the kind of failure: "timeout", "connection" or "malformed"."""

    def __init__(self, loss: str, message: str) -> None:
        super().__init__(message)
        self.loss = loss


@dataclass(frozen=True)
class WebAnswer:
    """The answer to a request. The names of `headers` are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """Parse the body as JSON. Raises ValueError for invalid or too deeply nested JSON."""
        # Do not use json.loads, which fails for deeply nested JSON.
        return from_json(self.body)


def compression_of(headers: Mapping[str, str]) -> str | None:
    """Return the compression that an answer's headers name, or None if it is not compressed."""
    named = headers.get("content-encoding", "").strip()
    return None if named.lower() in ("", "identity") else named[:80]


class WebClient:
    """A thread-safe client that sends requests to one URL on persistent connections, from a separate thread. With
    `proxies` it uses the proxies that environment variables name."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        connections: int = 1,
        max_bytes: int = MAX_BYTES,
        proxies: bool = True,
    ):
        import httpx

        self._url, self._max_bytes = url, max_bytes
        limits = httpx.Limits(max_connections=connections)
        sent = {"content-type": "application/json", **ENCODING, **headers}
        self._client = httpx.AsyncClient(headers=sent, timeout=None, limits=limits, trust_env=proxies)
        self._thread = LoopThread("web client")

    def post(self, body: Any, limit_s: float) -> Future[WebAnswer]:
        """Send a POST request with a JSON body, and return a future of the answer. Cancelling the future cancels the
        request. The future, and this method after `close`, raise WebError."""
        return self._start("POST", limit_s, json=body)

    def get(self, limit_s: float) -> Future[WebAnswer]:
        """Send a GET request, and return a future as `post` does."""
        return self._start("GET", limit_s)

    def _start(self, method: str, limit_s: float, **content: Any) -> Future[WebAnswer]:
        future = self._thread.start_work(self._request, method, limit_s, **content)
        if future is None:
            raise WebError("connection", "the client is closed")
        return future

    async def _request(self, method: str, limit_s: float, **content: Any) -> WebAnswer:
        import httpx

        body = bytearray()
        try:
            async with asyncio.timeout(limit_s), self._client.stream(method, self._url, **content) as answer:
                if compression := compression_of(answer.headers):
                    raise WebError(
                        "malformed",
                        f"the server sent a compressed response ({compression}), which the request did not allow",
                    )
                async for part in answer.aiter_raw():
                    body += part
                    if len(body) > self._max_bytes:
                        raise WebError("malformed", f"the answer is larger than {self._max_bytes} bytes")
        except TimeoutError:
            raise WebError("timeout", f"no answer within {limit_s * 1e3:.0f} ms") from None
        except httpx.HTTPError as error:
            raise WebError("connection", f"{type(error).__name__}: {error}") from None
        return WebAnswer(answer.status_code, answer.headers, bytes(body))

    def close(self) -> None:
        """Close the connections and cancel open requests."""
        self._thread.end_loop(self._client.aclose)

    def __del__(self) -> None:
        if hasattr(self, "_thread"):
            self.close()
