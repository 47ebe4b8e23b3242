"""The simulated decoder: a process of its own that decides, stands still, dies, comes back, errs and repeats itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from rtcontrol.hosts.protocol import LOSSES, DecisionReply, DecisionRequest, HostEvent
from rtcontrol.models.call import Call, Decision
from tests.simulation.faults import Fault, Faults
from tests.simulation.timeline import MS, US, Process, Thread, Timeline

FUNCTIONS = ("move", "turn", "grip")
CALLS = tuple(Call(name, {"x": x}) for name in FUNCTIONS for x in range(4))
GAP_NS = 10 * MS  # the heartbeat's threshold
TOLD_NS = 2_000_000_000  # a reply tells of gaps that ended so short a time ago


class SimDecoder:
    """Implements `Host`: the loop's side of it, and the process that decides one request after the other, the newest
    first, in `lanes`. Ordinary decisions take `usual_ns` (least and most)."""

    name = "simulated"

    def __init__(self, time: Timeline, faults: Faults, usual_ns: tuple[int, int], period_ns: int, lanes: int) -> None:
        self.time, self.faults, self.usual_ns, self.period_ns, self.lanes = time, faults, usual_ns, period_ns, lanes
        self.process = Process(time)
        self.thread = Thread(self.process, time.chance("decoder thread"))
        self.chance = time.chance("decoder")
        self.null = self.doubts = 0.0  # the shares of decisions to go on, and of doubtful ones
        self.events: list[HostEvent] = []
        self.reach: Callable[[str], None] = lambda point: None
        self.taken: Callable[[DecisionReply], None] = lambda reply: None
        self.incarnation, self.gave_up = 0, None
        self.there, self.woken = True, False
        self.threads = ((2, 2),)
        self.inbox: deque[DecisionReply] = deque()
        self.asked: dict[int, tuple[int, DecisionRequest]] = {}  # by tick, when and what
        self.decided: dict[int, DecisionReply] = {}  # by tick, the newest reply
        self._waiting: deque[tuple[DecisionRequest, int]] = deque()
        self._under_way = 0
        self._last: DecisionReply | None = None
        faults.begin |= {"stop_decoder": self._stop, "kill_decoder": self._kill}
        faults.begin |= {"stray": self._stray}

    # -- the loop's side ----------------------------------------------------------------------------------------------

    def ready(self) -> bool:
        """Whether the loop's wait ends."""
        return self.woken or bool(self.inbox)

    def wait(self, timeout_ns: int) -> DecisionReply | None:
        self.woken = False
        if not self.inbox:
            return None
        reply = self.inbox.popleft()
        self.decided[reply.tick] = reply
        self.taken(reply)
        return reply

    def wake(self) -> None:
        self.woken = True

    def alive(self) -> bool:
        return self.there

    def submit(self, request: DecisionRequest) -> None:
        if (fault := self.faults.take("send_raises")) is not None:
            fault.touch(self.time.now_ns + self.period_ns)
            raise OSError("no buffer space")
        self.reach("send")
        now = self.time.now_ns
        self.asked[request.tick] = now, request
        if len(self.asked) > 64:
            for old in (self.asked, self.decided):
                for k in [k for k in old if k < request.tick - 32]:
                    del old[k]
        life = self.incarnation
        self.process.at(now + 40 * US, lambda: self._arrive(request, life))

    def cancel(self, tick: int) -> None:
        self._waiting = deque(one for one in self._waiting if one[0].tick != tick)

    def close(self) -> None:
        """Another loop may open it again."""

    # -- the decoder's process ----------------------------------------------------------------------------------------

    def _arrive(self, request: DecisionRequest, life: int) -> None:
        if life != self.incarnation or not self.there:
            return
        self._waiting.append((request, self.time.now_ns))
        self._next()

    def _next(self) -> None:
        while self._waiting and self._under_way < self.lanes:
            request, received_ns = self._waiting.pop()
            self._waiting.clear()  # the newest wins
            self._under_way += 1
            self._decide(request, received_ns)

    def _decide(self, request: DecisionRequest, received_ns: int) -> None:
        begun_ns, life = self.time.now_ns, self.incarnation
        kind = self.faults.waiting
        fault = self.faults.take(kind) if kind is not None and kind != "send_raises" else None
        took_ns = self.chance.randrange(*self.usual_ns)
        if kind == "slow":
            took_ns += int(self.period_ns * self.lanes * self.chance.uniform(1.2, 2.5)) + 6 * MS
        if fault is not None:
            fault.touch(begun_ns + took_ns + self.period_ns)
        self.process.at(
            begun_ns + took_ns,
            lambda: self._decided(request, (received_ns, begun_ns), life, kind if fault else None, fault),
        )

    def _decided(
        self, request: DecisionRequest, stamps: tuple[int, int], life: int, kind: str | None, fault: Fault | None
    ) -> None:
        if life != self.incarnation or not self.there:
            return
        now = self.time.now_ns
        self._under_way -= 1
        if fault is not None:
            fault.touch(now + self.period_ns)
        decision, error, loss = self._answer(kind)
        gaps = [gap for gap in self.process.stood if gap[1] - gap[0] > GAP_NS and now - gap[1] < TOLD_NS][-8:]
        reply = DecisionReply(
            request.tick, decision, error, now - stamps[1], None, stamps[0], stamps[1], tuple(gaps), loss=loss
        )
        self._deliver(reply, kind, fault)
        self._next()

    def _answer(self, kind: str | None) -> tuple[Decision | None, str | None, str | None]:
        if kind == "error":
            return None, "ValueError: no scores", None
        if kind in LOSSES:
            return None, f"DecisionLost: {kind}", kind
        if kind == "illegal":
            return Decision(Call("explode", {"x": 9})), None, None
        if self.chance.random() < self.null:
            return Decision(None), None, None
        sure = 0.2 if self.chance.random() < self.doubts else 0.9
        return Decision(self.chance.choice(CALLS), {"function": sure}, 1, 10, 5), None, None

    def _deliver(self, reply: DecisionReply, kind: str | None, fault: Fault | None) -> None:
        now = self.time.now_ns
        at_ns = now + 40 * US
        if kind == "lost_in_transit":
            return
        if kind == "delivered_late" and fault is not None:
            at_ns += int(self.period_ns * self.lanes * self.chance.uniform(1.1, 2.5)) + 3 * MS
            fault.touch(at_ns + self.period_ns)
        life = self.incarnation
        for _ in range(2 if kind == "duplicate" else 1):
            self.time.at(at_ns, lambda: self._received(reply, life))
            at_ns += self.chance.randrange(1, 2 * self.period_ns)

    def _received(self, reply: DecisionReply, life: int) -> None:
        if life == self.incarnation:
            self._last = reply
            self.inbox.append(reply)

    # -- its faults ---------------------------------------------------------------------------------------------------

    def _stop(self, fault: Fault) -> None:
        self.process.freeze(fault.end_ns - self.time.now_ns)
        fault.touch(fault.end_ns + 2 * self.usual_ns[1] + self.period_ns)

    def _kill(self, fault: Fault) -> None:
        if not self.there:
            return
        lost_ns = self.time.now_ns
        self.there = False
        self._waiting.clear()
        self._under_way = 0
        self.events.append(HostEvent(lost_ns, "lost", 0.0))
        self.woken = True
        self.time.at(fault.end_ns, lambda: self._restart(lost_ns))
        fault.touch(fault.end_ns + self.period_ns)

    def _restart(self, lost_ns: int) -> None:
        now = self.time.now_ns
        self.incarnation += 1
        self.there = self.woken = True
        self.process.frozen_ns = 0
        self.events.append(HostEvent(now, "restarted", (now - lost_ns) / 1e9))

    def _stray(self, fault: Fault) -> None:
        """A reply to nobody's request, or to one of long ago."""
        tick = self.chance.choice((-5, 10**9, self._last.tick if self._last else 0))
        self.inbox.append(DecisionReply(tick, Decision(self.chance.choice(CALLS)), None, 1000))
        self.faults.take("stray")
