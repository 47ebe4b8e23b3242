"""The faults of a drill, what each may be called in the record, when each is injected, and how they are switched."""

from __future__ import annotations

import math
import mmap
import random
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rtcontrol.models.errors import UserError

# At least so often each; the first comes so late, and the last is so long over before the end.
TIMES, FIRST_S, LAST_S = 3, 3.0, 2.0


def _names(text: str) -> frozenset[tuple[str, str | None]]:
    """`cause.subcause` by words; a cause that has none stands alone."""
    return frozenset((cause, sub or None) for cause, _, sub in (word.partition(".") for word in text.split()))


@dataclass(frozen=True, slots=True)
class FaultKind:
    """`allowed`: the causes and sub-causes of a miss that it may explain. It lasts `seconds`, and after it nothing is
    injected for `rest_s`. `felt`: it must cost a tick."""

    name: str
    about: str
    seconds: float
    allowed: frozenset[tuple[str, str | None]]
    rest_s: float = 2.0
    felt: bool = True


# What comes back is slow at first, and to start it takes processors.
_BACK = "host.lost host.restarting decide.decoder_slow decide.decoder_stopped decide.queued decide.send"
_CPU = "wake.scheduler wake.stall pause.stall"
FAULTS = {
    fault.name: fault
    for fault in (
        FaultKind(
            "busy_core",
            "twice as many busy processes as there are CPUs",
            2.0,
            _names(
                f"{_CPU} decide.decoder_stopped decide.decoder_slow decide.queued decide.send execute.slow execute.busy"
            ),
            felt=False,
        ),
        FaultKind(
            "stop_decoder",
            "SIGSTOP of the decoder's process",
            1.0,
            _names("decide.decoder_stopped decide.queued"),
        ),
        FaultKind("stop_loop", "SIGSTOP of the run's process", 0.6, _names("pause.stall wake.stall")),
        FaultKind(
            "slow_decoder",
            "each decision takes 1.5 periods longer",
            1.0,
            _names("decide.decoder_slow decide.queued"),
        ),
        FaultKind("decider_raises", "the scores are not finite", 0.7, _names("decide.error")),
        FaultKind("invalid_call", "calls that the tools do not allow", 0.7, _names("invalid")),
        # With a standby it may cost no tick.
        FaultKind(
            "kill_decoder", "SIGKILL of the decoder's process", 0.0, _names(f"{_BACK} {_CPU}"), rest_s=8.0, felt=False
        ),
        FaultKind("frozen", "the world makes no new observations", 1.2, _names("stale_observation.frozen")),
        FaultKind("slow_text", "the agent's text takes 1.5 periods", 0.8, _names("decide.observe")),
        FaultKind("observe_raises", "the agent's text cannot be made", 0.7, _names("no_observation.unreadable")),
        FaultKind(
            "slow_execute",
            "each call takes 1.5 periods",
            0.8,
            _names("execute.slow execute.busy stale_observation.frozen stale_observation.late wake.executor"),
        ),
        # The safe call takes over meanwhile, and a call that waits just then gives way to it.
        FaultKind("execute_raises", "each call raises", 0.7, _names("execute.raised execute.busy")),
        FaultKind(
            "hang",
            "the world's step hangs",
            1.5,
            _names("execute.busy execute.slow stale_observation.frozen stale_observation.late"),
        ),
        FaultKind(
            "safe_raises",
            "no new observations, and the safe call raises at first",
            1.2,
            _names("stale_observation.frozen"),
        ),
        FaultKind("gc", "a long garbage collection", 0.3, _names("pause.gc wake.gc"), rest_s=3.0),
    )
}


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault, and when it is due, in seconds after the drill's begin."""

    fault: FaultKind
    at_s: float


def schedule(names: Sequence[str], seconds: float, seed: int) -> list[Planned]:
    """Return rounds of all these faults, each round in an order of its own, as many as fit. Raises UserError where not
    `TIMES` do."""
    faults = [FAULTS[name] for name in names]
    round_s = sum(fault.seconds + fault.rest_s for fault in faults)
    if not faults:
        return []
    rounds = int((seconds - FIRST_S - LAST_S) / round_s)
    if rounds < TIMES:
        minutes = math.ceil((FIRST_S + TIMES * round_s + LAST_S) / 6) / 10
        raise UserError(
            f"Each of {len(faults)} faults {TIMES} times takes {minutes:g} minutes.",
            f"Give --minutes {minutes:g}, or fewer faults with --only.",
        )
    chance = random.Random(seed)
    order = [fault for _ in range(rounds) for fault in chance.sample(faults, len(faults))]
    # Not on a grid of our own, which might stand still against that of the releases.
    slack_s = seconds - FIRST_S - rounds * round_s - LAST_S
    plan, at_s = [], FIRST_S
    for fault, offset_s in zip(order, sorted(chance.uniform(0.0, slack_s) for _ in order), strict=True):
        plan.append(Planned(fault, at_s + offset_s))
        at_s += fault.seconds + fault.rest_s
    return plan


# Beside the faults: when a fresh call acted last (seconds of CLOCK_MONOTONIC), and the pid of what decided last.
SLOTS = {name: i for i, name in enumerate((*FAULTS, "acted", "decoder"))}
_ONE = struct.Struct("d")


class Switches:
    """What the injector tells the wrapped world, agent and decider, through a file that all of them map, and what they
    tell it; nothing of the run itself looks at it. A number for each name; a fault is on until the instant that its
    number is (CLOCK_MONOTONIC, in seconds)."""

    def __init__(self, path: Path | str, new: bool = False) -> None:
        if new:
            Path(path).write_bytes(bytes(len(SLOTS) * _ONE.size))
        with Path(path).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

    def __getitem__(self, name: str) -> float:
        value: float = _ONE.unpack_from(self._map, SLOTS[name] * _ONE.size)[0]
        return value

    def __setitem__(self, name: str, value: float) -> None:
        _ONE.pack_into(self._map, SLOTS[name] * _ONE.size, value)

    def on(self, name: str) -> bool:
        return time.monotonic() < self[name]
