"""The state machine of a crowd: one client with many agents (members). It takes events, and returns actions.

    join, observe -> release -> request a batch -> check -> settle, or miss -> next release

The methods are in the order of a member's tick, which starts at its release (the scheduled time). Like `LoopCore`,
which runs a single agent, this core uses a `FallbackPolicy` and a `Tick` for each member, and `Rules` and a `Ledger`
for all members. Unlike `LoopCore`, it decides several members in one batch, sends their calls in one message, and lets
a member's ticks become rarer while the member's observation stays the same."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rtcontrol import records as ev
from rtcontrol.envs.remote_core import to_wire_call
from rtcontrol.hosts.deciders import crowd_request, member_replies
from rtcontrol.hosts.pool import EdfScheduler
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest
from rtcontrol.loop.active import Measure, Status
from rtcontrol.loop.core import LoopSettings, Rules
from rtcontrol.loop.ledger import Ledger
from rtcontrol.models.call import Call, Decision
from rtcontrol.records import HostChanged, KnownCause, OperatorCommand, TickOutcome
from rtcontrol.serve.crowd.members import CrowdMember, MemberObservation, Members, MemberTick
from rtcontrol.telemetry.causes import Cause
from rtcontrol_client.wire import Code, WireError
from rtcontrol_client.wire.messages import Join, Leave, MemberCall, ObserveMany, RefusedPart

MIN_TIMERS = 64  # outdated timers are removed only if there are more timers than this
MAX_DURATIONS = 64  # number of the newest decisions whose durations are stored
MAX_LISTED = 64  # an error to the client lists at most this number of refused parts
OTHERS_ACCEPTED = "the others were accepted"
# The ticks of members are spread over this number of instants per period. Smaller batches finish sooner, and need
# little more decoder time in total.
RELEASE_GROUPS = 4
# A batch may be expected to take at most this fraction of the time until its earliest deadline. The rest is a
# reserve for slow batches, because a late batch is a miss for each of its members.
TIME_SHARE = 0.5


@dataclass(slots=True)
class SendCalls:
    """The action to send these calls to the client."""

    calls: list[MemberCall]


@dataclass(slots=True)
class SendError:
    """The action to send this error to the client."""

    error: WireError


class TimerQueue:
    """A queue of functions with one argument each, ordered by the time at which to call them. When the queue is long,
    entries for which `is_needed` returns False are removed, because their arguments may be large."""

    def __init__(self, is_needed: Callable[[int, Any], bool]) -> None:
        self._heap: list[tuple[int, int, Callable[[Any], None], Any]] = []
        self._numbers = itertools.count()
        self._is_needed, self._limit = is_needed, MIN_TIMERS

    def schedule(self, due_ns: int, function: Callable[[Any], None], argument: Any) -> None:
        heapq.heappush(self._heap, (due_ns, next(self._numbers), function, argument))
        if len(self._heap) > self._limit:
            self._heap = [entry for entry in self._heap if self._is_needed(entry[0], entry[3])]
            heapq.heapify(self._heap)
            self._limit = max(MIN_TIMERS, 2 * len(self._heap))

    def run_due(self, now_ns: int) -> None:
        """Call all functions whose time is `now_ns` or earlier."""
        while self._heap and self._heap[0][0] <= now_ns:
            _, _, function, argument = heapq.heappop(self._heap)
            function(argument)

    @property
    def next_ns(self) -> int | None:
        return self._heap[0][0] if self._heap else None


@dataclass(slots=True)
class BatchQueue:
    """The ticks that wait for a decision, and the batch of ticks that the decoder is processing.

    `max_size` is halved after a late batch. After a full batch in time, `max_size` is doubled, or, once a batch was
    late, raised by an eighth."""

    waiting: list[MemberTick] = field(default_factory=list)
    batch: list[MemberTick] = field(default_factory=list)  # ticks of the pending request; empty if none is pending
    requested_ns: int = 0  # when the pending batch was requested
    incarnation: int = 0  # number of the decoder's restarts when the pending batch was requested
    count: int = 0  # number of requested batches
    served: int = 0  # number of ticks in these batches
    late_dropped: int = 0  # number of decisions that arrived after their tick had ended
    durations_ns: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_DURATIONS))  # duration of each decision
    times: EdfScheduler = field(default_factory=EdfScheduler)  # estimates the duration of a batch
    max_size: int = 1  # maximum number of ticks in a batch
    growth: int = 1  # a full batch of n ticks in time raises `max_size` by n // growth

    def end_batch(self, now_ns: int, late: bool) -> list[MemberTick]:
        """Record that the pending batch ended at `now_ns`, and return its ticks."""
        batch, self.batch = self.batch, []
        self.record_time(len(batch), now_ns - self.requested_ns, late)
        return batch

    def record_time(self, count: int, ns: int, late: bool) -> None:
        """Record that a batch of `count` ticks took `ns` nanoseconds. `late` is True if a deadline was missed."""
        self.times.record_duration(None, count, ns)
        if late:
            self.max_size, self.growth = max(1, count // 2), 8
        elif count >= self.max_size:
            self.max_size = count + max(1, count // self.growth)

    def expected_ns(self, count: int) -> float:
        """Return the expected duration of a batch of `count` ticks in ns."""
        return self.times.expected_ns(None, count)


class CrowdCore:
    """The state machine of a crowd's run. `k`: the highest number of a tick so far, or -1. Safe calls between two ticks
    also use up a number. `calls`: the calls that the next `_flush_calls` sends to the client."""

    def __init__(self, members: Members, settings: LoopSettings, rules: Rules, k: int = -1) -> None:
        self.members, self.settings, self.rules, self.k = members, settings, rules, k
        self.out: list[ev.Action] = []
        self.calls: list[MemberCall] = []
        self.ledger = Ledger(self.out, rules.describe)
        self.timers, self.queue = TimerQueue(self._needs_timer), BatchQueue()
        self.host = HostChanged()
        self.now_ns = 0
        self.paused = False

    def advance(self, event: Any, now_ns: int) -> Sequence[ev.Action]:
        """Process an event at `now_ns`. Return the actions to execute, in order."""
        self.now_ns = now_ns
        self.out.clear()
        HANDLERS[type(event)](self, event)
        actions = self.out.copy()
        self.out.clear()
        return actions

    @property
    def wake_ns(self) -> int | None:
        """Return the next instant at which the core needs a `TimerFired` event, or None if no timer is set."""
        return self.timers.next_ns

    def _needs_timer(self, due_ns: int, subject: Any) -> bool:
        """Return whether a timer of a tick or a member may still have an effect."""
        if isinstance(subject, MemberTick):
            return not subject.done
        present = self.members.by_id.get(subject.id) is subject
        return present and due_ns in (subject.due_ns, subject.policy.expires_ns)

    def _on_timer_fired(self, event: ev.TimerFired) -> None:
        self.timers.run_due(self.now_ns)
        self._end_useless_batch()
        self._request_batch()
        self._flush_calls()

    def _flush_calls(self) -> None:
        if self.calls:
            self.out.append(SendCalls(self.calls))
            self.calls = []

    def _on_join(self, message: Join) -> None:
        members, faults = self.members.join_members(message)
        for member in members:
            self._restore_rate(member)
        self._refuse_parts(f"part(s) of {message.type} were refused", OTHERS_ACCEPTED, faults)

    def _on_observe(self, message: ObserveMany) -> None:
        """Store observations. The first observation of a member starts its ticks. A changed observation restores the
        full rate of a member whose ticks have become rarer."""
        members, faults = self.members.store_observations(message, self.now_ns)
        for member in members:
            if member.released_ns is None or (member.periods > 1 and not member.is_unchanged):
                self._restore_rate(member)
        self._refuse_parts(f"part(s) of {message.type} were refused", OTHERS_ACCEPTED, faults)

    def _refuse_parts(self, problem: str, accepted: str, faults: Sequence[RefusedPart]) -> None:
        if faults:
            codes = {fault.error.code for fault in faults}
            code = codes.pop() if len(codes) == 1 else Code.INVALID
            members = [fault.message_part() for fault in faults[:MAX_LISTED]]
            hint = f"`members` has the reasons, for at most {MAX_LISTED} of them."
            self.out.append(SendError(WireError(code, f"{len(faults)} {problem}; {accepted}.", hint, members=members)))

    def _restore_rate(self, member: CrowdMember) -> None:
        """Reset the member to one tick per period. Its next tick starts one period after the last, but not in the
        past."""
        now = self.now_ns
        member.periods = 1
        if member.newest is not None and member.tick is None and not self.paused:
            # All members in a message get the same `now`, so that members with equal rates get equal deadlines.
            last = member.released_ns
            self._schedule_tick(member, now if last is None else max(now, last + member.period_ns))

    # -- release -------------------------------------------------------------------------------------------------------

    def _schedule_tick(self, member: CrowdMember, t_ns: int) -> None:
        if member.due_ns != t_ns:  # not if this release is already scheduled
            member.due_ns = t_ns
            self.timers.schedule(t_ns, self._release_tick, member)

    def _release_tick(self, member: CrowdMember) -> None:
        """Start the member's due tick. Do nothing if the tick was rescheduled meanwhile."""
        observation, now = member.newest, self.now_ns
        due_ns, period_ns = member.due_ns, member.terms.period_ns
        if due_ns is None or due_ns > now or observation is None:
            return
        skipped = (now - due_ns) // period_ns if member.periods == 1 else 0
        if member.released_ns is None:
            member.phase_ns = member.serial % RELEASE_GROUPS * period_ns // RELEASE_GROUPS
        else:
            member.rested += max(0, (due_ns - member.released_ns) // period_ns - 1)
        if not self.ledger.t0_ns:
            self.ledger.t0_ns = due_ns
            self.ledger.write({"origin_ns": due_ns})
        release_ns = due_ns + skipped * period_ns
        self.k += 1 + skipped
        tick = MemberTick(self.k, release_ns, release_ns + member.terms.deadline_ns, now, member=member)
        if skipped:
            tick.skip = {"skipped": skipped, "skip_cause": Cause.WAKE.value, "skip_subcause": "scheduler"}
        member.due_ns, member.released_ns, member.tick = None, release_ns, tick
        if now - observation.arrived_ns > self.settings.max_age_ns:
            tick.set_observation(observation)
            self._miss_tick(tick, (Cause.STALE_OBSERVATION, "frozen"))
        else:
            self.timers.schedule(tick.deadline_ns + 1, self._miss_overdue_tick, tick)
            self.queue.waiting.append(tick)

    # -- request a batch -----------------------------------------------------------------------------------------------

    def _request_batch(self) -> None:
        """Request decisions for the next batch of ticks, if no batch is pending."""
        queue, now = self.queue, self.now_ns
        queue.waiting = [tick for tick in queue.waiting if not tick.done]
        if queue.batch or not queue.waiting or not self.host.alive:
            return
        queue.batch = choose_batch(queue.waiting, now, queue.expected_ns, queue.max_size)
        if not queue.batch:
            return
        chosen = {tick.k for tick in queue.batch}
        queue.waiting = [tick for tick in queue.waiting if tick.k not in chosen]
        queue.count += 1
        queue.requested_ns, queue.incarnation = now, self.host.incarnation
        requests = [self._build_request(tick) for tick in queue.batch]
        within_ns = max(1, min(tick.deadline_ns for tick in queue.batch) - now)
        self.out.append(crowd_request(queue.count, requests, within_ns))

    def _build_request(self, tick: MemberTick) -> DecisionRequest:
        """Return the decision request for a tick, with the member's newest observation."""
        member, observation = tick.member, tick.member.newest
        assert observation is not None, "a member whose tick has started has an observation"
        self.queue.served += 1
        member.used, member.served = True, self.queue.served
        tick.set_observation(observation)
        history = tuple(member.history) if self.rules.history else ()
        prompt = observation.text, member.terms.instruction, history, observation.data
        tick.request = DecisionRequest(tick.k, member.serial, *prompt, seq=observation.seq)
        return tick.request

    def _on_sent(self, event: ev.SendResult) -> None:
        """Record a miss for each tick of the batch if the request could not be sent to the decoder."""
        if event.error is None:
            return
        batch, self.queue.batch = self.queue.batch, []
        for tick in batch:
            self._miss_tick(tick, (Cause.DECIDE, "send"), error=event.error)
        self._flush_calls()

    def _end_useless_batch(self) -> None:
        """End a batch from which no reply can be used: the decoder was lost, or all ticks of the batch have ended."""
        queue, host = self.queue, self.host
        if queue.batch and (queue.incarnation != host.incarnation or not host.alive):
            queue.waiting += [tick for tick in queue.batch if not tick.done]
            queue.batch = []
        elif queue.batch and all(tick.done for tick in queue.batch):
            queue.end_batch(self.now_ns, late=True)
            self.out.append(ev.CancelRequest(queue.count))

    def _on_reply(self, reply: DecisionReply) -> None:
        queue, now = self.queue, self.now_ns
        if not queue.batch or reply.tick != queue.count:
            return
        batch = queue.end_batch(now, late=any(now > tick.deadline_ns for tick in queue.batch))
        queue.durations_ns.append(reply.decide_ns / len(batch))
        faults = list[RefusedPart]()
        for tick, part in zip(batch, member_replies(reply, [tick.request for tick in batch]), strict=True):
            if tick.done:
                queue.late_dropped += part.decision is not None
            elif now > tick.deadline_ns:
                self._miss_tick(tick, self._late_cause(tick), part)
            elif part.decision is None:
                faults += self._undecided_fault(tick, part)
                self._miss_tick(tick, (Cause.DECIDE, "error"), part, error=part.error)
            else:
                self._check_decision(tick, part, part.decision)
        self._refuse_parts("observation(s) got no decision", "the others got one", faults)

    def _undecided_fault(self, tick: MemberTick, reply: DecisionReply) -> list[RefusedPart]:
        """Return the error about an observation that got no decision, or an empty list if an error about the same text
        was already sent."""
        member, text = tick.member, tick.request.observation
        if member.reported_text == text:
            return []
        member.reported_text = text
        problem, hint = f"The observation got no decision ({reply.error}).", "Continue to send observations."
        problem, hint = reply.user_error or (problem, hint)
        code = Code.DECODER if reply.user_error is None else Code.TOO_LARGE
        return [RefusedPart(member.id, tick.seq, WireError(code, problem, hint, field="text"))]

    # -- check ---------------------------------------------------------------------------------------------------------

    def _check_decision(self, tick: MemberTick, reply: DecisionReply, decision: Decision) -> None:
        """Send the decided call to the client, unless it has low confidence, is invalid or needs a confirmation."""
        call, text = decision.call, None
        if (why := self._hold_reason(decision)) is not None:
            # Hold the active call, but do not extend its time limit.
            member, now = tick.member, self.now_ns
            measure = (member.policy.record_miss if member.decided is None else member.policy.record_held_call)(now)
            self._fall_back(tick, measure, why)
            self._settle_tick(TickOutcome(tick, "held", reply, None if call is None else call.text(), why=why))
            return
        if call is not None:
            try:
                _, text = self.rules.check(call)
            except ValueError as error:
                self._miss_tick(tick, (Cause.INVALID, None), reply, str(error), call.text())
                return
        confidence = min(decision.confidence.values(), default=None)
        confidence = confidence and min(1.0, confidence)
        self._send_calls(tick.member, tick.k, "fresh", tick.observation, call=to_wire_call(call), confidence=confidence)
        self._activate_call(tick, call, text)
        self._settle_tick(TickOutcome(tick, "null" if call is None else "call", reply, text))

    def _hold_reason(self, decision: Decision) -> str | None:
        """Return why a decision's call must be withheld, or None. A crowd has no confirmation of calls by people."""
        if self.rules.doubt is not None and self.rules.doubt(decision) is not None:
            return "unfamiliar" if decision.unfamiliar else "confidence"
        return "confirm" if decision.call is not None and decision.call.name in self.rules.confirm else None

    def _activate_call(self, tick: MemberTick, call: Call | None, text: str | None) -> None:
        """Make the call active. If `call` is None, extend the time limit of the active call instead."""
        member, now = tick.member, self.now_ns
        if call is not None and text is not None:
            member.policy.record_fresh_call(now)
            member.history.append(text)
            self.ledger.write_called_line(call, tick.k, member.epoch, "fresh", now, member=member.id)
        elif member.decided is not None:
            member.policy.renew_hold(now)
        else:
            return
        member.decided = tick.request.observation, tick.request.instruction

    # -- settle, or miss -----------------------------------------------------------------------------------------------

    def _settle_tick(self, outcome: TickOutcome, **extra_fields: Any) -> None:
        """End the tick, write its record, and schedule the member's next tick."""
        tick = outcome.tick
        assert isinstance(tick, MemberTick), "a crowd's ticks belong to members"
        member = tick.member
        tick.done, member.tick = True, None
        self._record_tick(tick, outcome, extra_fields)
        member.update_rate(outcome.kind in ("call", "null"))
        phase_ns, member.phase_ns = member.phase_ns, 0
        self._schedule_tick(member, tick.release_ns + member.period_ns + phase_ns)

    def _record_tick(self, tick: MemberTick, outcome: TickOutcome, extra_fields: dict[str, Any]) -> None:
        member, ledger, request, reply = tick.member, self.ledger, tick.request, outcome.reply
        tick.epoch, tick.superseded, member.superseded = member.epoch, member.superseded, 0
        fields: dict[str, Any] = {"member": member.id}
        if self.settings.record_observations and tick.is_requested:
            numbers = {"k": tick.k, "t_s": ledger.t_s(tick.capture_ns), "seq": tick.seq, "epoch": tick.epoch}
            prompt = {"observation": request.observation, "instruction": request.instruction}
            ledger.write({**numbers, **prompt, "history": request.history, **fields})
        if member.rested:
            fields["rested"], member.rested = member.rested, 0
        if reply is not None and reply.decision is not None:
            line = ledger.decided_line(outcome, reply, self.now_ns, 0)
        else:
            line = ledger.tick_line(outcome)
        ledger.write({**line, **fields, **extra_fields})

    def _miss_tick(
        self,
        tick: MemberTick,
        cause: KnownCause,
        reply: DecisionReply | None = None,
        error: str | Exception | None = None,
        call: str | None = None,
    ) -> None:
        measure = tick.member.policy.record_miss(self.now_ns)
        fields: dict[str, Any] = {"cause": cause[0].value, "action": measure}
        if cause[1] is not None:
            fields["subcause"] = cause[1]
        self.ledger.add_error(fields, error, None, "submit: " if isinstance(error, Exception) else "")
        self._fall_back(tick, measure, cause[0].value)
        self._settle_tick(TickOutcome(tick, "miss", reply, call), **fields)

    def _fall_back(self, tick: MemberTick, measure: Measure, cause: str) -> None:
        """If `measure` is "hold", keep the active call until its time limit, else send the safe calls."""
        expires_ns = tick.member.policy.expires_ns
        if measure == "hold" and expires_ns is not None:
            self._send_calls(tick.member, tick.k, "held", tick.observation, cause=cause)
            self.timers.schedule(expires_ns, self._end_hold, tick.member)
        else:
            self._send_safe_calls(tick.member, "miss", measure == "safe", tick.k, cause)

    def _send_safe_calls(self, member: CrowdMember, why: str, record_line: bool, k: int, cause: str) -> None:
        """Send the member's safe calls. If `record_line`, also write a line about them to the record."""
        member.decided = None
        calls = member.terms.safe_calls or []
        self._send_calls(member, k, "safe", cause=cause, call=next(iter(calls), None), calls=calls or None)
        if record_line and member.newest is not None:
            text = "; ".join(Call(call.name, call.arguments).text() for call in calls) or None
            line = {"safe": text, "why": why, "t_s": self.ledger.t_s(self.now_ns), "attempt": 1, "in_force": True}
            self.ledger.write({**line, "member": member.id})

    def _send_calls(
        self, member: CrowdMember, k: int, status: Status, observation: MemberObservation | None = None, **fields: Any
    ) -> None:
        if observation is not None:
            fields |= {"seq_obs": observation.seq, "t_obs_ns": observation.t_ns}
        ttl_ms = member.terms.ttl_ms
        self.calls.append(MemberCall(id=member.id, tick=k, epoch=member.epoch, status=status, ttl_ms=ttl_ms, **fields))

    def _send_safe_calls_between_ticks(self, member: CrowdMember, why: str, record_line: bool) -> None:
        """Send the safe calls with the next tick number. An open tick gets an even higher number, because the client
        takes the call with the highest number as the newest."""
        self.k += 1
        self._send_safe_calls(member, why, record_line, self.k, why)
        if (tick := member.tick) is not None:
            self.k += 1 + tick.skip.get("skipped", 0)
            tick.k = self.k

    def _end_hold(self, member: CrowdMember) -> None:
        """Send the safe calls if the time limit of the active call has ended, even while a tick is open."""
        present = self.members.by_id.get(member.id) is member
        if present and member.policy.check_hold_limit(self.now_ns) == "safe":
            self._send_safe_calls_between_ticks(member, "miss", True)

    def _miss_overdue_tick(self, tick: MemberTick) -> None:
        if not tick.done:
            self._miss_tick(tick, self._late_cause(tick))

    def _late_cause(self, tick: MemberTick) -> KnownCause:
        """Return cause and sub-cause of the miss of a tick that got no decision in time."""
        if not self.host.alive:
            return Cause.HOST, "lost"
        if any(event.event == "lost" and event.t_ns > tick.release_ns for event in self.host.events[-4:]):
            return Cause.HOST, "restarting"
        if 2 * (tick.woke_ns - tick.release_ns) >= tick.deadline_ns - tick.release_ns:
            return Cause.WAKE, "scheduler"
        return Cause.DECIDE, "decoder_slow" if tick.is_requested else "queued"

    def _on_command(self, command: OperatorCommand) -> None:
        """Send all members their safe calls after a pause or stop. After a resume, schedule their ticks again."""
        if command.by != "before":
            line = {"people": command.word, "by": command.by, "t_s": self.ledger.t_s(self.now_ns)}
            self.ledger.write(line)
        self.paused = command.word != "resume"
        for member in self.members:
            if not self.paused:
                self._restore_rate(member)
                continue
            if member.tick is not None:
                self._settle_tick(TickOutcome(member.tick, "held"), why="paused")
            member.due_ns = None
            self._end_with_safe_calls(member, "pause")

    def _end_with_safe_calls(self, member: CrowdMember, why: str) -> None:
        was_active = member.policy.safe
        member.policy.record_pause(self.now_ns, lasting=False)
        self._send_safe_calls_between_ticks(member, why, not was_active)

    def _on_instruction(self, event: ev.NewInstruction) -> None:
        """Set a new instruction for all members, and for later members that join without an instruction."""
        self.members.goal = event.text
        for member in self.members:
            member.terms = replace(member.terms, instruction=event.text)
            self._restore_rate(member)
        self.ledger.write({"instruction": event.text, "t_s": self.ledger.t_s(self.now_ns)})
        self.out.append(ev.Instruct(event.text))

    def _on_host_changed(self, state: HostChanged) -> None:
        self.host = state
        self.ledger.write_host_events(state.events)

    def _on_stopped(self, event: ev.StopRequested) -> None:
        """End the run, and send the safe calls of all members. Open ticks are not counted."""
        for member in self.members:
            member.end_ticks()
            self._end_with_safe_calls(member, "exit")
        self._flush_calls()
        self.ledger.write({"end": event.why, "t_s": self.ledger.t_s(self.now_ns)})


def choose_batch(
    waiting: Sequence[MemberTick], now_ns: int, expected_ns: Callable[[int], float], max_size: int
) -> list[MemberTick]:
    """Return the ticks for the next batch: at most `max_size` ticks that can be decided in time.

    `expected_ns` returns the expected duration of a batch by its size. A batch takes at most TIME_SHARE of the time to
    its earliest deadline. The order is by deadline. If there is not enough time for all ticks, the order is by priority
    of the member, then by how long the member has waited. If no tick can be in time, the batch has only the tick with
    the latest deadline: its duration updates the expected duration, which may have fallen."""
    in_time = [tick for tick in waiting if now_ns + expected_ns(1) <= tick.deadline_ns]
    if not in_time:
        open_ticks = [tick for tick in waiting if now_ns < tick.deadline_ns]
        return sorted(open_ticks, key=lambda tick: tick.deadline_ns)[-1:]
    time_for_all = now_ns + expected_ns(len(in_time)) <= max(tick.deadline_ns for tick in in_time)

    def batch_order(tick: MemberTick) -> tuple[int, ...]:
        member = tick.member
        rank = -member.terms.priority, member.served
        return (tick.deadline_ns, *rank) if time_for_all else (*rank, tick.deadline_ns)

    ordered = sorted(in_time, key=batch_order)
    earliest, count = ordered[0].deadline_ns, 1
    while count < min(len(ordered), max_size):
        earliest = min(earliest, ordered[count].deadline_ns)
        if expected_ns(count + 1) > TIME_SHARE * (earliest - now_ns):
            break
        count += 1
    return ordered[:count]


HANDLERS: dict[type, Callable[[CrowdCore, Any], None]] = {
    ev.TimerFired: CrowdCore._on_timer_fired,
    Join: CrowdCore._on_join,
    Leave: lambda core, message: core.members.remove_members(message),
    ObserveMany: CrowdCore._on_observe,
    ev.SendResult: CrowdCore._on_sent,
    DecisionReply: CrowdCore._on_reply,
    OperatorCommand: CrowdCore._on_command,
    ev.NewInstruction: CrowdCore._on_instruction,
    HostChanged: CrowdCore._on_host_changed,
    ev.StopRequested: CrowdCore._on_stopped,
}
