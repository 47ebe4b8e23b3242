"""The faults of a drill, in real time and simulated; when each is injected in real time, and how it is switched."""

from __future__ import annotations

import math
import mmap
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rtcontrol.hosts.protocol import LOSSES
from rtcontrol.models.errors import UserError

# At least so often each; the first comes so late, and the last is so long over before the end.
TIMES, FIRST_S, LAST_S = 3, 3.0, 2.0


@dataclass(frozen=True, slots=True)
class FaultKind:
    """`causes`: what a miss that it explains may be called, by words (none: it may cost no tick at all).

    In real time it lasts `seconds`, and after it nothing is injected for `rest_s`. `felt`: it must cost a tick.

    Simulated it lasts so many `periods` (least and most; 0: for one decision; None: it is not injected), and its misses
    may have the causes `also`. `silent`: it leaves no evidence, so that `unknown` is right.
    """

    name: str
    about: str
    causes: str = ""
    seconds: float = 0.0
    periods: tuple[float, float] | None = (0.0, 0.0)
    also: str = ""
    rest_s: float = 2.0
    felt: bool = True
    silent: bool = False


LATE = "decide.decoder_slow decide.queued"
STALE = "stale_observation.frozen stale_observation.late"
_CPU = "wake.scheduler wake.stall pause.stall"
_DECODER = f"{LATE} decide.decoder_stopped decide.send"
_WORLD = f"execute.busy execute.slow {STALE}"
_NET = f"{STALE} no_observation.none_yet"
# A call of a loop that was away for longer than its guard gives way to the safe call: "too late for the world".
_GUARD = "execute.busy"
_BUSY = f"{_CPU} {_DECODER} execute.slow execute.busy"
_KILLED = f"host.lost host.restarting {_DECODER} {_CPU}"
_STOPPED = "decide.decoder_stopped decide.queued"
_SLOW, _FROZEN = "decide.decoder_slow", "stale_observation.late"
_DRILLED = (
    FaultKind("busy_core", "twice as many busy processes as there are CPUs", _BUSY, 2.0, None, felt=False),
    FaultKind("stop_decoder", "SIGSTOP of the decoder's process", _STOPPED, 1.0, (1.5, 4.0), _SLOW),
    FaultKind("stop_loop", "SIGSTOP of the run's process", "pause.stall wake.stall", 0.6, (1.5, 4.0), _GUARD),
    FaultKind("slow_decoder", "each decision takes 1.5 periods longer", LATE, 1.0),
    FaultKind("decider_raises", "the scores are not finite", "decide.error", 0.7),
    FaultKind("invalid_call", "calls that the tools do not allow", "invalid", 0.7),
    # With a standby it may cost no tick. What comes back is slow at first, and to start it takes processors.
    FaultKind("kill_decoder", "SIGKILL of the decoder's process", _KILLED, 0.0, (1.0, 6.0), rest_s=8.0, felt=False),
    FaultKind("frozen", "the world makes no new observations", "stale_observation.frozen", 1.2, (3.0, 9.0), _FROZEN),
    FaultKind("slow_text", "the agent's text takes 1.5 periods", "decide.observe", 0.8, (1.0, 2.0), f"{LATE} {_GUARD}"),
    FaultKind("observe_raises", "the agent's text cannot be made", "no_observation.unreadable", 0.7, (1.0, 3.0)),
    FaultKind("slow_execute", "each call takes 1.5 periods", f"{_WORLD} wake.executor", 0.8, (1.0, 3.0)),
    # The safe call takes over meanwhile, and a call that waits just then gives way to it.
    FaultKind("execute_raises", "each call raises", "execute.raised execute.busy", 0.7, (1.0, 3.0)),
    FaultKind("hang", "the world's step hangs", _WORLD, 1.5, (1.5, 6.0), "wake.executor"),
    FaultKind(
        "safe_raises",
        "no new observations, and the safe call raises at first",
        "stale_observation.frozen",
        1.2,
        (3.0, 9.0),
        _FROZEN,
    ),
    FaultKind("gc", "a long garbage collection", "pause.gc wake.gc", 0.3, (1.5, 3.0), _GUARD, rest_s=3.0),
)
_SIMULATED = (
    # Of the decoder,
    *(FaultKind(loss, "a policy server's answer", f"decide.{loss}") for loss in LOSSES),
    FaultKind("send_raises", "the request cannot be sent", "decide.send decide.error"),
    FaultKind("duplicate", "a reply comes twice"),
    FaultKind("stray", "a reply to no request"),
    FaultKind("lost_in_transit", "a reply never comes", LATE),
    FaultKind("delivered_late", "a reply is late on its way", LATE, silent=True),
    FaultKind("give_up", "the decoder dies for good", f"host.gave_up host.lost {LATE}"),
    # of threads,
    FaultKind("starve_loop", "the loop's thread gets no processor", f"wake.scheduler {_GUARD}", 0.0, (1.5, 3.0)),
    FaultKind("starve_actuator", "the actuator's gets none", "wake.scheduler execute.busy", 0.0, (1.5, 3.0)),
    FaultKind("hung_text", "the agent's text hangs", f"decide.observe {LATE} {_GUARD}", 0.0, (4.0, 20.0)),
    # of the world,
    FaultKind("none_yet", "the world shows nothing", "no_observation.none_yet", 0.0, (2.0, 5.0)),
    FaultKind("epoch_ends", "an episode ends"),
    # of the network,
    FaultKind("net_delay", "messages are late", _NET, 0.0, (2.0, 8.0)),
    FaultKind("net_loss", "each second message is lost", _NET, 0.0, (2.0, 8.0)),
    FaultKind("net_reorder", "messages overtake each other", _NET, 0.0, (2.0, 8.0)),
    FaultKind("net_duplicate", "messages come twice", _NET, 0.0, (2.0, 8.0)),
    FaultKind("net_cut", "the connection ends", _NET, 0.0, (2.0, 20.0)),
    FaultKind("net_silence", "all messages are lost", _NET, 0.0, (2.0, 20.0)),
    FaultKind("client_reset", "the client begins an episode", "no_observation.none_yet"),
    # and of people.
    FaultKind("pause", "a person pauses the run, and resumes it"),
    FaultKind("instruct", "a new instruction"),
)
FAULTS = {fault.name: fault for fault in _DRILLED}
SIMULATED = {fault.name: fault for fault in (*_DRILLED, *_SIMULATED) if fault.periods is not None}


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
