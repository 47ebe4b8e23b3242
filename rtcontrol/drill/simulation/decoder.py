"""Simulate decoder processes, which can be slow, stop, die, restart, fail and repeat replies, and their hosts.

A host has one decoder, one that decides plans of several calls, or two decoders (`host.backup`, `host.standby`).
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
GAP_NS = 10 * MS  # a longer freeze of the process counts as a heartbeat gap
GAP_AGE_NS = 2_000_000_000  # a reply reports the heartbeat gaps that ended in the last 2 s


class SimDecoder(HostBase):
    """A `Host` with a simulated decoder process, which decides at most `parallel` requests at once, the newest first.

    `usual_ns`: minimum and maximum duration of a decision without a fault. `null_share`, `unsure_share`: probability
    of a null decision, and of one with low confidence. `plan_timeout_ns`: how long the host waits for a lost plan."""

    null_share = unsure_share = 0.0
    plan_timeout_ns = 0

    def __init__(
        self, time: SimTimeline, faults: Faults, usual_ns: tuple[int, int], period_ns: int, parallel: int, key: str = ""
    ) -> None:
        super().__init__("simulated")
        self.time, self.faults, self.usual_ns = time, faults, usual_ns
        self.period_ns, self.parallel = period_ns, parallel
        self.process = Process(time)
        self.thread = Thread(self.process, time.rng(f"decoder thread{key}"))
        self.rng = time.rng(f"decoder{key}")
        self.up, self.woken = True, False
        self.inbox: deque[DecisionReply] = deque()
        self._waiting: deque[tuple[DecisionRequest, int]] = deque()
        self._running = 0
        self._last_tick = 0  # tick of the newest reply

    # -- methods for the loop -----------------------------------------------------------------------------------------

    def replies(self) -> bool:
        """Return whether `wait` must return now."""
        return self.woken or bool(self.inbox)

    def wait(self, timeout_ns: int) -> DecisionReply | None:
        self.woken = False
        return self.inbox.popleft() if self.inbox else None

    def wake(self) -> None:
        self.woken = True

    def submit(self, request: DecisionRequest) -> None:
        if (fault := self.faults.take_pending("send_raises")) is not None:
            fault.extend_to(self.time.now_ns + self.period_ns)
            raise OSError("no buffer space")
        incarnation = self.incarnation
        self.process.at(self.time.now_ns + 40 * US, lambda: self._receive_request(request, incarnation))

    def cancel(self, tick: int) -> None:
        self._waiting = deque(waiting for waiting in self._waiting if waiting[0].tick != tick)

    # -- the decoder's process ----------------------------------------------------------------------------------------

    def _receive_request(self, request: DecisionRequest, incarnation: int) -> None:
        if incarnation == self.incarnation and self.up:
            self._waiting.append((request, self.time.now_ns))
            self._start_next_request()

    def _start_next_request(self) -> None:
        while self._waiting and self._running < self.parallel:
            request, received_ns = self._waiting.pop()
            self._waiting.clear()  # the newest request replaces the other requests
            self._running += 1
            self._decide(request, received_ns)

    def _decide(self, request: DecisionRequest, received_ns: int) -> None:
        started_ns, incarnation = self.time.now_ns, self.incarnation
        kind = self.faults.next_kind  # the kind of fault that this decision must have (None: any)
        fault = self.faults.take_pending(kind) if kind is not None and kind != "send_raises" else None
        min_ns, max_ns = self.usual_ns
        took_ns = min_ns + int(self.rng.random() * (max_ns - min_ns))
        if kind == "slow_decoder":
            took_ns += int(self.period_ns * self.parallel * self.rng.uniform(1.2, 2.5)) + 6 * MS
        if fault is not None:
            fault.extend_to(started_ns + took_ns + self.period_ns)
        stamps = received_ns, started_ns
        self.process.at(started_ns + took_ns, lambda: self._finish_decision(request, stamps, incarnation, fault))

    def _finish_decision(self, request: Any, stamps: tuple[int, int], incarnation: int, fault: SimFault | None) -> None:
        if incarnation != self.incarnation or not self.up:
            return
        now, kind = self.time.now_ns, None if fault is None else fault.kind.name
        self._running -= 1
        if fault is not None:
            fault.extend_to(now + self.period_ns)
        decision, error, loss = self._make_decision(kind)
        gaps = [gap for gap in self.process.frozen_spans[-8:] if gap[1] - gap[0] > GAP_NS and now - gap[1] < GAP_AGE_NS]
        reply = DecisionReply(
            request.tick, decision, error, now - stamps[1], None, stamps[0], stamps[1], tuple(gaps), loss=loss
        )
        self._deliver(reply, fault)
        self._start_next_request()

    def _make_decision(self, kind: str | None) -> tuple[Decision | None, str | None, str | None]:
        """Return decision, error and loss (see LOSSES) of a reply to which a fault of this kind (or None) happens."""
        if kind == "decider_raises":
            return None, "ValueError: no scores", None
        if kind in LOSSES:
            return None, f"DecisionLost: {kind}", kind
        if kind == "invalid_call":
            return Decision(Call("explode", {"x": 9})), None, None
        if self.rng.random() < self.null_share:
            return Decision(None), None, None
        confidence = 0.2 if self.rng.random() < self.unsure_share else 0.9
        call = CALLS[int(self.rng.random() * len(CALLS))]
        extra = self.rng.randrange(6) if self.plan_timeout_ns else 0
        plan = Plan((call, *(self.rng.choice(CALLS) for _ in range(extra))), self.period_ns) if extra else None
        return Decision(call, {"function": confidence}, 1, 10, 5, plan=plan), None, None

    def _deliver(self, reply: DecisionReply, fault: SimFault | None) -> None:
        kind = None if fault is None else fault.kind.name
        at_ns, incarnation = self.time.now_ns + 40 * US, self.incarnation
        if fault is not None and kind == "lost_in_transit":
            fault.extend_to(self.time.now_ns + self.plan_timeout_ns)
            return
        if fault is not None and kind == "delivered_late":
            at_ns += int(self.period_ns * self.parallel * self.rng.uniform(1.1, 2.5)) + 3 * MS
            fault.extend_to(at_ns + self.period_ns)
        self.time.at(at_ns, lambda: self._enqueue_reply(reply, incarnation))
        if kind == "duplicate":
            again_ns = at_ns + self.rng.randrange(1, 2 * self.period_ns)
            self.time.at(again_ns, lambda: self._enqueue_reply(reply, incarnation))

    def _enqueue_reply(self, reply: DecisionReply, incarnation: int) -> None:
        if incarnation == self.incarnation:
            self._last_tick = reply.tick
            self.inbox.append(reply)

    # -- faults -------------------------------------------------------------------------------------------------------

    def freeze_until_end(self, fault: SimFault) -> None:
        """Freeze the decoder's process until the fault ends."""
        self.process.freeze(fault.end_ns - self.time.now_ns)
        fault.extend_to(fault.end_ns + 2 * self.usual_ns[1] + self.period_ns)

    def kill(self, fault: SimFault) -> None:
        """Kill the decoder's process. Restart it when the fault ends, unless the fault is `give_up`."""
        self.faults.take_pending(fault.kind.name)
        if not self.up:
            return
        now = self.time.now_ns
        self.mark_lost(now)
        self._waiting.clear()
        self._running = 0
        self.woken = True
        fault.extend_to(fault.end_ns + self.period_ns)
        if fault.kind.name == "give_up":
            self.gave_up = "the decoder died too often"
            self.time.at(now, lambda: fault.extend_to(now + 3600 * S))  # longer than any run takes
        else:
            self.time.at(fault.end_ns, self._restart)

    def _restart(self) -> None:
        self.mark_ready(self.time.now_ns)
        self.up = self.woken = True
        self.process.frozen_ns = 0

    def send_stray_reply(self) -> None:
        """Send a reply to an old request, or to a request that does not exist."""
        self.faults.take_pending("stray")
        tick = self.rng.choice((-5, 10**9, self._last_tick))
        self.inbox.append(DecisionReply(tick, Decision(self.rng.choice(CALLS)), None, 1000))


def combined_host(mode: str, decoders: list[Any], settings: LoopSettings) -> LayeredHost | None:
    """Return the host that combines the decoders in this mode, or None if the loop uses the first decoder alone."""
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
    """The loop's `Host`, which forwards to the simulated decoders and stores requests and replies for the referee.

    `requests`: the time of a tick's request, and the request. `newest_replies`: a tick's newest reply. `on_point` is
    called before each request, `on_reply` with each reply that the loop receives."""

    # The loop reads these attributes often, so they are properties: `__getattr__` is slow.
    incarnation, events = property(attrgetter("_inner.incarnation")), property(attrgetter("_inner.events"))
    gave_up = property(attrgetter("_inner.gave_up"))

    def __init__(self, time: SimTimeline, decoders: list[SimDecoder], inner: LayeredHost | None) -> None:
        self.time, self._decoder, self._layered = time, decoders[0], inner
        self._inner: Any = inner or decoders[0]
        self.on_point: Callable[[str], None] = lambda point: None
        self.on_reply: Callable[[DecisionReply], None] = lambda reply: None
        self.requests: dict[int, tuple[int, DecisionRequest]] = {}
        self.newest_replies: dict[int, DecisionReply] = {}
        self.alive = self._inner.alive
        # A function that returns whether `wait` must return now.
        self.replies: Callable[[], bool] = self._replies if inner is not None else decoders[0].replies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def main_decoder(self) -> SimDecoder:
        """Return the decoder that the loop calls `wait` of, which is the active one of two."""
        host = self._layered
        return self._decoder if host is None else host.main  # type: ignore[return-value]

    @property
    def wake_ns(self) -> int | None:
        """Return when the layered host must be called again, or None."""
        return None if self._layered is None else self._layered.wake_ns

    def _replies(self) -> bool:
        """Return whether a reply is ready. Other decoders are polled only if their replies would be used at once."""
        host: Any = self._layered
        names = host.inner if host.core.polls_often else (host.core.main,)
        return bool(host.replies) or any(host.inner[name].replies() for name in names)

    def submit(self, request: DecisionRequest) -> None:
        self.on_point("send")
        self.requests[request.tick] = self.time.now_ns, request
        self._inner.submit(request)

    def wait(self, timeout_ns: int) -> DecisionReply | None:
        reply: DecisionReply | None = self._inner.wait(timeout_ns)
        if reply is not None:
            self.newest_replies[reply.tick] = reply
            self.on_reply(reply)
        return reply

    def close(self) -> None:
        """Do nothing, because the next run uses the same decoders."""
