"""The control loop without a clock: events and `now_ns` in, actions out. The code follows a tick from top to bottom.

    release -> observe -> request -> wait -> check -> dispatch -> execute -> settle, or miss -> account

If an action has an answer, the runner (`runner.py`, or the simulation) answers with an event before any other event.
The core needs `Woke` at `wake_ns` if no other event comes before.

To limit what may act, change `_dispatch`, which every call passes. To add a cause of misses, name it in
`telemetry.causes`; if the loop detects the cause itself, call `_miss` with it; if the cause follows from times, add a
rule in `attribution`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rtcontrol import records as ev
from rtcontrol.envs.base import Acknowledgement, Observation
from rtcontrol.hosts.protocol import DecisionReply
from rtcontrol.loop.active import FallbackPolicy, FallbackState, Instructions, Measure, Requests, Status
from rtcontrol.loop.attribution import Evidence, Witness
from rtcontrol.loop.grid import ReleaseGrid
from rtcontrol.loop.ledger import Describe, Ledger, Line, LineSlot, cut_fields, to_ms
from rtcontrol.loop.operator import ConfidenceMonitor, OperatorGate
from rtcontrol.models.call import Call, Decision
from rtcontrol.telemetry.causes import Cause

IMMUTABLE = frozenset({bool, int, float, str, type(None)})
GAVE_WAY = "the call could not begin, and gave way to the safe call"
SLACK_NS = 1_000_000_000
TOO_LATE = "the call was too late when the world was free for it"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """The numeric settings of a run. `pipeline`: how many decisions may run at once. `records`: the record keeps
    observations. `emits`: the world receives an emission of each tick. `steady`: there is hysteresis. `cuts`: do not
    request a further call that would be too late."""

    instruction: str
    hz: float
    period_ns: int
    deadline_ns: int
    max_age_ns: int
    hold_ns: int
    confirm_ns: int = 10_000_000_000
    duration_ns: int | None = None
    pipeline: int = 1
    calls_per_tick: int = 1
    on_miss: str = "hold"
    records: bool = True
    emits: bool = False
    steady: bool = False
    cuts: bool = True

    @property
    def guard_ns(self) -> int:
        """Return how long the loop may be away after a release, so that a call is not held longer than allowed."""
        return 2 * self.period_ns + (self.hold_ns if self.on_miss == "hold" else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of an agent. `check` returns a legal call, ready to act, and its text; it raises ValueError for any
    other. `doubt` returns why a decision must not act, `confirm` has the tools that wait for a yes. Requests show the
    last `history` calls. `describe` returns an exception's text and place, `plain` a copy of a value for the record."""

    check: Callable[[Call], tuple[Call, str]]
    describe: Describe
    plain: Callable[[Any], Any]
    safe_calls: tuple[Call, ...] = ()
    doubt: Callable[[Decision], ev.Doubt | None] | None = None
    confirm: frozenset[str] = frozenset()
    history: int = 0
    goals: Any = None


@dataclass(slots=True, eq=False)
class OpenMiss:
    """A tick that missed and is not recorded yet, because it waits for evidence until `until_ns` at most. Its `line`
    will be recorded at `slot`; `measure` is what the fallback does."""

    outcome: ev.TickOutcome
    slot: LineSlot
    line: Line
    end_ns: int
    measure: Measure = "none"
    evidence: Evidence | None = None
    until_ns: int = 0


@dataclass(slots=True)
class Outstanding:
    """All open work: ticks whose decision is `pending` or `late`, calls that the actuator has (`ordered`), and `misses`
    not yet recorded. `newest_k`: the last release; `ordered_k`: the newest tick with an ordered call. `called`: a call
    was ordered after the last demand for the safe call, so it may act, or may have acted and raised an error."""

    pending: dict[int, ev.Tick] = field(default_factory=dict)
    late: dict[int, ev.Tick] = field(default_factory=dict)
    ordered: dict[int, ev.OrderedCall] = field(default_factory=dict)
    misses: dict[int, OpenMiss] = field(default_factory=dict)
    newest_k: int = -1
    ordered_k: int = -1
    called: bool = False

    def unsettled(self) -> list[ev.OrderedCall]:
        """Return the ordered calls whose tick is not over."""
        return [order for order in self.ordered.values() if not (order.settled or order.late)]


@dataclass(slots=True)
class World:
    """The core's knowledge of the world, the decoder's host and the safe calls. `tick`: the newest tick, or the one
    whose further call is requested. `observation` (of `epoch`): the newest one; `runs`: the schedstat files at the
    tick's release. `retried`: the safe call was retried at this release. `stopped`: no further tick starts; `left`:
    only the safe call may act.
    """

    host: ev.HostChanged = field(default_factory=ev.HostChanged)
    safe: ev.SafeState = field(default_factory=lambda: ev.SafeState(False, False))
    started_ns: int = 0  # in the world's time
    tick: ev.Tick | None = None
    observation: Observation | None = None
    epoch: int = -1
    runs: tuple[bytes, ...] = ()
    retried: bool = False
    stopped: bool = False
    left: bool = False


class LoopCore:
    """The state machine of one run's control loop."""

    def __init__(self, settings: LoopSettings, rules: Rules, grid: ReleaseGrid) -> None:
        self.settings, self.rules, self.grid = settings, rules, grid
        self.now_ns = 0
        self.out: list[ev.Action] = []
        self.world, self.outstanding = World(), Outstanding()
        policy = FallbackPolicy(settings.on_miss, settings.hold_ns)
        self.fallback = FallbackState(policy, settings.emits, rules.safe_calls)
        self.ledger = Ledger(self.out, rules.describe)
        self.witness = Witness(grid.enforced)
        monitor = ConfidenceMonitor(settings.hz, self.out)
        self.operator = OperatorGate(self.out, self.ledger, rules.doubt, rules.confirm, settings.confirm_ns, monitor)
        instructions = Instructions(settings.instruction, self.out, self.ledger, rules.goals)
        self.requests = Requests(instructions, rules.history, policy if settings.steady else None)

    def advance(self, event: ev.Event, now_ns: int) -> Sequence[ev.Action]:
        """Handle an event at `now_ns`. Return the actions in order, in a list that the next event clears."""
        self.now_ns = now_ns
        if self.out:
            self.out.clear()
        HANDLERS[type(event)](self, event)
        return self.out

    @property
    def open(self) -> list[ev.Tick]:
        """Return the ticks that are not over."""
        outstanding = self.outstanding
        ticks = [*outstanding.pending.values(), *(order.tick for order in outstanding.unsettled())]
        return [tick for tick in ticks if not tick.calls]

    @property
    def busy(self) -> bool:
        """Return whether open work may still end."""
        outstanding = self.outstanding
        return bool(
            outstanding.pending or outstanding.ordered or (self.world.safe.attempting and not self.grid.enforced)
        )

    @property
    def awaits_late(self) -> bool:
        """Return whether a miss waits for the reply to its tick."""
        return any(k in self.outstanding.late for k in self.outstanding.misses)

    @property
    def wake_ns(self) -> int | None:
        """Return by when the core needs `Woke` if no other event comes, or None for any time soon."""
        grid, outstanding = self.grid, self.outstanding
        if not grid.enforced:
            waits = self.busy or (grid.waits and not self.world.host.alive)
            return None if waits else self.now_ns
        first = grid.next_release_ns
        expires_ns = self.fallback.policy.expires_ns
        if expires_ns is not None and expires_ns < first:
            first = expires_ns
        for tick in outstanding.pending.values():
            if tick.deadline_ns < first:
                first = tick.deadline_ns
        for order in outstanding.ordered.values():
            if order.tick.deadline_ns < first and not (order.overdue or order.late):
                first = order.tick.deadline_ns
        for miss in outstanding.misses.values():
            if miss.until_ns < first:
                first = miss.until_ns
        return first

    def slack_ns(self, now_ns: int) -> int:
        """Return the nanoseconds until something is due."""
        if self.busy:
            return 0
        # In lockstep time does not matter, and the next arrival may have come already.
        return self.grid.next_release_ns - now_ns if self.grid.enforced else SLACK_NS * self.grid.waits

    @property
    def _world_ns(self) -> int:
        return self.grid.world_ns(self.now_ns)

    # -- release -------------------------------------------------------------------------------------------------------

    def _on_woke(self, event: ev.Woke) -> None:
        if not self.ledger.t0_ns:
            self.ledger.t0_ns, self.world.started_ns = self.grid.start(self.now_ns)
            self.ledger.write({"origin_ns": self.ledger.t0_ns})
            self.fallback.policy.epoch(self.world.started_ns)
        self._expire()
        self._release()

    def _on_advanced(self, event: ev.Advanced) -> None:
        self.grid.advanced(event.due_ns)
        if event.due_ns is not None:
            self._release()

    def _release(self) -> None:
        """Start a tick, if the next release is due."""
        grid, world = self.grid, self.world
        due = grid.due(self.now_ns)
        if world.stopped:
            return
        if grid.enforced:
            if due:
                self._start_tick()
        elif self.busy:
            return
        elif not due:
            if world.host.alive or not grid.waits:
                self.out.append(ev.Advance(self.settings.period_ns))
        elif world.safe.pending and not world.retried:
            world.retried = True  # the safe call first
            self.out.append(ev.Retry())
        else:
            world.retried = False
            self._start_tick()

    def _start_tick(self) -> None:
        world, settings, enforced = self.world, self.settings, self.grid.enforced
        if settings.duration_ns is not None and self._world_ns - world.started_ns >= settings.duration_ns:
            self._stop("duration")
            return
        tick = world.tick = self._take(self.now_ns, self.now_ns)
        if enforced or self.fallback.emits:
            guard_ns = tick.woke_ns + settings.guard_ns if enforced else None
            self.out.append(ev.Guard(guard_ns, self.fallback.parting(tick) if self.fallback.emits else None))
        self.out.append(ev.Observe(self._skipped_ns(tick) if tick.skip else None))

    def _take(self, due_ns: int, woke_ns: int) -> ev.Tick:
        """Return a new tick for the release that was due at `due_ns`."""
        k, release_ns, skipped = self.grid.take(due_ns)
        tick = ev.Tick(k, release_ns, release_ns + self.settings.deadline_ns, woke_ns)
        tick.incarnation = self.world.host.incarnation
        if skipped:
            tick.skip = {"skipped": skipped}
        return tick

    def _skipped_ns(self, tick: ev.Tick) -> int:
        """Return the first release that was skipped before the tick's."""
        return tick.release_ns - int(tick.skip["skipped"]) * self.settings.period_ns

    def _sample(self, tick: ev.Tick, event: ev.Observed | ev.Overdue) -> None:
        """Store the evidence at the tick's release, and why earlier releases did not start."""
        world = self.world
        tick.runs_before, tick.runs, world.runs = world.runs, event.runs, event.runs
        if tick.skip:
            tick.skip |= self.witness.skip_fields(tick, self._skipped_ns(tick), event.sample)

    # -- observe -------------------------------------------------------------------------------------------------------

    def _on_observed(self, event: ev.Observed) -> None:
        tick = self.world.tick
        assert tick is not None, "it was started"
        if event.finished:
            self._stop("episodes")
            return
        self.outstanding.newest_k = tick.k
        self._sample(tick, event)
        if self.requests.instructions.waiting:
            self.requests.instructions.change(self.now_ns)
        if event.acks:
            self._acknowledge(event.acks)
        if self.operator.asking is not None:
            self.operator.expire(self.now_ns)
        self._look(tick, event)

    def _look(self, tick: ev.Tick, event: ev.Observed) -> None:
        """Request a decision for the observation if it is fresh enough and a decoder is available."""
        world, enforced, observation = self.world, self.grid.enforced, event.observation
        if observation is None:
            self._miss(tick, (Cause.NO_OBSERVATION, "none_yet"))
            return
        captured_ns, before, world.observation = observation.t_capture_ns, world.observation, observation
        # In a world that waits, an observation from before the first release counts as made at that release.
        tick.capture_ns = captured_ns if enforced else max(captured_ns, self.ledger.t0_ns)
        tick.seq, tick.epoch = observation.seq, observation.epoch
        if before is not None:
            tick.superseded = max(observation.seq - before.seq - 1, 0)
        if observation.epoch != world.epoch:
            world.epoch = observation.epoch
            self.requests.history.clear()
            self.ledger.ended(event.episodes)
            self.fallback.policy.epoch(self.grid.world_ns(tick.woke_ns))
        if event.acknowledged is not None:
            self.requests.acknowledge(event.acknowledged)
        if self.now_ns - tick.woke_ns > self.settings.period_ns // 8:  # or the next release is late
            self.witness.texts.append((tick.woke_ns, self.now_ns))
        if enforced and tick.woke_ns - captured_ns > self.settings.max_age_ns:
            frozen = before is not None and observation.seq == before.seq
            self._miss(tick, (Cause.STALE_OBSERVATION, "frozen" if frozen else "late"))
            return
        if event.error is None:
            tick.text_ns = self.now_ns
        if not world.host.alive or (enforced and self.now_ns > tick.deadline_ns):
            self._miss(tick, None)
        elif event.error is not None:  # raised by the agent's code
            self._miss(tick, (Cause.NO_OBSERVATION, "unreadable"), error=event.error, doing="observe: ")
        else:
            tick.request = self.requests.make(tick.k, observation, event.text, tick.deadline_ns - tick.woke_ns)
            tick.behind = len(self.outstanding.pending) + len(self.outstanding.late) >= self.settings.pipeline
            self.out.append(tick.request)

    # -- request -------------------------------------------------------------------------------------------------------

    def _on_sent(self, event: ev.Sent) -> None:
        tick, observation = self.world.tick, self.world.observation
        assert tick is not None and observation is not None, "a request was sent"
        if event.error is not None:  # this error costs the tick, not the run
            self._miss(tick, (Cause.DECIDE, "send"), error=event.error, doing="submit: ")
            return
        tick.submitted_ns = self.now_ns
        self.outstanding.pending[tick.k] = tick
        if self.settings.records and not tick.calls:
            data = snapshot(observation.data, self.rules.plain)
            self.ledger.observed(tick.request, observation, tick.capture_ns, data)

    # -- wait ----------------------------------------------------------------------------------------------------------

    def _expire(self) -> None:
        """End everything that is over by now: deadlines, holds and misses; in lockstep only a dead decoder's
        decisions."""
        enforced, now, outstanding, host = self.grid.enforced, self.now_ns, self.outstanding, self.world.host
        for tick in tuple(outstanding.pending.values()):
            lost = not host.alive or host.incarnation != tick.incarnation
            if now >= tick.deadline_ns if enforced else lost:
                del outstanding.pending[tick.k]
                self._expect_late(tick)
                self._miss(tick, None)
        for miss in tuple(outstanding.misses.values()):
            if miss.evidence is not None and now >= miss.until_ns:
                self._close(miss, self.witness.again(miss.outcome.tick, miss.evidence))
        overdue = [order for order in outstanding.unsettled() if enforced and now >= order.tick.deadline_ns]
        for order in overdue:
            if not order.overdue:
                order.overdue = True
                self.out.append(ev.Withdraw(order.tick.k))
        if not overdue:
            self._expire_hold()

    def _expire_hold(self) -> None:
        """Demand the safe call if a call has been held for too long, also between two ticks."""
        policy = self.fallback.policy
        ends_ns = policy.expires_ns
        if ends_ns is None:
            return
        idle = not (self.outstanding.pending or self.outstanding.ordered)
        if not (self.now_ns >= ends_ns if self.grid.enforced else idle):
            return
        measure = policy.expire(self._world_ns)
        # A call that failed since the safe call took over may have acted in part.
        if measure == "safe" or (measure == "none" and self.outstanding.called):
            self._demand("miss", self.fallback.parting(), self.outstanding.newest_k)

    def _expect_late(self, tick: ev.Tick) -> None:
        self.out.append(ev.Cancel(tick.k))
        if tick.incarnation != self.world.host.incarnation:
            return  # the reply was lost with its decoder
        late = self.outstanding.late
        late[tick.k] = tick
        while len(late) > 2 * self.settings.pipeline:
            del late[min(late)]

    def _on_reply(self, reply: DecisionReply) -> None:
        outstanding = self.outstanding
        if self.world.left and reply.tick not in outstanding.late:
            return  # no further release
        if outstanding.late:
            oldest = reply.tick - self.settings.pipeline
            for k in [k for k in outstanding.late if k <= oldest]:
                del outstanding.late[k]  # cancelled before its decision started, or lost with its decoder
        tick = outstanding.pending.pop(reply.tick, None)
        answered = tick or outstanding.late.get(reply.tick)
        if answered is not None:
            self._take_reply(answered, reply)
        if reply.gaps:
            self.witness.gaps = reply.gaps
        if tick is None:
            self._drop(outstanding.late.pop(reply.tick, None), reply)
        elif self.grid.enforced and self.now_ns > tick.deadline_ns:
            self._miss(tick, None, reply)
            self._drop(tick, reply)
        else:
            self._check(tick, reply)

    def _take_reply(self, tick: ev.Tick, reply: DecisionReply) -> None:
        instructions = self.requests.instructions
        if instructions.proven != instructions.now:
            unsure = reply.decision is not None and self.operator.unsure(reply.decision)
            instructions.judge(tick, reply, unsure, self.now_ns)
        tick.replied_ns = self.now_ns
        if (older := reply.answers) is not None:  # the call belongs to that observation
            tick.seq, tick.capture_ns, tick.requested_ns = older.seq, older.captured_ns, older.captured_ns

    def _drop(self, tick: ev.Tick | None, reply: DecisionReply) -> None:
        """Drop a decision that came after its deadline."""
        for waiting in self.outstanding.pending.values():
            waiting.behind = len(self.outstanding.late) >= self.settings.pipeline
        if tick is not None and tick.calls:
            return  # the further call was cut
        self.ledger.late(tick, reply, None, self.now_ns)
        if tick is not None:
            self._complete(tick, reply)

    # -- check ---------------------------------------------------------------------------------------------------------

    def _check(self, tick: ev.Tick, reply: DecisionReply) -> None:
        """Dispatch the call of a decision unless a rule holds it back."""
        decision = reply.decision
        if decision is None:
            self._miss(tick, (Cause.DECIDE, reply.loss or "error"), reply, error=reply.error)
        elif (why := self.operator.holds(tick, decision)) is not None:
            self._hold(tick, reply, decision.call, why)
        elif decision.call is None:
            self.fallback.policy.renew(self._world_ns)
            self._tell(tick, "fresh", reply)
            self._settle(ev.TickOutcome(tick, "null", reply), reply)
        elif tick.k < self.outstanding.ordered_k:
            self._leave_out("overtaken", tick, reply, decision.call)
        elif tick.calls and decision.call.text() in tick.calls:
            self._leave_out("repeated", tick, reply, decision.call)
        else:
            self._dispatch(tick, reply, decision.call, tick.deadline_ns if self.grid.enforced else None)

    def _hold(self, tick: ev.Tick, reply: DecisionReply, call: Call | None, why: str) -> None:
        """Settle a tick whose decision must not act, or not yet."""
        if why == "state":
            self._withhold(tick, reply, call)
            return
        if why == "confirm" and call is not None:
            self.operator.ask(tick, reply, call, self.now_ns)
        # The active call continues without being renewed.
        measure: Measure = "hold" if tick.calls else self.fallback.policy.unsure(self._world_ns)
        self._settle(ev.TickOutcome(tick, "held", reply, None if call is None else call.text(), why=why), reply)
        self._fall_back(measure, tick, reply=reply)

    def _withhold(self, tick: ev.Tick, reply: DecisionReply, call: Call | None) -> None:
        """Withhold a call while operators hold calls back. Only the safe call acts, also in a new episode."""
        if self.fallback.policy.safe:
            self._tell(tick, "safe", reply)
        else:
            self._suspend(tick.k)
            self._demand("pause", self.fallback.emission(tick, "safe", reply=reply), tick.k)
        why = self.operator.state if self.operator.state != "running" else "paused"
        self._settle(ev.TickOutcome(tick, "held", reply, None if call is None else call.text(), why=why), reply)

    def _leave_out(self, kind: str, tick: ev.Tick, reply: DecisionReply, call: Call) -> None:
        self._tell(tick, "held", reply)
        self._settle(ev.TickOutcome(tick, kind, reply, call.text()), reply)

    # -- dispatch ------------------------------------------------------------------------------------------------------

    def _dispatch(
        self, tick: ev.Tick, reply: DecisionReply, call: Call, not_after_ns: int | None, late: bool = False
    ) -> None:
        """Let a call act if the agent's rules allow the call. Every call passes here, also a confirmed one (`late`: its
        tick is over), so limits of range, step, rate and dwell belong here."""
        try:
            ready, text = self.rules.check(call)
        except ValueError as error:
            if late:
                self.ledger.late(tick, reply, None, self.now_ns)
            else:
                self._miss(tick, (Cause.INVALID, None), reply, error=str(error), call=call.text())
            return
        self._execute(ev.OrderedCall(tick, reply, call, text, late, ordered_ns=self.now_ns), ready, not_after_ns)

    # -- execute -------------------------------------------------------------------------------------------------------

    def _execute(self, order: ev.OrderedCall, ready: Call, not_after_ns: int | None) -> None:
        """Pass a call to the actuator. The result of the call will settle the tick."""
        tick, outstanding = order.tick, self.outstanding
        command = ev.Command(tick.k, ready, tick.epoch, not_after_ns, requested_ns=tick.requested_ns or tick.woke_ns)
        if self.fallback.emits:
            last = order.late or len(tick.calls) + 1 == self.settings.calls_per_tick
            command.fresh = self.fallback.emission(tick, "fresh", order.call, order.reply, more=not last)
            command.void = None if order.late else self.fallback.emission(tick, "held", None, order.reply)
        outstanding.ordered[tick.k] = order
        outstanding.ordered_k, outstanding.called = max(outstanding.ordered_k, tick.k), True
        self.out.append(command)

    def _on_gave_way(self, event: ev.GaveWay) -> None:
        """Handle the drop of a call that waited for the world, in favour of a newer call or the safe call."""
        if self.world.left:
            return  # a waiting call does not count as a release when the run ends
        order = self.outstanding.ordered.pop(event.k)
        newer = event.to == "call"
        if order.late:
            self.ledger.late(order.tick, order.reply, None, self.now_ns)
        elif newer and self.now_ns - order.ordered_ns < max(self.settings.period_ns // 4, 1_000_000):
            self._leave_out("overtaken", order.tick, order.reply, order.call)
        else:  # the world is busy
            self._overrun(order, "the call could not begin, and gave way to a newer one" if newer else GAVE_WAY)

    def _on_withdrawn(self, event: ev.Withdrawn) -> None:
        """Handle a deadline that passed before the call ended. The call was dropped if it had not started."""
        order = self.outstanding.ordered.get(event.k)
        if order is not None and not order.settled:
            if event.dropped:
                del self.outstanding.ordered[event.k]
                self._overrun(order, "the call could not start by its deadline, and was dropped")
            elif not self.fallback.emits:  # a world that does not block has sent the call already
                order.settled = True
                self._overrun(order, "the call has not ended by its deadline", "slow")
        self._expire_hold()

    def _overrun(self, order: ev.OrderedCall, error: str, subcause: str = "busy") -> None:
        self._miss(order.tick, (Cause.EXECUTE, subcause), order.reply, error=error, call=order.text)

    def _on_completion(self, done: ev.Completion) -> None:
        order = self.outstanding.ordered.pop(done.tick)
        tick, reply, acted = order.tick, order.reply, done.effect == "acted"
        if acted:
            self._record_active(order, done)
        if order.late:
            self.ledger.late(tick, reply, done, self.now_ns)
        elif order.settled:
            self.ledger.overran(order, done)
            if not tick.calls:
                self._complete(tick, reply, done)
        elif done.effect == "refused":
            self._withhold(tick, reply, order.call)
        elif acted or done.effect == "epoch_over":
            self._settle(ev.TickOutcome(tick, "call" if acted else "epoch_over", reply, order.text, done), reply)
            if acted and self.settings.calls_per_tick > 1:
                self._ask_further(order, done)
        else:
            error = done.error or (GAVE_WAY if done.ended_ns < tick.deadline_ns else TOO_LATE)
            fault = (Cause.EXECUTE, "busy" if done.error is None else "raised")
            self._miss(tick, fault, reply, error=error, call=order.text, done=done)

    def _record_active(self, order: ev.OrderedCall, done: ev.Completion) -> None:
        """Record that the call is active from now on."""
        tick, call = order.tick, order.call
        if done.current:
            self.fallback.policy.fresh_call(done.ended_ns if self.grid.enforced else self._world_ns)
        self.requests.acted(tick, call, order.text)
        why = "late" if order.late else "further" if tick.calls else "fresh"
        self.ledger.called(call, tick.k, tick.epoch, why, done.ended_ns)

    def _ask_further(self, order: ev.OrderedCall, done: ev.Completion) -> None:
        """Request the tick's next call (`calls_per_tick`) for the same observation and deadline, unless the safe call
        was demanded meanwhile. The call is cut if the decoder is lost, or if less time is left than the last decision
        took, since it would be too late and would delay the next tick."""
        last, settings, now = order.tick, self.settings, self.now_ns
        if len(last.calls) + 1 == settings.calls_per_tick or not done.current:
            return
        if self.operator.state != "running" or self.world.stopped:
            return
        history = (*last.request.history, order.text)[-(self.rules.history or 1) :]
        request = replace(last.request, history=history, within_ns=last.deadline_ns - now)
        tick = replace(last, calls=(*last.calls, order.text), replied_ns=0, request=request)
        took_ns = last.replied_ns - last.submitted_ns
        if (settings.cuts and now + took_ns > tick.deadline_ns) or not self.world.host.alive:
            self._miss(tick, None)
        else:
            self.world.tick = tick
            self.out.append(request)

    # -- settle, or miss -----------------------------------------------------------------------------------------------

    def _settle(self, outcome: ev.TickOutcome, reply: DecisionReply) -> None:
        """Settle a tick that has its decision, and its call if there is one. It is on time unless the call was late."""
        tick, done = outcome.tick, outcome.done
        end_ns = done.ended_ns if done is not None else self.now_ns
        line = self.ledger.decided_line(outcome, reply, end_ns, self.settings.period_ns if self.grid.enforced else 0)
        if end_ns <= tick.deadline_ns:
            if not tick.calls and outcome.kind != "epoch_over":  # this call did nothing, so its time is not a usual one
                self.witness.on_time.append(line["spans_ms"])
            self.ledger.write(line)
            return
        if tick.calls:
            self.ledger.write(line | {"over": True})
        else:
            self._judge(OpenMiss(outcome, self.ledger.reserve(), line, end_ns))
        if self.settings.on_miss == "stop":
            self._stop("miss")

    def _miss(
        self, tick: ev.Tick, fault: ev.KnownCause | None, reply: DecisionReply | None = None, **more: Any
    ) -> None:
        """Settle a tick that has no call in time. `fault` is what the loop itself detected, `more` are outcome
        fields."""
        outcome = ev.TickOutcome(tick, "miss", reply, fault=fault, **more)
        line = self.ledger.tick_line(outcome)
        if tick.calls:
            self._cut(outcome, line)
            return
        measure = self.fallback.policy.miss(self._world_ns)
        self._judge(OpenMiss(outcome, self.ledger.reserve(), line, self.now_ns, measure))

    def _cut(self, outcome: ev.TickOutcome, line: Line) -> None:
        """End the further calls of a tick. The last call continues, unless a further one started and failed, which may
        have acted in part."""
        line |= cut_fields(outcome)
        cause = line.get("cause")
        failed = cause == Cause.EXECUTE.value
        measure: Measure = self.fallback.policy.miss(self._world_ns) if failed else "hold"
        self._follow_up(outcome, line, measure, cause)
        self.ledger.write(line)

    def _judge(self, miss: OpenMiss) -> None:
        tick, fault = miss.outcome.tick, miss.outcome.fault
        self.outstanding.misses[tick.k] = miss
        stale = fault is not None and fault[0] is Cause.STALE_OBSERVATION
        self.out.append(ev.TakeSample(tick.k, tick.capture_ns if stale else tick.release_ns))

    def _on_sample(self, event: ev.Sampled) -> None:
        miss = self.outstanding.misses.get(event.k)
        if miss is None:
            return
        evidence = self.witness.of_miss(miss.outcome, event.sample, self.world.host, miss.end_ns)
        if miss.outcome.kind == "miss":
            self._follow_up(miss.outcome, miss.line, miss.measure, evidence.verdict.cause.value)
        if self._expects(miss, evidence):
            miss.evidence, miss.until_ns = evidence, self.now_ns + self.settings.period_ns
        else:
            self._close(miss, evidence)

    def _follow_up(self, outcome: ev.TickOutcome, line: Line, measure: Measure, cause: str | None) -> None:
        """Apply the fallback policy to a miss. An emitting world receives the cause that is known now."""
        tick, reply, fault = outcome.tick, outcome.reply, outcome.fault
        if cause is not None:
            self.ledger.put_error(line, outcome.error, f"tick {tick.k}: {cause}: ", outcome.doing)
        # A remote world executes no call here, so the reason why a call waited does not concern it.
        local = tick.calls or (fault is not None and fault[0] is Cause.EXECUTE)
        line["action"] = self._fall_back(measure, tick, cause, reply, None if local else line.get("error"))
        if reply is not None and fault is not None:
            line["decide_ms"] = to_ms(reply.decide_ns)

    def _expects(self, miss: OpenMiss, evidence: Evidence) -> bool:
        """Return whether the tick's reply, or the end of its call, may still change the cause."""
        k, outstanding = miss.outcome.tick.k, self.outstanding
        comes = k in outstanding.late or (k in outstanding.ordered and outstanding.ordered[k].settled)
        return comes and self.grid.enforced and evidence.open and not self.world.left

    def _complete(self, tick: ev.Tick, reply: DecisionReply, done: ev.Completion | None = None) -> None:
        """Judge the miss of a tick again if all steps of the tick are known now and the miss waits for them."""
        miss = self.outstanding.misses.get(tick.k)
        if miss is not None and miss.evidence is not None:
            self._close(miss, self.witness.again(tick, miss.evidence, reply, done))

    def _close(self, miss: OpenMiss, evidence: Evidence) -> None:
        """Record the miss with its cause."""
        del self.outstanding.misses[miss.outcome.tick.k]
        self.ledger.fill(miss.slot, miss.line | evidence.fields())

    def _fall_back(
        self,
        measure: Measure,
        tick: ev.Tick,
        cause: str | None = None,
        reply: DecisionReply | None = None,
        error: str | None = None,
    ) -> str:
        """Apply a measure, and inform the world. Return the record's name for the measure: `none` if the safe call is
        active since an earlier tick, `pending` if it was demanded and is not active yet."""
        if measure == "stop":
            self._stop("miss")
        emission = self.fallback.emission(tick, "held" if measure == "hold" else "safe", None, reply, cause, error)
        if measure == "safe" or (measure == "none" and self.outstanding.called):
            self._demand("miss", emission, tick.k)
            return "pending" if measure == "none" else measure
        if emission is not None:
            self.out.append(emission)
        return "pending" if measure == "none" and self.world.safe.pending else measure

    def _demand(self, why: str, emission: Any, k: int) -> None:
        """Demand the safe call because of tick `k`."""
        self.ledger.safe_k, self.outstanding.called = k, False
        self.world.safe = ev.SafeState(True, True)
        self.out.append(ev.Safe(why, emission))

    def _tell(self, tick: ev.Tick, status: Status, reply: DecisionReply) -> None:
        """Inform an emitting world of a tick without a call."""
        if self.fallback.emits and (emission := self.fallback.emission(tick, status, reply=reply)) is not None:
            self.out.append(emission)

    def _suspend(self, k: int) -> None:
        """Record that operators hold calls back, and that the safe call was demanded at tick `k`."""
        self.fallback.policy.suspend(self._world_ns, self.operator.state != "running")
        self.ledger.safe_k = k

    # -- account: what else happens to a run ---------------------------------------------------------------------------

    def _on_command(self, command: ev.OperatorCommand) -> None:
        """Handle an operator's command. A pause or stop has already shut the actuator."""
        confirmed = self.operator.commanded(command, self.now_ns)
        if command.word in ("pause", "stop"):
            self.outstanding.called = False
            self._suspend(self.outstanding.newest_k)
        elif command.word == "resume":
            self.fallback.policy.suspended = False
        if confirmed is not None:
            self._dispatch(confirmed.tick, confirmed.reply, confirmed.call, confirmed.expires_ns, late=True)
        self.out.append(ev.LoopReport("changed"))

    def _on_host_changed(self, state: ev.HostChanged) -> None:
        self.world.host = state
        if len(state.events) != self.ledger.events:
            self.ledger.host_events(state.events)
            late = self.outstanding.late.values()
            self.outstanding.late = {tick.k: tick for tick in late if tick.incarnation == state.incarnation}
        if state.gave_up is not None and not self.world.stopped:
            self.out.append(ev.Notify(f"no more decisions: {state.gave_up}"))
            self._stop("host")

    def _acknowledge(self, acks: deque[Acknowledgement]) -> None:
        """Take the acknowledgements of a client, except those for calls whose tick is not over."""
        taken = [acks.popleft() for _ in range(len(acks))]  # the client may add more meanwhile
        self.requests.carried_out(taken)
        for ack in taken:
            if ack.tick in self.outstanding.ordered:
                acks.append(ack)
            else:
                self.ledger.acknowledged(ack)

    # -- the end -------------------------------------------------------------------------------------------------------

    def _stop(self, why: str) -> None:
        self.world.stopped = True
        self.out.append(ev.Stop(why))

    def _on_left(self, event: ev.Left) -> None:
        """Handle the end of the ticks. From here on only the safe call may act."""
        self.world.stopped = self.world.left = True
        self.operator.state = "stopped"
        self.operator.drop(self.now_ns)
        self._demand("exit", self.fallback.parting(), self.outstanding.newest_k)

    def _on_overdue(self, event: ev.Overdue) -> None:
        """Count releases that were due before the run ended as missed, because the loop was away."""
        due_ns = event.t_ns - self.settings.period_ns
        if not (self.ledger.t0_ns and self.grid.enforced and self.grid.due(due_ns)):
            return
        self._suspend(self.outstanding.newest_k)
        tick = self._take(due_ns, event.t_ns)
        self._sample(tick, event)
        self._miss(tick, None)
        self.outstanding.misses[tick.k].end_ns = event.t_ns  # later replies do not belong to this miss

    def _on_closed(self, event: ev.Closed) -> None:
        for miss in tuple(self.outstanding.misses.values()):
            evidence = miss.evidence
            if evidence is None:  # an interrupt came before the sample of this miss
                evidence = self.witness.of_miss(miss.outcome, ev.EvidenceSample(), self.world.host, miss.end_ns)
            self._close(miss, self.witness.again(miss.outcome.tick, evidence))
        if event.acks:
            self.outstanding.ordered.clear()  # no result of these calls will come any more
            self._acknowledge(event.acks)
        self.ledger.ended(event.episodes)
        self.ledger.finish()


def snapshot(data: Any, plain: Callable[[Any], Any]) -> Any:
    """Return a plain copy of an observation's data, since the world may change it, and large arrays take memory."""
    if isinstance(data, dict) and IMMUTABLE.issuperset(map(type, data.values())):
        return data.copy()
    return plain(data)


HANDLERS: dict[type, Callable[[LoopCore, Any], None]] = {
    ev.Woke: LoopCore._on_woke,
    ev.Advanced: LoopCore._on_advanced,
    ev.Observed: LoopCore._on_observed,
    ev.Sent: LoopCore._on_sent,
    DecisionReply: LoopCore._on_reply,
    ev.GaveWay: LoopCore._on_gave_way,
    ev.Withdrawn: LoopCore._on_withdrawn,
    ev.Completion: LoopCore._on_completion,
    ev.Sampled: LoopCore._on_sample,
    ev.OperatorCommand: LoopCore._on_command,
    ev.HostChanged: LoopCore._on_host_changed,
    ev.SafeState: lambda core, state: setattr(core.world, "safe", state),
    ev.SafeAttempt: lambda core, attempt: core.ledger.attempted(attempt),
    ev.Fault: lambda core, fault: core.ledger.fault(fault, core.now_ns),
    ev.Instructed: lambda core, event: core.requests.instructions.waiting.append(event.text),
    ev.Stopped: lambda core, event: core._stop(event.why),
    ev.Left: LoopCore._on_left,
    ev.Overdue: LoopCore._on_overdue,
    ev.Closed: LoopCore._on_closed,
}
