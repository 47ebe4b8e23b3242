"""Define samples of data sets before their conversion to rows, and count dropped samples by reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rtcontrol.models.call import Call

LONE_SURROGATE = "half a character (a lone surrogate)"
# Exceptions that reading a sample may raise if the sample does not have the format of its data set.
SHAPE_ERRORS = (LookupError, TypeError, AttributeError, ValueError, RecursionError)
MAX_EXAMPLES = 3


class UnusableSample(Exception):
    """A sample cannot be converted: a `reason` that other samples may share, and a `detail` of this one."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


@dataclass(frozen=True)
class Sample:
    """One sample of a data set: an instruction, other context as `observation`, OpenAI-style tool definitions, and the
    right calls in order. `where` is its file and line.

    Raises TypeError for texts that are not strings, and UnusableSample for texts that are not valid Unicode.
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
            raise TypeError("an id, text or name is not a string")
        try:
            "".join([*texts, *(call.text() for call in self.calls)]).encode()
        except UnicodeEncodeError:
            raise UnusableSample(LONE_SURROGATE) from None


@dataclass(frozen=True)
class DroppedSample:
    """A sample that gives no row: a `reason` that other samples may share, file and line, and a detail."""

    reason: str
    where: str
    detail: str = ""
    source: str = ""


@dataclass
class Tally:
    """Counts by source of samples and rows, and by (source, reason) of dropped samples and of `noted` samples."""

    samples: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    dropped: Counter[tuple[str, str]] = field(default_factory=Counter)
    noted: Counter[tuple[str, str]] = field(default_factory=Counter)
    places: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def count_dropped(self, sample: DroppedSample) -> None:
        """Count a dropped sample or row."""
        self._count(self.dropped, sample)

    def count_noted(self, sample: DroppedSample) -> None:
        """Count a sample that is kept although its tools do not allow its calls."""
        self._count(self.noted, sample)

    def _count(self, counts: Counter[tuple[str, str]], sample: DroppedSample) -> None:
        key = sample.source, sample.reason
        counts[key] += 1
        places = self.places.setdefault(key, [])
        if len(places) < MAX_EXAMPLES:
            place = f"{sample.where}{f' ({sample.detail})' if sample.detail else ''}"
            places.append(place.encode(errors="backslashreplace").decode())  # lone surrogates cannot be printed

    def to_dict(self) -> dict[str, Any]:
        """Return all counts as a JSON object."""

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
