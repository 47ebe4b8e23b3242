"""The loop's side of its decoders, simulated: one, one that makes plans, or two (`--backup`, `--standby`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rtcontrol.hosts.backup_core import Handover
from rtcontrol.hosts.failover import BackupHost, PlanHost
from rtcontrol.hosts.layered import LayeredHost
from rtcontrol.hosts.plan_core import PlanTerms
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest, HostEvent
from rtcontrol.hosts.standby_core import PAIR, StandbyCore
from rtcontrol.loop.core import LoopSettings
from tests.simulation.decoder import FUNCTIONS, SimDecoder
from tests.simulation.timeline import Timeline


def layered(mode: str, decoders: list[SimDecoder], settings: LoopSettings) -> LayeredHost | None:
    """Return the real host of this mode over simulated decoders; None: the loop asks the first one itself."""
    first, second = decoders[0], decoders[-1]
    if mode == "plans":
        terms = PlanTerms(settings.max_age_ns, settings.pipeline)
        return PlanHost(first, terms, lambda call: call.name in FUNCTIONS)  # type: ignore[arg-type]
    if mode == "backup":
        handover = Handover(0.5, settings.period_ns, settings.pipeline)
        return BackupHost(first, second, handover)  # type: ignore[arg-type]
    if mode == "standby":
        return LayeredHost(StandbyCore(), dict(zip(PAIR, (first, second), strict=True)))  # type: ignore[arg-type]
    return None


class SimHost:
    """Implements `Host` for the loop, and notes what it asked for and took. `near` is the decoder that it sleeps in."""

    name = "simulated"
    threads = ((2, 2),)

    def __init__(self, time: Timeline, decoders: list[SimDecoder], inner: LayeredHost | None) -> None:
        self.time, self._decoder, self._layered = time, decoders[0], inner
        self._inner: Any = inner or decoders[0]
        if inner is not None:
            self.listener = inner.listener
        self.reach: Callable[[str], None] = lambda point: None
        self.taken: Callable[[DecisionReply], None] = lambda reply: None
        self.asked: dict[int, tuple[int, DecisionRequest]] = {}  # by tick, when and what
        self.decided: dict[int, DecisionReply] = {}  # by tick, the newest reply
        self.cancel, self.alive, self.wake = self._inner.cancel, self._inner.alive, self._inner.wake
        # Whether the loop's wait ends.
        self.ready: Callable[[], bool] = self._ready if inner is not None else decoders[0].ready

    @property
    def near(self) -> SimDecoder:
        """The decoder that the loop waits for."""
        host = self._layered
        return self._decoder if host is None else host.inner[host.core.main]  # type: ignore[return-value]

    @property
    def incarnation(self) -> int:
        return int(self._inner.incarnation)

    @property
    def events(self) -> list[HostEvent]:
        return self._inner.events  # type: ignore[no-any-return]

    @property
    def gave_up(self) -> str | None:
        reason: str | None = self._inner.gave_up
        return reason

    @property
    def wake_ns(self) -> int | None:
        """When it has something to do by itself."""
        return None if self._layered is None else self._layered.core.wake_ns

    def _ready(self) -> bool:
        """Another decoder than the near one is polled only while it matters."""
        host = self._layered
        assert host is not None, "else the decoder's own is asked"
        names = (host.core.main, *(host.core.polled if host.core.watching else ()))
        return bool(host._replies) or any(host.inner[name].ready() for name in names)  # type: ignore[attr-defined]

    def submit(self, request: DecisionRequest) -> None:
        self.reach("send")
        self.asked[request.tick] = self.time.now_ns, request
        if len(self.asked) > 64:
            for old in (self.asked, self.decided):
                for k in [k for k in old if k < request.tick - 32]:
                    del old[k]
        self._inner.submit(request)

    def wait(self, timeout_ns: int) -> DecisionReply | None:
        reply: DecisionReply | None = self._inner.wait(timeout_ns)
        if reply is not None:
            self.decided[reply.tick] = reply
            self.taken(reply)
        return reply

    def close(self) -> None:
        """Another loop may ask the decoders next."""
