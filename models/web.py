"""JSON over HTTP from a server that may be anybody's: within a time, of a bounded size, and packed by nothing.

A packed answer is refused before it is unpacked: 65 kB of zstd hold gigabytes. The time is that of the whole request:
headers or a body that come a byte at a time end with it.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from rtcontrol.models.loop_thread import LoopThread

MOST_BYTES = 1 << 20
MOST_LEVELS = 64  # of maps and lists in each other
ENCODING = {"accept-encoding": "identity"}
# A text that nobody ends goes to the end, so that nothing is looked at twice.
BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)


class WebError(Exception):
    """No answer that may be read: `loss` is "timeout", "connection", or "malformed" for a fault of the server."""

    def __init__(self, loss: str, what: str) -> None:
        super().__init__(what)
        self.loss = loss


@dataclass(frozen=True)
class WebAnswer:
    """An answer as it came; `headers` by their names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """The value, of numbers as Python has them. Raises ValueError for what is none, or too deep."""
        # Python's parser goes as deep as its stack, and what is finalised meanwhile has none.
        if _levels(self.body) > MOST_LEVELS:
            raise ValueError(f"more than {MOST_LEVELS} levels of maps and lists")
        return json.loads(self.body)


def packed_by(headers: Mapping[str, str]) -> str | None:
    """What an answer with these headers says it is packed by; None where it is not."""
    named = headers.get("content-encoding", "").strip()
    return None if named.lower() in ("", "identity") else named[:80]


class WebClient:
    """Posts JSON to one address, or gets it, on connections that are kept and a thread of its own; any thread may ask.
    Without `proxies` those of the environment are not used."""

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
        """The answer to come; cancelling it closes the request. It raises WebError, as this does after `close`."""
        return self._begin("POST", limit_s, json=body)

    def get(self, limit_s: float) -> Future[WebAnswer]:
        """As `post`, with nothing to say."""
        return self._begin("GET", limit_s)

    def _begin(self, method: str, limit_s: float, **given: Any) -> Future[WebAnswer]:
        if (asked := self._thread.start(self._ask, method, limit_s, **given)) is None:
            raise WebError("connection", "the client was closed")
        return asked

    async def _ask(self, method: str, limit_s: float, **given: Any) -> WebAnswer:
        import httpx

        said = bytearray()
        try:
            async with asyncio.timeout(limit_s), self._client.stream(method, self._url, **given) as answer:
                if packed := packed_by(answer.headers):
                    raise WebError("malformed", f"the answer is packed ({packed}), though it was asked for as it is")
                async for part in answer.aiter_raw():
                    said += part
                    if len(said) > self._most_bytes:
                        raise WebError("malformed", f"the answer is larger than {self._most_bytes} bytes")
        except TimeoutError:
            raise WebError("timeout", f"no answer within {limit_s * 1e3:.0f} ms") from None
        except httpx.HTTPError as error:
            raise WebError("connection", f"{type(error).__name__}: {error}") from None
        return WebAnswer(answer.status_code, answer.headers, bytes(said))

    def close(self) -> None:
        """Close the connections; what is under way is cancelled."""
        self._thread.end(self._client.aclose)

    def __del__(self) -> None:
        if hasattr(self, "_thread"):
            self.close()


def _levels(body: bytes) -> int:
    """The most maps and lists in each other, MOST_LEVELS + 1 at most; brackets in texts are no levels."""
    if body.count(b"[") + body.count(b"{") <= MOST_LEVELS:
        return MOST_LEVELS
    level = deepest = 0
    for found in BRACKETS.finditer(body):
        level += {b"[": 1, b"{": 1, b"]": -1, b"}": -1}.get(found[0], 0)
        deepest = max(deepest, level)
        if deepest > MOST_LEVELS:
            break
    return deepest
