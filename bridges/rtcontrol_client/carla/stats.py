"""What a drive comes to: counts and times, as they are reported."""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

KEPT = 20_000
# A step is on the grid when it begins within this of its instant.
ON_GRID_S = 0.005


@dataclass(slots=True)
class Counts:
    """`emergencies`, `bends` and `beyond_limits` count beginnings, not steps.

    `bends`: slowed because the call's speed was too much for the way ahead. `beyond_limits`: the lateral acceleration
    passed what the steering keeps to. `lights`: emergencies before a stop line. `unfit`: steps whose figures were not
    numbers, answered by braking.
    `fallbacks`: junctions where the lane did not allow the turn that was called.
    """

    steps: int = 0
    calls: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    emergencies: int = 0
    lights: int = 0
    bends: int = 0
    lane_changes: int = 0
    lane_changes_given_up: int = 0
    ways: Counter[str] = field(default_factory=Counter)
    fallbacks: int = 0
    distance_m: float = 0.0
    top_kmh: float = 0.0
    beyond_limits: int = 0
    unfit: int = 0

    def report(self) -> dict[str, Any]:
        """As plain values."""
        values = asdict(self)
        return values | {"refused": dict(self.refused), "ways": dict(self.ways)}


class Figures:
    """Counted since `begin`, on the bridge's thread; `told` may be asked from any."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """From now on."""
        self._began_s = time.monotonic()
        self._ended_s: float | None = None
        self.simulated_s = 0.0
        self.count: Counter[str] = Counter()
        self.executed: Counter[str] = Counter()
        self.oldest_ms = 0.0
        self.instructions: list[dict[str, Any]] = []
        self.lost: list[dict[str, Any]] = []
        self._ms: dict[str, Ring] = {}

    @property
    def seconds(self) -> float:
        """From `begin` to `end`."""
        return (time.monotonic() if self._ended_s is None else self._ended_s) - self._began_s

    def end(self) -> None:
        """What comes now is no driving any more."""
        self._ended_s = time.monotonic()

    def released(self, late_s: float, skipped: int) -> None:
        """A step began so long after its instant on the grid; so many instants before it were passed over."""
        self.count["on_grid" if late_s <= ON_GRID_S else "late"] += 1
        self.count["skipped"] += skipped

    def took(self, name: str, seconds: float) -> None:
        """Something took so long."""
        if name not in self._ms:
            self._ms[name] = Ring()
        self._ms[name].add(1e3 * seconds)

    def instruction(self, text: str) -> None:
        """Another one is in force."""
        self.instructions.append({"t_s": round(self.seconds, 3), "text": text})

    def to_dict(self, session: Mapping[str, Any], driver: Mapping[str, Any], newest: int = KEPT) -> dict[str, Any]:
        """Everything; `session` is what the client counted, `driver` what the driver did. Times are of the `newest`
        steps: sorting all of them, while a drive is on, would hold it up.

        `overhead_ms` is what the bridge itself took of a step: all but the server's own step (`tick_ms`)."""
        wall_s = self.seconds
        names = ("steps", "on_grid", "late", "skipped", "observations", "too_old_executed")
        counts = {name: self.count[name] for name in names}
        released = counts["on_grid"] + counts["late"] + counts["skipped"]
        return {
            "seconds": round(wall_s, 3),
            "simulated_s": round(self.simulated_s, 4),
            "real_time_factor": round(self.simulated_s / wall_s, 4) if wall_s > 0 else None,
            "on_grid_share": round(counts["on_grid"] / released, 5) if released else None,
            **counts,
            "calls": {name: session.get(name, 0) for name in ("fresh", "held", "safe", "expired", "reconnects")},
            "executed": dict(self.executed),
            "oldest_executed_ms": round(self.oldest_ms, 1),
            "latency_ms": session.get("latency_ms", {}),
            **{f"{name}_ms": quantiles(values.newest(newest)) for name, values in list(self._ms.items())},
            "driver": {name: round(v, 1) if isinstance(v, float) else v for name, v in driver.items()},
            "instructions": list(self.instructions),
            "server_lost": list(self.lost),
        }


class Ring:
    """The newest `KEPT` numbers; all its memory is taken at once: a long drive needs no more than a short one."""

    def __init__(self) -> None:
        self._values = array("d", bytes(8 * KEPT))
        self._added = 0

    def add(self, value: float) -> None:
        self._values[self._added % KEPT] = value
        self._added += 1

    def newest(self, count: int) -> list[float]:
        """At most so many, in any order."""
        added, there = self._added, min(self._added, KEPT)
        if count >= there:
            return list(self._values[:there])
        return [self._values[(added - 1 - i) % KEPT] for i in range(count)]


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p99 and the largest; nothing of nothing."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return {
        name: round(ordered[min(last, int(share * len(ordered)))], 3)
        for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
        if ordered
    }
