"""The faults of a drill, what each may be called in the record, when each is injected, and how they are switched."""

from __future__ import annotations

import math
import mmap
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rtcontrol.models.errors import UserError

# At least so often each; the first comes so late, and the last is so long over before the end.
TIMES, FIRST_S, LAST_S = 3, 3.0, 2.0


@dataclass(frozen=True, slots=True)
class FaultKind:
    """`causes`: what a miss that it explains may be called, by words. It lasts `seconds`, and after it nothing is
    injected for `rest_s`. `felt`: it must cost a tick."""

    name: str
    about: str
    seconds: float
    causes: str
    rest_s: float = 2.0
    felt: bool = True


_CPU = "wake.scheduler wake.stall pause.stall"
_DECODER = "decide.decoder_slow decide.decoder_stopped decide.queued decide.send"
_WORLD = "execute.busy execute.slow stale_observation.frozen stale_observation.late"
_KINDS = (
    FaultKind(
        "busy_core",
        "twice as many busy processes as there are CPUs",
        2.0,
        f"{_CPU} {_DECODER} execute.slow execute.busy",
        felt=False,
    ),
    FaultKind("stop_decoder", "SIGSTOP of the decoder's process", 1.0, "decide.decoder_stopped decide.queued"),
    FaultKind("stop_loop", "SIGSTOP of the run's process", 0.6, "pause.stall wake.stall"),
    FaultKind("slow_decoder", "each decision takes 1.5 periods longer", 1.0, "decide.decoder_slow decide.queued"),
    FaultKind("decider_raises", "the scores are not finite", 0.7, "decide.error"),
    FaultKind("invalid_call", "calls that the tools do not allow", 0.7, "invalid"),
    # With a standby it may cost no tick. What comes back is slow at first, and to start it takes processors.
    FaultKind(
        "kill_decoder",
        "SIGKILL of the decoder's process",
        0.0,
        f"host.lost host.restarting {_DECODER} {_CPU}",
        rest_s=8.0,
        felt=False,
    ),
    FaultKind("frozen", "the world makes no new observations", 1.2, "stale_observation.frozen"),
    FaultKind("slow_text", "the agent's text takes 1.5 periods", 0.8, "decide.observe"),
    FaultKind("observe_raises", "the agent's text cannot be made", 0.7, "no_observation.unreadable"),
    FaultKind("slow_execute", "each call takes 1.5 periods", 0.8, f"{_WORLD} wake.executor"),
    # The safe call takes over meanwhile, and a call that waits just then gives way to it.
    FaultKind("execute_raises", "each call raises", 0.7, "execute.raised execute.busy"),
    FaultKind("hang", "the world's step hangs", 1.5, _WORLD),
    FaultKind("safe_raises", "no new observations, and the safe call raises at first", 1.2, "stale_observation.frozen"),
    FaultKind("gc", "a long garbage collection", 0.3, "pause.gc wake.gc", rest_s=3.0),
)
FAULTS = {fault.name: fault for fault in _KINDS}


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault, and when it is due, in seconds after the drill's begin."""

    fault: FaultKind
    at_s: float


def schedule(only: Sequence[str], seconds: float, seed: int) -> list[Planned]:
    """Return rounds of these faults (of all where none is named), each round in another order, as many as fit. Raises
    UserError where not `TIMES` do, and for an unknown fault."""
    for name in only:
        if name not in FAULTS:
            raise UserError(f"--only {name}: there is no such fault.", f"There are {', '.join(FAULTS)}.")
    faults = [fault for fault in FAULTS.values() if fault.name in (only or FAULTS)]
    round_s = sum(fault.seconds + fault.rest_s for fault in faults)
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


# Next to the faults: when a fresh call acted last (seconds of CLOCK_MONOTONIC), and the pid of what decided last.
SLOTS = {name: i for i, name in enumerate((*FAULTS, "acted", "decoder"))}


class Switches:
    """What the injector tells the wrapped world, agent and decider, through a file that all of them map, and what they
    tell it; nothing of the run itself looks at it. A number for each name; a fault is on until the instant that its
    number is (CLOCK_MONOTONIC, in seconds)."""

    def __init__(self, path: Path | str, new: bool = False) -> None:
        if new:
            Path(path).write_bytes(bytes(8 * len(SLOTS)))
        with Path(path).open("r+b") as file:
            self._numbers = memoryview(mmap.mmap(file.fileno(), 0)).cast("d")

    def __getitem__(self, name: str) -> float:
        return self._numbers[SLOTS[name]]

    def __setitem__(self, name: str, value: float) -> None:
        self._numbers[SLOTS[name]] = value

    def on(self, name: str) -> bool:
        return time.monotonic() < self[name]
