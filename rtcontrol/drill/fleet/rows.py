"""The rows of a fleet's drill: what was found and done at each fault, and which laws hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rtcontrol.drill.fleet.ticks import ClientEffect


@dataclass
class FleetRow:
    """One fault. Times in ms since it began, of the slowest session; `again_ms` since the fault ended (`mended_ms`).
    `broken`: laws that do not hold. `impossible`: why it was not injected; `not_steady`: because clients were not
    decided for at each tick before."""

    fault: str
    about: str
    sessions: int = 0
    found_ms: float | None = None
    found: str = ""
    held: int = 0
    safe: int = 0
    safe_ms: float = 0.0
    mended_ms: float = 0.0
    again_ms: float | None = None
    lost: int = 0
    ticks: int = 0
    beyond_ttl: int = 0
    twice: int = 0
    notes: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    impossible: str = ""
    not_steady: bool = False

    def fill(self, effects: Sequence[ClientEffect], signs: Sequence[tuple[float, str]] = ()) -> None:
        """By what became of the sessions, and by what servers said (ms after the fault, and the words)."""
        self.sessions = len(effects)
        # Who names the fault counts, before who only misses.
        blamed = [(one.blamed_ms, f"a client: {one.blamed}") for one in effects if one.blamed_ms is not None]
        noticed = [(one.noticed_ms, f"a client: {one.noticed}") for one in effects if one.noticed_ms is not None]
        if found := sorted([*blamed, *signs]) or sorted(noticed):
            self.found_ms, self.found = found[0]
        for name in ("held", "safe", "lost", "ticks", "twice"):
            setattr(self, name, sum(getattr(one, name) for one in effects))
        self.beyond_ttl = sum(one.beyond for one in effects)
        self.safe_ms = max((one.safe_ms for one in effects), default=0.0)
        again = [one.again_ms for one in effects]
        late = [value for value in again if value is not None]
        self.again_ms = max(late) if len(late) == len(again) and late else None
        if self.again_ms:
            self.again_ms = max(0.0, self.again_ms - self.mended_ms)

    def count_twice(self, effects: Sequence[ClientEffect]) -> None:
        """What was done wrong by the end of a longer time than the other figures are of."""
        self.broken = [what for what in self.broken if "time-to-live" not in what and "twice" not in what]
        self.beyond_ttl, self.twice = sum(one.beyond for one in effects), sum(one.twice for one in effects)
        self._judge_laws()

    def _judge_laws(self) -> None:
        if self.beyond_ttl:
            self.broken.append(f"{self.beyond_ttl} times a client acted by a call beyond its time-to-live")
        if self.twice:
            self.broken.append(f"{self.twice} ticks or observations were decided twice")

    def judge(self, recovers: bool = True) -> None:
        """Note the laws that do not hold."""
        self._judge_laws()
        if self.lost and self.found_ms is None:
            self.broken.append("nobody found it")
        if recovers and self.again_ms is None:
            self.broken.append("a session was not on time again")

    def document(self) -> dict[str, Any]:
        """As JSON has it: times in whole ms."""
        told = asdict(self)
        for name in ("found_ms", "safe_ms", "mended_ms", "again_ms"):
            told[name] = None if told[name] is None else round(told[name])
        return told
