"""The faults of a drill, what each may be called in the record, and when each is injected."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

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
    """Rounds of all these faults, each in an order of its own, as many as fit. UserError where not `TIMES` do."""
    faults = [FAULTS[name] for name in names]
    chance = random.Random(seed)
    fitting: list[Planned] = []
    rounds = 0
    while faults:
        rounds += 1
        plan = _plan(faults, rounds, random.Random(seed))
        ends_s = plan[-1].at_s + plan[-1].fault.seconds + plan[-1].fault.rest_s + LAST_S
        if ends_s > seconds:
            if rounds <= TIMES:
                ends_s = ends_s if rounds == TIMES else _length(faults, TIMES, seed)
                minutes = math.ceil(ends_s / 6) / 10
                raise UserError(
                    f"Each of {len(faults)} faults {TIMES} times takes {minutes:g} minutes.",
                    f"Give --minutes {minutes:g}, or fewer faults with --only.",
                )
            break
        fitting = plan
    if not fitting:
        return []
    last = fitting[-1]
    slack_s = seconds - (last.at_s + last.fault.seconds + last.fault.rest_s + LAST_S)
    # Not on a grid of our own, which might stand still against that of the releases.
    offsets = sorted(chance.uniform(0.0, slack_s) for _ in fitting)
    return [Planned(p.fault, p.at_s + offset) for p, offset in zip(fitting, offsets, strict=True)]


def _length(faults: Sequence[FaultKind], rounds: int, seed: int) -> float:
    last = _plan(faults, rounds, random.Random(seed))[-1]
    return last.at_s + last.fault.seconds + last.fault.rest_s + LAST_S


def _plan(faults: Sequence[FaultKind], rounds: int, chance: random.Random) -> list[Planned]:
    plan, at_s = [], FIRST_S
    for _ in range(rounds):
        for fault in chance.sample(list(faults), len(faults)):
            plan.append(Planned(fault, at_s))
            at_s += fault.seconds + fault.rest_s
    return plan
