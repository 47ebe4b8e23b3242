"""List numbers that have bounds and a constant step (a grid)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from fractions import Fraction
from math import ceil, floor
from typing import Any

from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.validator import MAX_INTEGER, MIN_INTEGER

BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
MAX_STEPS = 10**20  # maximum steps between a bound and zero; up to it, decimal division is exact


@dataclass(frozen=True)
class NumberGrid:
    """`count` numbers with a constant step: integers, or floats with `digits` decimals. `first` and `step` are in units
    of the last decimal."""

    first: int
    step: int
    count: int
    digits: int
    integer: bool

    def values(self) -> tuple[Any, ...]:
        """Return all numbers in ascending order."""
        return tuple(self.number_at(i) for i in range(self.count))

    def number_at(self, i: int) -> int | float:
        """Return the number with index `i`."""
        return self._typed(self.first + i * self.step)

    def texts(self) -> tuple[str, ...]:
        """Return the text of each number, without an exponent, and without a sign of zero."""
        return tuple(self._text(self.first + i * self.step) for i in range(self.count))

    @property
    def longest(self) -> int:
        """Return the length of the longest text."""
        return max(len(self._text(units)) for units in (self.first, self.first + (self.count - 1) * self.step))

    def _typed(self, units: int) -> int | float:
        return units if self.integer else float(Decimal(units).scaleb(-self.digits)) + 0.0

    def _text(self, units: int) -> str:
        text = f"{'-' * (units < 0)}{abs(units):0{self.digits + 1}}"
        return f"{text[: -self.digits]}.{text[-self.digits :]}" if self.digits else text


def number_grid(schema: Mapping[str, Any], where: str) -> NumberGrid | None:
    """Return the grid of an `integer` or `number` schema; None if it has no step, or a bound is missing.

    Raises UserError (`where` names tool and parameter) if bounds and step are contradictory.
    """
    integer = schema["type"] == "integer"
    step = schema.get("multipleOf", 1 if integer else None)
    low, above, high, below = (None if (b := schema.get(k)) is None else Decimal(str(b)) for k in BOUNDS)
    by = Decimal(1 if step is None else str(step))
    ends = [schema.get(k, schema.get(f"exclusive{k.title()}")) for k in ("minimum", "maximum")]
    bounds = f"bounds {ends[0]} to {ends[1]} in steps of {step}"
    if any(b is not None and not b.is_finite() for b in (low, above, high, below, by)):
        raise UserError(f"{where}: {bounds}.", "Give finite numbers.")
    if low is not None and high is not None and low > high:
        raise UserError(f"{where}: minimum {low} exceeds maximum {high}.", "Swap them.")
    if step is None or (low is None and above is None) or (high is None and below is None):
        return None
    if max(abs(b) for b in (low, above, high, below) if b is not None) / by > MAX_STEPS:
        return None
    if integer and any(b is not None and b % 1 for b in (low, by)):
        raise UserError(f"{where}: an integer has minimum {low} and step {step}.", "Use integers, or the type number.")
    if low is not None and low % by:
        problem = f"{where}: minimum {low} is not a multiple of the step {step}."
        hint = f"Start at {low // by * by}, or choose another step (multipleOf counts from zero)."
        raise UserError(problem, hint)
    # `after` is the first multiple above an exclusive minimum, `before` the last multiple below an exclusive maximum.
    after = None if above is None else (above / by).to_integral_value(ROUND_FLOOR) * by + by
    before = None if below is None else (below / by).to_integral_value(ROUND_CEILING) * by - by
    first = max(b for b in (low, after) if b is not None)
    last = min(b for b in (high, before) if b is not None)
    if first > last:
        raise UserError(f"{where}: there is no value within its {bounds}.", "Widen them.")
    digits = 0 if integer else max(1, *(max(0, -int(n.normalize().as_tuple().exponent)) for n in (by, first)))
    count = int((last - first) / by) + 1
    return NumberGrid(int(first.scaleb(digits)), int(by.scaleb(digits)), count, digits, integer)


@dataclass(frozen=True)
class NumberRange:
    """The multiples of `step` from `low` to `high`. `low` is excluded if `above` is True, `high` if `below` is True."""

    low: Decimal
    high: Decimal
    above: bool
    below: bool
    step: Fraction | None

    def multiples(self, step: Fraction) -> tuple[int, int]:
        """Return `first` and `last`, so that the multiples of `step` in the range are `first * step` to `last *
        step`."""
        first, last = ceil(Fraction(self.low) / step), floor(Fraction(self.high) / step)
        first += self.above and first * step == Fraction(self.low)
        last -= self.below and last * step == Fraction(self.high)
        return first, last


def number_range(schema: Mapping[str, Any]) -> NumberRange:
    """Return the range of an `integer` or `number` schema, limited to the 64-bit integers that messages can contain."""
    low, above = _bound(schema, "minimum", "exclusiveMinimum", Decimal(MIN_INTEGER), max)
    high, below = _bound(schema, "maximum", "exclusiveMaximum", Decimal(MAX_INTEGER), min)
    step = Fraction(str(schema["multipleOf"])) if schema.get("multipleOf") else None
    return NumberRange(low, high, above, below, step)


def _bound(schema: Mapping[str, Any], inclusive: str, exclusive: str, limit: Decimal, pick: Any) -> Any:
    bounds = [(Decimal(str(schema[k])), k == exclusive) for k in (inclusive, exclusive) if schema.get(k) is not None]
    # If an inclusive and an exclusive bound are equal, the exclusive bound applies.
    return pick([*bounds, (limit, False)], key=lambda bound: (bound[0], bound[1] if pick is max else not bound[1]))
