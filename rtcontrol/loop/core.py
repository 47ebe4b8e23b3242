"""The state machine of the control loop. It reads no clock: events and `now_ns` go in, actions come out.

A tick starts at its release. The methods of LoopCore are in the order of a tick's steps:

    release -> observe -> request -> wait -> check -> dispatch -> execute -> settle, or miss -> account

LoopRunner (`runner.py`), or the simulation, executes the actions. The result of an action is passed to the core as the
next event. Without an event before `wake_ns`, the runner must send TimerFired at `wake_ns`.

To restrict calls, change `_dispatch`, which handles every call. To add a cause of misses, add it to
`telemetry.causes`. Then pass the cause to `_miss` where the loop detects it, or add a rule to `attribution.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rtcontrol import records as ev
from rtcontrol.envs.base import Acknowledgement, Observation
from rtcontrol.hosts.protocol import DecisionReply
from rtcontrol.loop.active import EmissionBuilder, FallbackPolicy, Instructions, Measure, RequestBuilder, Status
from rtcontrol.loop.attribution import Evidence, EvidenceCollector
from rtcontrol.loop.grid import ReleaseGrid
from rtcontrol.loop.ledger import Describe, Ledger, Line, LineSlot, cut_fields, to_ms
from rtcontrol.loop.operator import ConfidenceMonitor, OperatorGate
from rtcontrol.models.call import Call, Decision
from rtcontrol.telemetry.causes import Cause

IMMUTABLE = frozenset({bool, int, float, str, type(None)})
PREEMPTED = "the call could not start, and was preempted by the {} call"
SLACK_NS = 1_000_000_000
TOO_LATE = "the environment was busy until after the deadline of the call"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """The settings of a run for LoopCore. `pipeline`: how many decisions may run at once. `emits`: the environment
    receives an emission (the result of a tick) for each tick. `cut_late_calls`: do not request a further call of a tick
    if the call would miss the deadline."""

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
    record_observations: bool = True
    emits: bool = False
    hysteresis: bool = False
    cut_late_calls: bool = True

    @property
    def guard_ns(self) -> int:
        """Return how long the loop may hang after a release before the actuator's watchdog demands the safe calls."""
        return 2 * self.period_ns + (self.hold_ns if self.on_miss == "hold" else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of an agent. `check` validates a call, and returns the call with converted arguments, and its text; it
    raises ValueError for an invalid call. `doubt` returns which confidence is too low for a decision to act, or None.
    `confirm`: names of tools that need an operator's approval. `history`: how many earlier calls a request contains.
    `describe` returns the text and the code line of an exception. `plain` copies a value for the record. `goals`: a
    GoalTools."""

    check: Callable[[Call], tuple[Call, str]]
    describe: Describe
    plain: Callable[[Any], Any]
    safe_calls: tuple[Call, ...] = ()
    doubt: Callable[[Decision], ev.LowConfidence | None] | None = None
    confirm: frozenset[str] = frozenset()
    history: int = 0
    goals: Any = None


@dataclass(slots=True, eq=False)
class UnrecordedMiss:
    """A missed tick that waits for evidence of its cause until `until_ns`. Then `line` is recorded in `slot`.
    `measure`: the fallback policy's measure for the miss."""

    outcome: ev.TickOutcome
    slot: LineSlot
    line: Line
    end_ns: int
    measure: Measure = "none"
    evidence: Evidence | None = None
    until_ns: int = 0


@dataclass(slots=True)
class UnfinishedWork:
    """Unfinished work, by tick number. `pending`: requests without a reply; `late`: the same after the deadline;
    `ordered`: calls that the actuator has not finished; `misses`: misses that are not recorded yet.

    `newest_k`: the tick of the last release; `ordered_k`: the newest tick with an ordered call. `called_since_demand`:
    a call was ordered after the last demand for the safe calls, so this call may have replaced them."""

    pending: dict[int, ev.Tick] = field(default_factory=dict)
    late: dict[int, ev.Tick] = field(default_factory=dict)
    ordered: dict[int, ev.OrderedCall] = field(default_factory=dict)
    misses: dict[int, UnrecordedMiss] = field(default_factory=dict)
    newest_k: int = -1
    ordered_k: int = -1
    called_since_demand: bool = False

    def unsettled(self) -> list[ev.OrderedCall]:
        """Return the ordered calls whose tick has no result yet."""
        return [order for order in self.ordered.values() if not (order.settled or order.late)]


@dataclass(slots=True)
class RunContext:
    """The state of the environment, the decoder's host and the safe calls, as LoopCore knows it. `tick`: the newest
    tick, or the tick whose further call is being requested. `observation`: the newest observation, of episode `epoch`.
    `schedstats`: the threads' schedstat files at the last release. `retried`: the safe calls were retried at this
    release. `stopped`: no further tick starts. `exiting`: the run is ending, so only the safe calls may act."""

    host: ev.HostChanged = field(default_factory=ev.HostChanged)
    safe: ev.SafeState = field(default_factory=lambda: ev.SafeState(False, False))
    started_ns: int = 0  # start of the run, in the world's time
    tick: ev.Tick | None = None
    observation: Observation | None = None
    epoch: int = -1
    schedstats: tuple[bytes, ...] = ()
    retried: bool = False
    stopped: bool = False
    exiting: bool = False


class LoopCore:
    """The state machine of one run's control loop, with the steps of a tick in order."""

    def __init__(self, settings: LoopSettings, rules: Rules, grid: ReleaseGrid) -> None:
        self.settings, self.rules, self.grid = settings, rules, grid
        self.now_ns = 0
        self.out: list[ev.Action] = []
        self.world, self.outstanding = RunContext(), UnfinishedWork()
        policy = FallbackPolicy(settings.on_miss, settings.hold_ns)
        self.fallback = EmissionBuilder(policy, settings.emits, rules.safe_calls)
        self.ledger = Ledger(self.out, rules.describe)
        self.evidence_collector = EvidenceCollector(grid.enforced)
        monitor = ConfidenceMonitor(settings.hz, self.out)
        self.operator = OperatorGate(self.out, self.ledger, rules.doubt, rules.confirm, settings.confirm_ns, monitor)
        instructions = Instructions(settings.instruction, self.out, self.ledger, rules.goals)
        self.requests = RequestBuilder(instructions, rules.history, policy if settings.hysteresis else None)

    def advance(self, event: ev.Event, now_ns: int) -> Sequence[ev.Action]:
        """Handle an event at `now_ns`. Return the actions to execute, in order. The next call clears this list."""
        self.now_ns = now_ns
        if self.out:
            self.out.clear()
        EVENT_HANDLERS[type(event)](self, event)
        return self.out

    @property
    def open_ticks(self) -> list[ev.Tick]:
        """Return the ticks that have no result yet."""
        outstanding = self.outstanding
        ticks = [*outstanding.pending.values(), *(order.tick for order in outstanding.unsettled())]
        return [tick for tick in ticks if not tick.calls]

    @property
    def busy(self) -> bool:
        """Return whether a decision, a call or (in lockstep) a safe call is still pending."""
        outstanding = self.outstanding
        waits_for_safe = self.world.safe.attempting and not self.grid.enforced
        return bool(outstanding.pending or outstanding.ordered or waits_for_safe)

    @property
    def awaits_late_reply(self) -> bool:
        """Return whether the cause of a miss may still change because the tick's reply has not arrived."""
        return any(k in self.outstanding.late for k in self.outstanding.misses)

    @property
    def wake_ns(self) -> int | None:
        """Return when the core needs TimerFired, unless another event comes first. None: no timer is set."""
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
        """Return for how many nanoseconds the loop will be idle, for example to collect garbage."""
        if self.busy:
            return 0
        # A lockstep world waits for the loop. If arriving observations release ticks, the next may already be here.
        return self.grid.next_release_ns - now_ns if self.grid.enforced else SLACK_NS * self.grid.waits

    @property
    def _world_ns(self) -> int:
        return self.grid.world_ns(self.now_ns)

    # -- release -------------------------------------------------------------------------------------------------------

    def _on_timer(self, event: ev.TimerFired) -> None:
        if not self.ledger.t0_ns:
            self.ledger.t0_ns, self.world.started_ns = self.grid.start(self.now_ns)
            self.ledger.write({"origin_ns": self.ledger.t0_ns})
            self.fallback.policy.start_epoch(self.world.started_ns)
        self._time_out()
        self._release()

    def _on_advance_result(self, event: ev.AdvanceResult) -> None:
        self.grid.record_advance(event.due_ns)
        if event.due_ns is not None:
            self._release()

    def _release(self) -> None:
        """Start a tick if its release (the scheduled start) is due."""
        grid, world = self.grid, self.world
        due = grid.is_due(self.now_ns)
        if world.stopped:
            return
        if grid.enforced:
            if due:
                self._start_tick()
        elif self.busy:
            return
        elif not due:
            if world.host.alive or not grid.waits:
                self.out.append(ev.AdvanceWorld(self.settings.period_ns))
        elif world.safe.pending and not world.retried:
            world.retried = True  # retry the pending safe calls before the tick starts
            self.out.append(ev.RetrySafeCalls())
        else:
            world.retried = False
            self._start_tick()

    def _start_tick(self) -> None:
        world, settings, enforced = self.world, self.settings, self.grid.enforced
        if settings.duration_ns is not None and self._world_ns - world.started_ns >= settings.duration_ns:
            self._stop_ticks("duration")
            return
        tick = world.tick = self._new_tick(self.now_ns, self.now_ns)
        if enforced or self.fallback.emits:
            guard_ns = tick.woke_ns + settings.guard_ns if enforced else None
            self.out.append(ev.ArmGuard(guard_ns, self.fallback.safe_emission(tick) if self.fallback.emits else None))
        self.out.append(ev.Observe(self._skipped_ns(tick) if tick.skip else None))

    def _new_tick(self, due_ns: int, woke_ns: int) -> ev.Tick:
        """Start the release that was due at `due_ns`, and return its tick. `woke_ns`: when the loop woke for it."""
        k, release_ns, skipped = self.grid.start_release(due_ns)
        tick = ev.Tick(k, release_ns, release_ns + self.settings.deadline_ns, woke_ns)
        tick.incarnation = self.world.host.incarnation
        if skipped:
            tick.skip = {"skipped": skipped}
        return tick

    def _skipped_ns(self, tick: ev.Tick) -> int:
        """Return the instant of the first release that was skipped before this tick."""
        return tick.release_ns - int(tick.skip["skipped"]) * self.settings.period_ns

    def _store_sample(self, tick: ev.Tick, event: ev.ObserveResult | ev.OverdueRelease) -> None:
        """Store the thread statistics at the tick's release, and the cause of skipped releases before the tick."""
        world = self.world
        tick.schedstats_before, tick.schedstats, world.schedstats = world.schedstats, event.schedstats, event.schedstats
        if tick.skip:
            tick.skip |= self.evidence_collector.skip_fields(tick, self._skipped_ns(tick), event.sample)

    # -- observe -------------------------------------------------------------------------------------------------------

    def _on_observe_result(self, event: ev.ObserveResult) -> None:
        tick = self.world.tick
        assert tick is not None, "Observe is only sent for a tick"
        if event.finished:
            self._stop_ticks("episodes")
            return
        self.outstanding.newest_k = tick.k
        self._store_sample(tick, event)
        if self.requests.instructions.waiting:
            self.requests.instructions.activate_next(self.now_ns)
        if event.acks:
            self._record_acknowledgements(event.acks)
        if self.operator.pending_approval is not None:
            self.operator.expire_approval(self.now_ns)
        self._request_decision(tick, event)

    def _request_decision(self, tick: ev.Tick, event: ev.ObserveResult) -> None:
        """Request a decision for the observation if it is fresh enough and a decoder is available."""
        world, enforced, observation = self.world, self.grid.enforced, event.observation
        if observation is None:
            self._miss(tick, (Cause.NO_OBSERVATION, "none_yet"))
            return
        captured_ns, before, world.observation = observation.t_capture_ns, world.observation, observation
        # If the world waits for the loop, an observation from before the first release counts as captured at release 0.
        tick.capture_ns = captured_ns if enforced else max(captured_ns, self.ledger.t0_ns)
        tick.seq, tick.epoch = observation.seq, observation.epoch
        if before is not None:
            tick.superseded = max(observation.seq - before.seq - 1, 0)
        if observation.epoch != world.epoch:
            world.epoch = observation.epoch
            self.requests.history.clear()
            self.ledger.write_episodes(event.episodes)
            self.fallback.policy.start_epoch(self.grid.world_ns(tick.woke_ns))
        if event.acknowledged is not None:
            self.requests.acknowledge(event.acknowledged)
        if self.now_ns - tick.woke_ns > self.settings.period_ns // 8:  # so slow that it may delay another tick
            self.evidence_collector.texts.append((tick.woke_ns, self.now_ns))
        if enforced and tick.woke_ns - captured_ns > self.settings.max_age_ns:
            frozen = before is not None and observation.seq == before.seq
            self._miss(tick, (Cause.STALE_OBSERVATION, "frozen" if frozen else "late"))
            return
        if event.error is None:
            tick.text_ns = self.now_ns
        if not world.host.alive or (enforced and self.now_ns > tick.deadline_ns):
            self._miss(tick, None)
        elif event.error is not None:  # the agent's code raised it
            self._miss(tick, (Cause.NO_OBSERVATION, "unreadable"), error=event.error, doing="observe: ")
        else:
            tick.request = self.requests.build_request(tick.k, observation, event.text, tick.deadline_ns - tick.woke_ns)
            tick.decoder_busy = len(self.outstanding.pending) + len(self.outstanding.late) >= self.settings.pipeline
            self.out.append(tick.request)

    # -- request -------------------------------------------------------------------------------------------------------

    def _on_send_result(self, event: ev.SendResult) -> None:
        tick, observation = self.world.tick, self.world.observation
        assert tick is not None and observation is not None, "a request is only sent for an observation"
        if event.error is not None:  # only this tick is a miss; the run continues
            self._miss(tick, (Cause.DECIDE, "send"), error=event.error, doing="submit: ")
            return
        tick.submitted_ns = self.now_ns
        self.outstanding.pending[tick.k] = tick
        if self.settings.record_observations and not tick.calls:
            data = copy_data(observation.data, self.rules.plain)
            self.ledger.write_request(tick.request, observation, tick.capture_ns, data)

    # -- wait ----------------------------------------------------------------------------------------------------------

    def _time_out(self) -> None:
        """Time out requests and calls after their deadline, the hold of a call, and misses that wait for evidence. In
        lockstep there are no deadlines; only requests to a lost decoder time out."""
        enforced, now, outstanding, host = self.grid.enforced, self.now_ns, self.outstanding, self.world.host
        for tick in tuple(outstanding.pending.values()):
            lost = not host.alive or host.incarnation != tick.incarnation
            if now >= tick.deadline_ns if enforced else lost:
                del outstanding.pending[tick.k]
                self._await_late_reply(tick)
                self._miss(tick, None)
        for miss in tuple(outstanding.misses.values()):
            if miss.evidence is not None and now >= miss.until_ns:
                self._record_miss(miss, self.evidence_collector.complete_evidence(miss.outcome.tick, miss.evidence))
        overdue = [order for order in outstanding.unsettled() if enforced and now >= order.tick.deadline_ns]
        for order in overdue:
            if not order.overdue:
                order.overdue = True
                self.out.append(ev.WithdrawCall(order.tick.k))
        if not overdue:
            self._time_out_hold()

    def _time_out_hold(self) -> None:
        """Demand the safe calls if the hold limit of the active call has passed, even between two ticks."""
        policy = self.fallback.policy
        ends_ns = policy.expires_ns
        if ends_ns is None:
            return
        idle = not (self.outstanding.pending or self.outstanding.ordered)
        if not (self.now_ns >= ends_ns if self.grid.enforced else idle):
            return
        measure = policy.check_hold_limit(self._world_ns)
        # A call that failed after the demand for the safe calls may have acted in part, so demand the safe calls again.
        if measure == "safe" or (measure == "none" and self.outstanding.called_since_demand):
            self._demand_safe_calls("miss", self.fallback.safe_emission(), self.outstanding.newest_k)

    def _await_late_reply(self, tick: ev.Tick) -> None:
        self.out.append(ev.CancelRequest(tick.k))
        if tick.incarnation != self.world.host.incarnation:
            return  # ignore replies of a decoder process that was lost
        late = self.outstanding.late
        late[tick.k] = tick
        while len(late) > 2 * self.settings.pipeline:
            del late[min(late)]

    def _on_reply(self, reply: DecisionReply) -> None:
        outstanding = self.outstanding
        if self.world.exiting and reply.tick not in outstanding.late:
            return  # the run is ending
        if outstanding.late:
            oldest = reply.tick - self.settings.pipeline
            for k in [k for k in outstanding.late if k <= oldest]:
                del outstanding.late[k]  # no reply will come: it was cancelled in the queue, or the decoder was lost
        tick = outstanding.pending.pop(reply.tick, None)
        answered = tick or outstanding.late.get(reply.tick)
        if answered is not None:
            self._accept_reply(answered, reply)
        if reply.gaps:
            self.evidence_collector.gaps = reply.gaps
        if tick is None:
            self._record_late_decision(outstanding.late.pop(reply.tick, None), reply)
        elif self.grid.enforced and self.now_ns > tick.deadline_ns:
            self._miss(tick, None, reply)
            self._record_late_decision(tick, reply)
        else:
            self._check(tick, reply)

    def _accept_reply(self, tick: ev.Tick, reply: DecisionReply) -> None:
        instructions = self.requests.instructions
        if instructions.proven != instructions.now:
            decision = reply.decision
            unsure = decision is not None and self.operator.is_unsure(decision)
            if decision is not None and decision.unfamiliar:  # then doubt is not about the instruction
                unsure = unsure and bool(decision.unknown)
            instructions.evaluate(tick, reply, unsure, self.now_ns)
        tick.replied_ns = self.now_ns
        if (older := reply.older_request) is not None:  # the call is a step of a plan for an older observation
            tick.seq, tick.capture_ns, tick.requested_ns = older.seq, older.captured_ns, older.captured_ns

    def _record_late_decision(self, tick: ev.Tick | None, reply: DecisionReply) -> None:
        """Record a decision that arrived after its deadline. Its call must not act."""
        for waiting in self.outstanding.pending.values():
            waiting.decoder_busy = len(self.outstanding.late) >= self.settings.pipeline
        if tick is not None and tick.calls:
            return  # this request for a further call was already recorded as cut
        self.ledger.write_late(tick, reply, None, self.now_ns)
        if tick is not None:
            self._record_open_miss(tick, reply)

    # -- check ---------------------------------------------------------------------------------------------------------

    def _check(self, tick: ev.Tick, reply: DecisionReply) -> None:
        """Dispatch the call of a decision, or settle the tick without a call."""
        decision = reply.decision
        if decision is None:
            self._miss(tick, (Cause.DECIDE, reply.loss or "error"), reply, error=reply.error)
        elif (why := self.operator.reason_to_hold(tick, decision)) is not None:
            self._hold_decision(tick, reply, decision.call, why)
        elif decision.call is None:
            self.fallback.policy.renew_hold(self._world_ns)
            self._emit_status(tick, "fresh", reply)
            self._settle_tick(ev.TickOutcome(tick, "null", reply), reply)
        elif tick.k < self.outstanding.ordered_k:
            self._settle_unused("overtaken", tick, reply, decision.call)
        elif tick.calls and decision.call.text() in tick.calls:
            self._settle_unused("repeated", tick, reply, decision.call)
        else:
            self._dispatch(tick, reply, decision.call, tick.deadline_ns if self.grid.enforced else None)

    def _hold_decision(self, tick: ev.Tick, reply: DecisionReply, call: Call | None, why: str) -> None:
        """Settle a tick whose decision must not act, or not before an operator approves the call. `why`: the reason."""
        if why == "state":
            self._withhold_paused(tick, reply, call)
            return
        if why == "confirm" and call is not None:
            self.operator.request_approval(tick, reply, call, self.now_ns)
        # Hold the active call, but do not extend its hold limit.
        measure: Measure = "hold" if tick.calls else self.fallback.policy.record_held_call(self._world_ns)
        self._settle_tick(ev.TickOutcome(tick, "held", reply, None if call is None else call.text(), why=why), reply)
        self._fall_back(measure, tick, reply=reply)

    def _withhold_paused(self, tick: ev.Tick, reply: DecisionReply, call: Call | None) -> None:
        """Withhold a call because an operator paused or stopped the run, and demand the safe calls if necessary."""
        if self.fallback.policy.safe:
            self._emit_status(tick, "safe", reply)
        else:
            self._record_pause(tick.k)
            self._demand_safe_calls("pause", self.fallback.emission(tick, "safe", reply=reply), tick.k)
        why = self.operator.state if self.operator.state != "running" else "paused"
        self._settle_tick(ev.TickOutcome(tick, "held", reply, None if call is None else call.text(), why=why), reply)

    def _settle_unused(self, kind: str, tick: ev.Tick, reply: DecisionReply, call: Call) -> None:
        self._emit_status(tick, "held", reply)
        self._settle_tick(ev.TickOutcome(tick, kind, reply, call.text()), reply)

    # -- dispatch ------------------------------------------------------------------------------------------------------

    def _dispatch(
        self, tick: ev.Tick, reply: DecisionReply, call: Call, not_after_ns: int | None, late: bool = False
    ) -> None:
        """Validate a call, and pass it to the actuator. Every call goes through this method, so add limits of range,
        step or rate here. `late`: an operator approved the call after the end of its tick."""
        try:
            ready, text = self.rules.check(call)
        except ValueError as error:
            if late:
                self.ledger.write_late(tick, reply, None, self.now_ns)
            else:
                self._miss(tick, (Cause.INVALID, None), reply, error=str(error), call=call.text())
            return
        self._execute_call(ev.OrderedCall(tick, reply, call, text, late, ordered_ns=self.now_ns), ready, not_after_ns)

    # -- execute -------------------------------------------------------------------------------------------------------

    def _execute_call(self, order: ev.OrderedCall, ready: Call, not_after_ns: int | None) -> None:
        """Pass a call to the actuator. The Completion of the call (`_on_completion`) will settle the tick."""
        tick, outstanding = order.tick, self.outstanding
        command = ev.Command(tick.k, ready, tick.epoch, not_after_ns, requested_ns=tick.requested_ns or tick.woke_ns)
        if self.fallback.emits:
            last = order.late or len(tick.calls) + 1 == self.settings.calls_per_tick
            command.fresh = self.fallback.emission(tick, "fresh", order.call, order.reply, more=not last)
            command.void = None if order.late else self.fallback.emission(tick, "held", None, order.reply)
        outstanding.ordered[tick.k] = order
        outstanding.ordered_k, outstanding.called_since_demand = max(outstanding.ordered_k, tick.k), True
        self.out.append(command)

    def _on_call_preempted(self, event: ev.CallPreempted) -> None:
        """Handle that a newer call or the safe call replaced a waiting call, which was dropped."""
        if self.world.exiting:
            return  # the run is ending, so the tick of this call does not count
        order = self.outstanding.ordered.pop(event.k)
        newer = event.to == "call"
        if order.late:
            self.ledger.write_late(order.tick, order.reply, None, self.now_ns)
        elif newer and self.now_ns - order.ordered_ns < max(self.settings.period_ns // 4, 1_000_000):
            self._settle_unused("overtaken", order.tick, order.reply, order.call)
        else:  # the world was busy with an older call
            self._miss_execution(order, PREEMPTED.format("newer" if newer else "safe"))

    def _on_withdraw_result(self, event: ev.WithdrawResult) -> None:
        """Settle a tick whose deadline passed before its call ended. A call that had not started was dropped."""
        order = self.outstanding.ordered.get(event.k)
        if order is not None and not order.settled:
            if event.dropped:
                del self.outstanding.ordered[event.k]
                self._miss_execution(order, "the call could not start by its deadline, and was dropped")
            elif not self.fallback.emits:  # sending an emission does not block, so its result will follow
                order.settled = True
                self._miss_execution(order, "the call has not ended by its deadline", "slow")
        self._time_out_hold()

    def _miss_execution(self, order: ev.OrderedCall, error: str, subcause: str = "busy") -> None:
        self._miss(order.tick, (Cause.EXECUTE, subcause), order.reply, error=error, call=order.text)

    def _on_completion(self, done: ev.Completion) -> None:
        order = self.outstanding.ordered.pop(done.tick)
        tick, reply, acted = order.tick, order.reply, done.effect == "acted"
        if acted:
            self._record_active(order, done)
        if order.late:
            self.ledger.write_late(tick, reply, done, self.now_ns)
        elif order.settled:
            self.ledger.write_overrun(order, done)
            if not tick.calls:
                self._record_open_miss(tick, reply, done)
        elif done.effect == "refused":
            self._withhold_paused(tick, reply, order.call)
        elif acted or done.effect == "epoch_over":
            self._settle_tick(ev.TickOutcome(tick, "call" if acted else "epoch_over", reply, order.text, done), reply)
            if acted and self.settings.calls_per_tick > 1:
                self._request_further_call(order, done)
        else:
            error = done.error or (PREEMPTED.format("safe") if done.ended_ns < tick.deadline_ns else TOO_LATE)
            fault = (Cause.EXECUTE, "busy" if done.error is None else "raised")
            self._miss(tick, fault, reply, error=error, call=order.text, done=done)

    def _record_active(self, order: ev.OrderedCall, done: ev.Completion) -> None:
        """Record that the call of `order` acted, and is now the active call."""
        tick, call = order.tick, order.call
        if done.current:
            self.fallback.policy.record_fresh_call(done.ended_ns if self.grid.enforced else self._world_ns)
        self.requests.record_acted(tick, call, order.text)
        why = "late" if order.late else "further" if tick.calls else "fresh"
        self.ledger.write_called_line(call, tick.k, tick.epoch, why, done.ended_ns)

    def _request_further_call(self, order: ev.OrderedCall, done: ev.Completion) -> None:
        """Request the next call of the same tick (setting `calls_per_tick`), unless a safe call was demanded meanwhile.
        Do not request it if the decoder is lost, or if the last decision took longer than the time that remains until
        the deadline."""
        last, settings, now = order.tick, self.settings, self.now_ns
        if len(last.calls) + 1 == settings.calls_per_tick or not done.current:
            return
        if self.operator.state != "running" or self.world.stopped:
            return
        history = (*last.request.history, order.text)[-(self.rules.history or 1) :]
        request = replace(last.request, history=history, within_ns=last.deadline_ns - now)
        tick = replace(last, calls=(*last.calls, order.text), replied_ns=0, request=request)
        took_ns = last.replied_ns - last.submitted_ns
        if (settings.cut_late_calls and now + took_ns > tick.deadline_ns) or not self.world.host.alive:
            self._miss(tick, None)
        else:
            self.world.tick = tick
            self.out.append(request)

    # -- settle, or miss -----------------------------------------------------------------------------------------------

    def _settle_tick(self, outcome: ev.TickOutcome, reply: DecisionReply) -> None:
        """Record a tick that has a decision. The tick is a miss if its call ended after the deadline."""
        tick, done = outcome.tick, outcome.done
        end_ns = done.ended_ns if done is not None else self.now_ns
        line = self.ledger.decided_line(outcome, reply, end_ns, self.settings.period_ns if self.grid.enforced else 0)
        if end_ns <= tick.deadline_ns:
            if not tick.calls and outcome.kind != "epoch_over":  # a call of an old epoch did nothing
                self.evidence_collector.on_time.append(line["spans_ms"])
            self.ledger.write(line)
            return
        if tick.calls:
            self.ledger.write(line | {"over": True})
        else:
            self._request_evidence(UnrecordedMiss(outcome, self.ledger.reserve_slot(), line, end_ns))
        if self.settings.on_miss == "stop":
            self._stop_ticks("miss")

    def _miss(
        self, tick: ev.Tick, fault: ev.KnownCause | None, reply: DecisionReply | None = None, **more: Any
    ) -> None:
        """Settle a tick without a call in time. `fault`: the cause, if already known. `more`: as in TickOutcome."""
        outcome = ev.TickOutcome(tick, "miss", reply, fault=fault, **more)
        line = self.ledger.tick_line(outcome)
        if tick.calls:
            self._cut_further_calls(outcome, line)
            return
        measure = self.fallback.policy.record_miss(self._world_ns)
        self._request_evidence(UnrecordedMiss(outcome, self.ledger.reserve_slot(), line, self.now_ns, measure))

    def _cut_further_calls(self, outcome: ev.TickOutcome, line: Line) -> None:
        """End the further calls of a tick. The last call that acted stays active. A further call that failed may have
        acted in part, so the fallback policy handles this as a miss."""
        line |= cut_fields(outcome)
        cause = line.get("cause")
        failed = cause == Cause.EXECUTE.value
        measure: Measure = self.fallback.policy.record_miss(self._world_ns) if failed else "hold"
        self._apply_measure(outcome, line, measure, cause)
        self.ledger.write(line)

    def _request_evidence(self, miss: UnrecordedMiss) -> None:
        tick, fault = miss.outcome.tick, miss.outcome.fault
        self.outstanding.misses[tick.k] = miss
        stale = fault is not None and fault[0] is Cause.STALE_OBSERVATION
        self.out.append(ev.TakeSample(tick.k, tick.capture_ns if stale else tick.release_ns))

    def _on_sample_result(self, event: ev.SampleResult) -> None:
        miss = self.outstanding.misses.get(event.k)
        if miss is None:
            return
        evidence = self.evidence_collector.evidence_of_miss(miss.outcome, event.sample, self.world.host, miss.end_ns)
        if miss.outcome.kind == "miss":
            self._apply_measure(miss.outcome, miss.line, miss.measure, evidence.verdict.cause.value)
        if self._cause_may_change(miss, evidence):
            miss.evidence, miss.until_ns = evidence, self.now_ns + self.settings.period_ns
        else:
            self._record_miss(miss, evidence)

    def _apply_measure(self, outcome: ev.TickOutcome, line: Line, measure: Measure, cause: str | None) -> None:
        """Apply the fallback policy's `measure` for a miss, and send its `cause` to an environment that emits."""
        tick, reply, fault = outcome.tick, outcome.reply, outcome.fault
        if cause is not None:
            self.ledger.add_error(line, outcome.error, f"tick {tick.k}: {cause}: ", outcome.doing)
        # The emission to a client includes errors of the decision, but not errors of executing a call in this process.
        local = tick.calls or (fault is not None and fault[0] is Cause.EXECUTE)
        line["action"] = self._fall_back(measure, tick, cause, reply, None if local else line.get("error"))
        if reply is not None and fault is not None:
            line["decide_ms"] = to_ms(reply.decide_ns)

    def _cause_may_change(self, miss: UnrecordedMiss, evidence: Evidence) -> bool:
        """Return whether the cause of a miss may change when the late reply arrives or the late call ends."""
        k, outstanding = miss.outcome.tick.k, self.outstanding
        comes = k in outstanding.late or (k in outstanding.ordered and outstanding.ordered[k].settled)
        return comes and self.grid.enforced and evidence.may_change and not self.world.exiting

    def _record_open_miss(self, tick: ev.Tick, reply: DecisionReply, done: ev.Completion | None = None) -> None:
        """Record the tick's unrecorded miss, if any, after its late reply arrived or its late call ended."""
        miss = self.outstanding.misses.get(tick.k)
        if miss is not None and miss.evidence is not None:
            self._record_miss(miss, self.evidence_collector.complete_evidence(tick, miss.evidence, reply, done))

    def _record_miss(self, miss: UnrecordedMiss, evidence: Evidence) -> None:
        """Record a miss, with the cause according to the evidence."""
        del self.outstanding.misses[miss.outcome.tick.k]
        self.ledger.fill_slot(miss.slot, miss.line | evidence.fields())

    def _fall_back(
        self,
        measure: Measure,
        tick: ev.Tick,
        cause: str | None = None,
        reply: DecisionReply | None = None,
        error: str | None = None,
    ) -> str:
        """Apply a measure, and send an emission to an environment that emits. Return the measure's name in the record:
        `none` if the safe calls are already active, `pending` if they were demanded but are not active yet."""
        if measure == "stop":
            self._stop_ticks("miss")
        emission = self.fallback.emission(tick, "held" if measure == "hold" else "safe", None, reply, cause, error)
        if measure == "safe" or (measure == "none" and self.outstanding.called_since_demand):
            self._demand_safe_calls("miss", emission, tick.k)
            return "pending" if measure == "none" else measure
        if emission is not None:
            self.out.append(emission)
        return "pending" if measure == "none" and self.world.safe.pending else measure

    def _demand_safe_calls(self, why: str, emission: Any, k: int) -> None:
        """Demand the safe calls because of tick `k`."""
        self.ledger.safe_k, self.outstanding.called_since_demand = k, False
        self.world.safe = ev.SafeState(True, True)
        self.out.append(ev.DemandSafeCalls(why, emission))

    def _emit_status(self, tick: ev.Tick, status: Status, reply: DecisionReply) -> None:
        """Send the emission of a tick without a call, if the environment emits."""
        if self.fallback.emits and (emission := self.fallback.emission(tick, status, reply=reply)) is not None:
            self.out.append(emission)

    def _record_pause(self, k: int) -> None:
        """Record that a pause or stop demanded the safe calls at tick `k`."""
        self.fallback.policy.record_pause(self._world_ns, self.operator.state != "running")
        self.ledger.safe_k = k

    # -- account: other events of a run --------------------------------------------------------------------------------

    def _on_operator_command(self, command: ev.OperatorCommand) -> None:
        """Handle an operator's command. OperatorControl has already blocked the actuator after a pause or stop."""
        confirmed = self.operator.handle_command(command, self.now_ns)
        if command.word in ("pause", "stop"):
            self.outstanding.called_since_demand = False
            self._record_pause(self.outstanding.newest_k)
        elif command.word == "resume":
            self.fallback.policy.suspended = False
        if confirmed is not None:
            self._dispatch(confirmed.tick, confirmed.reply, confirmed.call, confirmed.expires_ns, late=True)
        self.out.append(ev.LoopReport("changed"))

    def _on_host_changed(self, state: ev.HostChanged) -> None:
        self.world.host = state
        if len(state.events) != self.ledger.events:
            self.ledger.write_host_events(state.events)
            late = self.outstanding.late.values()
            self.outstanding.late = {tick.k: tick for tick in late if tick.incarnation == state.incarnation}
        if state.gave_up is not None and not self.world.stopped:
            self.out.append(ev.Notify(f"no more decisions: {state.gave_up}"))
            self._stop_ticks("host")

    def _record_acknowledgements(self, acks: deque[Acknowledgement]) -> None:
        """Record the acknowledgements of a client, except for calls that the actuator has not finished."""
        acknowledgements = [acks.popleft() for _ in range(len(acks))]  # other threads may append to `acks`
        self.requests.check_acknowledgements(acknowledgements)
        for ack in acknowledgements:
            if ack.tick in self.outstanding.ordered:
                acks.append(ack)
            else:
                self.ledger.write_acknowledgement(ack)

    # -- the end -------------------------------------------------------------------------------------------------------

    def _stop_ticks(self, why: str) -> None:
        self.world.stopped = True
        self.out.append(ev.StopRun(why))

    def _on_exit_started(self, event: ev.ExitStarted) -> None:
        """Demand the safe calls at the end of the run. From now on no other call may act."""
        self.world.stopped = self.world.exiting = True
        self.operator.state = "stopped"
        self.operator.drop_approval(self.now_ns)
        self._demand_safe_calls("exit", self.fallback.safe_emission(), self.outstanding.newest_k)

    def _on_overdue_release(self, event: ev.OverdueRelease) -> None:
        """Record a miss if a release was due before the end of the run, but the loop hung and did not start it."""
        due_ns = event.t_ns - self.settings.period_ns
        if not (self.ledger.t0_ns and self.grid.enforced and self.grid.is_due(due_ns)):
            return
        self._record_pause(self.outstanding.newest_k)
        tick = self._new_tick(due_ns, event.t_ns)
        self._store_sample(tick, event)
        self._miss(tick, None)
        self.outstanding.misses[tick.k].end_ns = event.t_ns  # ignore delays after the last tick

    def _on_run_closed(self, event: ev.RunClosed) -> None:
        for miss in tuple(self.outstanding.misses.values()):
            evidence = miss.evidence
            if evidence is None:  # the run was interrupted before the sample of this miss
                evidence = self.evidence_collector.evidence_of_miss(
                    miss.outcome, ev.EvidenceSample(), self.world.host, miss.end_ns
                )
            self._record_miss(miss, self.evidence_collector.complete_evidence(miss.outcome.tick, evidence))
        if event.acks:
            self.outstanding.ordered.clear()  # the actuator has ended, so no results of these calls will come
            self._record_acknowledgements(event.acks)
        self.ledger.write_episodes(event.episodes)
        self.ledger.write_waiting_lines()


def copy_data(data: Any, plain: Callable[[Any], Any]) -> Any:
    """Return a copy of an observation's data for the record. The environment may change the original later."""
    if isinstance(data, dict) and IMMUTABLE.issuperset(map(type, data.values())):
        return data.copy()
    return plain(data)


EVENT_HANDLERS: dict[type, Callable[[LoopCore, Any], None]] = {
    ev.TimerFired: LoopCore._on_timer,
    ev.AdvanceResult: LoopCore._on_advance_result,
    ev.ObserveResult: LoopCore._on_observe_result,
    ev.SendResult: LoopCore._on_send_result,
    DecisionReply: LoopCore._on_reply,
    ev.CallPreempted: LoopCore._on_call_preempted,
    ev.WithdrawResult: LoopCore._on_withdraw_result,
    ev.Completion: LoopCore._on_completion,
    ev.SampleResult: LoopCore._on_sample_result,
    ev.OperatorCommand: LoopCore._on_operator_command,
    ev.HostChanged: LoopCore._on_host_changed,
    ev.SafeState: lambda core, state: setattr(core.world, "safe", state),
    ev.SafeAttempt: lambda core, attempt: core.ledger.write_safe_attempt(attempt),
    ev.EnvironmentFault: lambda core, fault: core.ledger.write_fault(fault, core.now_ns),
    ev.NewInstruction: lambda core, event: core.requests.instructions.waiting.append(event.text),
    ev.StopRequested: lambda core, event: core._stop_ticks(event.why),
    ev.ExitStarted: LoopCore._on_exit_started,
    ev.OverdueRelease: LoopCore._on_overdue_release,
    ev.RunClosed: LoopCore._on_run_closed,
}
