"""Decide what reaches the environment, and when: a state machine without thread, lock, clock or environment.

Any thread gives orders: `execute`, `demand`, `tell`, `instruct`, `bar`. One worker takes the `next` action, does it and
reports the result: `performed`, `attempted`, `told`. Instants are CLOCK_MONOTONIC nanoseconds. Not thread-safe: the
shell (actuator.py) holds a lock around every use.

At most one command waits: the newest wins. A demand for the safe calls clears it, and they are what acts first
(safe_calls.py); other calls wait for all of them. Emissions are told in order, each demand's before its calls. Where
the loop does not come back by `guard_ns`, the safe calls are demanded here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rtcontrol.envs.base import Effect, Emission
from rtcontrol.loop.safe_calls import Attempt, AttemptResult, Emit, Round, SafeCalls
from rtcontrol.models.call import Call
from rtcontrol.records import Command, Completion, Fault, OperatorCommand, SafeAttempt


@dataclass(frozen=True, slots=True)
class Perform:
    """Execute a command on the worker's thread. Result: `performed`."""

    command: Command


@dataclass(frozen=True, slots=True)
class Instruct:
    """Tell the world its new instruction. Result: `told`."""

    text: str


Action = Perform | Attempt | Emit | Instruct
Report = Completion | SafeAttempt | Fault | OperatorCommand


class Jobs(deque[Perform | Emit | Instruct]):
    """What waits, in order; at most one command and one instruction."""

    def clear_command(self) -> Command | None:
        """Remove the command that waits, and return it."""
        for job in self:
            if isinstance(job, Perform):
                self.remove(job)
                return job.command
        return None

    def command(self) -> Command | None:
        return next((job.command for job in self if isinstance(job, Perform)), None)

    def take_emission(self) -> Emit | None:
        """Remove and return the first emission that no command comes before."""
        for job in self:
            if isinstance(job, Perform):
                return None
            if isinstance(job, Emit):
                self.remove(job)
                return job
        return None


class ActuatorCore:
    """What waits, what is under way, and the results.

    `effects`: the results, in order, which the loop takes; `news` grows with each, with a demand, and when an attempt
    ends.
    `doings`: start and end (0: not yet) of the last calls. `shut`: why nothing but the safe calls may act; `open_ns`:
    until then it was shut, and what was asked for before does not act. `guard_ns`: by then the loop is to be back
    (None: no limit); `parting`: what the world is told where it is not."""

    def __init__(self, safe_calls: Sequence[Call], retry_ns: int | None) -> None:
        self.effects: deque[Report] = deque()
        self.doings: deque[list[int]] = deque(maxlen=8)
        self.news = 0
        self.safe = SafeCalls(safe_calls, retry_ns, self._post)
        self.jobs = Jobs()
        self.shut: str | None = None
        self.open_ns = 0
        self._acting: Command | None = None
        self._looked: Command | None = None  # before it the world was asked whether it has stepped
        self.guard_ns: int | None = None
        self.parting: Emission | None = None
        self.closed = False

    # -- orders -------------------------------------------------------------------------------------------------------

    def execute(self, command: Command) -> Command | None:
        """Let the command wait for its turn. Return the one that waited until now, which is dropped."""
        replaced = self.jobs.clear_command()
        command.demand = self.safe.demand
        command.shut = self.shut or ("paused" if command.asked_ns < self.open_ns else None)
        self.jobs.append(Perform(command))
        return replaced

    def withdraw(self, tick: int) -> bool:
        """Drop the command of `tick`; False if it does not wait any more."""
        waiting = self.jobs.command()
        return waiting is not None and waiting.tick == tick and self.jobs.clear_command() is not None

    def bar(self, why: str | None, now_ns: int) -> None:
        """Let no command act from now on, nor the one that waits or is under way, and say why; None: those asked for
        from now on may act."""
        self.shut = why
        if why is None:
            self.open_ns = now_ns
            return
        for command in (self._acting, self.jobs.command()):
            if command is not None:
                command.shut = why

    def demand(self, why: str, emission: Emission | None) -> Command | None:
        """Bring each safe call in force; `emission` is told before. Return the command that waited: it is dropped."""
        cleared = self.jobs.clear_command()
        if self.safe.again is not None:  # of the demand before: it comes first
            self.jobs.appendleft(self.safe.again)
            self.safe.again = None
        number = self.safe.require(why, emission is not None)
        self.news += 1
        if emission is not None:
            self.jobs.append(Emit(emission, number))
        return cleared

    def retry(self) -> bool:
        """Try again at once what is not in force; False if all is."""
        if self.safe.wanted:
            self.safe.due_ns = 0
        return self.safe.wanted

    def tell(self, emission: Emission) -> None:
        self.jobs.append(Emit(emission))

    def instruct(self, text: str) -> None:
        """Tell the world its instruction; of several that wait, the newest."""
        for job in [job for job in self.jobs if isinstance(job, Instruct)]:
            self.jobs.remove(job)
        self.jobs.append(Instruct(text))

    def arm(self, guard_ns: int | None, parting: Emission | None) -> None:
        """Expect the loop to call this again by `guard_ns`."""
        self.guard_ns, self.parting = guard_ns, parting

    # -- what the worker does -----------------------------------------------------------------------------------------

    @property
    def attempting(self) -> bool:
        """Whether safe calls are to be attempted now, or under way."""
        return self.safe.due_ns == 0 or self.safe.busy

    @property
    def pending(self) -> bool:
        """Whether safe calls were demanded that are not in force yet."""
        return self.attempting or self.safe.wanted

    @property
    def over(self) -> bool:
        """Whether the world took no calls any more when they were demanded last."""
        return self.safe.over

    @property
    def done(self) -> bool:
        """Whether it is closed, and what is wanted was tried once."""
        safe = self.safe
        return self.closed and safe.round is None and (safe.number > 0 or not safe.wanted)

    @property
    def wake_ns(self) -> int | None:
        """When `next` may have an action by itself; None: not before something is called."""
        times = (self.safe.due_ns, self.safe.patience_ns, None if self.closed else self.guard_ns)
        return min((time_ns for time_ns in times if time_ns is not None), default=None)

    def next(self, now_ns: int) -> Action | None:
        """Return what to do now; None: nothing until `wake_ns`, or until something is called."""
        if self.done:
            return None
        if self.guard_ns is not None and now_ns >= self.guard_ns and not self.closed:
            self._take_over(now_ns)
        while (round_ := self.safe.open(now_ns)) is not None:
            if (action := self._of_round(round_, now_ns)) is not None:
                return action
            if round_ is self.safe.round:  # the attempt before is waited for
                break
        return None if self.closed else self._of_jobs(now_ns)

    def _take_over(self, now_ns: int) -> None:
        """The loop did not come back in time: nobody else will bring the safe calls in force."""
        self.guard_ns = None
        if (cleared := self.demand("loop", self.parting)) is not None:
            self._complete(cleared, "too_late", now_ns, now_ns)

    def _of_round(self, round_: Round, now_ns: int) -> Action | None:
        if round_.left is None:
            if round_.error is None and (emit := self._telling()) is not None:
                return emit
            if self.safe.start(now_ns):
                self._does(now_ns)
        return self._attempt(now_ns)

    def _telling(self) -> Emit | None:
        """What is told before the round's calls: all up to the emission of their demand."""
        safe = self.safe
        emit = safe.again
        safe.again = None
        if emit is None and safe.untold:
            emit = self.jobs.take_emission()
            safe.untold = emit is not None and emit.demand != safe.demand
        return emit

    def _of_jobs(self, now_ns: int) -> Action | None:
        while self.jobs:
            if self.safe.busy:
                return self.jobs.take_emission()
            job = self.jobs[0]
            if not isinstance(job, Perform):
                return self.jobs.popleft()
            command = job.command
            if command.shut is not None:
                self.jobs.popleft()
                self._complete(command, "refused", now_ns, now_ns)
                continue
            self._does(now_ns)
            if command is not self._looked and self.safe.look(now_ns):
                self._looked = command
                return self._attempt(now_ns)
            self._acting = command
            return self.jobs.popleft()
        return None

    def _attempt(self, now_ns: int) -> Attempt | None:
        attempt = self.safe.next_attempt(now_ns)
        self._did(now_ns)
        return attempt

    # -- results ------------------------------------------------------------------------------------------------------

    def confirmation(self, command: Command, effect: Effect | Literal["failed"]) -> Emit | None:
        """Return what the world is told of a call that acted: nothing after a bar, which must not come between."""
        if effect != "acted" or command.fresh is None or command.shut is not None:
            return None
        return Emit(command.fresh)

    def performed(
        self, command: Command, effect: Effect | Literal["failed"], error: BaseException | None, now_ns: int
    ) -> None:
        """A command ended so, or raised the `error`, or its emission did."""
        if error is not None:
            effect = "failed"
        elif command.fresh is not None and effect == "acted" and command.shut is not None:
            effect = "refused"  # the world was not told
        elif command.void is not None and effect == "epoch_over":
            self.jobs.appendleft(Emit(command.void))
        self._acting = self._looked = None
        self.doings[-1][1] = now_ns
        self._complete(command, effect, self.doings[-1][0], now_ns, error)

    def attempted(self, attempt: Attempt, result: AttemptResult, now_ns: int) -> None:
        """An attempt ended."""
        self.safe.ended(attempt, result, now_ns)
        self.news += 1
        self._did(now_ns)

    def sent(self, job: Emit | Instruct, error: BaseException | None) -> None:
        """The world was told, or raised the `error`."""
        round_ = self.safe.round
        if error is None:
            return
        if isinstance(job, Instruct):
            self._post(Fault("instruct", error))
        elif round_ is not None and job.demand == self.safe.demand:
            round_.error, self.safe.again = error, job
        else:
            self._post(Fault("emit", error))

    def _complete(
        self,
        command: Command,
        effect: Effect | Literal["failed"],
        began_ns: int,
        ended_ns: int,
        error: BaseException | None = None,
    ) -> None:
        stands = command.demand == self.safe.demand
        if effect == "acted" and stands:
            self.safe.replace(command.call.name)
        self._post(Completion(command.tick, effect, began_ns, ended_ns, stands, error))

    def _post(self, report: Report) -> None:
        self.effects.append(report)
        self.news += 1

    def _does(self, now_ns: int) -> None:
        """Calls are at work from now on."""
        if not (self.doings and self.doings[-1][1] == 0):
            self.doings.append([now_ns, 0])

    def _did(self, now_ns: int) -> None:
        """The safe calls are not at work any more, if so."""
        if self.doings and self.doings[-1][1] == 0 and not self.safe.busy:
            self.doings[-1][1] = now_ns
            self.news += 1
