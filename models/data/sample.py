"""What a set's loader gives: samples as the set has them, and counts of why others gave none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.data.row import DataRow


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
    the order given. `where` is its file and line.

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


EXAMPLES = 3


@dataclass
class Tally:
    """Counts by source; of each reason the first places."""

    samples: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    dropped: Counter[tuple[str, str]] = field(default_factory=Counter)
    noted: Counter[tuple[str, str]] = field(default_factory=Counter)
    places: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def drop(self, one: Dropped, count: int = 1) -> None:
        """A sample, or a row of one, that is left out."""
        self._place(one)
        self.dropped[one.source, one.reason] += count

    def note(self, one: Dropped) -> None:
        """One that is kept all the same: its answer is not wholly among those that its tools, as shown, allow."""
        self._place(one)
        self.noted[one.source, one.reason] += 1

    def _place(self, one: Dropped) -> None:
        places = self.places.setdefault((one.source, one.reason), [])
        if len(places) < EXAMPLES:
            place = f"{one.where}{f' ({one.detail})' if one.detail else ''}"
            places.append(place.encode(errors="backslashreplace").decode())  # a terminal takes no half character

    def to_dict(self) -> dict[str, Any]:
        def listed(counts: Counter[tuple[str, str]]) -> list[dict[str, Any]]:
            return [
                {"source": source, "reason": reason, "count": count, "examples": self.places[source, reason]}
                for (source, reason), count in counts.most_common()
            ]

        return {
            "samples": dict(self.samples),
            "rows": dict(self.rows),
            "dropped": listed(self.dropped),
            "noted": listed(self.noted),
        }
