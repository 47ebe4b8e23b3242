"""Decode a free value in few passes: one pass evaluates the forced text, followed by a tree of guesses.

A guess changes no value: each token is still the best legal one. A right guess saves the pass that would have decided
that token.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decode.grammar import FreeValue
from rtcontrol.models.decode.protocol import DecodeError, NotFinite
from rtcontrol.models.decode.walk import best_of

FEW = 24  # legal tokens up to which all of them are guessed
COPIED = 32  # characters of the prompt that are guessed as a continuation
PLACES = 2  # places in the prompt that give guesses
Path = tuple[int, ...]  # guessed tokens, after the certain ones
Best = tuple[int, float]  # the legal id with the largest score (ties: the lowest id), its probability among legal ones


@dataclass(frozen=True)
class Guesses:
    """The sources of guesses: `values` are tokens of whole values, `prompt` is text that a value may be copied from,
    `quote` is the token that ends a JSON text (None: no JSON). Guesses take at most `room` nodes of a pass, `ahead` of
    them from the grammar alone, and `most` of a decision; at most `depth` tokens are guessed (None: all)."""

    tokenizer: STTokenizer
    values: Sequence[Sequence[int]] = ()
    prompt: str = ""
    quote: int | None = None
    room: int = 0
    ahead: int = 0
    most: int = 0
    depth: int | None = None

    def after(self, tokens: list[int]) -> Iterator[Sequence[int]]:
        """Return likely continuations of these tokens."""
        for value in self.values:
            if list(value[: len(tokens)]) == tokens:
                yield value[len(tokens) :][: self.depth]
        word = re.search(r"[^\s\"\[\]{}:,]+$", self.tokenizer.decode(tokens)) if self.prompt and tokens else None
        if word is not None:
            places = list(re.finditer(rf"(?<!\w){re.escape(word.group())}", self.prompt))
            for place in reversed(places[-PLACES:]):
                yield self.tokenizer.encode(self.prompt[place.end() : place.end() + COPIED])[: self.depth]


@dataclass(frozen=True, eq=False)
class Stop:
    """A place where a value may continue in several ways: the `legal` ids [vocabulary] after the guesses of `path`
    (empty: after the last certain token)."""

    legal: np.ndarray
    path: Path = ()

    @cached_property
    def few(self) -> list[int]:
        """Return the legal ids if they are few, else an empty list."""
        return np.flatnonzero(self.legal).tolist() if np.count_nonzero(self.legal) <= FEW else []

    def best(self, ids: Sequence[int], scores: Sequence[float]) -> Best:
        """Return the best of the few legal ids, from the scores of more ids. Raises NotFinite."""
        by_id = dict(zip(ids, scores, strict=True))
        best, share = best_of([by_id[i] for i in self.few])
        return self.few[best], share


@dataclass(slots=True)
class FreeHead:
    """A free value that is being decoded, until one of the `ends` or the null token ends the value.

    `nodes` are the places of its evaluated tokens, the head token first. The next pass evaluates the `chain` of certain
    tokens, then the guesses of a `tree`, at `places`. The `stops` ask for the token that follows; `bests` are the
    answers. `guessed` counts guessed nodes, `right` the right ones.
    """

    value: FreeValue
    ends: Sequence[int]
    null_id: int | None
    guesses: Guesses
    nodes: list[int] = field(default_factory=list)
    chain: list[int] = field(default_factory=list)
    tree: list[Path] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    places: dict[Path, int] = field(default_factory=dict)
    bests: dict[Path, Best] = field(default_factory=dict)
    confidence: float = 1.0
    end: int | None = None  # the token that ended the value
    guessed: int = 0
    right: int = 0
    again: bool = False  # whether a whole value was illegal and is decided again
    _last: tuple[int, int] | None = None  # the last chosen token, and how many tokens precede it
    _edges: dict[Path, Stop] = field(default_factory=dict)  # the node after a stop's path and a token

    @property
    def done(self) -> bool:
        return self.end is not None

    @property
    def null(self) -> bool:
        return self.done and self.end == self.null_id

    def __post_init__(self) -> None:
        self._extend([])

    def carried(self, first: int) -> Iterator[tuple[int, int, int]]:
        """Yield token, parent and depth of each node of the next pass, numbered from `first` on."""
        number = itertools.count(first)
        for token in self.chain:
            yield token, self.nodes[-1], len(self.nodes)
            self.nodes.append(next(number))
        self.places = {(): self.nodes[-1]}
        for path in self.tree:
            yield path[-1], self.places[path[:-1]], len(self.nodes) + len(path) - 1
            self.places[path] = next(number)

    def settle(self) -> None:
        """Accept the tokens that the evaluated tree confirms; `bests` has the best token at each stop."""
        bests, stop = self.bests, self.stops[0]
        while (known := self._edges.get((*stop.path, bests[stop.path][0]))) is not None:
            self.confidence *= _probability(bests[stop.path])
            self.nodes += [self.places[known.path[:end]] for end in range(len(stop.path) + 1, len(known.path) + 1)]
            self._last = len(self.value.tokens), known.path[len(stop.path)]
            self.value.push(*known.path[len(stop.path) :])
            self.right += len(known.path) - len(stop.path)
            stop = known
        self.take(bests[stop.path])

    def take(self, best: Best) -> None:
        """Accept the best token after the last certain one, if no other node was evaluated."""
        self.confidence *= _probability(best)
        self._last = len(self.value.tokens), best[0]
        if self._is_end(best[0]):
            self.chain = []
            self._finish(best[0])
        else:
            self.value.push(best[0])
            self._extend([best[0]])

    @property
    def kept(self) -> int:
        """Return how many tokens precede the last choice."""
        return 0 if self._last is None else self._last[0]

    def decide_again(self) -> bool:
        """Take back the last choice once, because the value was illegal; return False if there is no alternative.

        Raises DecodeError if no other token may follow.
        """
        if self.again or self._last is None or (self._last[0] == 0 and self.nodes):
            return False  # the head token is not evaluated again
        self.again, self.end = True, None
        length, token = self._last
        self.value.pop(len(self.value.tokens) - length)
        self.value.exclude(token)
        del self.nodes[length:]  # the token before the choice is evaluated again
        self._extend(self.value.tokens[-1:])
        return True

    def _extend(self, certain: list[int]) -> None:
        more, legal = self._forced()
        self.chain, self.tree, self.stops, self._edges, self.bests = [*certain, *more], [], [Stop(legal)], {}, {}
        if np.count_nonzero(legal) == 1:
            self._finish(int(legal.argmax()))
        elif (room := min(self.guesses.room, self.guesses.most - self.guessed)) > 0:
            for tokens in self.guesses.after(list(self.value.tokens)):
                self._guess(self.stops[0], tokens, room)
            self._look_ahead(min(room, len(self.tree) + self.guesses.ahead))
            self.guessed += len(self.tree)

    def _is_end(self, token: int) -> bool:
        return token in self.ends or token == self.null_id

    def _finish(self, token: int) -> None:
        self.end, self.tree, self.stops = token, [], []
        self.bests = {}  # so that `settle` changes nothing any more

    def _forced(self) -> tuple[list[int], np.ndarray]:
        """Push the forced tokens; return these tokens and the ids that may follow: several ids, or the end alone."""
        forced: list[int] = []
        while True:
            if self.value.tokens or self.null_id is None:
                forced += self.value.forced()
            legal = self.value.legal(self.ends, self.null_id)
            token = int(legal.argmax())
            if np.count_nonzero(legal) > 1 or self._is_end(token):
                return forced, legal
            self.value.push(token)
            forced.append(token)

    def _guess(self, stop: Stop, tokens: Sequence[int], room: int) -> None:
        """Add guessed tokens after a stop, as far as they are legal and within `room` nodes."""
        value, base = self.value, len(self.value.tokens)
        value.push(*stop.path)
        try:
            while tokens and stop.legal[tokens[0]] and not self._is_end(tokens[0]):
                path = (*stop.path, tokens[0])
                known = self._edges.get(path)
                if known is None:
                    value.push(tokens[0])
                    more, legal = self._forced()
                    known = Stop(legal, (*path, *more))
                    if np.count_nonzero(legal) == 1 or len(self.tree) + len(known.path) - len(stop.path) > room:
                        return  # nothing can be chosen after this token
                    self.tree += [known.path[:end] for end in range(len(path), len(known.path) + 1)]
                    self._edges[path] = known
                    self.stops.append(known)
                else:
                    value.push(*known.path[len(stop.path) :])
                run = known.path[len(stop.path) :]
                if tuple(tokens[: len(run)]) != run:
                    return
                stop, tokens = known, tokens[len(run) :]
        except DecodeError:
            return  # this guess would make the value too long
        finally:
            value.pop(len(value.tokens) - base)

    def _look_ahead(self, room: int) -> None:
        """Guess the text that must follow, as the tokenizer writes it; the end of a text; and, if few tokens are legal,
        each of these."""
        encode, decode = self.guesses.tokenizer.encode, self.guesses.tokenizer.decode
        for stop in self.stops:  # the list grows within this loop
            if len(self.tree) >= room:
                return
            if text := self._text_after(stop):
                self._guess(stop, encode(text), room)
            for token in stop.few:
                if decode([token]).startswith(text):
                    self._guess(stop, [token], room)

    def _text_after(self, stop: Stop) -> str:
        value, base = self.value, len(self.value.tokens)
        value.push(*stop.path)
        text, quote = value.text_after(), self.guesses.quote
        if not text and quote is not None and stop.legal[quote]:
            value.push(quote)
            text = f'"{value.text_after()}'
        value.pop(len(value.tokens) - base)
        return text


def _probability(best: Best) -> float:
    if not math.isfinite(best[1]):
        raise NotFinite
    return best[1]
