"""What a set's loader gives: samples as the set has them, and why others gave none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.data.row import Check, DataRow


class Unusable(Exception):
    """A sample cannot be read: `reason` and `detail` as in `Dropped`."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


HALF = "half a character (a lone surrogate)"
# What reading a sample raises where it is of another shape than its set's: nested however, of whatever types.
SHAPE_ERRORS = (LookupError, TypeError, AttributeError, ValueError, RecursionError)


@dataclass(frozen=True)
class Sample:
    """One turn: the query, what is known besides, the tools shown (OpenAI-style, JSON Schema's types), and its calls in
    the order given. `checks` are for an official checker, one a call, or none. `where` is its file and line.

    Raises TypeError and Unusable for texts that are none, or cannot be written.
    """

    id: str
    source: str
    where: str
    instruction: str
    observation: str
    tools: tuple[Mapping[str, Any], ...]
    calls: tuple[Call, ...]
    history: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    weight: float = 1.0

    def __post_init__(self) -> None:
        texts = (self.id, self.instruction, self.observation, *self.history, *(call.name for call in self.calls))
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("an id, a text or a name is no string")
        try:
            "".join([*texts, *(call.text() for call in self.calls)]).encode()
        except UnicodeEncodeError:
            raise Unusable(HALF) from None


@dataclass(frozen=True)
class PlacedRow:
    """A row that is one already, and its file and line."""

    row: DataRow
    where: str


@dataclass(frozen=True)
class Dropped:
    """A sample that gives no row: the `reason`, in words that many share; `where` it is (file and line), and what of it
    in particular."""

    reason: str
    where: str
    detail: str = ""
    source: str = ""
