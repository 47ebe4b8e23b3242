"""Decide which calls reach the environment, and when, in state machines without thread, lock, clock or environment.

`ActuatorCore` takes orders: `execute`, `demand`, `tell`, `instruct`, `bar`. One worker takes the `next` action,
executes it and reports the result: `performed` for a Command, `attempted` or `sent`. The shell (actuator.py) holds a
lock around every use. Instants are CLOCK_MONOTONIC nanoseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from rtcontrol.envs.base import Effect, Emission
from rtcontrol.models.call import Call
from rtcontrol.records import Command, Completion, Fault, Instruct, OperatorCommand, SafeAttempt, SafeState

EXIT_RETRY_NS = 50_000_000  # between two attempts at the end of a run, if no world clock gives the time
# How long one of several safe calls may hold up the next one, in real time and in lockstep.
PATIENCE_NS, PATIENCE_LOCKSTEP_NS = 20_000_000, 1_000_000_000


@dataclass(slots=True, eq=False)
class SafeCall:
    """A safe call of the agent (None: the agent has none, and the world only receives an emission). `wanted`: the call
    is demanded and not active. Until the world has made a step with the call: when it acted, and the `number` of that
    attempt."""

    call: Call | None
    wanted: bool = False
    under_way: bool = False
    acted_ns: int | None = None
    number: int = 0


@dataclass(frozen=True, slots=True)
class Attempt:
    """The action to execute a safe call unless it has acted, and then to ask a stepping world to settle it. `threaded`:
    use a separate thread; `error`: the error from sending the emission of the demand."""

    safe: SafeCall
    demand: int
    why: str
    number: int
    acted_ns: int | None
    error: BaseException | None
    threaded: bool


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """The result of an attempt. `stepped`: what the world's `settle` returned, or True if it has no `settle`."""

    effect: Effect = "acted"
    acted_ns: int | None = None
    stepped: bool | None = True
    error: BaseException | None = None


@dataclass(slots=True)
class Emit:
    """The action to send an emission to the world. `demand`: the number of the safe calls' demand that it belongs
    to."""

    emission: Emission
    demand: int = 0


Action = Command | Attempt | Emit | Instruct
Report = Completion | SafeAttempt | Fault | OperatorCommand


@dataclass(slots=True, eq=False)
class Round:
    """A round of attempts, one for each safe call that is wanted and not being attempted. `left` are still to start;
    None: the emission comes first, and `error` is its error. `last` is the latest attempt, which started at
    `last_ns`."""

    left: deque[SafeCall] | None = None
    started_ns: int = 0
    error: BaseException | None = None
    last: SafeCall | None = None
    last_ns: int = 0


class SafeCalls:
    """The state of the safe calls, from a demand until they are active.

    A safe call that fails is tried again every `retry_ns` (None: when the world has moved on) until it is active or a
    newer call of its tool acted. A call that acted is not repeated: each retry only checks whether the world has made a
    step with it. Several calls start in order, each on a thread, so that a call that hangs or fails does not hold up
    the others. If the emission could not be sent, its calls count as failed, too.

    `demand` counts demands, `number` the attempts since then. `due_ns`: when the next round opens (0: at once);
    `unsent`: the emission of the demand waits among the jobs; `again`: that emission could not be sent. `over`: since
    the demand, the world took no calls any more, or made no step with a call."""

    def __init__(self, calls: Sequence[Call], retry_ns: int | None, post: Callable[[SafeAttempt], None]) -> None:
        self.calls = [SafeCall(call) for call in calls] or [SafeCall(None)]
        self._retry_ns, self._post = retry_ns, post
        self.demand = self.number = 0
        self._why = ""
        self.due_ns: int | None = None
        self.round: Round | None = None
        self.unsent = False
        self.again: Emit | None = None
        self.over = self.active = False

    @property
    def wanted(self) -> bool:
        """Return whether a demanded safe call is not active."""
        return any(safe.wanted for safe in self.calls)

    @property
    def busy(self) -> bool:
        """Return whether an attempt is running or a round is open."""
        return self.round is not None or any(safe.under_way for safe in self.calls)

    @property
    def patience_ns(self) -> int | None:
        """Return until when the latest attempt holds up the next one, or None if it does not."""
        round_ = self.round
        if round_ is None or round_.last is None or not round_.last.under_way:
            return None
        return round_.last_ns + (PATIENCE_LOCKSTEP_NS if self._retry_ns is None else PATIENCE_NS)

    def require(self, why: str, unsent: bool) -> int:
        """Demand all safe calls again, regardless of the previous demand. Return the number of the demand."""
        self._overtake(None)
        self.active = self.over = False
        self.round, self.number, self._why, self.unsent = None, 0, why, unsent
        for safe in self.calls:
            safe.wanted = True
        self.due_ns = 0
        self.demand += 1
        return self.demand

    def replace(self, tool: str) -> None:
        """Drop the safe call of a tool after a newer call of this tool acted."""
        self._overtake(tool)
        for safe in self.calls:
            if safe.call is None or safe.call.name == tool:
                safe.wanted = False
        if not self.wanted:
            self.due_ns = self.again = None

    def _overtake(self, tool: str | None) -> None:
        """Report safe calls that acted, but were replaced before the world stepped with them: by a newer call of the
        tool (of any tool, if there is only one safe call), or by a newer demand (None)."""
        for safe in self.calls:
            concerned = tool is None or len(self.calls) == 1 or (safe.call is not None and safe.call.name == tool)
            if concerned and safe.wanted and safe.acted_ns is not None:
                self._post(SafeAttempt(safe.call, self._why, safe.number, safe.acted_ns, False, True))
                safe.wanted, safe.acted_ns = False, None

    def open(self, now_ns: int) -> Round | None:
        """Open a round if one is due. Return the open round, if any."""
        if self.due_ns is not None and self.due_ns <= now_ns:
            self.round, self.due_ns = Round(), None
        return self.round

    def start(self, now_ns: int, looks: bool = False) -> bool:
        """Start a round of all wanted calls that are not being attempted (with `looks`: and that acted); return if
        there are any."""
        left = deque(s for s in self.calls if s.wanted and not s.under_way and (s.acted_ns is not None or not looks))
        self.number += any(safe.acted_ns is None for safe in left)
        self.round = Round(left, now_ns, None if self.round is None else self.round.error)
        return bool(left)

    def look(self, now_ns: int) -> bool:
        """Start a round that checks whether the world has stepped with the calls that acted; return if any did."""
        acted = any(safe.wanted and safe.acted_ns is not None for safe in self.calls)
        return acted and self.start(now_ns, looks=True)

    def next_attempt(self, now_ns: int) -> Attempt | None:
        """Return the next attempt of the round, or None if the previous one holds it up or the round is over."""
        while (round_ := self.round) is not None and round_.left:
            if now_ns < (self.patience_ns or 0):
                return None
            safe = round_.left.popleft()
            safe.under_way = True
            round_.last, round_.last_ns = safe, now_ns
            number = self.number if safe.acted_ns is None else safe.number
            threaded = len(self.calls) > 1
            attempt = Attempt(safe, self.demand, self._why, number, safe.acted_ns, round_.error, threaded)
            if safe.call is not None:
                return attempt
            self.ended(attempt, AttemptResult(), now_ns)  # without a safe call, sending the emission is enough
        self._close(now_ns)
        return None

    def ended(self, attempt: Attempt, result: AttemptResult, now_ns: int) -> None:
        """Handle the end of an attempt. An attempt for an older demand is repeated for the newest demand."""
        safe, error = attempt.safe, result.error or attempt.error
        current, acted = attempt.demand == self.demand, result.effect == "acted"
        over = error is None and (not acted or result.stepped is None)
        waits = current and error is None and acted and result.stepped is False
        safe.acted_ns, safe.number = (result.acted_ns, attempt.number) if waits else (None, 0)
        if not current:
            self.due_ns = 0
        elif error is None and not waits:
            safe.wanted = False
            self.over |= over
        if not waits and (current or attempt.acted_ns is None):  # otherwise it was reported when it was replaced
            active = current and not self.wanted and not self.over
            self._post(SafeAttempt(safe.call, attempt.why, attempt.number, now_ns, active, acted, error, over))
        safe.under_way = False
        self._close(now_ns)

    def _close(self, now_ns: int) -> None:
        """End the round if all its attempts have started, and the last one has ended or used up its time."""
        round_ = self.round
        started = round_ is not None and round_.left is not None and not round_.left
        if round_ is not None and started and now_ns >= (self.patience_ns or 0):
            self.round = None
            if self.wanted and self.due_ns is None and (self._retry_ns is not None or self._why == "exit"):
                self.due_ns = round_.started_ns + (self._retry_ns or EXIT_RETRY_NS)
        if not self.busy and not self.wanted and self.due_ns != 0:
            self.active = True


class ActuatorCore:
    """The state machine of the actuator: waiting and running work, and the results. At most one command waits, the
    newest. A demand for the safe calls removes the waiting command; the safe calls act first, and other calls wait for
    all of them. Emissions are sent in order.

    `effects`: the results in order, which the loop removes; `news` grows with each result or demand, and when an
    attempt ends. `doings`: start and end (0: not yet) of the last calls. `shut`: why only the safe calls may act; a
    call that was requested before `open_ns` does not act. If the loop is not back by `guard_ns` (None: no limit), the
    core demands the safe calls, and the world receives `parting`."""

    def __init__(self, safe_calls: Sequence[Call], retry_ns: int | None) -> None:
        self.effects: deque[Report] = deque()
        self.doings: deque[list[int]] = deque(maxlen=8)
        self.news = 0
        self.safe = SafeCalls(safe_calls, retry_ns, self._post)
        self.jobs: deque[Command | Emit | Instruct] = deque()  # in order, with at most one command and one instruction
        self.shut: str | None = None
        self.open_ns = 0
        self._acting: Command | None = None
        self._looked: Command | None = None  # before this instant the world was asked whether it has stepped
        self.guard_ns: int | None = None
        self.parting: Emission | None = None
        self.closed = False

    # -- orders -------------------------------------------------------------------------------------------------------

    def execute(self, command: Command) -> Command | None:
        """Let a command wait for execution. Return the command that waited until now, which is dropped."""
        replaced = self._clear()
        command.demand = self.safe.demand
        command.shut = self.shut or ("paused" if command.requested_ns < self.open_ns else None)
        self.jobs.append(command)
        return replaced

    def withdraw(self, tick: int) -> bool:
        """Drop the command of `tick`. Return False if the command does not wait any more."""
        waiting = self.waiting
        return waiting is not None and waiting.tick == tick and self._clear() is not None

    def bar(self, why: str | None, now_ns: int) -> None:
        """Let no command act from now on, including waiting and running ones. None: commands that are requested from
        now on may act."""
        self.shut = why
        if why is None:
            self.open_ns = now_ns
            return
        for command in (self._acting, self.waiting):
            if command is not None:
                command.shut = why

    def demand(self, why: str, emission: Emission | None) -> Command | None:
        """Demand that all safe calls become active, after the emission. Return the dropped command."""
        cleared = self._clear()
        if self.safe.again is not None:  # the emission of the previous demand comes first
            self.jobs.appendleft(self.safe.again)
            self.safe.again = None
        number = self.safe.require(why, emission is not None)
        self.news += 1
        if emission is not None:
            self.jobs.append(Emit(emission, number))
        return cleared

    def retry(self) -> bool:
        """Retry at once the safe calls that are not active. Return False if all are active."""
        if self.safe.wanted:
            self.safe.due_ns = 0
        return self.safe.wanted

    def tell(self, emission: Emission) -> None:
        self.jobs.append(Emit(emission))

    def instruct(self, text: str) -> None:
        """Give the world a new instruction, which replaces a waiting one."""
        for job in [job for job in self.jobs if isinstance(job, Instruct)]:
            self.jobs.remove(job)
        self.jobs.append(Instruct(text))

    @property
    def waiting(self) -> Command | None:
        """Return the waiting command, if any."""
        return next((job for job in self.jobs if isinstance(job, Command)), None)

    def _clear(self) -> Command | None:
        """Remove the waiting command, and return it."""
        waiting = self.waiting
        if waiting is not None:
            self.jobs.remove(waiting)
        return waiting

    def _take_emission(self) -> Emit | None:
        """Remove and return the first emission, unless a command comes before it."""
        for job in self.jobs:
            if isinstance(job, Command):
                break
            if isinstance(job, Emit):
                self.jobs.remove(job)
                return job
        return None

    # -- what the worker does -----------------------------------------------------------------------------------------

    @property
    def state(self) -> SafeState:
        attempting = self.safe.due_ns == 0 or self.safe.busy
        return SafeState(attempting, attempting or self.safe.wanted)

    @property
    def done(self) -> bool:
        """Return whether the core is closed and all wanted safe calls were tried once."""
        safe = self.safe
        return self.closed and safe.round is None and (safe.number > 0 or not safe.wanted)

    @property
    def wake_ns(self) -> int | None:
        """Return when `next` may have an action by itself, or None if only an order or a result can lead to one."""
        times = (self.safe.due_ns, self.safe.patience_ns, None if self.closed else self.guard_ns)
        return min((time_ns for time_ns in times if time_ns is not None), default=None)

    def next(self, now_ns: int) -> Action | None:
        """Return the next action, or None if there is none until `wake_ns`, an order or a result."""
        if self.done:
            return None
        if self.guard_ns is not None and now_ns >= self.guard_ns and not self.closed:
            self._take_over(now_ns)
        while (round_ := self.safe.open(now_ns)) is not None:
            if (action := self._next_of_round(round_, now_ns)) is not None:
                return action
            if round_ is self.safe.round:  # the previous attempt holds up the next one
                break
        return None if self.closed else self._next_of_jobs(now_ns)

    def _take_over(self, now_ns: int) -> None:
        """Demand the safe calls, because the loop did not come back in time."""
        self.guard_ns = None
        if (cleared := self.demand("loop", self.parting)) is not None:
            self._complete(cleared, "too_late", now_ns, now_ns)

    def _next_of_round(self, round_: Round, now_ns: int) -> Action | None:
        if round_.left is None:
            if round_.error is None and (emit := self._emission_first()) is not None:
                return emit
            if self.safe.start(now_ns):
                self._record_start(now_ns)
        return self._attempt(now_ns)

    def _emission_first(self) -> Emit | None:
        """Return what to send before the round's calls: all emissions up to the one of their demand."""
        safe = self.safe
        emit = safe.again
        safe.again = None
        if emit is None and safe.unsent:
            emit = self._take_emission()
            safe.unsent = emit is not None and emit.demand != safe.demand
        return emit

    def _next_of_jobs(self, now_ns: int) -> Action | None:
        while self.jobs:
            if self.safe.busy:
                return self._take_emission()
            command = self.jobs[0]
            if not isinstance(command, Command):
                return self.jobs.popleft()
            if command.shut is not None:
                self.jobs.popleft()
                self._complete(command, "refused", now_ns, now_ns)
                continue
            self._record_start(now_ns)
            if command is not self._looked and self.safe.look(now_ns):
                self._looked = command
                return self._attempt(now_ns)
            self._acting = command
            return self.jobs.popleft()
        return None

    def _attempt(self, now_ns: int) -> Attempt | None:
        attempt = self.safe.next_attempt(now_ns)
        self._record_end(now_ns)
        return attempt

    # -- results ------------------------------------------------------------------------------------------------------

    def confirmation(self, command: Command, effect: Effect | Literal["failed"]) -> Emit | None:
        """Return the emission for a call that acted, or None after a bar, which the call must not pass."""
        if effect != "acted" or command.fresh is None or command.shut is not None:
            return None
        return Emit(command.fresh)

    def performed(
        self, command: Command, effect: Effect | Literal["failed"], error: BaseException | None, now_ns: int
    ) -> None:
        """Handle the result of a command. `error` is what the command or its emission raised."""
        if error is not None:
            effect = "failed"
        elif command.fresh is not None and effect == "acted" and command.shut is not None:
            effect = "refused"  # the world did not receive the call
        elif command.void is not None and effect == "epoch_over":
            self.jobs.appendleft(Emit(command.void))
        self._acting = self._looked = None
        self.doings[-1][1] = now_ns
        self._complete(command, effect, self.doings[-1][0], now_ns, error)

    def attempted(self, attempt: Attempt, result: AttemptResult, now_ns: int) -> None:
        """Handle the result of an attempt."""
        self.safe.ended(attempt, result, now_ns)
        self.news += 1
        self._record_end(now_ns)

    def sent(self, job: Emit | Instruct, error: BaseException | None) -> None:
        """Handle the result of a job that was sent to the world. `error` is what the world raised."""
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
        current = command.demand == self.safe.demand
        if effect == "acted" and current:
            self.safe.replace(command.call.name)
        self._post(Completion(command.tick, effect, began_ns, ended_ns, current, error))

    def _post(self, report: Report) -> None:
        self.effects.append(report)
        self.news += 1

    def _record_start(self, now_ns: int) -> None:
        """Record that calls are running from now on."""
        if not (self.doings and self.doings[-1][1] == 0):
            self.doings.append([now_ns, 0])

    def _record_end(self, now_ns: int) -> None:
        """Record the end of the running safe calls, if no attempt is running any more."""
        if self.doings and self.doings[-1][1] == 0 and not self.safe.busy:
            self.doings[-1][1] = now_ns
            self.news += 1
