"""End a value that has grown too long with few tokens.

A grammar's state cannot be asked how it ends, so what may follow is tried: what closes first, then what fills.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

CLOSING = b'"}],'
# What is tried first, a character each: what closes (a letter before brackets, which a text may hold); digits, and
# letters that many patterns take; what opens more.
ORDER = b'"a}],1A0-_.:/@ xetfn[{'
TRIED = 300  # states, once the first way that comes to mind leads nowhere


class Ending:
    """Ends values of one tokenizer, whose ids of one byte are `singles` by that byte."""

    def __init__(self, singles: dict[int, int]) -> None:
        first = [byte for byte in ORDER if byte in singles]
        self._closing = {singles[byte] for byte in CLOSING if byte in singles}
        self._ids = [singles[byte] for byte in (*first, *sorted(set(singles) - set(first)))]

    def straight(
        self, matcher: Any, ends: Callable[[Any], bool], forced: Callable[[Any], Sequence[int]], most: int
    ) -> list[int] | None:
        """Return at most `most` tokens that end a value, by the first way that comes to mind; None where it has no end.

        `ends` says whether a value may end at a matcher's state, `forced` gives the tokens that must follow there."""
        ahead, found = matcher.deep_copy(), list[int]()
        while not ends(ahead):
            more = [*forced(ahead)] or [*islice(self._legal(ahead), 1)]
            if not more or len(found) + len(more) > most:
                return None
            ahead.consume_tokens(more)
            found += more
        return found

    def _legal(self, matcher: Any) -> Iterator[int]:
        return (i for i in self._ids if matcher.validate_tokens([i]) == 1)

    def searched(
        self, matcher: Any, ends: Callable[[Any], bool], forced: Callable[[Any], Sequence[int]], most: int
    ) -> list[int] | None:
        """As `straight`: the way with the fewest tokens that close nothing, of not too many that are tried."""
        queue: list[tuple[int, int, Any, list[int], list[int]]] = [(0, 0, matcher, [], [])]
        count = 0
        for _ in range(TRIED):
            if not queue:
                return None
            cost, _, before, found, more = heapq.heappop(queue)
            ahead = before.deep_copy()
            ahead.consume_tokens(more)
            found = [*found, *more]
            if ends(ahead):
                return found
            must = [*forced(ahead)]
            for tokens in [must] if must else [[i] for i in self._legal(ahead)]:
                if len(found) + len(tokens) <= most:
                    count += 1
                    filling = 0 if must or tokens[0] in self._closing else 1
                    heapq.heappush(queue, (cost + filling, count, ahead, found, tokens))
        return None
