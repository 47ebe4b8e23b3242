"""Simulate a decoder process that decides, is stopped, dies, restarts, fails and repeats replies.

The module also simulates the loop's host with one decoder, one that makes plans, or two (`host.backup`,
`host.standby`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from rtcontrol.drill.simulation.faults import Faults, SimFault
from rtcontrol.drill.simulation.timeline import MS, US, Process, S, SimTimeline, Thread
from rtcontrol.hosts.backup import BackupRule
from rtcontrol.hosts.layered import BackupHost, LayeredHost, PlanHost, StandbyHost
from rtcontrol.hosts.plans import PlanSettings
from rtcontrol.hosts.protocol import LOSSES, DecisionReply, DecisionRequest, HostBase
from rtcontrol.loop.core import LoopSettings
from rtcontrol.models.call import Call, Decision, Plan

FUNCTIONS = ("move", "turn", "grip")
CALLS = tuple(Call(name, {"x": x}) for name in FUNCTIONS for x in range(4))
GAP_NS = 10 * MS  # the heartbeat's threshold
GAP_AGE_NS = 2_000_000_000  # a reply reports heartbeat gaps that ended within this time


class SimDecoder(HostBase):
    """A simulated `Host` with its decoder process, which decides the newest request first, and `parallel` requests at
    once. Ordinary decisions take `usual_ns` (least and most).

    `null` and `doubts`: the shares of null decisions and of unsure ones. `patience_ns`: how long the host waits for a
    missing plan."""

    null = doubts = 0.0
    patience_ns = 0

    def __init__(
        self, time: SimTimeline, faults: Faults, usual_ns: tuple[int, int], period_ns: int, parallel: int, key: str = ""
    ) -> None:
        super().__init__("simulated")
        self.time, self.faults, self.usual_ns = time, faults, usual_ns
        self.period_ns, self.parallel = period_ns, parallel
        self.process = Process(time)
        self.thread = Thread(self.process, time.chance(f"decoder thread{key}"))
        self.chance = time.chance(f"decoder{key}")
        self.up, self.woken = True, False
        self.inbox: deque[DecisionReply] = deque()
        self._waiting: deque[tuple[DecisionRequest, int]] = deque()
        self._under_way = 0
        self._last_tick = 0  # heartbeat gaps of the newest reply

    # -- the loop's side ----------------------------------------------------------------------------------------------

    def replies(self) -> bool:
        """Return whether the wait of the loop must end."""
        return self.woken or bool(self.inbox)

    def wait(self, timeout_ns: int) -> DecisionReply | None:
        self.woken = False
        return self.inbox.popleft() if self.inbox else None

    def wake(self) -> None:
        self.woken = True

    def submit(self, request: DecisionRequest) -> None:
        if (fault := self.faults.take("send_raises")) is not None:
            fault.touch(self.time.now_ns + self.period_ns)
            raise OSError("no buffer space")
        life = self.incarnation
        self.process.at(self.time.now_ns + 40 * US, lambda: self._arrive(request, life))

    def cancel(self, tick: int) -> None:
        self._waiting = deque(waiting for waiting in self._waiting if waiting[0].tick != tick)

    # -- the decoder's process ----------------------------------------------------------------------------------------

    def _arrive(self, request: DecisionRequest, life: int) -> None:
        if life == self.incarnation and self.up:
            self._waiting.append((request, self.time.now_ns))
            self._next()

    def _next(self) -> None:
        while self._waiting and self._under_way < self.parallel:
            request, received_ns = self._waiting.pop()
            self._waiting.clear()  # the newest wins
            self._under_way += 1
            self._decide(request, received_ns)

    def _decide(self, request: DecisionRequest, received_ns: int) -> None:
        started_ns, life = self.time.now_ns, self.incarnation
        kind = self.faults.waiting
        fault = self.faults.take(kind) if kind is not None and kind != "send_raises" else None
        least_ns, most_ns = self.usual_ns
        took_ns = least_ns + int(self.chance.random() * (most_ns - least_ns))
        if kind == "slow_decoder":
            took_ns += int(self.period_ns * self.parallel * self.chance.uniform(1.2, 2.5)) + 6 * MS
        if fault is not None:
            fault.touch(started_ns + took_ns + self.period_ns)
        stamps = received_ns, started_ns
        self.process.at(started_ns + took_ns, lambda: self._decided(request, stamps, life, fault))

    def _decided(self, request: DecisionRequest, stamps: tuple[int, int], life: int, fault: SimFault | None) -> None:
        if life != self.incarnation or not self.up:
            return
        now, kind = self.time.now_ns, None if fault is None else fault.kind.name
        self._under_way -= 1
        if fault is not None:
            fault.touch(now + self.period_ns)
        decision, error, loss = self._answer(kind)
        gaps = [gap for gap in self.process.stood[-8:] if gap[1] - gap[0] > GAP_NS and now - gap[1] < GAP_AGE_NS]
        reply = DecisionReply(
            request.tick, decision, error, now - stamps[1], None, stamps[0], stamps[1], tuple(gaps), loss=loss
        )
        self._deliver(reply, fault)
        self._next()

    def _answer(self, kind: str | None) -> tuple[Decision | None, str | None, str | None]:
        """Return the decision, error and loss of a reply."""
        if kind == "decider_raises":
            return None, "ValueError: no scores", None
        if kind in LOSSES:
            return None, f"DecisionLost: {kind}", kind
        if kind == "invalid_call":
            return Decision(Call("explode", {"x": 9})), None, None
        if self.chance.random() < self.null:
            return Decision(None), None, None
        sure = 0.2 if self.chance.random() < self.doubts else 0.9
        call = CALLS[int(self.chance.random() * len(CALLS))]
        more = self.chance.randrange(6) if self.patience_ns else 0
        plan = Plan((call, *(self.chance.choice(CALLS) for _ in range(more))), self.period_ns) if more else None
        return Decision(call, {"function": sure}, 1, 10, 5, plan=plan), None, None

    def _deliver(self, reply: DecisionReply, fault: SimFault | None) -> None:
        kind = None if fault is None else fault.kind.name
        at_ns, life = self.time.now_ns + 40 * US, self.incarnation
        if fault is not None and kind == "lost_in_transit":
            fault.touch(self.time.now_ns + self.patience_ns)
            return
        if fault is not None and kind == "delivered_late":
            at_ns += int(self.period_ns * self.parallel * self.chance.uniform(1.1, 2.5)) + 3 * MS
            fault.touch(at_ns + self.period_ns)
        self.time.at(at_ns, lambda: self._received(reply, life))
        if kind == "duplicate":
            again_ns = at_ns + self.chance.randrange(1, 2 * self.period_ns)
            self.time.at(again_ns, lambda: self._received(reply, life))

    def _received(self, reply: DecisionReply, life: int) -> None:
        if life == self.incarnation:
            self._last_tick = reply.tick
            self.inbox.append(reply)

    # -- its faults ---------------------------------------------------------------------------------------------------

    def stop(self, fault: SimFault) -> None:
        """Freeze the decoder's process for the time of a fault."""
        self.process.freeze(fault.end_ns - self.time.now_ns)
        fault.touch(fault.end_ns + 2 * self.usual_ns[1] + self.period_ns)

    def kill(self, fault: SimFault) -> None:
        """Kill the decoder until the end of the fault, or for good if the fault has no end."""
        self.faults.take(fault.kind.name)
        if not self.up:
            return
        now = self.time.now_ns
        self.mark_lost(now)
        self._waiting.clear()
        self._under_way = 0
        self.woken = True
        fault.touch(fault.end_ns + self.period_ns)
        if fault.kind.name == "give_up":
            self.gave_up = "it died too often"
            self.time.at(now, lambda: fault.touch(now + 3600 * S))  # for good
        else:
            self.time.at(fault.end_ns, self._restart)

    def _restart(self) -> None:
        self.mark_ready(self.time.now_ns)
        self.up = self.woken = True
        self.process.frozen_ns = 0

    def stray(self) -> None:
        """Send a reply to an old request, or to none."""
        self.faults.take("stray")
        tick = self.chance.choice((-5, 10**9, self._last_tick))
        self.inbox.append(DecisionReply(tick, Decision(self.chance.choice(CALLS)), None, 1000))


def layered(mode: str, decoders: list[Any], settings: LoopSettings) -> LayeredHost | None:
    """Return the real host of this mode over simulated decoders, or None if the loop uses the first decoder
    directly."""
    first, second = decoders[0], decoders[-1]
    if mode == "plans":
        plans = PlanSettings(settings.max_age_ns, settings.pipeline)
        return PlanHost(first, plans, lambda call: call.name in FUNCTIONS)
    if mode == "backup":
        return BackupHost(first, second, BackupRule(0.5, settings.period_ns, settings.pipeline))
    if mode == "standby":
        return StandbyHost((first, second))
    return None


class SimHost:
    """A `Host` for the loop that also logs requests and replies.

    `requested`: time and request by tick; `decided`: newest reply by tick. `reach` is called before a request, `taken`
    with each reply."""

    # Attributes that the loop reads all the time, since `__getattr__` is slow.
    incarnation, events = property(attrgetter("_inner.incarnation")), property(attrgetter("_inner.events"))
    gave_up = property(attrgetter("_inner.gave_up"))

    def __init__(self, time: SimTimeline, decoders: list[SimDecoder], inner: LayeredHost | None) -> None:
        self.time, self._decoder, self._layered = time, decoders[0], inner
        self._inner: Any = inner or decoders[0]
        self.reach: Callable[[str], None] = lambda point: None
        self.taken: Callable[[DecisionReply], None] = lambda reply: None
        self.requested: dict[int, tuple[int, DecisionRequest]] = {}
        self.decided: dict[int, DecisionReply] = {}
        self.alive = self._inner.alive
        # Whether the wait of the loop must end.
        self.replies: Callable[[], bool] = self._replies if inner is not None else decoders[0].replies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def near(self) -> SimDecoder:
        """Return the decoder in whose wait the loop sleeps."""
        host = self._layered
        return self._decoder if host is None else host.main  # type: ignore[return-value]

    @property
    def wake_ns(self) -> int | None:
        """Return when the host has something to do by itself."""
        return None if self._layered is None else self._layered.wake_ns

    def _replies(self) -> bool:
        """Return whether there are replies, and poll other decoders than the near one only when they matter."""
        host: Any = self._layered
        names = host.inner if host.core.polls_often else (host.core.main,)
        return bool(host.replies) or any(host.inner[name].replies() for name in names)

    def submit(self, request: DecisionRequest) -> None:
        self.reach("send")
        self.requested[request.tick] = self.time.now_ns, request
        self._inner.submit(request)

    def wait(self, timeout_ns: int) -> DecisionReply | None:
        reply: DecisionReply | None = self._inner.wait(timeout_ns)
        if reply is not None:
            self.decided[reply.tick] = reply
            self.taken(reply)
        return reply

    def close(self) -> None:
        """Do nothing, since another loop may use the decoders next."""
