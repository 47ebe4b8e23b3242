"""State machines that decide which calls reach the environment, and when. They use no thread, lock or clock.

The loop calls `execute`, `demand_safe_calls`, `emit`, `instruct` and `block` of `ActuatorCore`. The actuator's thread
gets an action from `next_action`, executes it, and reports the result to `record_command_result`,
`record_attempt_result` or `record_send_result`. `Actuator` (actuator.py) holds a lock in each of these calls. All
instants are nanoseconds of CLOCK_MONOTONIC.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from rtcontrol.envs.base import Effect, Emission
from rtcontrol.models.call import Call
from rtcontrol.records import Command, Completion, EnvironmentFault, Instruct, OperatorCommand, SafeAttempt, SafeState

EXIT_RETRY_NS = 50_000_000  # time between two attempts of a safe call at the end of a lockstep run
# A safe call that runs longer than this (PATIENCE_LOCKSTEP_NS in lockstep) makes the next start on another thread.
PATIENCE_NS, PATIENCE_LOCKSTEP_NS = 20_000_000, 1_000_000_000


@dataclass(slots=True, eq=False)
class SafeCall:
    """The state of one safe call. `call` is None if the agent has no safe call; then only an emission is sent.

    `wanted`: the call was demanded and is not active yet. `running`: an attempt is running. `acted_ns`, `number`: time
    and number of the attempt that acted, until the world has stepped; else None and 0."""

    call: Call | None
    wanted: bool = False
    running: bool = False
    acted_ns: int | None = None
    number: int = 0


@dataclass(frozen=True, slots=True)
class Attempt:
    """The action to execute a safe call (if `acted_ns` is None), and then to check whether the world has stepped.
    `threaded`: use a new thread. `error`: why the emission of the demand could not be sent."""

    safe: SafeCall
    demand: int
    why: str
    number: int
    acted_ns: int | None
    error: BaseException | None
    threaded: bool


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """The result of an Attempt. `stepped`: whether the world has stepped since the call acted (True for a world without
    steps; None if the world has ended before the next step)."""

    effect: Effect = "acted"
    acted_ns: int | None = None
    stepped: bool | None = True
    error: BaseException | None = None


@dataclass(slots=True)
class Emit:
    """The action to send an emission to the environment. `demand`: the number of the demand for safe calls that the
    emission announces (0: none)."""

    emission: Emission
    demand: int = 0


Action = Command | Attempt | Emit | Instruct
Report = Completion | SafeAttempt | EnvironmentFault | OperatorCommand


@dataclass(slots=True, eq=False)
class AttemptRound:
    """A round in which each wanted safe call is attempted once. `remaining`: calls whose attempt has not started, or
    None before the emission of the demand was sent. `error`: why this emission could not be sent. `last`: the call of
    the latest attempt, which started at `last_ns`."""

    remaining: deque[SafeCall] | None = None
    started_ns: int = 0
    error: BaseException | None = None
    last: SafeCall | None = None
    last_ns: int = 0


class SafeCalls:
    """The state machine that attempts the safe calls, from a demand until all of them are active.

    A safe call that fails is retried every `retry_ns` (None: at the next release) until it is active, or a newer call
    of the same tool acted. A call that acted is not executed again: a retry only checks whether the world has stepped.
    Several safe calls start in order, each on a new thread, so a call that hangs does not block the others. If the
    emission of a demand could not be sent, all attempts of the round count as failed.

    `demand`: number of demands so far; `number`: number of attempts since the last demand. `due_ns`: when the next
    round starts (0: at once). `emission_queued`: the emission of the demand is still in `ActuatorCore.jobs`;
    `unsent_emission`: this emission, if sending it failed. `world_over`: the world ended before a call could act."""

    def __init__(self, calls: Sequence[Call], retry_ns: int | None, post: Callable[[SafeAttempt], None]) -> None:
        self.calls = [SafeCall(call) for call in calls] or [SafeCall(None)]
        self._retry_ns, self._post_result = retry_ns, post
        self.demand = self.number = 0
        self._why = ""
        self.due_ns: int | None = None
        self.round: AttemptRound | None = None
        self.emission_queued = False
        self.unsent_emission: Emit | None = None
        self.world_over = self.active = False

    @property
    def wanted(self) -> bool:
        """Return whether a safe call was demanded and is not active yet."""
        return any(safe.wanted for safe in self.calls)

    @property
    def busy(self) -> bool:
        """Return whether an attempt is running or a round is open."""
        return self.round is not None or any(safe.running for safe in self.calls)

    @property
    def patience_ns(self) -> int | None:
        """Return until when the next attempt must wait for the running attempt, or None if it need not wait."""
        round_ = self.round
        if round_ is None or round_.last is None or not round_.last.running:
            return None
        return round_.last_ns + (PATIENCE_LOCKSTEP_NS if self._retry_ns is None else PATIENCE_NS)

    def start_demand(self, why: str, has_emission: bool) -> int:
        """Demand all safe calls, even active ones. Return the demand's number. `has_emission`: an emission precedes."""
        self._report_replaced(None)
        self.active = self.world_over = False
        self.round, self.number, self._why, self.emission_queued = None, 0, why, has_emission
        for safe in self.calls:
            safe.wanted = True
        self.due_ns = 0
        self.demand += 1
        return self.demand

    def drop_replaced(self, tool: str) -> None:
        """Drop the demand for the safe call of a tool, because a newer call of this tool acted."""
        self._report_replaced(tool)
        for safe in self.calls:
            if safe.call is None or safe.call.name == tool:
                safe.wanted = False
        if not self.wanted:
            self.due_ns = self.unsent_emission = None

    def _report_replaced(self, tool: str | None) -> None:
        """Report safe calls that acted, but were replaced before the world stepped. `tool`: the tool of the newer call
        that replaced them (any tool if there is only one safe call), or None for a newer demand."""
        for safe in self.calls:
            concerned = tool is None or len(self.calls) == 1 or (safe.call is not None and safe.call.name == tool)
            if concerned and safe.wanted and safe.acted_ns is not None:
                self._post_result(SafeAttempt(safe.call, self._why, safe.number, safe.acted_ns, False, True))
                safe.wanted, safe.acted_ns = False, None

    def open_round(self, now_ns: int) -> AttemptRound | None:
        """Return the current round, or a new round if its start is due, or None if there is no round."""
        if self.due_ns is not None and self.due_ns <= now_ns:
            self.round, self.due_ns = AttemptRound(), None
        return self.round

    def start_round(self, now_ns: int, only_acted: bool = False) -> bool:
        """Start a round of the wanted calls that are not running; with `only_acted`, of those that have acted. Return
        False if there are no such calls."""
        calls = [s for s in self.calls if s.wanted and not s.running and (s.acted_ns is not None or not only_acted)]
        self.number += any(safe.acted_ns is None for safe in calls)
        self.round = AttemptRound(deque(calls), now_ns, None if self.round is None else self.round.error)
        return bool(calls)

    def start_step_check(self, now_ns: int) -> bool:
        """Start a round that checks whether the world has stepped since safe calls acted. Return False without any."""
        acted = any(safe.wanted and safe.acted_ns is not None for safe in self.calls)
        return acted and self.start_round(now_ns, only_acted=True)

    def next_attempt(self, now_ns: int) -> Attempt | None:
        """Return the next attempt of the round, or None if it must wait or the round is over."""
        while (round_ := self.round) is not None and round_.remaining:
            if now_ns < (self.patience_ns or 0):
                return None
            safe = round_.remaining.popleft()
            safe.running = True
            round_.last, round_.last_ns = safe, now_ns
            number = self.number if safe.acted_ns is None else safe.number
            threaded = len(self.calls) > 1
            attempt = Attempt(safe, self.demand, self._why, number, safe.acted_ns, round_.error, threaded)
            if safe.call is not None:
                return attempt
            self.record_attempt(attempt, AttemptResult(), now_ns)  # nothing to execute: the list of safe calls is empty
        self._end_round(now_ns)
        return None

    def record_attempt(self, attempt: Attempt, result: AttemptResult, now_ns: int) -> None:
        """Handle the result of an attempt. After a newer demand, the call is attempted again."""
        safe, error = attempt.safe, result.error or attempt.error
        current, acted = attempt.demand == self.demand, result.effect == "acted"
        over = error is None and (not acted or result.stepped is None)
        waits = current and error is None and acted and result.stepped is False
        safe.acted_ns, safe.number = (result.acted_ns, attempt.number) if waits else (None, 0)
        if not current:
            self.due_ns = 0
        elif error is None and not waits:
            safe.wanted = False
            self.world_over |= over
        if not waits and (current or attempt.acted_ns is None):  # other results were reported by `_report_replaced`
            active = current and not self.wanted and not self.world_over
            self._post_result(SafeAttempt(safe.call, attempt.why, attempt.number, now_ns, active, acted, error, over))
        safe.running = False
        self._end_round(now_ns)

    def _end_round(self, now_ns: int) -> None:
        """End the round if all its attempts have started, and the last attempt has ended or has run for too long."""
        round_ = self.round
        started = round_ is not None and round_.remaining is not None and not round_.remaining
        if round_ is not None and started and now_ns >= (self.patience_ns or 0):
            self.round = None
            if self.wanted and self.due_ns is None and (self._retry_ns is not None or self._why == "exit"):
                self.due_ns = round_.started_ns + (self._retry_ns or EXIT_RETRY_NS)
        if not self.busy and not self.wanted and self.due_ns != 0:
            self.active = True


class ActuatorCore:
    """The state machine of the actuator. At most one command (a call to execute) waits. A newer command replaces it,
    and a demand for the safe calls removes it. Commands wait until the attempts of all safe calls have ended.

    `effects`: a queue of results for the loop. `change_count`: increases with each result or demand. `call_spans`:
    start and end (0: running) of the last calls. `block_reason`: why only safe calls may act, or None; commands that
    were requested before `open_ns` stay blocked. The watchdog: if the loop does not renew `guard_ns` (None: no limit)
    in time, the core demands the safe calls with `guard_emission`."""

    def __init__(self, safe_calls: Sequence[Call], retry_ns: int | None) -> None:
        self.effects: deque[Report] = deque()
        self.call_spans: deque[list[int]] = deque(maxlen=8)
        self.change_count = 0
        self.safe = SafeCalls(safe_calls, retry_ns, self._post_result)
        self.jobs: deque[Command | Emit | Instruct] = deque()  # a queue with at most one Command and one Instruct
        self.block_reason: str | None = None
        self.open_ns = 0
        self._running: Command | None = None
        self._checked_command: Command | None = None  # the command for which the step check is done
        self.guard_ns: int | None = None
        self.guard_emission: Emission | None = None
        self.closed = False

    # -- orders of other threads --------------------------------------------------------------------------------------

    def execute(self, command: Command) -> Command | None:
        """Enqueue a command. Return the waiting command that the new command replaced, or None."""
        replaced = self._drop_waiting()
        command.demand = self.safe.demand
        command.block_reason = self.block_reason or ("paused" if command.requested_ns < self.open_ns else None)
        self.jobs.append(command)
        return replaced

    def withdraw(self, tick: int) -> bool:
        """Drop the waiting command of `tick`. Return False if the command has started or ended."""
        waiting = self.waiting
        return waiting is not None and waiting.tick == tick and self._drop_waiting() is not None

    def block(self, why: str | None, now_ns: int) -> None:
        """Block all commands, even waiting and running ones. `why`: the reason, or None to allow newer requests."""
        self.block_reason = why
        if why is None:
            self.open_ns = now_ns
            return
        for command in (self._running, self.waiting):
            if command is not None:
                command.block_reason = why

    def demand_safe_calls(self, why: str, emission: Emission | None) -> Command | None:
        """Demand all safe calls, to start after the emission was sent. Return the dropped waiting command, or None."""
        cleared = self._drop_waiting()
        if self.safe.unsent_emission is not None:  # send the emission of the previous demand first
            self.jobs.appendleft(self.safe.unsent_emission)
            self.safe.unsent_emission = None
        number = self.safe.start_demand(why, emission is not None)
        self.change_count += 1
        if emission is not None:
            self.jobs.append(Emit(emission, number))
        return cleared

    def retry_safe_calls(self) -> bool:
        """Retry at once the safe calls that are not active. Return False if all safe calls are active."""
        if self.safe.wanted:
            self.safe.due_ns = 0
        return self.safe.wanted

    def emit(self, emission: Emission) -> None:
        self.jobs.append(Emit(emission))

    def instruct(self, text: str) -> None:
        """Enqueue a new instruction for the environment. It replaces a waiting instruction."""
        for job in [job for job in self.jobs if isinstance(job, Instruct)]:
            self.jobs.remove(job)
        self.jobs.append(Instruct(text))

    @property
    def waiting(self) -> Command | None:
        """Return the waiting command, if any."""
        return next((job for job in self.jobs if isinstance(job, Command)), None)

    def _drop_waiting(self) -> Command | None:
        """Remove and return the waiting command."""
        waiting = self.waiting
        if waiting is not None:
            self.jobs.remove(waiting)
        return waiting

    def _pop_emission(self) -> Emit | None:
        """Remove and return the first emission, unless a command comes before it."""
        for job in self.jobs:
            if isinstance(job, Command):
                break
            if isinstance(job, Emit):
                self.jobs.remove(job)
                return job
        return None

    # -- actions of the actuator's thread -----------------------------------------------------------------------------

    @property
    def state(self) -> SafeState:
        attempting = self.safe.due_ns == 0 or self.safe.busy
        return SafeState(attempting, attempting or self.safe.wanted)

    @property
    def done(self) -> bool:
        """Return whether the core is closed and has attempted all wanted safe calls once."""
        safe = self.safe
        return self.closed and safe.round is None and (safe.number > 0 or not safe.wanted)

    @property
    def wake_ns(self) -> int | None:
        """Return when to call `next_action` again, or None to wait for a call of the loop or a result."""
        times = (self.safe.due_ns, self.safe.patience_ns, None if self.closed else self.guard_ns)
        return min((time_ns for time_ns in times if time_ns is not None), default=None)

    def next_action(self, now_ns: int) -> Action | None:
        """Return the next action, or None to wait until `wake_ns`, for a call of the loop or for a result."""
        if self.done:
            return None
        if self.guard_ns is not None and now_ns >= self.guard_ns and not self.closed:
            self._demand_for_hanging_loop(now_ns)
        while (round_ := self.safe.open_round(now_ns)) is not None:
            if (action := self._next_round_action(round_, now_ns)) is not None:
                return action
            if round_ is self.safe.round:  # the next attempt must wait until the previous attempt has ended
                break
        return None if self.closed else self._next_job(now_ns)

    def _demand_for_hanging_loop(self, now_ns: int) -> None:
        """Demand the safe calls, because the loop hangs: it did not renew the watchdog (`guard_ns`) in time."""
        self.guard_ns = None
        if (cleared := self.demand_safe_calls("loop", self.guard_emission)) is not None:
            self._complete_command(cleared, "too_late", now_ns, now_ns)

    def _next_round_action(self, round_: AttemptRound, now_ns: int) -> Action | None:
        if round_.remaining is None:
            if round_.error is None and (emit := self._pop_demand_emission()) is not None:
                return emit
            if self.safe.start_round(now_ns):
                self._record_start(now_ns)
        return self._attempt(now_ns)

    def _pop_demand_emission(self) -> Emit | None:
        """Return the next emission to send before the round's safe calls, or None after the emission of the demand."""
        safe = self.safe
        emit = safe.unsent_emission
        safe.unsent_emission = None
        if emit is None and safe.emission_queued:
            emit = self._pop_emission()
            safe.emission_queued = emit is not None and emit.demand != safe.demand
        return emit

    def _next_job(self, now_ns: int) -> Action | None:
        while self.jobs:
            if self.safe.busy:
                return self._pop_emission()
            command = self.jobs[0]
            if not isinstance(command, Command):
                return self.jobs.popleft()
            if command.block_reason is not None:
                self.jobs.popleft()
                self._complete_command(command, "refused", now_ns, now_ns)
                continue
            self._record_start(now_ns)
            if command is not self._checked_command and self.safe.start_step_check(now_ns):
                self._checked_command = command
                return self._attempt(now_ns)
            self._running = command
            return self.jobs.popleft()
        return None

    def _attempt(self, now_ns: int) -> Attempt | None:
        attempt = self.safe.next_attempt(now_ns)
        self._record_end(now_ns)
        return attempt

    # -- results ------------------------------------------------------------------------------------------------------

    def call_emission(self, command: Command, effect: Effect | Literal["failed"]) -> Emit | None:
        """Return the emission for a call that acted, or None if calls were blocked meanwhile."""
        if effect != "acted" or command.fresh is None or command.block_reason is not None:
            return None
        return Emit(command.fresh)

    def record_command_result(
        self, command: Command, effect: Effect | Literal["failed"], error: BaseException | None, now_ns: int
    ) -> None:
        """Handle the result of a command. `error`: the exception of the command or its emission, or None."""
        if error is not None:
            effect = "failed"
        elif command.fresh is not None and effect == "acted" and command.block_reason is not None:
            effect = "refused"  # no emission was sent, so the remote environment did not receive the call
        elif command.void is not None and effect == "epoch_over":
            self.jobs.appendleft(Emit(command.void))
        self._running = self._checked_command = None
        self.call_spans[-1][1] = now_ns
        self._complete_command(command, effect, self.call_spans[-1][0], now_ns, error)

    def record_attempt_result(self, attempt: Attempt, result: AttemptResult, now_ns: int) -> None:
        """Handle the result of an attempt to execute a safe call."""
        self.safe.record_attempt(attempt, result, now_ns)
        self.change_count += 1
        self._record_end(now_ns)

    def record_send_result(self, job: Emit | Instruct, error: BaseException | None) -> None:
        """Handle the result of sending an emission or instruction. `error`: the exception, or None."""
        round_ = self.safe.round
        if error is None:
            return
        if isinstance(job, Instruct):
            self._post_result(EnvironmentFault("instruct", error))
        elif round_ is not None and job.demand == self.safe.demand:
            round_.error, self.safe.unsent_emission = error, job
        else:
            self._post_result(EnvironmentFault("emit", error))

    def _complete_command(
        self,
        command: Command,
        effect: Effect | Literal["failed"],
        started_ns: int,
        ended_ns: int,
        error: BaseException | None = None,
    ) -> None:
        current = command.demand == self.safe.demand
        if effect == "acted" and current:
            self.safe.drop_replaced(command.call.name)
        self._post_result(Completion(command.tick, effect, started_ns, ended_ns, current, error))

    def _post_result(self, report: Report) -> None:
        self.effects.append(report)
        self.change_count += 1

    def _record_start(self, now_ns: int) -> None:
        """Add a call that starts at `now_ns` to `call_spans`, unless another call is running."""
        if not (self.call_spans and self.call_spans[-1][1] == 0):
            self.call_spans.append([now_ns, 0])

    def _record_end(self, now_ns: int) -> None:
        """Set the end of the last span in `call_spans`, unless an attempt of a safe call is still running."""
        if self.call_spans and self.call_spans[-1][1] == 0 and not self.safe.busy:
            self.call_spans[-1][1] = now_ns
            self.change_count += 1
