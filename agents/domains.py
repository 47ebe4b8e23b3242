"""Annotations that bound a tool's parameters: `Annotated[int, OneOf(0, 50, 100)]`.

A bounded parameter is decided in one forward pass; an unbounded one costs a pass for each of its tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, init=False)
class OneOf:
    """Exactly these values, in declared order."""

    values: tuple[Any, ...]

    def __init__(self, *values: Any) -> None:
        object.__setattr__(self, "values", values)

    def schema(self) -> dict[str, Any]:
        return {"enum": list(self.values)}


@dataclass(frozen=True)
class Range:
    """From `low` to `high`, both included, in steps of `step` (a number without a step is unbounded in its digits)."""

    low: float
    high: float
    step: float | None = None

    def schema(self) -> dict[str, Any]:
        bounds: dict[str, Any] = {"minimum": self.low, "maximum": self.high}
        return bounds if self.step is None else {**bounds, "multipleOf": self.step}


@dataclass(frozen=True)
class Text:
    """A free string of at most `max_length` characters, optionally matching the regular expression `pattern`."""

    max_length: int
    pattern: str | None = None

    def schema(self) -> dict[str, Any]:
        length: dict[str, Any] = {"maxLength": self.max_length}
        return length if self.pattern is None else {**length, "pattern": self.pattern}


@dataclass(frozen=True)
class Group:
    """Parameters of one group depend on each other and share one head (JSON schema key `x-group`)."""

    name: str

    def schema(self) -> dict[str, Any]:
        return {"x-group": self.name}


@dataclass(frozen=True)
class Doc:
    """A parameter's description."""

    text: str

    def schema(self) -> dict[str, Any]:
        return {"description": self.text}


CONSTRAINTS = (OneOf, Range, Text, Group, Doc)
