"""Decode a free value (generated, not chosen from a list) in few passes, by guessing tokens (speculative decoding).

A pass evaluates the tokens that are certain, followed by a tree of guessed tokens. A right guess saves a pass. Guesses
never change the value, because a guess is only accepted if it is the best legal token.
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

FEW = 24  # if at most 24 tokens are legal, all of them are guessed
MAX_COPIED = 32  # maximum characters that are copied from the prompt as a guess, after a matching word
MAX_MATCHES = 2  # maximum number of matching words in the prompt that are used for guesses
Path = tuple[int, ...]  # guessed tokens after the certain tokens
Best = tuple[int, float]  # (best legal token, its probability among legal tokens); the lowest id among equals


@dataclass(frozen=True)
class GuessSources:
    """Sources of guesses for a free value, and limits: nodes in a pass, nodes that only the grammar suggests, nodes
    in a decision, and tokens of a guess. `values` are token sequences of earlier values, `prompt` is text that the
    value may repeat, `quote` is the token that ends a string in JSON (None: no JSON)."""

    tokenizer: STTokenizer
    values: Sequence[Sequence[int]] = ()
    prompt: str = ""
    quote: int | None = None
    max_pass_nodes: int = 0
    max_grammar_nodes: int = 0
    max_decision_nodes: int = 0
    max_tokens: int | None = None

    def continuations(self, tokens: list[int]) -> Iterator[Sequence[int]]:
        """Yield likely continuations of the value's `tokens`."""
        for value in self.values:
            if list(value[: len(tokens)]) == tokens:
                yield value[len(tokens) :][: self.max_tokens]
        word = re.search(r"[^\s\"\[\]{}:,]+$", self.tokenizer.decode(tokens)) if self.prompt and tokens else None
        if word is not None:
            places = list(re.finditer(rf"(?<!\w){re.escape(word.group())}", self.prompt))
            for place in reversed(places[-MAX_MATCHES:]):
                yield self.tokenizer.encode(self.prompt[place.end() : place.end() + MAX_COPIED])[: self.max_tokens]


@dataclass(frozen=True, eq=False)
class ChoicePoint:
    """A position at which several tokens may follow, with their mask `legal` [vocabulary]. `path` has the guessed
    tokens before the position (empty: it is directly after the certain tokens)."""

    legal: np.ndarray
    path: Path = ()

    @cached_property
    def few(self) -> list[int]:
        """Return the legal token ids if there are at most FEW, else an empty list."""
        return np.flatnonzero(self.legal).tolist() if np.count_nonzero(self.legal) <= FEW else []

    def best(self, ids: Sequence[int], scores: Sequence[float]) -> Best:
        """Return the best legal token, from the scores of the tokens `ids`. Raises NotFinite."""
        by_id = dict(zip(ids, scores, strict=True))
        best, share = best_of([by_id[i] for i in self.few])
        return self.few[best], share


@dataclass(slots=True)
class FreeValueDecode:
    """The decoding of a free value, which ends with one of the tokens `ends` or with the null token.

    `nodes` has the node numbers of its evaluated tokens, starting with the head token. The next pass evaluates the
    `chain` of certain tokens, and the guesses of the `tree`, whose node numbers are `places`. At the choice points
    `stops` it requests the best next token; `bests` has the answers. `guessed` and `right` count guesses.
    """

    value: FreeValue
    ends: Sequence[int]
    null_id: int | None
    guesses: GuessSources
    nodes: list[int] = field(default_factory=list)
    chain: list[int] = field(default_factory=list)
    tree: list[Path] = field(default_factory=list)
    stops: list[ChoicePoint] = field(default_factory=list)
    places: dict[Path, int] = field(default_factory=dict)
    bests: dict[Path, Best] = field(default_factory=dict)
    confidence: float = 1.0
    end: int | None = None  # the token that ended the value
    guessed: int = 0
    right: int = 0
    again: bool = False  # True if the complete value was illegal and its last choice was repeated
    _last_choice: tuple[int, int] | None = None  # (number of tokens before the last chosen token, this token)
    _edges: dict[Path, ChoicePoint] = field(default_factory=dict)  # next choice points, by path and next token

    @property
    def done(self) -> bool:
        return self.end is not None

    @property
    def null(self) -> bool:
        return self.done and self.end == self.null_id

    def __post_init__(self) -> None:
        self._continue_after([])

    def next_nodes(self, first: int) -> Iterator[tuple[int, int, int]]:
        """Yield (token, parent, depth) of each node of the next pass. The first node has the number `first`."""
        number = itertools.count(first)
        for token in self.chain:
            yield token, self.nodes[-1], len(self.nodes)
            self.nodes.append(next(number))
        self.places = {(): self.nodes[-1]}
        for path in self.tree:
            yield path[-1], self.places[path[:-1]], len(self.nodes) + len(path) - 1
            self.places[path] = next(number)

    def accept_guesses(self) -> None:
        """Accept the guessed tokens that `bests` confirms as the best tokens, and then the best token after them."""
        bests, stop = self.bests, self.stops[0]
        while (known := self._edges.get((*stop.path, bests[stop.path][0]))) is not None:
            self.confidence *= _probability(bests[stop.path])
            self.nodes += [self.places[known.path[:end]] for end in range(len(stop.path) + 1, len(known.path) + 1)]
            self._last_choice = len(self.value.tokens), known.path[len(stop.path)]
            self.value.push(*known.path[len(stop.path) :])
            self.right += len(known.path) - len(stop.path)
            stop = known
        self.accept(bests[stop.path])

    def accept(self, best: Best) -> None:
        """Append the best token to the value, or end the value with it."""
        self.confidence *= _probability(best)
        self._last_choice = len(self.value.tokens), best[0]
        if self._is_end(best[0]):
            self.chain = []
            self._end_value(best[0])
        else:
            self.value.push(best[0])
            self._continue_after([best[0]])

    @property
    def kept(self) -> int:
        """Return how many tokens of the value precede the last chosen token."""
        return 0 if self._last_choice is None else self._last_choice[0]

    def retry_last_choice(self) -> bool:
        """Remove and exclude the last chosen token of an illegal value, so that another token is chosen; at most once.

        Return False if the choice cannot be retried. Raises DecodeError if no other token is legal.
        """
        if self.again or self._last_choice is None or (self._last_choice[0] == 0 and self.nodes):
            return False  # a retry would evaluate the head token again, which is not supported
        self.again, self.end = True, None
        length, token = self._last_choice
        self.value.pop(len(self.value.tokens) - length)
        self.value.exclude_token(token)
        del self.nodes[length:]  # evaluate the token before the choice again
        self._continue_after(self.value.tokens[-1:])
        return True

    def _continue_after(self, certain: list[int]) -> None:
        more, legal = self._push_forced_tokens()
        self.chain, self.tree, self.stops, self._edges, self.bests = [*certain, *more], [], [ChoicePoint(legal)], {}, {}
        if np.count_nonzero(legal) == 1:
            self._end_value(int(legal.argmax()))
        elif (room := min(self.guesses.max_pass_nodes, self.guesses.max_decision_nodes - self.guessed)) > 0:
            for tokens in self.guesses.continuations(list(self.value.tokens)):
                self._guess(self.stops[0], tokens, room)
            self._look_ahead(min(room, len(self.tree) + self.guesses.max_grammar_nodes))
            self.guessed += len(self.tree)

    def _is_end(self, token: int) -> bool:
        return token in self.ends or token == self.null_id

    def _end_value(self, token: int) -> None:
        self.end, self.tree, self.stops = token, [], []
        self.bests = {}  # without answers, `accept_guesses` is not called again

    def _push_forced_tokens(self) -> tuple[list[int], np.ndarray]:
        """Append the tokens without an alternative; return them, and a mask of the tokens that may follow or end it."""
        forced: list[int] = []
        while True:
            if self.value.tokens or self.null_id is None:
                forced += self.value.push_forced()
            legal = self.value.legal_tokens(self.ends, self.null_id)
            token = int(legal.argmax())
            if np.count_nonzero(legal) > 1 or self._is_end(token):
                return forced, legal
            self.value.push(token)
            forced.append(token)

    def _guess(self, stop: ChoicePoint, tokens: Sequence[int], room: int) -> None:
        """Add guessed tokens after a choice point to the tree, until a token is illegal or the tree has `room`
        nodes."""
        value, base = self.value, len(self.value.tokens)
        value.push(*stop.path)
        try:
            while tokens and stop.legal[tokens[0]] and not self._is_end(tokens[0]):
                path = (*stop.path, tokens[0])
                known = self._edges.get(path)
                if known is None:
                    value.push(tokens[0])
                    more, legal = self._push_forced_tokens()
                    known = ChoicePoint(legal, (*path, *more))
                    if np.count_nonzero(legal) == 1 or len(self.tree) + len(known.path) - len(stop.path) > room:
                        return  # the guessed value ends here, or the tree is full
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
            return  # the guessed value is too long
        finally:
            value.pop(len(value.tokens) - base)

    def _look_ahead(self, room: int) -> None:
        """Guess from the grammar alone: forced text, the end of a string, or, if there are few legal tokens, all of
        them."""
        encode, decode = self.guesses.tokenizer.encode, self.guesses.tokenizer.decode
        for stop in self.stops:  # `_guess` appends to this list
            if len(self.tree) >= room:
                return
            if text := self._forced_text(stop):
                self._guess(stop, encode(text), room)
            for token in stop.few:
                if decode([token]).startswith(text):
                    self._guess(stop, [token], room)

    def _forced_text(self, stop: ChoicePoint) -> str:
        value, base = self.value, len(self.value.tokens)
        value.push(*stop.path)
        text, quote = value.forced_text(), self.guesses.quote
        if not text and quote is not None and stop.legal[quote]:
            value.push(quote)
            text = f'"{value.forced_text()}'
        value.pop(len(value.tokens) - base)
        return text


def _probability(best: Best) -> float:
    if not math.isfinite(best[1]):
        raise NotFinite
    return best[1]
