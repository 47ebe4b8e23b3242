"""The ticks of a crowd: a core without a clock, which takes events with `now_ns` and returns actions.

    join, observe -> release -> ask together -> check -> settle, or miss -> next release

The methods follow a member's tick from top to bottom. Like `LoopCore`, this core uses `FallbackPolicy` and `Tick` for
each member, `Rules` and `Ledger` for all. Members have no `LoopCore`, which has a fixed rate and a decoder and an
actuator to itself: they share batches, messages and tick numbers, and are released when something happens to them.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rtcontrol import records as ev
from rtcontrol.envs.remote_core import wire_call
from rtcontrol.hosts.deciders import crowd_request, member_replies
from rtcontrol.hosts.pool import EdfScheduler
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest
from rtcontrol.loop.active import Measure, Status
from rtcontrol.loop.core import LoopSettings, Rules
from rtcontrol.loop.ledger import Ledger
from rtcontrol.models.call import Call, Decision
from rtcontrol.records import HostChanged, KnownCause, OperatorCommand, TickOutcome
from rtcontrol.serve.crowd.members import CrowdMember, Members, MemberSight, MemberTick
from rtcontrol.telemetry.causes import Cause
from rtcontrol_client.wire import Code, WireError
from rtcontrol_client.wire.messages import Join, Leave, MemberCall, ObserveMany, PartFault

SHARES = 64  # newest batches whose time per decision is kept
SHOWN = 64  # refused parts that an error to the client lists
TAKEN = "the others were accepted"
# Members with the same rate that arrive in one message are released in so many groups within their period: each
# smaller batch ends sooner, and all together take little more of the decoder's time.
PHASES = 4
# A batch is planned to take this share of the remaining time: even a batch that takes twice as long is in time, while
# a late batch costs each of its members a miss.
MARGIN = 0.5


@dataclass(slots=True)
class SendCalls:
    """Send these calls to the client."""

    calls: list[MemberCall]


@dataclass(slots=True)
class Refuse:
    """Send this error to the client."""

    error: WireError


class Agenda:
    """A queue of function calls, each with its argument, ordered by due time."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Callable[[Any], None], Any]] = []
        self._numbers = itertools.count()

    def at(self, t_ns: int, do: Callable[[Any], None], subject: Any) -> None:
        heapq.heappush(self._heap, (t_ns, next(self._numbers), do, subject))

    def run(self, now_ns: int) -> None:
        """Call the functions that are due."""
        while self._heap and self._heap[0][0] <= now_ns:
            _, _, do, subject = heapq.heappop(self._heap)
            do(subject)

    @property
    def next_ns(self) -> int | None:
        return self._heap[0][0] if self._heap else None


@dataclass(slots=True)
class BatchQueue:
    """The released ticks that wait for a decision, and the `batch` that was requested at `requested_ns` from the host's
    `incarnation`. `count`: batches so far; `served`: ticks in all batches; `shares`: nanoseconds per decision.

    A batch has at most `most` ticks. The limit halves after a late batch; after a full one in time it doubles, or grows
    by an eighth once a batch was late. Otherwise a size that is always late would be tried for ever.
    """

    waiting: list[MemberTick] = field(default_factory=list)
    batch: list[MemberTick] = field(default_factory=list)
    requested_ns: int = 0
    incarnation: int = 0
    count: int = 0
    served: int = 0
    late_dropped: int = 0
    shares: deque[float] = field(default_factory=lambda: deque(maxlen=SHARES))
    times: EdfScheduler = field(default_factory=EdfScheduler)
    most: int = 1
    growth: int = 1

    def end(self, now_ns: int, late: bool) -> list[MemberTick]:
        """End the batch, which took until `now_ns`, and return the ticks in it."""
        batch, self.batch = self.batch, []
        self.took(len(batch), now_ns - self.requested_ns, late)
        return batch

    def took(self, count: int, ns: int, late: bool) -> None:
        """Record that `count` ticks took `ns` together; `late`: the earliest deadline was missed."""
        self.times.record_duration(None, count, ns)
        if late:
            self.most, self.growth = max(1, count // 2), 8
        elif count >= self.most:
            self.most = count + max(1, count // self.growth)

    def expected(self, count: int) -> float:
        """Return the expected nanoseconds for a batch of `count` ticks."""
        return self.times.expected_ns(None, count)


class CrowdCore:
    """The state machine of a crowd's run. `k` is the number of the newest tick, or of a safe call between two ticks
    (-1 before the first run). `calls` are not sent yet."""

    def __init__(self, members: Members, settings: LoopSettings, rules: Rules, k: int = -1) -> None:
        self.members, self.settings, self.rules, self.k = members, settings, rules, k
        self.out: list[ev.Action] = []
        self.calls: list[MemberCall] = []
        self.ledger = Ledger(self.out, rules.describe)
        self.agenda, self.queue = Agenda(), BatchQueue()
        self.host = HostChanged()
        self.now_ns = 0
        self.paused = False

    def advance(self, event: Any, now_ns: int) -> Sequence[ev.Action]:
        """Process an event at `now_ns`. Return the actions to carry out, in order."""
        self.now_ns = now_ns
        self.out.clear()
        HANDLERS[type(event)](self, event)
        actions = self.out.copy()
        self.out.clear()
        return actions

    @property
    def wake_ns(self) -> int | None:
        """The next instant at which the core needs `Woke`; None if nothing is due."""
        return self.agenda.next_ns

    def _woke(self, event: ev.TimerFired) -> None:
        self.agenda.run(self.now_ns)
        self._give_up_batch()
        self._ask()
        self._flush()

    def _flush(self) -> None:
        if self.calls:
            self.out.append(SendCalls(self.calls))
            self.calls = []

    # -- join, observe -------------------------------------------------------------------------------------------------

    def _joined(self, message: Join) -> None:
        members, faults = self.members.join(message)
        for member in members:
            self._renew(member)
        self._refuse(f"part(s) of {message.type} were refused", TAKEN, faults)

    def _observed(self, message: ObserveMany) -> None:
        """Take observations: a member's first one starts its ticks, and a changed one restores its full rate."""
        members, faults = self.members.observe(message, self.now_ns)
        for member in members:
            if member.released_ns is None or (member.periods > 1 and not member.rests):
                self._renew(member)
        self._refuse(f"part(s) of {message.type} were refused", TAKEN, faults)

    def _refuse(self, problem: str, others: str, faults: Sequence[PartFault]) -> None:
        if faults:
            codes = {fault.error.code for fault in faults}
            code = codes.pop() if len(codes) == 1 else Code.INVALID
            members = [fault.message_part() for fault in faults[:SHOWN]]
            hint = f"`members` says why, of {SHOWN} at most."
            self.out.append(Refuse(WireError(code, f"{len(faults)} {problem}; {others}.", hint, members=members)))

    def _renew(self, member: CrowdMember) -> None:
        """Restore a member's full rate: the next release is one period after the last, or now if that has passed."""
        now = self.now_ns
        member.periods = 1
        if member.newest is not None and member.tick is None and not self.paused:
            # All members of a message share this instant, so equal rates lead to equal deadlines.
            last = member.released_ns
            self._schedule(member, now if last is None else max(now, last + member.period_ns))

    # -- release -------------------------------------------------------------------------------------------------------

    def _schedule(self, member: CrowdMember, t_ns: int) -> None:
        if member.due_ns != t_ns:  # else the release is on the agenda already
            member.due_ns = t_ns
            self.agenda.at(t_ns, self._release, member)

    def _release(self, member: CrowdMember) -> None:
        """Release the member's tick, unless the release was moved meanwhile."""
        look, now = member.newest, self.now_ns
        due_ns, period_ns = member.due_ns, member.terms.period_ns
        if due_ns is None or due_ns > now or look is None:
            return
        skipped = (now - due_ns) // period_ns if member.periods == 1 else 0
        if member.released_ns is None:
            member.phase_ns = member.serial % PHASES * period_ns // PHASES
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
        if now - look.arrived_ns > self.settings.max_age_ns:
            tick.see(look)
            self._miss(tick, (Cause.STALE_OBSERVATION, "frozen"))
        else:
            self.agenda.at(tick.deadline_ns + 1, self._expire, tick)
            self.queue.waiting.append(tick)

    # -- ask together --------------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        """Request the next batch, if no batch is pending."""
        queue, now = self.queue, self.now_ns
        queue.waiting = [tick for tick in queue.waiting if not tick.done]
        if queue.batch or not queue.waiting or not self.host.alive:
            return
        queue.batch = choose(queue.waiting, now, queue.expected, queue.most)
        if not queue.batch:
            return
        chosen = {tick.k for tick in queue.batch}
        queue.waiting = [tick for tick in queue.waiting if tick.k not in chosen]
        queue.count += 1
        queue.requested_ns, queue.incarnation = now, self.host.incarnation
        requests = [self._request(tick) for tick in queue.batch]
        within_ns = max(1, min(tick.deadline_ns for tick in queue.batch) - now)
        self.out.append(crowd_request(queue.count, requests, within_ns))

    def _request(self, tick: MemberTick) -> DecisionRequest:
        """Return the request for a tick, with the member's newest observation."""
        member, look = tick.member, tick.member.newest
        assert look is not None, "it was released"
        self.queue.served += 1
        member.taken, member.served = True, self.queue.served
        tick.see(look)
        history = tuple(member.history) if self.rules.history else ()
        prompt = look.text, member.terms.instruction, history, look.data
        tick.request = DecisionRequest(tick.k, member.serial, *prompt, seq=look.seq)
        return tick.request

    def _sent(self, event: ev.SendResult) -> None:
        """If the host refused the request, miss the ticks of the batch; the crowd continues."""
        if event.error is None:
            return
        batch, self.queue.batch = self.queue.batch, []
        for tick in batch:
            self._miss(tick, (Cause.DECIDE, "send"), error=event.error)
        self._flush()

    def _give_up_batch(self) -> None:
        """Give up a batch that will not be answered, or whose ticks have all ended."""
        queue, host = self.queue, self.host
        if queue.batch and (queue.incarnation != host.incarnation or not host.alive):
            queue.waiting += [tick for tick in queue.batch if not tick.done]
            queue.batch = []
        elif queue.batch and all(tick.done for tick in queue.batch):
            queue.end(self.now_ns, late=True)
            self.out.append(ev.CancelRequest(queue.count))

    def _replied(self, reply: DecisionReply) -> None:
        queue, now = self.queue, self.now_ns
        if not queue.batch or reply.tick != queue.count:
            return
        batch = queue.end(now, late=any(now > tick.deadline_ns for tick in queue.batch))
        queue.shares.append(reply.decide_ns / len(batch))
        faults = list[PartFault]()
        for tick, part in zip(batch, member_replies(reply, [tick.request for tick in batch]), strict=True):
            if tick.done:
                queue.late_dropped += part.decision is not None
            elif now > tick.deadline_ns:
                self._miss(tick, self._late_cause(tick), part)
            elif part.decision is None:
                faults += self._undecided(tick, part)
                self._miss(tick, (Cause.DECIDE, "error"), part, error=part.error)
            else:
                self._check(tick, part, part.decision)
        self._refuse("observation(s) led to no decision", "those of the others did", faults)

    def _undecided(self, tick: MemberTick, reply: DecisionReply) -> list[PartFault]:
        """Return the fault to report for an observation without a decision. A text that many ticks use is reported
        once."""
        member, text = tick.member, tick.request.observation
        if member.refused == text:
            return []
        member.refused = text
        problem, hint = reply.user_error or (f"No decision was made on it ({reply.error}).", "Continue to observe.")
        code = Code.DECODER if reply.user_error is None else Code.TOO_LARGE
        return [PartFault(member.id, tick.seq, WireError(code, problem, hint, field="text"))]

    # -- check ---------------------------------------------------------------------------------------------------------

    def _check(self, tick: MemberTick, reply: DecisionReply, decision: Decision) -> None:
        """Let the member's call act, unless it is uncertain, needs a confirmation, or is illegal."""
        call, text = decision.call, None
        if (why := self._doubt(decision)) is not None:
            # The active call continues, but its time limit is not renewed.
            policy = tick.member.policy
            measure = policy.miss(self.now_ns) if tick.member.decided is None else policy.unsure(self.now_ns)
            self._fall_back(tick, measure, why)
            self._settle(TickOutcome(tick, "held", reply, None if call is None else call.text(), why=why))
            return
        if call is not None:
            try:
                _, text = self.rules.check(call)
            except ValueError as error:
                self._miss(tick, (Cause.INVALID, None), reply, str(error), call.text())
                return
        confidence = min(decision.confidence.values(), default=None)
        confidence = confidence and min(1.0, confidence)
        self._send(tick.member, tick.k, "fresh", tick.look, call=wire_call(call), confidence=confidence)
        self._act(tick, call, text)
        self._settle(TickOutcome(tick, "null" if call is None else "call", reply, text))

    def _doubt(self, decision: Decision) -> str | None:
        """Return why a decision must not act. Crowds have no confirmation, so calls that need one are held back."""
        if self.rules.doubt is not None and self.rules.doubt(decision) is not None:
            return "confidence"
        return "confirm" if decision.call is not None and decision.call.name in self.rules.confirm else None

    def _act(self, tick: MemberTick, call: Call | None, text: str | None) -> None:
        """Make the call active; None: the active call continues, if there is one."""
        member, now = tick.member, self.now_ns
        if call is not None and text is not None:
            member.policy.fresh_call(now)
            member.history.append(text)
            self.ledger.called(call, tick.k, member.epoch, "fresh", now, member=member.id)
        elif member.decided is not None:
            member.policy.renew(now)
        else:
            return
        member.decided = tick.request.observation, tick.request.instruction

    # -- settle, or miss -----------------------------------------------------------------------------------------------

    def _settle(self, outcome: TickOutcome, **more: Any) -> None:
        """End the tick, and schedule the member's next one."""
        tick = outcome.tick
        assert isinstance(tick, MemberTick), "a crowd's ticks belong to members"
        member = tick.member
        tick.done, member.tick = True, None
        self._record(tick, outcome, more)
        member.stretch(outcome.kind in ("call", "null"))
        phase_ns, member.phase_ns = member.phase_ns, 0
        self._schedule(member, tick.release_ns + member.period_ns + phase_ns)

    def _record(self, tick: MemberTick, outcome: TickOutcome, more: dict[str, Any]) -> None:
        member, ledger, request, reply = tick.member, self.ledger, tick.request, outcome.reply
        tick.epoch, tick.superseded, member.superseded = member.epoch, member.superseded, 0
        fields: dict[str, Any] = {"member": member.id}
        if self.settings.record_observations and tick.requested:
            numbers = {"k": tick.k, "t_s": ledger.t_s(tick.capture_ns), "seq": tick.seq, "epoch": tick.epoch}
            prompt = {"observation": request.observation, "instruction": request.instruction}
            ledger.write({**numbers, **prompt, "history": request.history, **fields})
        if member.rested:
            fields["rested"], member.rested = member.rested, 0
        if reply is not None and reply.decision is not None:
            line = ledger.decided_line(outcome, reply, self.now_ns, 0)
        else:
            line = ledger.tick_line(outcome)
        ledger.write({**line, **fields, **more})

    def _miss(
        self,
        tick: MemberTick,
        cause: KnownCause,
        reply: DecisionReply | None = None,
        error: str | Exception | None = None,
        call: str | None = None,
    ) -> None:
        measure = tick.member.policy.miss(self.now_ns)
        more: dict[str, Any] = {"cause": cause[0].value, "action": measure}
        if cause[1] is not None:
            more["subcause"] = cause[1]
        self.ledger.put_error(more, error, None, "submit: " if isinstance(error, Exception) else "")
        self._fall_back(tick, measure, cause[0].value)
        self._settle(TickOutcome(tick, "miss", reply, call), **more)

    def _fall_back(self, tick: MemberTick, measure: Measure, cause: str) -> None:
        """Hold the active call until its limit, or send the safe calls."""
        expires_ns = tick.member.policy.expires_ns
        if measure == "hold" and expires_ns is not None:
            self._send(tick.member, tick.k, "held", tick.look, cause=cause)
            self.agenda.at(expires_ns, self._end_hold, tick.member)
        else:
            self._be_safe(tick.member, "miss", measure == "safe", tick.k, cause)

    def _be_safe(self, member: CrowdMember, why: str, first: bool, k: int, cause: str) -> None:
        """Send the member's safe calls. `first`: the safe calls were not active before."""
        member.decided = None
        calls = member.terms.safe_calls or []
        self._send(member, k, "safe", cause=cause, call=next(iter(calls), None), calls=calls or None)
        if first and member.newest is not None:
            text = "; ".join(Call(call.name, call.arguments).text() for call in calls) or None
            line = {"safe": text, "why": why, "t_s": self.ledger.t_s(self.now_ns), "attempt": 1, "in_force": True}
            self.ledger.write({**line, "member": member.id})

    def _send(
        self, member: CrowdMember, k: int, status: Status, look: MemberSight | None = None, **fields: Any
    ) -> None:
        if look is not None:
            fields |= {"seq_obs": look.seq, "t_obs_ns": look.t_ns}
        ttl_ms = member.terms.ttl_ms
        self.calls.append(MemberCall(id=member.id, tick=k, epoch=member.epoch, status=status, ttl_ms=ttl_ms, **fields))

    def _between(self, member: CrowdMember, why: str, first: bool) -> None:
        """Send the safe calls between two ticks, with a number that no release has. An open tick and the releases
        skipped before it get later numbers, as clients take the highest number for the newest call."""
        self.k += 1
        self._be_safe(member, why, first, self.k, why)
        if (tick := member.tick) is not None:
            self.k += 1 + tick.skip.get("skipped", 0)
            tick.k = self.k

    def _end_hold(self, member: CrowdMember) -> None:
        """Send the safe calls as soon as the hold time ends, even while a tick is open."""
        present = self.members.by_id.get(member.id) is member
        if present and member.policy.expire(self.now_ns) == "safe":
            self._between(member, "miss", True)

    def _expire(self, tick: MemberTick) -> None:
        if not tick.done:
            self._miss(tick, self._late_cause(tick))

    def _late_cause(self, tick: MemberTick) -> KnownCause:
        """Return the cause why a tick was not decided in time."""
        if not self.host.alive:
            return Cause.HOST, "lost"
        if any(event.event == "lost" and event.t_ns > tick.release_ns for event in self.host.events[-4:]):
            return Cause.HOST, "restarting"
        if 2 * (tick.woke_ns - tick.release_ns) >= tick.deadline_ns - tick.release_ns:
            return Cause.WAKE, "scheduler"
        return Cause.DECIDE, "decoder_slow" if tick.requested else "queued"

    # -- commands, instructions, host ----------------------------------------------------------------------------------

    def _commanded(self, command: OperatorCommand) -> None:
        """Make all members safe after a pause or stop; after a resume, decide again with the next observations."""
        if command.by != "before":
            line = {"people": command.word, "by": command.by, "t_s": self.ledger.t_s(self.now_ns)}
            self.ledger.write(line)
        self.paused = command.word != "resume"
        for member in self.members:
            if not self.paused:
                self._renew(member)
                continue
            if member.tick is not None:
                self._settle(TickOutcome(member.tick, "held"), why="paused")
            member.due_ns = None
            self._suspend(member, "pause")

    def _suspend(self, member: CrowdMember, why: str) -> None:
        first = not member.policy.safe
        member.policy.suspend(self.now_ns, lasting=False)
        self._between(member, why, first)

    def _instructed(self, event: ev.NewInstruction) -> None:
        """Make the text the goal of all members from the next tick on, and of members that join without a goal."""
        self.members.goal = event.text
        for member in self.members:
            member.terms = replace(member.terms, instruction=event.text)
            self._renew(member)
        self.ledger.write({"instruction": event.text, "t_s": self.ledger.t_s(self.now_ns)})
        self.out.append(ev.Instruct(event.text))

    def _host_changed(self, state: HostChanged) -> None:
        self.host = state
        self.ledger.host_events(state.events)

    def _stopped(self, event: ev.StopRequested) -> None:
        """End the run with all members safe. Open ticks do not count as releases."""
        for member in self.members:
            member.end()
            self._suspend(member, "exit")
        self._flush()
        self.ledger.write({"end": event.why, "t_s": self.ledger.t_s(self.now_ns)})


def choose(waiting: Sequence[MemberTick], now_ns: int, expected: Callable[[int], float], most: int) -> list[MemberTick]:
    """Return the ticks for the next batch: at most `most` of those that can be in time, and no more than should take
    MARGIN of the time to their earliest deadline. `expected` returns the nanoseconds for a number of ticks.

    The earliest deadlines come first. If not all ticks can be in time, the highest priority comes first, then the
    member that was served longest ago. If no tick can be in time, the one with the latest deadline is tried: otherwise
    a decoder that was slow once would never be tried again.
    """
    able = [tick for tick in waiting if now_ns + expected(1) <= tick.deadline_ns]
    able = able or sorted((tick for tick in waiting if now_ns < tick.deadline_ns), key=lambda t: t.deadline_ns)[-1:]
    if not able:
        return []
    time_for_all = now_ns + expected(len(able)) <= max(tick.deadline_ns for tick in able)

    def urgency(tick: MemberTick) -> tuple[int, ...]:
        member = tick.member
        rank = -member.terms.priority, member.served
        return (tick.deadline_ns, *rank) if time_for_all else (*rank, tick.deadline_ns)

    ordered = sorted(able, key=urgency)
    earliest, count = ordered[0].deadline_ns, 1
    while count < min(len(ordered), most):
        earliest = min(earliest, ordered[count].deadline_ns)
        if expected(count + 1) > MARGIN * (earliest - now_ns):
            break
        count += 1
    return ordered[:count]


HANDLERS: dict[type, Callable[[CrowdCore, Any], None]] = {
    ev.TimerFired: CrowdCore._woke,
    Join: CrowdCore._joined,
    Leave: lambda core, message: core.members.leave(message),
    ObserveMany: CrowdCore._observed,
    ev.SendResult: CrowdCore._sent,
    DecisionReply: CrowdCore._replied,
    OperatorCommand: CrowdCore._commanded,
    ev.NewInstruction: CrowdCore._instructed,
    HostChanged: CrowdCore._host_changed,
    ev.StopRequested: CrowdCore._stopped,
}
