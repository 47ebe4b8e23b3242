"""A free head under way: text that must follow, and behind it a tree of guesses, are evaluated in one pass.

A guess changes no value: each token is still the best of those that are legal, and a guess that is right saves the pass
that it would have taken to find out what comes after it.
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
COPIED = 32  # characters of the prompt that are guessed to follow
PLACES = 2  # in the prompt that are guessed from
Path = tuple[int, ...]  # guessed tokens, behind those that are certain
Best = tuple[int, float]  # the legal id with the largest score (ties: the lowest id), its probability among legal ones


@dataclass(frozen=True)
class Guesses:
    """Where guesses come from: `values` are tokens of whole values, `prompt` is text that a value may be copied from,
    `quote` ends a text in JSON (None: it has no end of its own). They take at most `room` nodes of a pass, of these
    `ahead` those that nothing but the grammar speaks for, and `most` of a decision. Of what may follow at most `depth`
    tokens are guessed (None: all)."""

    tokenizer: STTokenizer
    values: Sequence[Sequence[int]] = ()
    prompt: str = ""
    quote: int | None = None
    room: int = 0
    ahead: int = 0
    most: int = 0
    depth: int | None = None

    def after(self, tokens: list[int]) -> Iterator[Sequence[int]]:
        """What may follow these."""
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
    """A place where a value may go on in several ways: which ids are `legal` [vocabulary] behind the guesses of `path`
    (none: behind the last token that is certain)."""

    legal: np.ndarray
    path: Path = ()

    @cached_property
    def few(self) -> list[int]:
        """The legal ids, where they are few."""
        return np.flatnonzero(self.legal).tolist() if np.count_nonzero(self.legal) <= FEW else []

    def best(self, ids: Sequence[int], scores: Sequence[float]) -> Best:
        """Of the few legal ids, by the scores of more. Raises NotFinite."""
        by_id = dict(zip(ids, scores, strict=True))
        best, share = best_of([by_id[i] for i in self.few])
        return self.few[best], share


@dataclass(slots=True)
class FreeHead:
    """A free value under way, which one of the `ends` or the null token ends.

    `nodes` are its evaluated tokens' places, the head token's first. To be evaluated next are the `chain` of tokens
    that are certain, and behind it the guesses of a `tree`, at `places`. The `stops` ask what follows, for their
    `bests`. So many nodes were `guessed`, and so many of these were `right`.
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
    end: int | None = None  # the token that ended it
    guessed: int = 0
    right: int = 0
    again: bool = False  # whether a whole value was illegal, and is decided again
    _last: tuple[int, int] | None = None  # the token that was chosen last, behind so many others
    _edges: dict[Path, Stop] = field(default_factory=dict)  # where a stop's path and a token behind it lead

    @property
    def done(self) -> bool:
        return self.end is not None

    @property
    def null(self) -> bool:
        return self.done and self.end == self.null_id

    def __post_init__(self) -> None:
        self._extend([])

    def carried(self, first: int) -> Iterator[tuple[int, int, int]]:
        """Token, parent and depth of each node of the next pass; they are numbered from `first` on."""
        number = itertools.count(first)
        for token in self.chain:
            yield token, self.nodes[-1], len(self.nodes)
            self.nodes.append(next(number))
        self.places = {(): self.nodes[-1]}
        for path in self.tree:
            yield path[-1], self.places[path[:-1]], len(self.nodes) + len(path) - 1
            self.places[path] = next(number)

    def settle(self) -> None:
        """Chain and tree are evaluated; `bests` are what follows at the stops."""
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
        """What follows is known, and nothing else is evaluated."""
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
        """How many tokens stood before the last choice."""
        return 0 if self._last is None else self._last[0]

    def decide_again(self) -> bool:
        """Take the last choice back, once, as what it led to was illegal; False where there is no other one.

        Raises DecodeError where nothing else may follow."""
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
        self.bests = {}  # it is not settled again

    def _forced(self) -> tuple[list[int], np.ndarray]:
        """Push what follows of itself; what may follow then: several tokens, or the end alone."""
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
        """That these tokens follow a stop, as far as they are legal and within `room` nodes."""
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
                        return  # after it nothing is to be chosen
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
            return  # this way it would become too long
        finally:
            value.pop(len(value.tokens) - base)

    def _look_ahead(self, room: int) -> None:
        """Guess the text that must follow as the tokenizer writes it, also in one token with what comes then, the end
        of a text, and where few tokens are legal each of them."""
        encode, decode = self.guesses.tokenizer.encode, self.guesses.tokenizer.decode
        for stop in self.stops:  # which grow meanwhile
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
