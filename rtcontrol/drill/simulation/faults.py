"""When the faults of a simulated run are injected, and how long each has an effect."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from rtcontrol.drill.faults import SIMULATED, FaultKind
from rtcontrol.drill.simulation.timeline import MS, SimTimeline

# A run ends with it; a world that waits would wait for ever.
ENDS, UNKNOWABLE = ("give_up",), ("lost_in_transit",)
# Of a world in the loop's process, and of one behind the wire.
WORLD = ("frozen", "none_yet", "slow_execute", "execute_raises", "hang", "safe_raises", "epoch_ends")
NETWORK = ("net_delay", "net_loss", "net_reorder", "net_duplicate", "net_cut", "net_silence", "client_reset")


@dataclass(slots=True, eq=False)
class SimFault:
    """One injected fault: from `begin_ns` until its last effect, as far as that is known."""

    kind: FaultKind
    begin_ns: int
    end_ns: int
    causes: frozenset[str] = field(default=frozenset())
    felt: bool = False  # it cost a tick
    late_ns: int = 0  # when the last message that it delayed arrives, or one that is kept in order behind that

    def touch(self, t_ns: int) -> None:
        """It still has an effect at `t_ns`."""
        self.end_ns = max(self.end_ns, t_ns)


class Faults:
    """Injects faults one after the other, `every` so many periods on average. `begin` starts the effects of a kind.

    `on` tells whether a window is open; `take` whether the next decision has the fault."""

    def __init__(self, time: SimTimeline, period_ns: int, kinds: tuple[str, ...], every: float) -> None:
        self.time, self.kinds = time, kinds
        # By kind: how many were injected, and cost a tick; misses of them that have their cause, or none.
        self.count, self.felt, self.attributed, self.unknown = (Counter[str]() for _ in range(4))
        self.begin: dict[str, Callable[[SimFault], None]] = {}
        self.recent: list[SimFault] = []
        self.running = True
        self._period_ns, self._every, self._calm_ns = period_ns, every, 0
        self._chance: random.Random = time.chance("faults")
        self._open: dict[str, SimFault] = {}
        self._next: dict[str, SimFault] = {}

    def start(self) -> None:
        """Inject from now on, after some ticks that tell what is usual."""
        if self.kinds:
            self.time.at(self.time.now_ns + 8 * self._period_ns, self._inject)

    def settle(self) -> None:
        """Another run begins: let it learn what is usual."""
        self._open.clear()
        self._next.clear()
        self._calm_ns = self.time.now_ns + 8 * self._period_ns

    def on(self, name: str) -> SimFault | None:
        """Return the fault of this kind that is under way."""
        fault = self._open.get(name)
        return fault if fault is not None and self.time.now_ns < fault.end_ns else None

    def take(self, name: str) -> SimFault | None:
        """Return the fault of this kind that waits for its decision: it has it now."""
        return self._next.pop(name, None) if self._next else None

    @property
    def waiting(self) -> str | None:
        """The kind of fault that the next decision has."""
        return next(iter(self._next), None)

    def costs(self, fault: SimFault, attributed: bool) -> None:
        """The fault cost a tick, whose cause is attributed, or unknown."""
        name = fault.kind.name
        self.felt[name] += not fault.felt
        fault.felt = True
        (self.attributed if attributed else self.unknown)[name] += 1

    def _inject(self) -> None:
        if not self.running:
            return
        if self.time.now_ns < self._calm_ns:
            self.time.at(self._calm_ns, self._inject)
            return
        kind = SIMULATED[self._chance.choice(self.kinds)]
        periods = kind.periods or (0.0, 0.0)
        now, least = self.time.now_ns, 12 * MS if periods[1] else 0
        for_ns = max(least, int(self._chance.uniform(*periods) * self._period_ns))
        fault = SimFault(kind, now, now + for_ns, frozenset(f"{kind.causes} {kind.also}".split()))
        self.count[kind.name] += 1
        self.recent.append(fault)
        if len(self.recent) > 256:
            del self.recent[:128]
        if periods[1]:
            self._open[kind.name] = fault
        else:
            self._next[kind.name] = fault
        if (begin := self.begin.get(kind.name)) is not None:
            begin(fault)
        gap = max(0.5, self._chance.expovariate(1 / self._every))
        self.time.at(fault.end_ns + int(gap * self._period_ns), self._inject)
