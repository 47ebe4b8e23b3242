"""What a run is: one frozen, validated value."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rtcontrol.models.errors import UserError

CHOICES = {
    "host": ("ray", "inprocess"),
    "clock": ("wall", "lockstep"),
    "on_miss": ("hold", "safe", "stop"),
    "late": ("drop", "use"),
}


MIN_HZ, MAX_HZ = 0.001, 10_000.0
MAX_PIPELINE = 64
LONGEST = 1e12  # in whatever unit: a bound that keeps nanoseconds whole numbers


def plain_text(text: str) -> str:
    """`text` without the lone surrogates that undecodable bytes on a command line or stdin leave: they cannot be
    sent or written. Each becomes a question mark."""
    return text.encode("utf-8", "replace").decode("utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """A run's settings. None takes the default that the property of the same meaning computes.

    Relations, checked here: 0.001 <= hz <= 10000; 0 < deadline <= pipeline * period; max age > 0; hold >= 0.
    """

    env: str
    out: Path
    hz: float = 16.0
    deadline_ms: float | None = None
    max_age_ms: float | None = None
    pipeline: int = 1
    episodes: int | None = None
    duration_s: float | None = None
    seed: int = 0
    instruction: str | None = None
    agent: str | None = None
    model: str | None = None
    engine: str = "torch"
    host: str = "ray"
    clock: str = "wall"
    on_miss: str = "hold"
    hold_ms: float | None = None
    late: str = "drop"
    max_miss_rate: float | None = None
    min_confidence: float = 0.0
    rt_priority: int = 0
    affinity: tuple[int, ...] = ()
    mlock: bool = False
    warmup: int = 5
    first_observation_s: float = 10.0

    def __post_init__(self) -> None:
        if self.instruction is not None:
            object.__setattr__(self, "instruction", plain_text(self.instruction))
        if not MIN_HZ <= self.hz <= MAX_HZ:
            raise UserError(f"--hz {self.hz:g} is no rate.", f"Give {MIN_HZ:g} to {MAX_HZ:g}, such as --hz 16.")
        if self.seed < 0:
            raise UserError(f"--seed {self.seed} is negative.", "Give 0 or more.")
        cpus = os.cpu_count() or 1
        if any(not 0 <= c < cpus for c in self.affinity):
            named = ",".join(map(str, self.affinity))
            raise UserError(f"--affinity {named}: this machine has CPUs 0 to {cpus - 1}.", "Give such as --affinity 0.")
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                option = "--" + name.replace("_", "-")
                raise UserError(f"{option} {getattr(self, name)} is unknown.", f"Choose one of {', '.join(allowed)}.")
        if not 1 <= self.pipeline <= MAX_PIPELINE:
            raise UserError(f"--pipeline {self.pipeline} is out of range.", f"Give 1 to {MAX_PIPELINE} decisions.")
        self._positive("deadline_ms", self.deadline_ms)
        self._positive("max_age_ms", self.max_age_ms)
        self._positive("duration", self.duration_s)
        self._positive("episodes", self.episodes)
        if self.deadline_ns > self.pipeline * self.period_ns:
            need = math.ceil(self.deadline_ns / self.period_ns)
            raise UserError(
                f"--deadline-ms {self.deadline_ms:g} is beyond {self.pipeline} x {self.period_ns / 1e6:g} ms: "
                "deadline <= pipeline x period must hold, or more decisions would be in flight than --pipeline allows.",
                f"Use --pipeline {need}, or a deadline of at most {self.pipeline * self.period_ns / 1e6:g} ms.",
            )
        if self.hold_ms is not None and not 0 <= self.hold_ms <= LONGEST:
            raise UserError(
                f"--hold-ms {self.hold_ms:g} is no time.", f"Give 0 (the safe call at once) to {LONGEST:g}."
            )
        if self.max_miss_rate is not None and not 0 <= self.max_miss_rate <= 1:
            raise UserError(f"--max-miss-rate {self.max_miss_rate:g} is no share.", "Give 0 to 1, such as 0.005.")
        if not 0 <= self.min_confidence <= 1:
            raise UserError(f"--min-confidence {self.min_confidence:g} is no probability.", "Give 0 to 1.")
        if not 0 <= self.rt_priority <= 99:
            raise UserError(f"--rt-priority {self.rt_priority} is out of range.", "Give 1 to 99, or 0 for none.")

    def _positive(self, name: str, value: float | None) -> None:
        if value is not None and not 0 < value <= LONGEST:
            raise UserError(
                f"--{name.replace('_', '-')} {value:g} must be above 0 and at most {LONGEST:g}.",
                "Leave it out for the default.",
            )

    @property
    def period_ns(self) -> int:
        return round(1e9 / self.hz)

    @property
    def deadline_ns(self) -> int:
        """From release to deadline; the period by default."""
        return self.period_ns if self.deadline_ms is None else round(self.deadline_ms * 1e6)

    @property
    def max_age_ns(self) -> int:
        """An older observation is stale; by default four periods, at least 250 ms."""
        if self.max_age_ms is not None:
            return round(self.max_age_ms * 1e6)
        return max(4 * self.period_ns, 250_000_000)

    def to_dict(self) -> dict[str, Any]:
        """As the record's header shows it."""
        return {k: str(v) if isinstance(v, Path) else v for k, v in asdict(self).items()}
