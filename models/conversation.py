"""The calls of a conversation in OpenAI's format, and which result is whose: of requests and of training chats."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
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
class Turn:
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


def results_of(messages: Sequence[Turn]) -> dict[tuple[int, int], int]:
    """Of each call that has a result, by (message, number in it), the message with that result.

    Servers give one id to several calls (llama.cpp: the same to all; Kimi counts anew each turn), or none. A result
    goes to the oldest call of its id that waits for one; without an id, as in the form before there were ids, to the
    oldest one of its name, or of any where it has no name, after those with ids have theirs. A call that waited when
    the user spoke again was given up, unless there are more results than calls since then. Raises Unpaired.
    """
    waiting: dict[str | None, list[_Waiting]] = {}
    for at, said in enumerate(messages):
        for k, (own, name) in enumerate(said.calls):
            waiting.setdefault(own, []).append((at, k, name))
    results = [(at, *said.result) for at, said in enumerate(messages) if said.result is not None]
    spoke, more = _spoke(messages), _more(messages)
    found: dict[tuple[int, int], int] = {}

    def pair(at: int, calls: list[_Waiting], name: str | None) -> _Waiting:
        before = calls[: bisect_left(calls, (at,))]
        later = before[bisect_left(before, (spoke[at] + 1,)) :]
        wanted = later if len(later) >= more[at] else before
        if not wanted:
            raise Unpaired(at)
        one = next((call for call in wanted if call[2] == name), wanted[0])
        found[one[:2]] = at
        return one

    for at, own, called in results:
        if own is not None:
            calls = waiting.get(own, [])
            calls.remove(pair(at, calls, called))
    without = waiting.pop(None, [])
    named = sorted(call for calls in waiting.values() for call in calls)
    for at, own, called in results:
        if own is None:
            both = ([call for call in calls if called in (call[2], None)] for calls in (without, named))
            first = next((calls for calls in both if calls and calls[0][0] < at), [])
            one = pair(at, first, called)
            (without if one in without else named).remove(one)
    return found


def _spoke(messages: Sequence[Turn]) -> list[int]:
    """Before each message, where the user spoke last; -1: nowhere."""
    found, last = [], -1
    for at, said in enumerate(messages):
        found.append(last)
        last = at if said.user else last
    return found


def _more(messages: Sequence[Turn]) -> list[int]:
    """From each message on, the results of its id before there are other calls."""
    found: list[int] = []
    counts: Counter[str | None] = Counter()
    for said in reversed(messages):
        if said.calls:
            counts.clear()
        own = said.result and said.result[0]
        counts[own] += said.result is not None
        found.append(counts[own])
    return found[::-1]
