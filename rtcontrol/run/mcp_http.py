"""The HTTP side of `mcp:URL`: answers are taken as they are, unpacked by nothing, and are bounded together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from rtcontrol.models.errors import UserError
from rtcontrol.models.web import ENCODING, packed_by

MOST_BYTES = 1 << 24  # of all answers for one list of tools


def http_client(server: str, timeout_s: float) -> Any:
    """An `httpx2.AsyncClient` for MCP's transport; reading raises UserError for answers that are packed or too long."""
    import httpx2

    left = MOST_BYTES

    class Counted(httpx2.AsyncByteStream):
        def __init__(self, stream: httpx2.AsyncByteStream) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            nonlocal left
            async for part in self._stream:
                left -= len(part)
                if left < 0:
                    raise UserError(
                        f"{server} answers more than {MOST_BYTES} bytes.", "Give a server with fewer tools."
                    )
                yield part

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def look(response: httpx2.Response) -> None:
        if packed := packed_by(response.headers):
            told = f"{server} answers packed ({packed}), though it was asked for answers as they are."
            raise UserError(told, "Let it, or the proxy before it, heed accept-encoding: identity.")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = Counted(response.stream)

    return httpx2.AsyncClient(headers=ENCODING, timeout=timeout_s, event_hooks={"response": [look]})
