"""What clients of a drilled fleet said of their ticks, and what a fault did to them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from rtcontrol.models.errors import UserError

# On time again: with the first of so many decided ticks in a row.
IN_A_ROW = 8
READY_S, END_S = 120.0, 20.0
FRESH, HELD, SAFE = range(3)  # of the counts
SAFE_STATUS = "safe"  # of what is in force


@dataclass(frozen=True, slots=True)
class ClientLine:
    """What a client said at an instant of CLOCK_MONOTONIC: how many ticks were decided, held and safe until then, and
    what is in force."""

    t_ns: int
    counts: tuple[int, int, int]
    status: str
    cause: str | None
    up: bool
    address: str
    session: str
    resumed: int
    beyond: int
    twice: int
    error: str

    @classmethod
    def parse(cls, said: Mapping[str, Any]) -> Self:
        fresh, held, safe = said["n"]
        return cls(
            said["t"], (fresh, held, safe), said["st"], said["why"], said["up"], said["at"], said["s"],
            said["resumed"], said["beyond"], said["twice"], said["error"],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ClientEffect:
    """What a fault did to one session. Times in ms since the fault began: `noticed_ms` of the first tick that was not
    decided, `blamed_ms` of the first that was told for the decoder or the connection; `again_ms`: None where it was not
    on time again, 0 where no tick was lost."""

    lost: int
    ticks: int
    held: int
    safe: int
    safe_ms: float
    noticed_ms: float | None
    noticed: str
    blamed_ms: float | None
    blamed: str
    again_ms: float | None
    beyond: int
    twice: int


def effect(lines: Sequence[ClientLine], begin_ns: int, end_ns: int, hz: float) -> ClientEffect:
    """Of a session's lines, between two instants. A tick is lost that was not decided: ticks come `hz` times a second,
    whether or not anybody says so."""
    decided = _decided(lines)
    before = max((i for i, one in enumerate(decided) if one.t_ns <= begin_ns), default=0)
    there = [one for one in decided[before:] if one.t_ns <= end_ns]
    gaps = [_missing(first, second, hz) for first, second in pairwise(there)]
    lost, ticks = 0, 0
    if there:
        ticks = round((end_ns - there[0].t_ns) * hz / 1e9)
        lost = max(
            0, round((there[-1].t_ns - there[0].t_ns) * hz / 1e9) - there[-1].counts[FRESH] + there[0].counts[FRESH]
        )
        tail = int((end_ns - there[-1].t_ns) * hz / 1e9 - 0.5)
        lost += tail if tail > 1 else 0
    within = [one for one in lines if begin_ns <= one.t_ns <= end_ns]
    start = _at(lines, begin_ns)
    last = within[-1] if within else start
    counted = (
        [0, 0, 0] if start is None or last is None else [b - a for a, b in zip(start.counts, last.counts, strict=True)]
    )
    noticed_ms, noticed = _first([one for one in within if one.status != "fresh" or not one.up], begin_ns)
    blamed_ms, blamed = _first([one for one in within if one.cause == "host" or not one.up], begin_ns)
    return ClientEffect(
        lost,
        ticks,
        counted[HELD],
        counted[SAFE],
        _safe_ms(lines, begin_ns, end_ns),
        noticed_ms,
        noticed,
        blamed_ms,
        blamed,
        _again_ms(there, gaps, begin_ns, end_ns, hz),
        0 if last is None else last.beyond - (start.beyond if start else 0),
        0 if last is None else last.twice - (start.twice if start else 0),
    )


def _first(lines: Sequence[ClientLine], begin_ns: int) -> tuple[float | None, str]:
    """When the first of these came, and what it says."""
    if not lines:
        return None, ""
    one = lines[0]
    return (one.t_ns - begin_ns) / 1e6, f"{one.status} ({one.cause})" if one.up else "connection lost"


def _decided(lines: Sequence[ClientLine]) -> list[ClientLine]:
    """Those lines that tell a further decided tick."""
    found: list[ClientLine] = []
    for one in lines:
        if one.counts[FRESH] > (found[-1].counts[FRESH] if found else 0):
            found.append(one)
    return found


def _missing(first: ClientLine, second: ClientLine, hz: float) -> int:
    return round((second.t_ns - first.t_ns) * hz / 1e9) - (second.counts[FRESH] - first.counts[FRESH])


def _at(lines: Sequence[ClientLine], t_ns: int) -> ClientLine | None:
    return next((one for one in reversed(lines) if one.t_ns <= t_ns), None)


def _again_ms(there: Sequence[ClientLine], gaps: Sequence[int], begin_ns: int, end_ns: int, hz: float) -> float | None:
    """When the first row of decided ticks began after the first gap."""
    silent = not there or (end_ns - there[-1].t_ns) * hz / 1e9 > 2.5
    if not any(gap > 0 for gap in gaps):
        return None if silent else 0.0
    row, since = 0, None
    for one, gap in list(zip(there[1:], gaps, strict=True))[next(i for i, gap in enumerate(gaps) if gap > 0) :]:
        if gap > 0:
            row, since = 0, one.t_ns
        row += 1
        if row == IN_A_ROW and since is not None:
            return (since - begin_ns) / 1e6
    return None


def _safe_ms(lines: Sequence[ClientLine], begin_ns: int, end_ns: int) -> float:
    """How long the safe call was in force."""
    total, since = 0, None
    first = _at(lines, begin_ns)
    if first is not None and first.status == SAFE_STATUS:
        since = begin_ns
    for one in lines:
        if begin_ns < one.t_ns <= end_ns:
            if one.status == SAFE_STATUS:
                since = one.t_ns if since is None else since
            elif since is not None:
                total, since = total + one.t_ns - since, None
    return (total + (end_ns - since if since is not None else 0)) / 1e6


class NotSteadyError(UserError):
    """The clients were not decided for at each tick before anything was broken: nothing was."""


@dataclass
class Flock:
    """Clients in a process of their own, from `with` on."""

    endpoints: Sequence[str]
    clients: int
    hz: float
    texts: Sequence[str]
    env: Mapping[str, str]
    options: Mapping[str, Any]
    over: Callable[[], bool]
    log: Path
    lines: dict[int, list[ClientLine]] = field(default_factory=dict)

    def __enter__(self) -> Self:
        told = {"endpoints": list(self.endpoints), "clients": self.clients, "texts": list(self.texts)}
        told["options"] = {**self.options, "hz": self.hz}
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rtcontrol.drill.fleet.flock", json.dumps(told)],
                env=dict(self.env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        threading.Thread(target=self._read, name="flock-lines", daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdin is not None, "stdin=PIPE"
        self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None, "stdout=PIPE"
        with self._process.stdout as said:
            for line in said:
                one = json.loads(line)
                self.lines.setdefault(one["c"], []).append(ClientLine.parse(one))

    def ready(self, seconds: float = READY_S) -> None:
        """Wait until each was decided for at so many ticks in a row. Raises NotSteadyError where that does not come."""
        give_up = time.monotonic() + seconds
        began_ns = time.monotonic_ns()
        while not self.over():
            now_ns = time.monotonic_ns()
            row_ns = int(IN_A_ROW / self.hz * 1e9)
            if now_ns - began_ns > row_ns and self._steady(now_ns - row_ns, now_ns):
                return
            if time.monotonic() > give_up or self._process.poll() is not None:
                errors = [lines[-1].error for lines in list(self.lines.values()) if lines[-1].error]
                said = errors[0] if errors else "they are not decided for at each tick"
                raise NotSteadyError(
                    f"The drill's clients do not get going: {said}", "Give a lower --hz, or a faster model."
                )
            time.sleep(0.05)

    def _steady(self, begin_ns: int, end_ns: int) -> bool:
        there = dict(self.lines)
        return len(there) == self.clients and all(
            lines[0].t_ns < begin_ns and effect(lines, begin_ns, end_ns, self.hz).lost == 0 and lines[-1].up
            for lines in map(list, there.values())
        )

    def effects(self, begin_ns: int, end_ns: int) -> list[ClientEffect]:
        return [effect(list(lines), begin_ns, end_ns, self.hz) for _, lines in sorted(dict(self.lines).items())]

    def settled(self, begin_ns: int, seconds: float) -> int:
        """Wait until all are on time again after a fault, at most so long; gives the instant."""
        give_up = time.monotonic() + seconds
        while not self.over() and time.monotonic() < give_up:
            time.sleep(0.1)
            now_ns = time.monotonic_ns()
            if all(one.again_ms is not None for one in self.effects(begin_ns, now_ns)):
                break
        return time.monotonic_ns()
