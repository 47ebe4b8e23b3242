"""The simulated world and agent: it steps, shows, takes calls under its lock, hangs, raises and ends epochs.

It goes on by itself, or `waits`: for `step` (lockstep), or until the observation before was decided upon (`take`)."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from rtcontrol.drill.simulation.decoder import FUNCTIONS
from rtcontrol.drill.simulation.faults import Faults, SimFault
from rtcontrol.drill.simulation.timeline import US, Process, SimTimeline, Thread
from rtcontrol.envs.base import Barrier, Effect, Episode, Observation
from rtcontrol.models.call import Call

Done = Callable[[Effect, BaseException | None], None]


class SimWorld:
    """Implements `Environment` for the loop. A call waits for the world's lock (`begin`), is looked at, and acts.

    `acts` is called when one acts, `begins` when an epoch is seen first."""

    name = "simulated"

    def __init__(
        self,
        time: SimTimeline,
        process: Process,
        faults: Faults,
        step_ns: int,
        deadline_ns: int,
        acts: Callable[[Call, Barrier | None], None],
        begins: Callable[[], None],
    ) -> None:
        self.time, self.process, self.faults = time, process, faults
        self.step_ns, self.deadline_ns, self._acts, self._begins = step_ns, deadline_ns, acts, begins
        self.chance = time.chance("world")
        self.bindings: dict[str, Any] = dict.fromkeys((*FUNCTIONS, "stop", "open"))
        self.reach: Callable[[str], None] = lambda point: None
        self.epoch = self.seq = 0
        self.finished = self.waits = False
        self.episodes: list[Episode] = []
        self.blind_ns = time.now_ns  # it shows nothing before
        self.free_ns = 0  # its lock is held until then
        self._from_ns = self._stepped_ns = time.now_ns
        self._steps = 0
        self._seen: Observation | None = None
        self._blinding: SimFault | None = None
        faults.begin |= {"hang": self._hang, "frozen": self._freeze, "safe_raises": self._freeze}
        faults.begin |= {"epoch_ends": self._end_epoch, "none_yet": self._blind, "execute_raises": self._raises}
        faults.begin |= {"slow_execute": self._raises}

    # -- what the loop calls ------------------------------------------------------------------------------------------

    def latest(self) -> Observation | None:
        """The newest step's, if the world was not kept from stepping."""
        now = self.time.now_ns
        if now < self.blind_ns:
            return None
        if self._stands(now):
            if self._seen is None and self._blinding is not None:
                self._blinding.touch(now + self.deadline_ns)
            return self._seen
        seq, captured_ns = (self._steps, self._stepped_ns) if self.waits else self._newest(now)
        if self._seen is None or seq > self._seen.seq or self._seen.epoch != self.epoch:
            if self._seen is None or self._seen.epoch != self.epoch:
                self._begins()
            self._seen = Observation(seq, self.epoch, captured_ns, {"x": seq, "y": self.epoch})
        return self._seen

    def _stands(self, now: int) -> bool:
        return now < self.free_ns or bool(self.faults.on("frozen") or self.faults.on("safe_raises"))

    def _newest(self, now: int) -> tuple[int, int]:
        seq = (now - self._from_ns) // self.step_ns
        captured_ns = self._from_ns + seq * self.step_ns
        for begin, end in reversed(self.process.stood):
            if end <= captured_ns:
                break
            if begin < captured_ns:  # it stood still when this step was due: the next thing it did was this step
                captured_ns = end
        return seq, captured_ns

    def step(self) -> None:
        """Move on by a period."""
        self._steps, self._stepped_ns = self._steps + 1, self.time.now_ns

    @property
    def arrives_ns(self) -> int:
        """When the next observation arrives, at the earliest."""
        return self._from_ns + (self._steps + 1) * self.step_ns

    def take(self) -> int | None:
        """Return when the next observation in order arrived; None: it is not there. It was not made while the world
        stood still. As long as some wait the newest fault has an effect."""
        now = self.time.now_ns
        if now < self.blind_ns or self._stands(now):
            self._steps = max(self._steps, (now - self._from_ns) // self.step_ns)
            return None
        if now < self.arrives_ns:
            return None
        self._stepped_ns, self._steps = self.arrives_ns, self._steps + 1
        if now >= self.arrives_ns and self.faults.recent:
            self.faults.recent[-1].touch(now + self.deadline_ns)
        return self._stepped_ns

    def close(self, *given: Any) -> None:
        """Nothing is to be done."""

    advance = instruct = conclude = close

    # -- what the actuator's thread calls -----------------------------------------------------------------------------

    def begin(
        self, call: Call, epoch: int | None, not_after_ns: int | None, barrier: Barrier | None, done: Done
    ) -> None:
        """Act, once the world's lock is free; `done` is called with the effect."""
        at_ns = max(self.time.now_ns + 10 * US, self.free_ns)
        if barrier is not None:
            self.process.at(self.time.now_ns + 5 * US, lambda: self.reach("wait"))
        self.process.at(at_ns, lambda: self._act(call, epoch, not_after_ns, barrier, done))

    def _act(
        self, call: Call, epoch: int | None, not_after_ns: int | None, barrier: Barrier | None, done: Done
    ) -> None:
        now = self.time.now_ns
        if now < self.free_ns:
            self.begin(call, epoch, not_after_ns, barrier, done)
            return
        if epoch not in (None, self.epoch):
            done("epoch_over", None)
        elif not_after_ns is not None and now > not_after_ns:
            done("too_late", None)
        elif barrier is not None and barrier.shut is not None:
            done("refused", None)
        else:
            self._acts(call, barrier)
            fault = self.faults.on("execute_raises" if barrier is not None else "safe_raises")
            error = None if fault is None else RuntimeError("no grip")
            for_ns = 5 * US + int(self.chance.random() * 195 * US)
            if (slow := self.faults.on("slow_execute")) is not None:
                for_ns += int(1.3 * self.deadline_ns)
                slow.touch(now + for_ns + self.deadline_ns)
            self.process.at(now + for_ns, lambda: done("acted", error))

    # -- its faults ---------------------------------------------------------------------------------------------------

    def _hang(self, fault: SimFault) -> None:
        self.free_ns = max(self.free_ns, fault.end_ns)
        fault.touch(fault.end_ns + self.deadline_ns)

    def _freeze(self, fault: SimFault) -> None:
        self.latest()
        self.time.at(fault.end_ns, lambda: fault.touch(self.time.now_ns + self.deadline_ns))

    def _blind(self, fault: SimFault) -> None:
        self.blind_ns, self._seen, self._blinding = fault.end_ns, None, fault

    def _raises(self, fault: SimFault) -> None:
        self.time.at(fault.end_ns, lambda: fault.touch(self.time.now_ns + self.deadline_ns))

    def _end_epoch(self, fault: SimFault) -> None:
        self.faults.take("epoch_ends")
        self.episodes.append(Episode(self.epoch, 1.0, True, 1.0))
        self.epoch += 1


class SimAgent:
    """The agent of a simulated run; its text takes `text_ns` (least and most)."""

    def __init__(self, thread: Thread, faults: Faults, safe_calls: tuple[Call, ...], deadline_ns: int) -> None:
        self.thread, self.faults, self.deadline_ns = thread, faults, deadline_ns
        self.chance = faults.time.chance("agent")
        self.fallback = SimpleNamespace(safe_calls=safe_calls)
        self.tools = SimTools()
        self.reach: Callable[[str], None] = lambda point: None
        self.since_ns = 0  # since when it makes a text; 0: it does not

    def observe(self, data: Any) -> str:
        if self.faults.on("observe_raises") is not None:
            raise KeyError("altitude")
        for_ns = 10 * US + int(self.chance.random() * 50 * US)
        if (fault := self.faults.on("slow_text")) is not None:
            for_ns += int(1.3 * self.deadline_ns) + 4_000_000
        if (hung := self.faults.on("hung_text")) is not None:
            for_ns += hung.end_ns - self.thread.process.time.now_ns
            fault = hung
        self.reach("text")
        begin_ns = self.since_ns = self.thread.process.time.now_ns
        if hung is not None:
            self.reach("hang")
        self.thread.pause(for_ns)
        self.since_ns = 0
        if fault is not None:
            now = self.thread.process.time.now_ns
            fault.touch(now + self.deadline_ns)
            self.thread.away.append((begin_ns, now))
        return "x"


class SimTools(list[Any]):
    """No functions of the agent's own: all calls are the world's."""

    def convert(self, call: Call) -> Any:
        return call.arguments


def check(call: Call) -> tuple[Call, str]:
    """Return a legal call, and its text. Raises ValueError."""
    if call.name not in FUNCTIONS:
        raise ValueError(f"{call.name} is no tool")
    return call, f"{call.name}(x={call.arguments['x']})"
