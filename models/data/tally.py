"""Count what a source gives: samples, rows, and what is left out, by reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from rtcontrol.models.data.sample import Dropped

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
