"""Pair the calls of a conversation in OpenAI's format with their results, for requests and training chats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rtcontrol.models.call import Call


@dataclass(frozen=True)
class Made:
    """A call of a conversation with its result, if there is one."""

    call: Call
    result: str | None

    def text(self) -> str:
        return self.call.text() if self.result is None else f"{self.call.text()} -> {self.result}"


@dataclass(frozen=True)
class ConversationTurn:
    """The part of a message that pairing needs: id (None without one) and name of each call, id and name of the call
    whose result it is, and whether it is the user's."""

    calls: Sequence[tuple[str | None, str]] = ()
    result: tuple[str | None, str | None] | None = None
    user: bool = False


class Unpaired(Exception):
    """The message at this `index` is a result without a call before it."""

    def __init__(self, index: int) -> None:
        super().__init__(f"messages[{index}] is the result of no call before it that still waits for one")
        self.index = index


def results_of(messages: Sequence[ConversationTurn]) -> dict[tuple[int, int], int]:
    """Return, for each call with a result, (message, index of the call) and the message of the result.

    Servers give one id to several calls (llama.cpp: the same to all; Kimi counts again each turn), or none. A result
    goes to the oldest waiting call with its id, and with its name if it has one; without an id, to any waiting call.
    Calls before the user's last message come after the others. Raises Unpaired.
    """
    waiting: list[tuple[int, int, str | None, str]] = []  # message, number in it, id, name
    results: dict[tuple[int, int], int] = {}
    spoke = -1
    for at, message in enumerate(messages):
        spoke = at if message.user else spoke
        waiting += ((at, k, id_, name) for k, (id_, name) in enumerate(message.calls))
        if message.result is None:
            continue
        id_, called = message.result
        calls = [call for call in waiting if call[2] == id_]
        if id_ is None:
            calls = [call for call in calls or waiting if called in (call[3], None)]
        recent = [call for call in calls if call[0] > spoke] or calls
        if not recent:
            raise Unpaired(at)
        match = next((call for call in recent if call[3] == called), recent[0])
        waiting.remove(match)
        results[match[:2]] = at
    return results
