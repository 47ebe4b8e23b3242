"""The faults of a simulated run: kinds, times of injection, and how long each has an effect."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from rtcontrol.drill.simulation.timeline import MS, SimTimeline
from rtcontrol.hosts.protocol import LOSSES

# Faults that end a run, or that a waiting world would wait on for ever.
ENDS, UNKNOWABLE = ("give_up",), ("lost_in_transit",)
# Faults of a local world, and of a remote world.
WORLD = ("frozen", "none_yet", "slow_execute", "execute_raises", "hang", "safe_raises", "epoch_ends")
NETWORK = ("net_delay", "net_loss", "net_reorder", "net_duplicate", "net_cut", "net_silence", "client_reset")

LATE = "decide.decoder_slow decide.queued"
_STALE = "stale_observation.frozen stale_observation.late"
_NET = f"{_STALE} no_observation.none_yet"
_WORLD = f"execute.busy execute.slow {_STALE} wake.executor"
# A call of a loop that was away for longer than its guard gives way to the safe call: "too late for the world".
_GUARD = "execute.busy"
_KILLED = f"host.lost host.restarting {LATE} decide.decoder_stopped decide.send wake.scheduler pause.stall"
# By name: the causes of misses that the fault explains (none: it costs no tick), and for how many periods the fault
# lasts at least and at most (0: for one decision).
_KINDS: dict[str, tuple[str, float, float]] = {
    # Faults of the decoder,
    "slow_decoder": (LATE, 0, 0),
    "decider_raises": ("decide.error", 0, 0),
    "invalid_call": ("invalid", 0, 0),
    **{loss: (f"decide.{loss}", 0, 0) for loss in LOSSES},  # a policy server's answer
    "send_raises": ("decide.send decide.error", 0, 0),
    "duplicate": ("", 0, 0),
    "stray": ("", 0, 0),
    "lost_in_transit": (LATE, 0, 0),
    "delivered_late": (LATE, 0, 0),
    "stop_decoder": (f"decide.decoder_stopped {LATE}", 1.5, 4.0),
    "kill_decoder": (_KILLED, 1.0, 6.0),
    "give_up": (f"host.gave_up host.lost {LATE}", 0, 0),
    # of threads,
    "stop_loop": (f"pause.stall {_GUARD}", 1.5, 4.0),
    "gc": (f"pause.gc {_GUARD}", 1.5, 3.0),
    "starve_loop": (f"wake.scheduler {_GUARD}", 1.5, 3.0),
    "starve_actuator": ("wake.scheduler execute.busy", 1.5, 3.0),
    "slow_text": (f"decide.observe {LATE} {_GUARD}", 1.0, 2.0),
    "hung_text": (f"decide.observe {LATE} {_GUARD}", 4.0, 20.0),
    "observe_raises": ("no_observation.unreadable", 1.0, 3.0),
    # of the world (the safe call takes over where a call raises, and one that waits just then gives way to it),
    "frozen": (_STALE, 3.0, 9.0),
    "none_yet": ("no_observation.none_yet", 2.0, 5.0),
    "slow_execute": (_WORLD, 1.0, 3.0),
    "execute_raises": ("execute.raised execute.busy", 1.0, 3.0),
    "hang": (_WORLD, 1.5, 6.0),
    "safe_raises": (_STALE, 3.0, 9.0),
    "epoch_ends": ("", 0, 0),
    # of the network,
    "net_delay": (_NET, 2.0, 8.0),
    "net_loss": (_NET, 2.0, 8.0),
    "net_reorder": (_NET, 2.0, 8.0),
    "net_duplicate": (_NET, 2.0, 8.0),
    "net_cut": (_NET, 2.0, 20.0),
    "net_silence": (_NET, 2.0, 20.0),
    "client_reset": ("no_observation.none_yet", 0, 0),
    # and of people.
    "pause": ("", 0, 0),
    "instruct": ("", 0, 0),
}


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A kind of fault. `silent`: the fault leaves no evidence, so that `unknown` is the right cause."""

    name: str
    causes: frozenset[str]
    periods: tuple[float, float]
    silent: bool


SIMULATED = {
    name: FaultKind(name, frozenset(causes.split()), (least, most), name == "delivered_late")
    for name, (causes, least, most) in _KINDS.items()
}


@dataclass(slots=True, eq=False)
class SimFault:
    """An injected fault, from `start_ns` until its last known effect."""

    kind: FaultKind
    start_ns: int
    end_ns: int
    felt: bool = False  # whether the fault cost a tick
    late_ns: int = 0  # when the last delayed message arrives, or one that must wait for a delayed message

    def touch(self, t_ns: int) -> None:
        """Record that the fault still has an effect at `t_ns`."""
        self.end_ns = max(self.end_ns, t_ns)


class Faults:
    """An injector of one fault at a time, on average one per `every` periods. `effects` has a function that starts each
    kind.

    By kind, `count`: how many were injected; `felt`: how many cost a tick; `attributed` and `unknown`: their misses."""

    def __init__(self, time: SimTimeline, period_ns: int, kinds: tuple[str, ...], every: float) -> None:
        self.time, self.kinds = time, kinds
        self.count, self.felt, self.attributed, self.unknown = (Counter[str]() for _ in range(4))
        self.effects: dict[str, Callable[[SimFault], None]] = {}
        self.recent: list[SimFault] = []
        self.running = True
        self._period_ns, self._every = period_ns, every
        self._chance: random.Random = time.chance("faults")
        self._open: dict[str, SimFault] = {}
        self._next: dict[str, SimFault] = {}

    def start(self) -> None:
        """Start to inject faults, after some ticks that define the usual times."""
        if self.kinds:
            self.time.at(self.time.now_ns + 8 * self._period_ns, self._inject)

    def on(self, name: str) -> SimFault | None:
        """Return the active fault of a kind, if any."""
        fault = self._open.get(name)
        return fault if fault is not None and self.time.now_ns < fault.end_ns else None

    def take(self, name: str) -> SimFault | None:
        """Return the fault of a kind that waits for a decision, and mark the fault as used."""
        return self._next.pop(name, None) if self._next else None

    @property
    def waiting(self) -> str | None:
        """Return the kind of fault for the next decision, if any."""
        return next(iter(self._next), None)

    def costs(self, fault: SimFault, attributed: bool) -> None:
        """Count a tick that the fault cost, with an attributed or unknown cause."""
        name = fault.kind.name
        self.felt[name] += not fault.felt
        fault.felt = True
        (self.attributed if attributed else self.unknown)[name] += 1

    def _inject(self) -> None:
        if not self.running:
            return
        kind = SIMULATED[self._chance.choice(self.kinds)]
        periods = kind.periods
        now, least = self.time.now_ns, 12 * MS if periods[1] else 0
        for_ns = max(least, int(self._chance.uniform(*periods) * self._period_ns))
        fault = SimFault(kind, now, now + for_ns)
        self.count[kind.name] += 1
        self.recent.append(fault)
        if len(self.recent) > 256:
            del self.recent[:128]
        if periods[1]:
            self._open[kind.name] = fault
        else:
            self._next[kind.name] = fault
        if (effect := self.effects.get(kind.name)) is not None:
            effect(fault)
        gap = max(0.5, self._chance.expovariate(1 / self._every))
        self.time.at(fault.end_ns + int(gap * self._period_ns), self._inject)
