"""List the kinds of faults of simulated runs, inject them at random times, and track how long their effects last."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from rtcontrol.drill.simulation.timeline import MS, SimTimeline
from rtcontrol.hosts.protocol import LOSSES

FINAL = ("give_up",)  # these faults end a run
BLOCKING = ("lost_in_transit",)  # after these, a world that waits for each decision would wait for ever
# WORLD are faults inside a local world. NETWORK are faults of the network to a remote world.
WORLD = ("frozen", "none_yet", "slow_execute", "execute_raises", "hang", "safe_raises", "epoch_ends")
NETWORK = ("net_delay", "net_loss", "net_reorder", "net_duplicate", "net_cut", "net_silence", "client_reset")

LATE = "decide.decoder_slow decide.queued"
_STALE = "stale_observation.frozen stale_observation.late"
_NET = f"{_STALE} no_observation.none_yet"
_WORLD = f"execute.busy execute.slow {_STALE} wake.executor"
# If the loop hangs for longer than `guard_ns`, the actuator's watchdog executes the safe call, and drops waiting calls.
_GUARD = "execute.busy"
_KILLED = f"host.lost host.restarting {LATE} decide.decoder_stopped decide.send wake.scheduler pause.stopped"
# By name of a fault: (causes of misses that the fault explains, minimum duration in periods, maximum duration). With no
# causes, the fault explains no miss. With the duration 0, it affects only one decision.
_KINDS: dict[str, tuple[str, float, float]] = {
    # Faults of the decoder:
    "slow_decoder": (LATE, 0, 0),
    "decider_raises": ("decide.error", 0, 0),
    "invalid_call": ("invalid", 0, 0),
    **{loss: (f"decide.{loss}", 0, 0) for loss in LOSSES},  # losses of a remote decider
    "send_raises": ("decide.send decide.error", 0, 0),
    "duplicate": ("", 0, 0),
    "stray": ("", 0, 0),
    "lost_in_transit": (LATE, 0, 0),
    "delivered_late": (LATE, 0, 0),
    "stop_decoder": (f"decide.decoder_stopped {LATE}", 1.5, 4.0),
    "kill_decoder": (_KILLED, 1.0, 6.0),
    "give_up": (f"host.gave_up host.lost {LATE}", 0, 0),
    # Faults of threads:
    "stop_loop": (f"pause.stopped {_GUARD}", 1.5, 4.0),
    "gc": (f"pause.gc {_GUARD}", 1.5, 3.0),
    "starve_loop": (f"wake.scheduler {_GUARD}", 1.5, 3.0),
    "starve_actuator": ("wake.scheduler execute.busy", 1.5, 3.0),
    "slow_text": (f"decide.observe {LATE} {_GUARD}", 1.0, 2.0),
    "hung_text": (f"decide.observe {LATE} {_GUARD}", 4.0, 20.0),
    "observe_raises": ("no_observation.unreadable", 1.0, 3.0),
    # Faults of the world. After a call that raises, the safe call may preempt a waiting call.
    "frozen": (_STALE, 3.0, 9.0),
    "none_yet": ("no_observation.none_yet", 2.0, 5.0),
    "slow_execute": (_WORLD, 1.0, 3.0),
    "execute_raises": ("execute.raised execute.busy", 1.0, 3.0),
    "hang": (_WORLD, 1.5, 6.0),
    "safe_raises": (_STALE, 3.0, 9.0),
    "epoch_ends": ("", 0, 0),
    # Faults of the network:
    "net_delay": (_NET, 2.0, 8.0),
    "net_loss": (_NET, 2.0, 8.0),
    "net_reorder": (_NET, 2.0, 8.0),
    "net_duplicate": (_NET, 2.0, 8.0),
    "net_cut": (_NET, 2.0, 20.0),
    "net_silence": (_NET, 2.0, 20.0),
    "client_reset": ("no_observation.none_yet", 0, 0),
    # Commands and instructions of people:
    "pause": ("", 0, 0),
    "instruct": ("", 0, 0),
}


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A kind of fault. `causes`: the causes of misses that it explains. `periods`: minimum and maximum duration in
    periods. `silent`: whether it leaves no evidence, so that the cause `unknown` is correct."""

    name: str
    causes: frozenset[str]
    periods: tuple[float, float]
    silent: bool


FAULT_KINDS = {
    name: FaultKind(name, frozenset(causes.split()), (lowest, highest), name == "delivered_late")
    for name, (causes, lowest, highest) in _KINDS.items()
}


@dataclass(slots=True, eq=False)
class SimFault:
    """An injected fault. `end_ns`: when its last known effect ends."""

    kind: FaultKind
    start_ns: int
    end_ns: int
    caused_miss: bool = False
    late_ns: int = 0  # arrival of the last message that this fault has delayed (also indirectly)

    def extend_to(self, t_ns: int) -> None:
        """Record that the fault still has an effect at `t_ns`."""
        self.end_ns = max(self.end_ns, t_ns)


class Faults:
    """An injector of faults of `kinds`, with an average pause of `mean_pause` periods between two faults.

    `effects`: by kind, the function that starts the fault. `injected`, `harmful`, `attributed`, `unknown`: as in
    SimTally. `recent`: the newest injected faults."""

    def __init__(self, time: SimTimeline, period_ns: int, kinds: tuple[str, ...], mean_pause: float) -> None:
        self.time, self.kinds = time, kinds
        self.injected, self.harmful, self.attributed, self.unknown = (Counter[str]() for _ in range(4))
        self.effects: dict[str, Callable[[SimFault], None]] = {}
        self.recent: list[SimFault] = []
        self.running = True
        self._period_ns, self._mean_pause = period_ns, mean_pause
        self._rng: random.Random = time.rng("faults")
        self._lasting: dict[str, SimFault] = {}
        self._pending: dict[str, SimFault] = {}

    def start(self) -> None:
        """Start to inject faults after 8 periods, in which the loop learns the usual durations."""
        if self.kinds:
            self.time.at(self.time.now_ns + 8 * self._period_ns, self._inject)

    def active(self, name: str) -> SimFault | None:
        """Return the active fault of a kind, or None."""
        fault = self._lasting.get(name)
        return fault if fault is not None and self.time.now_ns < fault.end_ns else None

    def take_pending(self, name: str) -> SimFault | None:
        """Remove and return the pending fault of a kind, which affects one decision or event, or None."""
        return self._pending.pop(name, None) if self._pending else None

    @property
    def next_kind(self) -> str | None:
        """Return the kind of the oldest pending fault, or None."""
        return next(iter(self._pending), None)

    def count_miss(self, fault: SimFault, attributed: bool) -> None:
        """Count a miss that a fault has caused. `attributed`: whether the miss has a cause other than `unknown`."""
        name = fault.kind.name
        self.harmful[name] += not fault.caused_miss
        fault.caused_miss = True
        (self.attributed if attributed else self.unknown)[name] += 1

    def _inject(self) -> None:
        if not self.running:
            return
        kind = FAULT_KINDS[self._rng.choice(self.kinds)]
        periods = kind.periods
        now, min_ns = self.time.now_ns, 12 * MS if periods[1] else 0
        for_ns = max(min_ns, int(self._rng.uniform(*periods) * self._period_ns))
        fault = SimFault(kind, now, now + for_ns)
        self.injected[kind.name] += 1
        self.recent.append(fault)
        if len(self.recent) > 256:
            del self.recent[:128]
        if periods[1]:
            self._lasting[kind.name] = fault
        else:
            self._pending[kind.name] = fault
        if (effect := self.effects.get(kind.name)) is not None:
            effect(fault)
        gap = max(0.5, self._rng.expovariate(1 / self._mean_pause))
        self.time.at(fault.end_ns + int(gap * self._period_ns), self._inject)
