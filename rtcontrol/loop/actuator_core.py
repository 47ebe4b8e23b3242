"""Decide what reaches the environment, and when: state machines without thread, lock, clock or environment.

`ActuatorCore` takes orders: `execute`, `demand`, `tell`, `instruct`, `bar`. One worker takes the `next` action, does it
and reports the result: `performed` of a Command, `attempted`, `sent`. The shell (actuator.py) holds a lock around every
use. Instants are CLOCK_MONOTONIC nanoseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from rtcontrol.envs.base import Effect, Emission
from rtcontrol.models.call import Call
from rtcontrol.records import Command, Completion, Fault, Instruct, OperatorCommand, SafeAttempt, SafeState

EXIT_RETRY_NS = 50_000_000  # between two attempts at the end of a run, where no clock of the world's says when
# So long one of several safe calls is waited for before the next one starts; and where the world waits.
PATIENCE_NS, PATIENCE_LOCKSTEP_NS = 20_000_000, 1_000_000_000


@dataclass(slots=True, eq=False)
class SafeCall:
    """One of the agent's safe calls (None: it has none, and the world only receives an emission). `wanted`: demanded
    and not active. While the world has yet to step with it: when it acted, and the `number` of that attempt."""

    call: Call | None
    wanted: bool = False
    under_way: bool = False
    acted_ns: int | None = None
    number: int = 0


@dataclass(frozen=True, slots=True)
class Attempt:
    """Execute a safe call, unless it has acted; then ask a stepping world to settle it. `threaded`: on its own thread;
    `error`: what sending its demand's emission raised."""

    safe: SafeCall
    demand: int
    why: str
    number: int
    acted_ns: int | None
    error: BaseException | None
    threaded: bool


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """The result of an attempt. `stepped`: what the world's `settle` returned; True where it has none."""

    effect: Effect = "acted"
    acted_ns: int | None = None
    stepped: bool | None = True
    error: BaseException | None = None


@dataclass(slots=True)
class Emit:
    """Send it to the world. `demand`: the demand of the safe calls that it is of."""

    emission: Emission
    demand: int = 0


Action = Command | Attempt | Emit | Instruct
Report = Completion | SafeAttempt | Fault | OperatorCommand


@dataclass(slots=True, eq=False)
class Round:
    """One attempt at each safe call that is wanted and not under way. `left` are to start; None: the emission comes
    first, and `error` is what that raised. `last` started last, at `last_ns`."""

    left: deque[SafeCall] | None = None
    started_ns: int = 0
    error: BaseException | None = None
    last: SafeCall | None = None
    last_ns: int = 0


class SafeCalls:
    """The safe calls, from a demand until they are active.

    One that fails is tried again every `retry_ns` (None: when the world has moved on) until it is active or a newer
    call of its tool acted. One that acted is not called again: the world is asked so often whether it has stepped with
    it. Several start in order, on a thread each: one that hangs or fails holds up none of the others. Where the
    emission could not be sent, its calls have failed too.

    `demand` counts demands, `number` the attempts since. `due_ns`: when the next round opens, 0 at once; `unsent`: the
    demand's emission waits among the jobs; `again`: it could not be sent. `over`: since the demand, the world took no
    calls any more, or made no step with one."""

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
        """Whether one was demanded that is not active."""
        return any(safe.wanted for safe in self.calls)

    @property
    def busy(self) -> bool:
        """Whether an attempt is under way, or a round open."""
        return self.round is not None or any(safe.under_way for safe in self.calls)

    @property
    def patience_ns(self) -> int | None:
        """Until when the attempt that started last holds up the next one; None: it does not."""
        round_ = self.round
        if round_ is None or round_.last is None or not round_.last.under_way:
            return None
        return round_.last_ns + (PATIENCE_LOCKSTEP_NS if self._retry_ns is None else PATIENCE_NS)

    def require(self, why: str, unsent: bool) -> int:
        """Demand all of them, whatever became of the demand before. Return the demand's number."""
        self._overtake(None)
        self.active = self.over = False
        self.round, self.number, self._why, self.unsent = None, 0, why, unsent
        for safe in self.calls:
            safe.wanted = True
        self.due_ns = 0
        self.demand += 1
        return self.demand

    def replace(self, tool: str) -> None:
        """Drop the safe call of this tool, of which a newer call acted."""
        self._overtake(tool)
        for safe in self.calls:
            if safe.call is None or safe.call.name == tool:
                safe.wanted = False
        if not self.wanted:
            self.due_ns = self.again = None

    def _overtake(self, tool: str | None) -> None:
        """Report the calls that acted and give way before the world stepped with them: to a newer call of the tool (of
        any tool, where there is one safe call), or to a newer demand (None)."""
        for safe in self.calls:
            concerned = tool is None or len(self.calls) == 1 or (safe.call is not None and safe.call.name == tool)
            if concerned and safe.wanted and safe.acted_ns is not None:
                self._post(SafeAttempt(safe.call, self._why, safe.number, safe.acted_ns, False, True))
                safe.wanted, safe.acted_ns = False, None

    def open(self, now_ns: int) -> Round | None:
        """Open a round if one is due. Return the round that is open."""
        if self.due_ns is not None and self.due_ns <= now_ns:
            self.round, self.due_ns = Round(), None
        return self.round

    def start(self, now_ns: int, looks: bool = False) -> bool:
        """Start a round of all that is wanted and not under way (`looks`: and acted); return whether there is any."""
        left = deque(s for s in self.calls if s.wanted and not s.under_way and (s.acted_ns is not None or not looks))
        self.number += any(safe.acted_ns is None for safe in left)
        self.round = Round(left, now_ns, None if self.round is None else self.round.error)
        return bool(left)

    def look(self, now_ns: int) -> bool:
        """Start a round that asks whether the world has stepped with the calls that acted; return whether any have."""
        acted = any(safe.wanted and safe.acted_ns is not None for safe in self.calls)
        return acted and self.start(now_ns, looks=True)

    def next_attempt(self, now_ns: int) -> Attempt | None:
        """Return the round's next attempt; None: the one before is waited for, or the round is over."""
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
            self.ended(attempt, AttemptResult(), now_ns)  # the emission was sent, which is all
        self._close(now_ns)
        return None

    def ended(self, attempt: Attempt, result: AttemptResult, now_ns: int) -> None:
        """An attempt ended. One of an older demand is made again for the newest."""
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
        if not waits and (current or attempt.acted_ns is None):  # else it was reported when it gave way
            active = current and not self.wanted and not self.over
            self._post(SafeAttempt(safe.call, attempt.why, attempt.number, now_ns, active, acted, error, over))
        safe.under_way = False
        self._close(now_ns)

    def _close(self, now_ns: int) -> None:
        """End the round once all its attempts have started, and the last one ended or was waited for."""
        round_ = self.round
        started = round_ is not None and round_.left is not None and not round_.left
        if round_ is not None and started and now_ns >= (self.patience_ns or 0):
            self.round = None
            if self.wanted and self.due_ns is None and (self._retry_ns is not None or self._why == "exit"):
                self.due_ns = round_.started_ns + (self._retry_ns or EXIT_RETRY_NS)
        if not self.busy and not self.wanted and self.due_ns != 0:
            self.active = True


class ActuatorCore:
    """What waits, what is under way, and the results. At most one command waits: the newest wins. A demand for the safe
    calls clears it, and they act first; other calls wait for all of them. Emissions are sent in order.

    `effects`: the results, in order, which the loop takes; `news` grows with each, with a demand, and when an attempt
    ends. `doings`: start and end (0: not yet) of the last calls. `shut`: why only the safe calls may act; what was
    requested before `open_ns` does not act. Where the loop is not back by `guard_ns` (None: no limit), the safe calls
    are demanded, and the world receives `parting`."""

    def __init__(self, safe_calls: Sequence[Call], retry_ns: int | None) -> None:
        self.effects: deque[Report] = deque()
        self.doings: deque[list[int]] = deque(maxlen=8)
        self.news = 0
        self.safe = SafeCalls(safe_calls, retry_ns, self._post)
        self.jobs: deque[Command | Emit | Instruct] = deque()  # in order; at most one command and one instruction
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
        replaced = self._clear()
        command.demand = self.safe.demand
        command.shut = self.shut or ("paused" if command.requested_ns < self.open_ns else None)
        self.jobs.append(command)
        return replaced

    def withdraw(self, tick: int) -> bool:
        """Drop the command of `tick`; False if it does not wait any more."""
        waiting = self.waiting
        return waiting is not None and waiting.tick == tick and self._clear() is not None

    def bar(self, why: str | None, now_ns: int) -> None:
        """Let no command act from now on, nor one that waits or is under way; None: those requested from now on may."""
        self.shut = why
        if why is None:
            self.open_ns = now_ns
            return
        for command in (self._acting, self.waiting):
            if command is not None:
                command.shut = why

    def demand(self, why: str, emission: Emission | None) -> Command | None:
        """Make each safe call active, after the emission. Return the command that waited: it is dropped."""
        cleared = self._clear()
        if self.safe.again is not None:  # of the demand before: it comes first
            self.jobs.appendleft(self.safe.again)
            self.safe.again = None
        number = self.safe.require(why, emission is not None)
        self.news += 1
        if emission is not None:
            self.jobs.append(Emit(emission, number))
        return cleared

    def retry(self) -> bool:
        """Try again at once what is not active; False if all is."""
        if self.safe.wanted:
            self.safe.due_ns = 0
        return self.safe.wanted

    def tell(self, emission: Emission) -> None:
        self.jobs.append(Emit(emission))

    def instruct(self, text: str) -> None:
        """Give the world its instruction; of several that wait, the newest."""
        for job in [job for job in self.jobs if isinstance(job, Instruct)]:
            self.jobs.remove(job)
        self.jobs.append(Instruct(text))

    @property
    def waiting(self) -> Command | None:
        """The command that waits."""
        return next((job for job in self.jobs if isinstance(job, Command)), None)

    def _clear(self) -> Command | None:
        """Remove the command that waits, and return it."""
        waiting = self.waiting
        if waiting is not None:
            self.jobs.remove(waiting)
        return waiting

    def _take_emission(self) -> Emit | None:
        """Remove and return the first emission that no command comes before."""
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
        """The loop did not come back in time: demand the safe calls in its place."""
        self.guard_ns = None
        if (cleared := self.demand("loop", self.parting)) is not None:
            self._complete(cleared, "too_late", now_ns, now_ns)

    def _of_round(self, round_: Round, now_ns: int) -> Action | None:
        if round_.left is None:
            if round_.error is None and (emit := self._emission_first()) is not None:
                return emit
            if self.safe.start(now_ns):
                self._does(now_ns)
        return self._attempt(now_ns)

    def _emission_first(self) -> Emit | None:
        """Return what is sent before the round's calls: all up to the emission of their demand."""
        safe = self.safe
        emit = safe.again
        safe.again = None
        if emit is None and safe.unsent:
            emit = self._take_emission()
            safe.unsent = emit is not None and emit.demand != safe.demand
        return emit

    def _of_jobs(self, now_ns: int) -> Action | None:
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
        """Return what the world receives of a call that acted: nothing after a bar, which must not come between."""
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
            effect = "refused"  # the world did not receive it
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
        """The world received it, or raised the `error`."""
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

    def _does(self, now_ns: int) -> None:
        """Calls are at work from now on."""
        if not (self.doings and self.doings[-1][1] == 0):
            self.doings.append([now_ns, 0])

    def _did(self, now_ns: int) -> None:
        """The safe calls are not at work any more, if so."""
        if self.doings and self.doings[-1][1] == 0 and not self.safe.busy:
            self.doings[-1][1] = now_ns
            self.news += 1
