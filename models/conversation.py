"""Pair the calls of a conversation in OpenAI's format with their results, for requests and training chats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rtcontrol.models.call import Call


@dataclass(frozen=True)
class CallWithResult:
    """A function call in a conversation, with the text of its result (None: no result yet)."""

    call: Call
    result: str | None

    def text(self) -> str:
        return self.call.text() if self.result is None else f"{self.call.text()} -> {self.result}"


@dataclass(frozen=True)
class ConversationTurn:
    """The fields of a chat message that are needed to match calls with results. `calls` has (id or None, name) of each
    call. `result` is (id, name) of the answered call if the message is a result. `user` marks a user message."""

    calls: Sequence[tuple[str | None, str]] = ()
    result: tuple[str | None, str | None] | None = None
    user: bool = False


class UnpairedResult(Exception):
    """The message at `index` is a call's result, but no earlier call is waiting for a result."""

    def __init__(self, index: int) -> None:
        super().__init__(f"messages[{index}] is a call's result, but no earlier call is waiting for a result")
        self.index = index


def match_results(messages: Sequence[ConversationTurn]) -> dict[tuple[int, int], int]:
    """Return a dict from (message index, index of the call in the message) to the message index of the call's result.

    Ids may be missing, and are not unique on all servers: llama.cpp uses one id for all calls, and Kimi restarts its
    numbers each turn. A result is matched with the oldest pending call that has the same id and, if it has a name, the
    same name. A result without an id may match any pending call. Calls after the user's last message are matched first.
    Raises UnpairedResult.
    """
    pending_calls: list[tuple[int, int, str | None, str]] = []  # (index of the message, call's index in it, id, name)
    results: dict[tuple[int, int], int] = {}
    last_user_message = -1
    for index, message in enumerate(messages):
        last_user_message = index if message.user else last_user_message
        pending_calls += ((index, k, id_, name) for k, (id_, name) in enumerate(message.calls))
        if message.result is None:
            continue
        id_, name = message.result
        calls = [call for call in pending_calls if call[2] == id_]
        if id_ is None:
            calls = [call for call in calls or pending_calls if name in (call[3], None)]
        recent = [call for call in calls if call[0] > last_user_message] or calls
        if not recent:
            raise UnpairedResult(index)
        match = next((call for call in recent if call[3] == name), recent[0])
        pending_calls.remove(match)
        results[match[:2]] = index
    return results
