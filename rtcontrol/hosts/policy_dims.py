"""One number of an action, as an argument of a call: scaled, on the grid of what the tool allows, within its bounds."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import ClosedDomain
from rtcontrol.models.schema.numbers import NumberGrid, range_of
from rtcontrol.models.schema.parameters import Parameter
from rtcontrol.models.schema.tool_schema import ToolSchema

LEVELS = "levels: {-1: left, 0: stay, 1: right}"
LOWER, UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
KEYS = ("parameter", "scale", "offset", "levels")


@dataclass(frozen=True)
class ActionDim:
    """The argument `name` is `scale` times the number plus `offset`. Where its values are listed, it is the nearest
    one: `points` are these as numbers, ascending, and `values` what stands for each. Else the `grid`, or `step` from
    zero, or `integer` rounds it, and it lies between `least` and `most`: numbers that the tool allows, or in steps."""

    name: str
    scale: float = 1.0
    offset: float = 0.0
    points: tuple[float, ...] = ()
    values: tuple[Any, ...] = field(default=(), compare=False)
    integer: bool = False
    least: float = -math.inf
    most: float = math.inf
    grid: NumberGrid | None = None
    step: Fraction | None = None

    def value(self, number: float, clip: bool) -> Any:
        """Of a number that is out of bounds by more than half a step the number itself, unless it is to `clip`. Raises
        OverflowError for one that is not finite when it is scaled."""
        scaled = self.scale * number + self.offset
        if not math.isfinite(scaled):
            raise OverflowError(f"{number:g} of {self.name}")
        if not self.points:
            return self._stepped(scaled, clip) if self.step is not None else self._rounded(self._within(scaled, clip))
        i = bisect_left(self.points, scaled)
        near = [j for j in (i - 1, i) if 0 <= j < len(self.points)]
        best = min(near, key=lambda j: abs(self.points[j] - scaled))
        if not clip and abs(self.points[best] - scaled) > self._reach(best):
            return scaled
        return self.values[best]

    def _within(self, number: float, clip: bool) -> float:
        return min(max(number, self.least), self.most) if clip else number

    def _stepped(self, scaled: float, clip: bool) -> int | float:
        assert self.step is not None, "it has one"
        count = self._within(round(Fraction(scaled) / self.step), clip)
        exact = int(count) * self.step
        return int(exact) if self.integer else float(exact)

    def _rounded(self, scaled: float) -> int | float:
        if self.grid is None:
            return round(scaled) if self.integer else scaled
        unit = 10.0**self.grid.digits
        i = round((scaled * unit - self.grid.first) / self.grid.step)
        return self.grid.at(i) if 0 <= i < self.grid.count else scaled

    def _reach(self, i: int) -> float:
        """How far beyond the first or the last point a number still means it; between points, everywhere."""
        if 0 < i < len(self.points) - 1:
            return math.inf
        if len(self.points) == 1:
            return 0.0
        beside = 1 if i == 0 else i - 1
        return abs(self.points[i] - self.points[beside]) / 2 * (1 + 1e-9)


def dims_of(tool: ToolSchema, why: str) -> tuple[ActionDim, ...]:
    """All parameters of a tool whose values are numbers. Raises UserError."""
    for parameter in tool.parameters:
        if not _numeric(parameter):
            raise UserError(
                f"Parameter {parameter.name} of the tool {tool.name} is no number, and {why}.",
                f"Say what each number of an action is: actions: [{{parameter: {parameter.name}, {LEVELS}}}] "
                "(docs/policies.md).",
            )
    if not tool.parameters:
        raise UserError(f"The tool {tool.name} has no parameters: no action says anything.", "Name another tool.")
    return tuple(_dim(parameter, 1.0, 0.0) for parameter in tool.parameters)


def read_dim(given: Any, tool: ToolSchema, where: str, remedy: str) -> ActionDim:
    """From an entry of the mapping file. Raises UserError."""
    if not isinstance(given, Mapping) or any(key not in KEYS for key in given):
        raise UserError(f"{where} is no entry of {', '.join(KEYS)}.", remedy)
    name = given.get("parameter")
    parameter = next((p for p in tool.parameters if p.name == name), None)
    if parameter is None:
        known = ", ".join(p.name for p in tool.parameters)
        raise UserError(f"{where}: {tool.name} has no parameter {str(name)[:80]!r}.", f"It has {known}.")
    scale, offset = (_real(given.get(key, default)) for key, default in (("scale", 1.0), ("offset", 0.0)))
    if scale is None or offset is None or scale == 0:
        raise UserError(f"{where}: scale and offset must be numbers, and scale not 0.", remedy)
    levels = given.get("levels")
    if levels is not None:
        return _levels(levels, parameter, scale, offset, where)
    if not _numeric(parameter):
        raise UserError(f"{where}: the values of {parameter.name} are no numbers.", f"Say which they are: {LEVELS}.")
    return _dim(parameter, scale, offset)


def _levels(given: Any, parameter: Parameter, scale: float, offset: float, where: str) -> ActionDim:
    remedy = f"Give such as {LEVELS}, of values that the tool allows."
    levels = given.items() if isinstance(given, Mapping) else ()
    pairs = [(at, value) for level, value in levels if (at := _real(level)) is not None]
    if not pairs or len(pairs) < len(levels):
        raise UserError(f"{where}: levels is no mapping of numbers to values.", remedy)
    domain = parameter.domain
    for _, value in pairs:
        legal = domain.holds(value) if isinstance(domain, ClosedDomain) else domain.judge.fault(value) is None
        if not legal:
            raise UserError(f"{where}: {parameter.name} may not be {str(value)[:80]!r}.", remedy)
    pairs.sort(key=lambda pair: pair[0])
    points, values = zip(*pairs, strict=True)
    return ActionDim(parameter.name, scale, offset, points, values)


def _numeric(parameter: Parameter) -> bool:
    domain = parameter.domain
    if isinstance(domain, ClosedDomain):
        return all(_real(value) is not None for value in domain.values)
    return parameter.schema.get("type") in ("integer", "number")


def _dim(parameter: Parameter, scale: float, offset: float) -> ActionDim:
    domain, schema = parameter.domain, parameter.schema
    if isinstance(domain, ClosedDomain):
        values = tuple(sorted(domain.values))
        return ActionDim(parameter.name, scale, offset, tuple(map(float, values)), values)
    numbers, integer = range_of(schema), schema.get("type") == "integer"
    given = ActionDim(parameter.name, scale, offset, integer=integer, grid=domain.grid)
    step = Fraction(1) if integer else numbers.step
    if integer and numbers.step is not None:
        step = Fraction(numbers.step.numerator)
    if step is not None:
        first, last = numbers.multiples(step)
        if domain.grid is None:
            return replace(given, least=first, most=last, step=step)
        return replace(given, least=float(first * step), most=float(last * step))
    bounded = [any(schema.get(key) is not None for key in keys) for keys in (LOWER, UPPER)]
    least, most = float(numbers.low) if bounded[0] else -math.inf, float(numbers.high) if bounded[1] else math.inf
    if numbers.above:
        least = math.nextafter(least, math.inf)
    if numbers.below:
        most = math.nextafter(most, -math.inf)
    return replace(given, least=least, most=most)


def _real(value: Any) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if number else None
