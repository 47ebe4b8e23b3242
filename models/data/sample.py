"""Samples as a set has them, and counts of those without rows, with reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rtcontrol.models.call import Call

HALF = "half a character (a lone surrogate)"
# Raised where a sample has another shape than its set's, in any depth.
SHAPE_ERRORS = (LookupError, TypeError, AttributeError, ValueError, RecursionError)
EXAMPLES = 3


class Unusable(Exception):
    """A sample cannot be read: `reason` and `detail` as in `Dropped`."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


@dataclass(frozen=True)
class Sample:
    """One turn: the query, the other context, the tools (OpenAI-style, JSON Schema's types), and its calls in order.
    `where` is its file and line.

    Raises TypeError and Unusable for texts of another type, or that cannot be written.
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
            raise TypeError("an id, a text or a name is not a string")
        try:
            "".join([*texts, *(call.text() for call in self.calls)]).encode()
        except UnicodeEncodeError:
            raise Unusable(HALF) from None


@dataclass(frozen=True)
class Dropped:
    """A sample without a row: a `reason` shared by many, file and line, and details."""

    reason: str
    where: str
    detail: str = ""
    source: str = ""


@dataclass
class Tally:
    """Counts by source, and the first places of each reason."""

    samples: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    dropped: Counter[tuple[str, str]] = field(default_factory=Counter)
    noted: Counter[tuple[str, str]] = field(default_factory=Counter)
    places: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def drop(self, sample: Dropped) -> None:
        """Count a sample, or a row of one, that is dropped."""
        self._count(self.dropped, sample)

    def note(self, sample: Dropped) -> None:
        """Count a sample that is kept although its tools do not allow its answer."""
        self._count(self.noted, sample)

    def _count(self, counts: Counter[tuple[str, str]], sample: Dropped) -> None:
        key = sample.source, sample.reason
        counts[key] += 1
        places = self.places.setdefault(key, [])
        if len(places) < EXAMPLES:
            place = f"{sample.where}{f' ({sample.detail})' if sample.detail else ''}"
            places.append(place.encode(errors="backslashreplace").decode())  # a terminal takes no half character

    def to_dict(self) -> dict[str, Any]:
        """Return all counts as JSON."""

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
