"""Numbers on a grid: bounded integers, and bounded numbers with a step. How many there are below a beginning of their
text is counted, so a trie of them needs no list."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from fractions import Fraction
from itertools import groupby
from math import ceil, floor, gcd, lcm
from typing import Any

from rtcontrol.models.errors import UserError

EXACT = 10**20  # steps up to which decimal division is exact; bounds beyond are left to the grammar
CHARACTERS = "0123456789-."  # of which numbers are written


@dataclass(frozen=True)
class NumberGrid:
    """`count` numbers from `first` on, `step` apart: integers, or (not `integer`) floats of `digits` decimals, of which
    `first` and `step` are so many units."""

    first: int
    step: int
    count: int
    digits: int
    integer: bool

    def values(self) -> tuple[Any, ...]:
        """All of them, ascending."""
        return tuple(self.at(i) for i in range(self.count))

    def at(self, i: int) -> int | float:
        """The value at this place, of `count`."""
        return self._typed(self.first + i * self.step)

    def texts(self) -> tuple[str, ...]:
        """How each is written: no exponent, no minus zero."""
        return tuple(self._text(self.first + i * self.step) for i in range(self.count))

    @property
    def remainders(self) -> int:
        """In how many ways they may lie between two round numbers."""
        return self.step // gcd(self.step, 10 ** self.step.bit_length())

    def finer(self) -> NumberGrid:
        """All numbers of as many decimals from its first to its last."""
        return replace(self, step=1, count=(self.count - 1) * self.step + 1)

    @property
    def longest(self) -> int:
        """Characters of the longest text."""
        return max(len(self._text(units)) for units in (self.first, self.first + (self.count - 1) * self.step))

    def _typed(self, units: int) -> int | float:
        return units if self.integer else float(Decimal(units).scaleb(-self.digits)) + 0.0

    def _text(self, units: int) -> str:
        text = f"{'-' * (units < 0)}{abs(units):0{self.digits + 1}}"
        return f"{text[: -self.digits]}.{text[-self.digits :]}" if self.digits else text

    def text(self, value: float) -> str:
        """How a value is written. Raises ValueError where it is none of these."""
        units = Decimal(repr(value)).scaleb(self.digits)
        if isinstance(value, bool) or units % 1 or not self._among(int(units), int(units)):
            raise ValueError(f"{value!r} is not on the grid")
        return self._text(int(units))

    def value(self, text: str) -> int | float | None:
        """The number that is written so; None where it is none of these."""
        digits = text.replace(".", "", 1)
        units = int(digits) if digits.removeprefix("-").isdigit() else 0
        return self._typed(units) if self._text(units) == text and self._among(units, units) else None

    def below(self, start: str) -> int:
        """How many of the texts begin so."""
        return sum(self._among(*span[:2]) for span in self._spans(start)) if start else self.count

    def alike(self, start: str) -> Hashable:
        """The same of beginnings that the same may follow."""
        if not start.strip("-"):
            return start
        marks = []
        for low, high, size in self._spans(start):
            if count := self._among(low, high):
                # Of those within, the one closest to zero, and how far it is from where they could begin.
                steps = (high - self.first) // self.step if start[0] == "-" else -((self.first - low) // self.step)
                nearest = self.first + min(max(steps, 0), self.count - 1) * self.step
                marks.append((size, abs(nearest) % size, count))
        return "." in start, tuple(marks)

    def _spans(self, start: str) -> list[tuple[int, int, int]]:
        """The units, from and to, whose texts begin so, and how many these would be without a bound."""
        before, point, decimals = start.removeprefix("-").partition(".")
        unit, rest = 10**self.digits, self.digits - len(decimals)
        if before[:1] == "0" != before or rest < 0 or not f"{before or 0}{decimals or 0}".isdigit():
            return []
        if point:
            if not (before and self.digits):
                return []
            spans = [(int(before + decimals) * 10**rest, 10**rest)]
        elif before == "0":
            spans = [(0, unit)]
        else:
            largest = max(abs(self.first), abs(self.first + (self.count - 1) * self.step))
            spans, size = ([] if before else [(0, largest + 1)]), unit
            while before and int(before) * size <= largest:
                spans.append((int(before) * size, size))
                size *= 10
        if start[0] == "-":
            return [(-low - size + 1, min(-low, -1), size) for low, size in spans]
        return [(low, low + size - 1, size) for low, size in spans]

    def _among(self, low: int, high: int) -> int:
        """How many lie within these units."""
        least = max(0, -((self.first - low) // self.step))
        return max(0, min(self.count - 1, (high - self.first) // self.step) - least + 1)


def grid_of(schema: Mapping[str, Any], where: str) -> NumberGrid | None:
    """The numbers of an `integer` or `number` schema; None where it has no step, or no bound on one side.

    Raises UserError (`where` names tool and parameter) for bounds and steps that make no sense."""
    integer = schema["type"] == "integer"
    step = schema.get("multipleOf", 1 if integer else None)
    names = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
    low, above, high, below = (None if (b := schema.get(k)) is None else Decimal(str(b)) for k in names)
    by = Decimal(1 if step is None else str(step))
    ends = [schema.get(k, schema.get(f"exclusive{k.title()}")) for k in ("minimum", "maximum")]
    told = f"bounds {ends[0]} to {ends[1]} in steps of {step}"
    if any(b is not None and not b.is_finite() for b in (low, above, high, below, by)):
        raise UserError(f"{where}: {told}.", "Give finite numbers.")
    if low is not None and high is not None and low > high:
        raise UserError(f"{where}: minimum {low} is above maximum {high}.", "Swap them.")
    if step is None or (low is None and above is None) or (high is None and below is None):
        return None
    if max(abs(b) for b in (low, above, high, below) if b is not None) / by > EXACT:
        return None
    if integer and any(b is not None and b % 1 for b in (low, by)):
        raise UserError(f"{where}: an integer with minimum {low} and step {step}.", "Use whole numbers, or a number.")
    if low is not None and low % by:
        raise UserError(
            f"{where}: minimum {low} is not a multiple of the step {step}.",
            f"Start at {low // by * by} or choose another step (JSON schema's multipleOf counts from zero).",
        )
    # The first multiple above an exclusive bound, the last one below.
    after = None if above is None else (above / by).to_integral_value(ROUND_FLOOR) * by + by
    before = None if below is None else (below / by).to_integral_value(ROUND_CEILING) * by - by
    lo = max(b for b in (low, after) if b is not None)
    hi = min(b for b in (high, before) if b is not None)
    if lo > hi:
        raise UserError(f"{where}: no value is within its {told}.", "Widen them.")
    digits = 0 if integer else max(1, *(max(0, -int(n.normalize().as_tuple().exponent)) for n in (by, lo)))
    return NumberGrid(int(lo.scaleb(digits)), int(by.scaleb(digits)), int((hi - lo) / by) + 1, digits, integer)


LEAST, MOST = -(2**63), 2**64 - 1  # integers that messages take; a number without a bound is as large
MINUS_ZERO = r"~/-0(?:\.0*)?/"
LONGEST = 20  # digits of an integer


@dataclass(frozen=True)
class NumberRange:
    """The numbers from `low` to `high`, without these where they are `above` and `below`; `step` (None: any) counts
    from zero."""

    low: Decimal
    high: Decimal
    above: bool
    below: bool
    integer: bool
    step: Fraction | None

    def terminal(self) -> str:
        """As the regular expressions that all of them match, and between whole bounds nothing else; a step is not among
        them."""
        parts = [self._from(), self._to()]
        return " & ".join([*(f"/{part}/" for part in dict.fromkeys(parts)), MINUS_ZERO])

    @property
    def decimals(self) -> int:
        """So many decimals tell all bounds and steps apart."""
        return max(self.step_decimals, *(_decimals(n) for n in (self.low, self.high)))

    @property
    def step_decimals(self) -> int:
        """So many has a step."""
        return 0 if self.step is None else _decimals(Decimal(self.step.numerator) / Decimal(self.step.denominator))

    def empty(self) -> bool:
        """Whether there is none of them."""
        step = Fraction(1) if self.integer else self.step
        if self.integer and self.step is not None:
            step = Fraction(self.step.numerator)
        if step is None:
            return self.low > self.high or (self.low == self.high and (self.above or self.below))
        first, last = self.multiples(step)
        return first > last

    def multiples(self, step: Fraction) -> tuple[int, int]:
        """The first multiple of a step that is within the bounds, and the last, counted in steps from zero."""
        first, last = ceil(Fraction(self.low) / step), floor(Fraction(self.high) / step)
        first += self.above and first * step == Fraction(self.low)
        last -= self.below and last * step == Fraction(self.high)
        return first, last

    def _from(self) -> str:
        if self.low < 0:
            return f"(?:{self._any()}|-(?:{self._most(-self.low, self.above)}))"
        return self._least(self.low, self.above)

    def _to(self) -> str:
        if self.high < 0:
            return f"-(?:{self._least(-self.high, self.below)})"
        # Of what is negative there is no end on this side.
        return f"(?:{self._most(self.high, self.below)}|-{self._any()})"

    def _any(self) -> str:
        return f"(?:0|[1-9][0-9]*){self._fraction()}"

    def _fraction(self) -> str:
        return "" if self.integer else r"(?:\.[0-9]+)?"

    def _least(self, bound: Decimal, exclusive: bool) -> str:
        """What is no less than a bound that is no less than zero."""
        whole, digits = _split(bound)
        parts = [f"{_up(whole + 1)}{self._fraction()}"]
        if not digits and not exclusive:
            parts.append(f"{whole}{self._fraction()}")
        elif not self.integer:
            parts.append(rf"{whole}\.(?:{'|'.join(_above(digits, exclusive))})")
        return f"(?:{'|'.join(parts)})"

    def _most(self, bound: Decimal, exclusive: bool) -> str:
        whole, digits = _split(bound)
        parts = [f"(?:{part}){self._fraction()}" for part in _down(whole - 1)]
        if digits or not exclusive:
            parts.append(str(whole))
        if not self.integer:
            parts += [rf"{whole}\.(?:{part})" for part in _below(digits, exclusive)]
        return f"(?:{'|'.join(parts)})" if parts else r"(?:\.\.)"  # which no number has


def range_of(schema: Mapping[str, Any]) -> NumberRange:
    """Of a schema of type integer or number, within the numbers that messages take."""
    low, above = _bound(schema, "minimum", "exclusiveMinimum", Decimal(LEAST), max)
    high, below = _bound(schema, "maximum", "exclusiveMaximum", Decimal(MOST), min)
    step = Fraction(str(schema["multipleOf"])) if schema.get("multipleOf") else None
    return NumberRange(low, high, above, below, schema.get("type") == "integer", step)


def _bound(schema: Mapping[str, Any], kept: str, out: str, end: Decimal, inner: Any) -> tuple[Decimal, bool]:
    given = [(Decimal(str(schema[key])), key == out) for key in (kept, out) if schema.get(key) is not None]
    # Of two bounds that are equal the exclusive one holds.
    found = inner([*given, (end, False)], key=lambda bound: (bound[0], bound[1] if inner is max else not bound[1]))
    return found[0], found[1]


def _decimals(number: Decimal) -> int:
    return max(0, -int(number.normalize().as_tuple().exponent))


def _split(bound: Decimal) -> tuple[int, str]:
    whole, _, digits = f"{bound:f}".partition(".")
    return int(whole), digits.rstrip("0")


def _run(digits: str) -> str:
    """Digits, their runs counted."""
    return "".join(f"{digit}{{{n}}}" if n > 4 else digit * n for digit, n in _runs(digits))


def _runs(digits: str) -> list[tuple[str, int]]:
    return [(digit, len(list(run))) for digit, run in groupby(digits)]


def _begun(digits: str) -> Iterator[tuple[str, str]]:
    """For each digit, the expression of what stands before it: of a run of equal ones all of them in one."""
    before = 0
    for digit, n in _runs(digits):
        yield _run(digits[:before]) + (f"{digit}{{0,{n - 1}}}" if n > 1 else ""), digit
        before += n


def _span(low: int, high: int) -> str:
    return f"[{low}-{high}]" if low < high else str(low)


def _up(least: int) -> str:
    """All integers from this one on."""
    text = str(least)
    parts = [f"{text[:i]}{_span(int(d) + 1, 9)}[0-9]{{{len(text) - i - 1}}}" for i, d in enumerate(text) if d != "9"]
    return f"(?:{'|'.join([text, *parts, f'[1-9][0-9]{{{len(text)},}}'])})"


def _down(most: int) -> Iterator[str]:
    """All integers from zero to this one."""
    if most < 0:
        return
    text = str(most)
    yield text
    if len(text) > 1:
        yield f"0|[1-9][0-9]{{0,{len(text) - 2}}}"
    for i, digit in enumerate(text):
        first = 1 if i == 0 and len(text) > 1 else 0
        if int(digit) > first:
            yield f"{text[:i]}{_span(first, int(digit) - 1)}[0-9]{{{len(text) - i - 1}}}"


def _above(digits: str, exclusive: bool) -> Iterator[str]:
    """Decimals whose value is no less than that of these (exclusive: greater)."""
    for before, digit in _begun(digits):
        if digit != "9":
            yield f"{before}{_span(int(digit) + 1, 9)}[0-9]*"
    yield f"{_run(digits)}[0-9]*{'[1-9][0-9]*' * exclusive}" if digits or exclusive else "[0-9]+"


def _below(digits: str, exclusive: bool) -> Iterator[str]:
    """Decimals, at least one, whose value is no greater than that of these (exclusive: less)."""
    for before, digit in _begun(digits):
        if before:
            yield before.replace("{0,", "{1,") if before.startswith(f"{digit}{{0,") else before
        if digit != "0":
            yield f"{before}{_span(0, int(digit) - 1)}[0-9]*"
    if not exclusive:
        yield f"{_run(digits)}0*" if digits else "0+"


def ended(begun: str, numbers: NumberRange) -> str | None:
    """The fewest characters that make one of these numbers of its beginning; None where there are none."""
    sign = "-" if begun.startswith("-") else ""
    body = begun.removeprefix("-")
    if not body and not sign:
        found = [text for start in "0123456789-" if (text := _ended_here(start, numbers)) is not None]
        return min(found, key=len, default=None)
    return None if (text := _ended_here(begun, numbers)) is None else text.removeprefix(begun)


def _ended_here(begun: str, numbers: NumberRange) -> str | None:
    sign, body = (-1, begun[1:]) if begun.startswith("-") else (1, begun)
    if not body:
        found = [t for d in "0123456789" if (t := _ended_here(f"{begun}{d}", numbers)) is not None]
        return min(found, key=len, default=None)
    whole, point, decimals = body.partition(".")
    deepest = 0 if numbers.integer else max(numbers.decimals, len(decimals)) + 1
    places: list[tuple[int, int]] = []
    if not point:
        places += [(ahead, 0) for ahead in range(LONGEST - len(whole) + 1) if not ahead or whole != "0"]
    places += [(0, behind) for behind in range(len(decimals), deepest + 1) if behind]
    for ahead, behind in sorted(places, key=lambda more: more[0] + more[1] + (more[1] > 0)):
        free = ahead + behind - len(decimals)
        unit, size = Fraction(1, 10**behind), int(10**free)
        begun_at = int(whole + decimals) * size
        low, high = begun_at * unit, (begun_at + size - 1) * unit
        if sign < 0:
            low, high = -high, -low
        if (value := _least_of(low, high, unit, numbers, negative=sign < 0)) is not None:
            digits = f"{abs(value) // unit:0{len(whole + decimals) + free}d}"
            text = f"{digits[:-behind]}.{digits[-behind:]}" if behind else digits
            return f"{'-' * (sign < 0)}{text}"
    return None


def _least_of(low: Fraction, high: Fraction, unit: Fraction, numbers: NumberRange, negative: bool) -> Fraction | None:
    """The least number between that is so many units."""
    low, high = max(low, Fraction(numbers.low)), min(high, Fraction(numbers.high))
    step = unit if numbers.step is None else common(unit, numbers.step)
    value = ceil(low / step) * step
    if numbers.above and value == Fraction(numbers.low):
        value += step
    if negative and value == 0:
        return None
    if value > high or (numbers.below and value == Fraction(numbers.high)):
        return None
    return value


def common(a: Fraction, b: Fraction) -> Fraction:
    """The least that is a multiple of both."""
    scale = lcm(a.denominator, b.denominator)
    return Fraction(lcm(int(a * scale), int(b * scale)), scale)
