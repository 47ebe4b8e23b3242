"""Describe the observations that a model was trained on, and report what is unfamiliar in another observation.

A text is split into words, numbers and other characters. Each number belongs to a field, which is named after the word
before the number and the number's place after that word: `legs 0 1` has the fields `legs#1` and `legs#2`.
"""

from __future__ import annotations

import itertools
import re
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from functools import cached_property
from typing import Any, Self

START, END = "<start>", "<end>"  # pseudo-tokens at the start and the end of each text
LENGTH = "<length>"  # key of the total number of tokens in the counts by token
MAX_PLACE = 8  # all numbers from the 8th after a word on count as one field
MAX_NAME = 40  # longer words are cut in messages
MAX_REASONS = 4  # maximum number of reasons in a message
MAX_SPANS = 6  # maximum number of value ranges in a message
MAX_DECIMALS = 24
EXACT_LENGTH = 15  # numbers with fewer characters are represented exactly by floats
BREAK, SPACES = "<break>", "<spaces>"  # pseudo-tokens: BREAK for a line break or tab, SPACES for several spaces
_TOKENS = re.compile(
    r"([+-]?[0-9]{1,24}(?:\.[0-9]{1,24})?(?:[eE][+-]?[0-9]{1,3})?)|([^\W\d]\w*)|(?<=\S)(\s{2,}|[^\S ])(?=\S)|\S"
)


def read_tokens(text: str) -> Iterator[tuple[str, re.Match[str]]]:
    """Yield (token, match) for each word, number and other character of a text. The token of a number is its field."""
    word, place = "", 0
    for match in _TOKENS.finditer(text):
        kind, token = match.lastindex, match[0]
        if kind == 1:
            place += 1
            token = f"{word}#{min(place, MAX_PLACE)}"
        elif kind == 2:
            word, place = token, 0
        elif kind == 3:
            token = BREAK if token.strip(" ") else SPACES
        yield token, match


def is_field(token: str) -> bool:
    """Return whether a token is the field of a number."""
    return "#" in token and len(token) > 1


def swap_number(text: str, name: str, number: str) -> str | None:
    """Return the text with the first number of the field `name` replaced by `number`; None if it is not found."""
    for token, match in read_tokens(text):
        if token == name and match.lastindex == 1:
            return text[: match.start()] + number + text[match.end() :]
    return None


def number_form(number: str) -> str:
    """Return how a number is written: `+` for a plus, `0` for leading zeros, then the count of decimals or `e`."""
    whole, _, fraction = number.partition(".")
    digits = whole.lstrip("+-")
    marks = "+" * (whole[0] == "+") + "0" * (digits[0] == "0" and digits[1:2].isdigit())
    return marks + ("e" if "e" in number.lower() else str(len(fraction)))


def scaled_number(number: str, decimals: int) -> int:
    """Return a number as an integer in units of its last decimal: 25 for "0.25" or "0.250" with two `decimals`."""
    if len(number) < EXACT_LENGTH and "e" not in number and "E" not in number:
        return round(float(number) * 10**decimals)
    return round(Decimal(number).scaleb(decimals))


@dataclass(frozen=True)
class KnownNumbers:
    """The numbers of a field in training. `forms` has their forms of writing (see `number_form`); `spans` has their
    values, as "0 to 2, 5, 9". Values of a span have the distance `step`. `decimals` is the maximum of decimals."""

    forms: Sequence[str]
    spans: str
    step: str
    decimals: int

    def is_known(self, number: str) -> bool:
        """Return whether a number has a form and a value that numbers in training have."""
        if number_form(number) not in self.forms:
            return False
        lows, highs, step = self._bounds
        value = scaled_number(number, self.decimals)
        i = bisect_right(lows, value) - 1
        return i >= 0 and value <= highs[i] and (value - lows[i]) % step == 0

    @cached_property
    def _bounds(self) -> tuple[list[int], list[int], int]:
        pairs = [span.partition(" to ") for span in self.spans.split(", ")]
        lows = [scaled_number(low, self.decimals) for low, _, _ in pairs]
        highs = [scaled_number(high or low, self.decimals) for low, _, high in pairs]
        return lows, highs, max(1, scaled_number(self.step, self.decimals))

    def gaps(self, limit: int) -> list[str]:
        """Return at most `limit` numbers from the gaps between the spans, evenly distributed."""
        lows, highs, step = self._bounds
        between = [range(high + step, low, step) for high, low in zip(highs, lows[1:], strict=False)]
        ends = [*itertools.accumulate(map(len, between))]
        count = min(limit, ends[-1] if ends else 0)
        places = [i * ends[-1] // count for i in range(count)]
        values = (between[(i := bisect_right(ends, place))][place - ends[i]] for place in places)
        return [f"{Decimal(value).scaleb(-self.decimals):f}" for value in values]

    def beyond(self, steps: int, above: bool) -> str:
        """Return the number that is `steps` steps above (or below) all known numbers."""
        lows, highs, step = self._bounds
        value = highs[-1] + steps * step if above else lows[0] - steps * step
        return f"{Decimal(value).scaleb(-self.decimals):f}"

    def message(self) -> str:
        """Return the spans as text for messages."""
        spans = [[_shorten_number(end) for end in span.split(" to ")] for span in self.spans.split(", ")]
        steps = f" in steps of {self.step}" if self._bounds[2] > 1 else ""
        if len(spans) > MAX_SPANS:
            return f"{spans[0][0]} to {spans[-1][-1]}{steps} with gaps"
        return ", ".join(map(" to ".join, spans)) + steps


@dataclass(frozen=True)
class KnownObservations:
    """What the observations of a training set have in common. `numbers` has the known numbers by field. `counts` has,
    by token, how often it occurs in a text, as "1", "2+" or "2 to 30". `followers` has, by token, the tokens that may
    follow it, separated by spaces. A token that is not in `counts` or `followers` is not restricted."""

    numbers: Mapping[str, KnownNumbers]
    counts: Mapping[str, str]
    followers: Mapping[str, str]

    @cached_property
    def _next(self) -> dict[str, frozenset[str]]:
        return {token: frozenset(text.split()) for token, text in self.followers.items()}

    @cached_property
    def _limits(self) -> list[tuple[str, int, int]]:
        ends = ((token, span.endswith("+"), span.rstrip("+").split(" to ")) for token, span in self.counts.items())
        return [(token, int(span[0]), sys.maxsize if more else int(span[-1])) for token, more, span in ends]

    @cached_property
    def _words(self) -> frozenset[str]:
        return frozenset().union(self.followers, *self._next.values())

    def unfamiliar(self, text: str) -> tuple[str, ...]:
        """Return short descriptions of what no training observation had; empty for a familiar observation."""
        unseen: dict[str, None] = {}
        counts: Counter[str] = Counter()
        before = START
        for token, match in read_tokens(text):
            counts[token] += 1
            if (known := self.numbers.get(token)) is not None and not known.is_known(match[0]):
                unseen[f"{token.partition('#')[0]} {match[0]} (in training {known.message()})".lstrip()] = None
            if token not in self._next.get(before, (token,)):
                unseen[self._order_reason(before, token)] = None
            before = token
        counts[LENGTH] = counts.total()
        wrong = [token for token, low, high in self._limits if not low <= counts[token] <= high]
        if END not in self._next.get(before, (END,)) and not unseen and wrong in ([], [LENGTH]):
            unseen[f"the end after {_token_name(before)}"] = None
        if wrong == [LENGTH] and not unseen:
            return (f"{counts[LENGTH]} words and numbers (in training {self.counts[LENGTH]})",)
        reasons = (_count_reason(token, counts) for token in wrong)
        return (*filter(None, reasons), *unseen)[:MAX_REASONS]

    def _order_reason(self, before: str, token: str) -> str:
        if token not in self._words and not is_field(token) and token not in (BREAK, SPACES):
            return f"the word {_token_name(token)}"
        place = "at the start" if before == START else f"after {_token_name(before)}"
        return f"{_token_name(token)} {place}"

    def to_dict(self) -> dict[str, Any]:
        """Return the observations as a JSON object."""
        names = [part.name for part in fields(KnownNumbers)]
        numbers = {token: {name: getattr(known, name) for name in names} for token, known in self.numbers.items()}
        return {"numbers": numbers, "counts": dict(self.counts), "followers": dict(self.followers)}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Read a result of `to_dict`. Raises ValueError, TypeError or KeyError for invalid values."""
        numbers = {token: KnownNumbers(**known) for token, known in value["numbers"].items()}
        if not all(0 <= known.decimals <= MAX_DECIMALS for known in numbers.values()):
            raise ValueError("a field has too many decimals")
        known = cls(numbers, value["counts"], value["followers"])
        known.unfamiliar(" ".join(f"{token.partition('#')[0]} 0" for token in numbers))  # raises if a value is invalid
        return known


def _token_name(token: str) -> str:
    if token in (BREAK, SPACES):
        return "a line break or tab" if token == BREAK else "several spaces"
    if not is_field(token):
        return f'"{token[:MAX_NAME]}"'
    word = token.partition("#")[0]
    return f'the number after "{word[:MAX_NAME]}"' if word else "a number"


def _shorten_number(number: str) -> str:
    return number if len(number) < EXACT_LENGTH else f"{float(number):.6g}"


def _count_reason(token: str, counts: Counter[str]) -> str | None:
    """Describe how the count of a token differs from training; None if the reason of another token includes this."""
    word = token.partition("#")[0]
    if token == LENGTH or (word and is_field(token) and not counts[word]):
        return None
    if (count := counts[token]) == 0:
        return f"no {_token_name(token).removeprefix('the ').removeprefix('a ')}"
    return f"{_token_name(token)} {count} time{'s' * (count > 1)}"


def span_texts(spans: Sequence[tuple[int, int]], decimals: int) -> str:
    """Return spans of scaled values as a text such as "0 to 2, 5, 9"."""
    texts = [tuple(f"{Decimal(value).scaleb(-decimals):f}" for value in span) for span in spans]
    return ", ".join(low if low == high else f"{low} to {high}" for low, high in texts)
