"""Simulate the world, which makes observations, executes calls under a lock and can fail, and the agent's function.

The world advances with the simulated time or, if it `waits`, by `step` (lockstep) or `take_arrival` (arrivals).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rtcontrol.drill.simulation.decoder import FUNCTIONS
from rtcontrol.drill.simulation.faults import Faults, SimFault
from rtcontrol.drill.simulation.timeline import MS, US, Process, Thread
from rtcontrol.envs.base import Effect, Episode, Observation
from rtcontrol.models.call import Call
from rtcontrol.records import Command

Done = Callable[[Effect, BaseException | None], None]


class SimWorld:
    """An `Environment` whose world is simulated. `times_ns`: the world's step and the deadline of a tick.

    `on_act` is called when a call starts to act, `on_epoch` at the first observation of an epoch. `blind_ns`: until
    when there is no observation. `free_ns`: until when the world's lock is held."""

    name = "simulated"

    def __init__(
        self,
        faults: Faults,
        process: Process,
        times_ns: tuple[int, int],
        on_act: Callable[[Call, Command], None],
        on_epoch: Callable[[], None],
    ) -> None:
        self.time, self.process, self.faults = process.time, process, faults
        self.step_ns, self.deadline_ns = times_ns
        self._on_act, self._on_epoch = on_act, on_epoch
        self.rng = self.time.rng("world")
        self.bindings: dict[str, Any] = dict.fromkeys((*FUNCTIONS, "stop", "open"))
        self.on_point: Callable[[str], None] = lambda point: None
        self.epoch = self.seq = 0
        self.finished = self.waits = False
        self.episodes: list[Episode] = []
        self.blind_ns = self.time.now_ns
        self.free_ns = 0
        self._from_ns = self._stepped_ns = self.time.now_ns
        self._steps = 0
        self._newest: Observation | None = None
        self._blinding: SimFault | None = None
        faults.effects |= {"hang": self._hang_call, "frozen": self._freeze_world, "safe_raises": self._freeze_world}
        faults.effects |= {"epoch_ends": self._end_epoch, "none_yet": self._hide_observations}
        faults.effects |= dict.fromkeys(("execute_raises", "slow_execute"), self._extend_at_end)

    # -- methods for the loop -----------------------------------------------------------------------------------------

    def latest(self) -> Observation | None:
        """Return the newest observation, or None."""
        now, newest = self.time.now_ns, self._newest
        if now < self.blind_ns:
            return None
        if self._is_frozen(now):
            if newest is None and self._blinding is not None:
                self._blinding.extend_to(now + self.deadline_ns)
            return newest
        seq, captured_ns = (self._steps, self._stepped_ns) if self.waits else self._step_at(now)
        if newest is None or seq > newest.seq or newest.epoch != self.epoch:
            if newest is None or newest.epoch != self.epoch:
                self._on_epoch()
            self._newest = Observation(seq, self.epoch, captured_ns, {"x": seq, "y": self.epoch})
        return self._newest

    def _is_frozen(self, now: int) -> bool:
        return now < self.free_ns or bool(self.faults.active("frozen") or self.faults.active("safe_raises"))

    def _step_at(self, now: int) -> tuple[int, int]:
        seq = (now - self._from_ns) // self.step_ns
        captured_ns = self._from_ns + seq * self.step_ns
        for start, end in reversed(self.process.frozen_spans):
            if end <= captured_ns:
                break
            if start < captured_ns:  # the process was frozen when this step was due; the step came afterwards
                captured_ns = end
        return seq, captured_ns

    def step(self) -> None:
        """Advance a lockstep world by a period."""
        self._steps, self._stepped_ns = self._steps + 1, self.time.now_ns

    @property
    def arrives_ns(self) -> int:
        """Return when the next observation arrives at the earliest."""
        return self._from_ns + (self._steps + 1) * self.step_ns

    def take_arrival(self) -> int | None:
        """Return when the next observation arrived, or None if there is none. If an observation is queued, extend the
        newest fault, because later observations may be late as well."""
        now = self.time.now_ns
        if now < self.blind_ns or self._is_frozen(now):
            self._steps = max(self._steps, (now - self._from_ns) // self.step_ns)
            return None
        if now < self.arrives_ns:
            return None
        self._stepped_ns, self._steps = self.arrives_ns, self._steps + 1
        if now >= self.arrives_ns and self.faults.recent:
            self.faults.recent[-1].extend_to(now + self.deadline_ns)
        return self._stepped_ns

    def close(self, *arguments: Any) -> None:
        """Do nothing."""

    advance = instruct = conclude = close

    # -- methods for the actuator's thread ----------------------------------------------------------------------------

    def perform(self, call: Call, command: Command | None, done: Done) -> None:
        """Execute a call as soon as the world's lock is free, and then call `done`. A safe call has no `command`."""
        now = self.time.now_ns
        if command is not None:
            self.process.at(now + 5 * US, lambda: self.on_point("wait"))
        self.process.at(max(now + 10 * US, self.free_ns), lambda: self._act(call, command, done))

    def _act(self, call: Call, command: Command | None, done: Done) -> None:
        now = self.time.now_ns
        if now < self.free_ns:
            self.perform(call, command, done)
        elif command is not None and command.epoch != self.epoch:
            done("epoch_over", None)
        elif command is not None and command.not_after_ns is not None and now > command.not_after_ns:
            done("too_late", None)
        elif command is not None and command.block_reason is not None:
            done("refused", None)
        else:
            if command is not None:
                self._on_act(call, command)
            fault = self.faults.active("safe_raises" if command is None else "execute_raises")
            error = None if fault is None else RuntimeError("no grip")
            for_ns = 5 * US + int(self.rng.random() * 195 * US)
            if (slow := self.faults.active("slow_execute")) is not None:
                for_ns += int(1.3 * self.deadline_ns)
                slow.extend_to(now + for_ns + self.deadline_ns)
            self.process.at(now + for_ns, lambda: done("acted", error))

    # -- faults -------------------------------------------------------------------------------------------------------

    def _hang_call(self, fault: SimFault) -> None:
        self.free_ns = max(self.free_ns, fault.end_ns)
        fault.extend_to(fault.end_ns + self.deadline_ns)

    def _freeze_world(self, fault: SimFault) -> None:
        self.latest()
        self._extend_at_end(fault)

    def _extend_at_end(self, fault: SimFault) -> None:
        self.time.at(fault.end_ns, lambda: fault.extend_to(self.time.now_ns + self.deadline_ns))

    def _hide_observations(self, fault: SimFault) -> None:
        self.blind_ns, self._newest, self._blinding = fault.end_ns, None, fault

    def _end_epoch(self, fault: SimFault) -> None:
        self.faults.take_pending("epoch_ends")
        self.episodes.append(Episode(self.epoch, 1.0, True, 1.0))
        self.epoch += 1


class SimObserve:
    """The agent's `observe`, which can fail, be slow or hang. `since_ns`: when the running call of it started, or 0."""

    def __init__(self, thread: Thread, faults: Faults, deadline_ns: int) -> None:
        self.thread, self.faults, self.deadline_ns = thread, faults, deadline_ns
        self.rng = faults.time.rng("agent")
        self.on_point: Callable[[str], None] = lambda point: None
        self.since_ns = 0

    def observe(self, data: Any) -> str:
        if self.faults.active("observe_raises") is not None:
            raise KeyError("altitude")
        time = self.thread.process.time
        for_ns = 10 * US + int(self.rng.random() * 50 * US)
        if (fault := self.faults.active("slow_text")) is not None:
            for_ns += int(1.3 * self.deadline_ns) + 4 * MS
        if (hung := self.faults.active("hung_text")) is not None:
            for_ns += hung.end_ns - time.now_ns
            fault = hung
        self.on_point("text")
        start_ns = self.since_ns = time.now_ns
        if hung is not None:
            self.on_point("hang")
        self.thread.pause(for_ns)
        self.since_ns = 0
        if fault is not None:
            fault.extend_to(time.now_ns + self.deadline_ns)
            self.thread.blocked_spans.append((start_ns, time.now_ns))
        return "x"
