"""The calls of a conversation in OpenAI's format, and which result is whose: of requests and of training chats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rtcontrol.models.call import Call


@dataclass(frozen=True)
class Made:
    """A call of a conversation, and its result, where there is one."""

    call: Call
    result: str | None

    def text(self) -> str:
        return self.call.text() if self.result is None else f"{self.call.text()} -> {self.result}"


@dataclass(frozen=True)
class ConversationTurn:
    """Of one message what pairing needs: id (None where there is none) and name of each call, those of the call whose
    result it is, and whether the user speaks."""

    calls: Sequence[tuple[str | None, str]] = ()
    result: tuple[str | None, str | None] | None = None
    user: bool = False


class Unpaired(Exception):
    """The message with this `index` is the result of no call before it."""

    def __init__(self, index: int) -> None:
        super().__init__(f"messages[{index}] is the result of no call before it that still waits for one")
        self.index = index


_Waiting = tuple[int, int, str]  # message, number in it, name


def results_of(messages: Sequence[ConversationTurn]) -> dict[tuple[int, int], int]:
    """Return of each call that has a result, by (message, number in it), the message with that result.

    Servers give one id to several calls (llama.cpp: the same to all; Kimi counts again each turn), or none. A result
    goes to the oldest call of its id, and of its name where there is one, that waits for one; without an id to any
    that waits. Those before the user spoke last come after the others. Raises Unpaired.
    """
    waiting: dict[str | None, list[_Waiting]] = {}
    found: dict[tuple[int, int], int] = {}
    spoke = -1
    for at, said in enumerate(messages):
        spoke = at if said.user else spoke
        for k, (own, name) in enumerate(said.calls):
            waiting.setdefault(own, []).append((at, k, name))
        if said.result is None:
            continue
        mine, called = said.result
        calls = waiting.get(mine, [])
        if mine is None:
            every = calls or sorted(call for other in waiting.values() for call in other)
            calls = [call for call in every if called in (call[2], None)]
        wanted = [call for call in calls if call[0] > spoke] or calls
        if not wanted:
            raise Unpaired(at)
        one = next((call for call in wanted if call[2] == called), wanted[0])
        found[one[:2]] = at
        next(calls for calls in waiting.values() if one in calls).remove(one)
    return found
