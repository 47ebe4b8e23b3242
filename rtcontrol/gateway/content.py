"""What the model says beside its call, where a request asks for it: after the call, and never in its way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rtcontrol.gateway.decide import ToolSets, Unavailable
from rtcontrol.models.errors import UserError


@dataclass(frozen=True)
class WrittenContent:
    """The text, None where the model has nothing to say; `lacking`: why there can be none."""

    text: str | None = None
    lacking: str | None = None


class ContentHeads:
    """The content heads of the last few tool sets: `sets` decides what they write, each set in a place of its own.
    `no_content` says why the model has none."""

    def __init__(self, sets: ToolSets, no_content: Callable[[], str | None]) -> None:
        self._sets, self._no_content = sets, no_content
        self._one_at_a_time = asyncio.Lock()

    async def write(
        self, tools: Sequence[dict[str, object]], instruction: str, observation: str, history: Sequence[str]
    ) -> WrittenContent:
        """Raises nothing: the call is given already. Others' calls come in between its parts."""
        try:
            if (why := self._no_content()) is not None:
                return WrittenContent(lacking=why)
            async with self._one_at_a_time:
                while True:
                    made = (await self._sets.decide(tuple(tools), instruction, observation, history)).decision.call
                    if made is None or not made.arguments["more"]:
                        return WrittenContent(None if made is None else str(made.arguments["text"]))
        except (UserError, Unavailable) as error:
            return WrittenContent(lacking=f"The content could not be written: {error}")

    def close(self) -> None:
        self._sets.close()
