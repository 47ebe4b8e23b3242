"""The nodes of a chat model's decision: what is evaluated, what is known there, and which to evaluate next."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rtcontrol.models.chat.plan import Choice, FreeText, Place, TrieNode
from rtcontrol.models.core import Ask, Tree

Likely = dict[int, "Likely"]  # what may follow a token, by token
Behind = deque[tuple[int, list[int], Place]]  # by node: the tokens that follow, and where they lead


@dataclass(eq=False)
class NextPass:
    """Nodes of the next pass as they are laid down, after `base` others; of some the scores are wanted, of others the
    best of what is legal."""

    base: int
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    scored: list[int] = field(default_factory=list)
    masked: list[tuple[int, np.ndarray]] = field(default_factory=list)


class Nodes:
    """All nodes of a decision, `rows` and `bests` of those that were asked; `along` tells what is `likely` to follow. A
    pass has at most `total`."""

    def __init__(self, likely: Likely, total: int) -> None:
        self.rows: dict[int, Sequence[float]] = {}
        self.bests: dict[int, tuple[int, float]] = {}
        self._along: dict[int, Likely] = {-1: likely}
        self._depths: list[int] = []
        self._edges: dict[tuple[int, int], int] = {}
        self._total = total

    def begin(self) -> NextPass:
        return NextPass(len(self._depths))

    def child(self, node: int, token: int) -> int | None:
        """The evaluated node that a token leads to."""
        return self._edges.get((node, token))

    def tree(self, laid: NextPass, columns: Sequence[int]) -> Tree:
        asks = [Ask([n - laid.base for n in laid.scored], columns)] if laid.scored else []
        asks += [Ask([n - laid.base], masks=legal[None]) for n, legal in laid.masked]
        assert laid.tokens, "every pass makes headway"
        return Tree(laid.tokens, laid.parents, self._depths[laid.base :], asks)

    def take(self, laid: NextPass, answers: Sequence[Any]) -> None:
        """What a pass gave."""
        rest = list(answers)
        if laid.scored:
            self.rows.update(zip(laid.scored, rest.pop(0), strict=True))
        for (node, _), (best,) in zip(laid.masked, rest, strict=True):
            self.bests[node] = best

    def spread(self, laid: NextPass, at: int, choice: Choice, start: TrieNode, most: int, behind: Behind) -> None:
        """A choice whose `start` is node `at`: all nodes between which the model may choose, in declared order, and
        what comes `behind` its leaves, the likeliest first."""
        places = {start: at}
        for node in (start, *choice.needed(start, most)):
            if node not in places:
                if len(laid.tokens) >= self._total:
                    break
                places[node] = self.node(laid, places[node[:-1]], node[-1])
            if len(children := choice.children(node)) > 1 and places[node] not in self.rows:
                laid.scored.append(places[node])
            for token, child in children:
                if not choice.branches(child):
                    likely = token in self._along.get(places[node], ())
                    (behind.appendleft if likely else behind.append)((places[node], [token], (choice, child)))

    def look_behind(self, laid: NextPass, at: int, tokens: list[int], place: Place, room: int, behind: Behind) -> None:
        """Where a choice may lead: the text up to the next one and all of that, where it fits; of the likeliest its own
        text alone."""
        while tokens and (known := self.child(at, tokens[0])) is not None:
            at, tokens = known, tokens[1:]
        while True:  # what is certain from there
            where, node = place
            if isinstance(where, FreeText):
                return
            if node in where.leaves:
                if (then := where.leaves[node][1]) is None:
                    return
                place = then
            elif where.branches(node) and len(where.children(node)) > 1:
                break
            else:
                ((token, child),) = where.children(node)
                tokens, place = [*tokens, token], (where, child)
        left = room - len(laid.tokens) - len(tokens)
        fits = left >= 0 and len(where.needed(node, left)) <= left
        likely = self._along.get(at, {})
        if not fits and (left < 0 or not (likely.get(tokens[0]) if tokens else likely)):
            return
        for token in tokens:
            at = self.node(laid, at, token)
        if fits:
            self.spread(laid, at, where, node, left, behind)
        elif at not in self.rows:
            laid.scored.append(at)
            for token, child in where.children(node):
                if token in self._along.get(at, ()):
                    behind.append((at, [token], (where, child)))

    def node(self, laid: NextPass, parent: int, token: int) -> int:
        """The node that a token leads to, which is laid down where it is new."""
        known = self._edges.get((parent, token))
        if known is None:
            known = self._edges[parent, token] = laid.base + len(laid.tokens)
            laid.tokens.append(token)
            laid.parents.append(parent)
            self._depths.append(self._depths[parent] + 1 if parent >= 0 else 0)
            if (likely := self._along.get(parent, {}).get(token)) is not None:
                self._along[known] = likely
        return known
