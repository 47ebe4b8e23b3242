"""The loop of a crowd: one thread releases, asks for and settles the ticks of all members.

One batch is decided at a time. What happens to a member changes nothing of another one's tick.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rtcontrol.agents import InvalidCall
from rtcontrol.envs.remote_parts import wire_call
from rtcontrol.hosts.crowd import CharacterAsk, CharacterDecision, crowd_request, unpack
from rtcontrol.hosts.protocol import DecisionReply, Host
from rtcontrol.loop.confidence import ConfidenceGate
from rtcontrol.serve.crowd.accounts import CrowdEvents, CrowdReplies, KnownCause
from rtcontrol.serve.crowd.member import NEVER, CrowdMember, MemberTick, Roster, refusal_of_parts
from rtcontrol.serve.crowd.turns import PHASES, BatchTimes, choose, stretched
from rtcontrol.telemetry.causes import Cause
from rtcontrol_client.wire import Code, WireError
from rtcontrol_client.wire.crowd import Join, Leave, MemberCall, ObserveMany, PartFault

CrowdMessage = Join | Leave | ObserveMany
QUEUE = 256  # messages that wait for the loop
IDLE_NS = 250_000_000
SHARES = 64


@dataclass(slots=True)
class CrowdBatch:
    """What is under way."""

    number: int
    ticks: list[MemberTick]
    asked_ns: int
    until_ns: int  # the earliest deadline
    incarnation: int


class CrowdLoop:
    """`post`, `stop`, `hold_all`, `release_all` and `tell_all` may be called from any thread, the rest is the loop's.
    `send` gives calls to the client, `refuse` tells it what was wrong."""

    def __init__(
        self,
        roster: Roster,
        host: Host,
        events: CrowdEvents,
        send: Callable[[list[MemberCall]], None],
        refuse: Callable[[WireError], None],
    ) -> None:
        self.roster, self.host, self.events, self._refuse = roster, host, events, refuse
        self.replies = CrowdReplies(events, send, refuse)
        config, agent = roster.defaults.config, roster.defaults.agent
        self._config, self._tools = config, agent.tools
        hold_ms = agent.fallback.hold_ms if config.hold_ms is None else config.hold_ms
        self._hold_ns = 0 if config.on_miss == "safe" else round(1e6 * hold_ms)
        self._gate = ConfidenceGate(config.floors, agent.tools, agent.null_is_doubt)
        self._confirm = frozenset(config.confirm) | frozenset(agent.confirm)
        self.shares: deque[float] = deque(maxlen=SHARES)  # ns of a decision, in a batch
        self.times = BatchTimes()
        self.ended_by: str | None = None
        self._inbox: deque[CrowdMessage | Callable[[], None]] = deque()
        self._instants: list[tuple[int, int, CrowdMember, int]] = []  # releases and ends of holds
        self._open: list[tuple[int, int, MemberTick]] = []  # deadlines
        self._numbers = itertools.count()
        self._waiting: list[MemberTick] = []
        self._batch: CrowdBatch | None = None
        self._paused, self._noted, self._now = False, 0, 0
        self.batches = self.late_dropped = 0
        self.account, self.recorder = events.account, events.recorder

    # -- from any thread ----------------------------------------------------------------------------------------------

    def post(self, message: CrowdMessage) -> None:
        """Raises WireError (rate) where too many wait."""
        if len(self._inbox) >= QUEUE:
            raise WireError(
                Code.RATE, f"{QUEUE} messages wait for the crowd.", "Send fewer, larger ones.", retryable=True
            )
        self._inbox.append(message)
        self.host.wake()

    def call_soon(self, what: Callable[[], None]) -> None:
        """Do it on the loop's thread."""
        self._inbox.append(what)
        self.host.wake()

    def stop(self, why: str) -> None:
        """End soon, with everybody safe."""
        self.ended_by = self.ended_by or why
        self.host.wake()

    # -- people, on the loop's thread ---------------------------------------------------------------------------------

    def hold_all(self) -> None:
        """Everybody is safe until `release_all`."""
        self._paused = True
        now = time.monotonic_ns()
        for member in self.roster.members.values():
            self._stop_tick(member, now)
            self.replies.act_safe(member, "pause", now, None)
        self._waiting.clear()

    def release_all(self) -> None:
        """Decide again, from what is seen next."""
        self._paused = False
        for member in self.roster.members.values():
            self._renew(member)

    def tell_all(self, instruction: str) -> None:
        """Everybody's goal from the next tick on, and that of whoever joins without one."""
        self.roster.defaults = replace(self.roster.defaults, instruction=instruction)
        for member in self.roster.members.values():
            member.terms = replace(member.terms, instruction=instruction)
            self._renew(member)

    # -- the thread ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until it is stopped, or the decoder gave up."""
        try:
            while self.ended_by is None and self.host.gave_up is None:
                self._turn()
        finally:
            now = time.monotonic_ns()
            for member in self.roster.members.values():
                member.tick = None  # what is in flight at the end is no release
                self.replies.act_safe(member, "exit", now, None)
            self.replies.flush()
            self._note_host()
            self.events.emit({"end": self.ended_by or self.host.gave_up, "t_s": self.events.t_s(now)})

    def _turn(self) -> None:
        self._take_in()
        self._note_host()
        now = time.monotonic_ns()
        self._miss_late(now)
        self._release_due(now)
        self._ask(now)
        self.replies.flush()
        reply = self.host.wait(self._wait_ns())
        if reply is not None:
            self._answered(reply)

    def _wait_ns(self) -> int:
        """Until the next instant; messages and replies wake the loop before."""
        if self._inbox:
            return 0
        now, last = time.monotonic_ns(), NEVER
        last = min(last, self._instants[0][0]) if self._instants else last
        last = min(last, self._open[0][0] + 1) if self._open else last
        return min(IDLE_NS, max(0, last - now))

    def _take_in(self) -> None:
        self._now = time.monotonic_ns()
        for _ in range(len(self._inbox)):
            message, faults = self._inbox.popleft(), list[PartFault]()
            if isinstance(message, Join):
                before = [self.roster.members.get(part.id) for part in message.members]
                for member in self.roster.join(message, faults):
                    self._renew(member)
                for old in before:
                    if old is not None and self.roster.members[old.id] is not old:
                        self._gone(old)  # another life has begun
                self._tell_faults(message, faults)
            elif isinstance(message, ObserveMany):
                for member in self.roster.observe(message, self._now, faults):
                    self._seen(member)
                self._tell_faults(message, faults)
            elif isinstance(message, Leave):
                for member in self.roster.leave(message):
                    self._gone(member)
            else:
                message()

    def _tell_faults(self, message: Join | ObserveMany, faults: list[PartFault]) -> None:
        if (error := refusal_of_parts(message, faults)) is not None:
            self._refuse(error)

    def _gone(self, member: CrowdMember) -> None:
        member.stamp += 1
        if member.tick is not None:
            member.tick.done = True
            member.tick = None

    # -- releases -----------------------------------------------------------------------------------------------------

    def _seen(self, member: CrowdMember) -> None:
        """The first look begins its ticks; another text than the one decided upon renews its rate at once."""
        if member.released_ns is None or (member.stretch > 1 and not member.rests):
            self._renew(member)

    def _renew(self, member: CrowdMember) -> None:
        """Its next release comes at its own rate, counted from the last one: at once where it rested."""
        member.stretch = 1
        if member.look is not None and member.tick is None and not self._paused:
            # Of one instant for all of a message: who has the same rate has the same deadlines.
            now, last = self._now, member.released_ns
            self._schedule(member, now if last is None else max(now, last + member.period_ns))

    def _schedule(self, member: CrowdMember, t_ns: int) -> None:
        member.stamp += 1
        heapq.heappush(self._instants, (t_ns, next(self._numbers), member, member.stamp))
        if member.held_until_ns < t_ns:
            heapq.heappush(self._instants, (member.held_until_ns, next(self._numbers), member, member.stamp))

    def _release_due(self, now: int) -> None:
        while self._instants and self._instants[0][0] <= now:
            t_ns, _, member, stamp = heapq.heappop(self._instants)
            if member.stamp != stamp or self.roster.members.get(member.id) is not member:
                continue
            if member.held_until_ns <= t_ns:
                self.replies.act_safe(member, "miss", now, None)
                continue
            self._release(member, t_ns, now)

    def _release(self, member: CrowdMember, t_ns: int, now: int) -> None:
        look = member.look
        assert look is not None, "who saw nothing has no releases"
        period_ns = member.terms.period_ns
        skipped = (now - t_ns) // period_ns if member.stretch == 1 else 0
        if member.released_ns is None:
            member.phase_ns = member.serial % PHASES * period_ns // PHASES
        else:
            member.rested += max(0, (t_ns - member.released_ns) // period_ns - 1)
        release_ns = t_ns + skipped * period_ns
        self.events.released(t_ns)
        self.replies.k += 1 + skipped
        tick = MemberTick(member, self.replies.k, release_ns, release_ns + member.terms.deadline_ns, now, skipped)
        member.released_ns, member.tick = release_ns, tick
        if now - look.arrived_ns > self._config.max_age_ns:
            tick.look = look
            self._missed(tick, (Cause.STALE_OBSERVATION, "frozen"), now)
            return
        heapq.heappush(self._open, (tick.deadline_ns, next(self._numbers), tick))
        self._waiting.append(tick)

    # -- decisions ----------------------------------------------------------------------------------------------------

    def _ask(self, now: int) -> None:
        self._waiting = [tick for tick in self._waiting if not tick.done]
        if self._batch is not None or not self._waiting or not self.host.alive():
            return
        batch = choose(self._waiting, now, self.times.expected, self.times.most)
        if not batch:
            return
        chosen = set(batch)
        self._waiting = [tick for tick in self._waiting if tick not in chosen]
        self.batches += 1
        asked, data = [], {}
        for tick in batch:
            member = tick.member
            assert member.look is not None, "it was released"
            tick.look, tick.instruction, tick.asked = member.look, member.terms.instruction, True
            tick.history = tuple(member.history) if self.roster.defaults.agent.history else ()
            member.taken, member.served = True, next(self._numbers)
            key = f"{member.serial}"
            asked.append(CharacterAsk(key, tick.k, tick.look.text, tick.instruction, tick.history))
            data[key] = tick.look.data
        until_ns = min(tick.deadline_ns for tick in batch)
        self._batch = CrowdBatch(self.batches, batch, now, until_ns, self.host.incarnation)
        self.host.submit(crowd_request(self.batches, asked, max(1, until_ns - now), data))

    def _answered(self, reply: DecisionReply) -> None:
        batch = self._batch
        if batch is None or reply.tick != batch.number:
            return
        self._batch = None
        now = time.monotonic_ns()
        count = len(batch.ticks)
        self.times.took(count, now - batch.asked_ns, now > batch.until_ns)
        self.shares.append(reply.decide_ns / count)
        for tick, found in zip(batch.ticks, unpack(reply, count), strict=True):
            if tick.done:
                self.late_dropped += found.decision is not None
            elif now > tick.deadline_ns:
                self._missed(tick, self._late_cause(tick, "decoder_slow"), now, found, reply.decide_ns)
            else:
                self._decided(tick, found, reply.decide_ns, now)

    def _decided(self, tick: MemberTick, found: CharacterDecision, decide_ns: int, now: int) -> None:
        decision, member = found.decision, tick.member
        if decision is None:
            self.replies.trouble(tick, found)
            self._missed(tick, (Cause.DECIDE, "error"), now, found, decide_ns, error=found.error)
            return
        why = "confidence" if self._gate.doubt(decision) is not None else None
        if why is None and decision.call is not None and decision.call.name in self._confirm:
            why = "confirm"  # nobody is asked for each of a crowd
        if why is not None:
            self.replies.say(tick, "held", cause=why)
            self._settle(tick, "held", now, found, decide_ns, why=why)
            return
        call = decision.call
        if call is not None:
            try:
                call = self._tools.validate(call)
            except InvalidCall as error:
                self._missed(tick, (Cause.INVALID, None), now, found, decide_ns, error=str(error))
                return
        confidence = min(decision.confidence.values(), default=None)
        self.replies.say(tick, "fresh", call=wire_call(call), confidence=confidence and min(1.0, confidence))
        if call is not None or member.standing == "call":
            member.standing = "call"
            assert tick.look is not None, "it was decided upon"
            member.newest_decided = tick.look.text, tick.instruction
        member.held_until_ns, member.effect_ns = NEVER, now
        if call is not None:
            member.history.append(call.text())
            self.events.called(tick, call, now)
        self._settle(tick, "null" if call is None else "call", now, found, decide_ns)

    # -- what is over -------------------------------------------------------------------------------------------------

    def _miss_late(self, now: int) -> None:
        while self._open and self._open[0][0] < now:
            _, _, tick = heapq.heappop(self._open)
            if not tick.done:
                self._missed(tick, self._late_cause(tick, "decoder_slow" if tick.asked else "queued"), now)
        batch = self._batch
        if batch is not None and (batch.incarnation != self.host.incarnation or not self.host.alive()):
            self._batch = None  # its answer will never come
            self._waiting += [tick for tick in batch.ticks if not tick.done]
        elif batch is not None and all(tick.done for tick in batch.ticks):
            self.host.cancel(batch.number)
            self.times.took(len(batch.ticks), now - batch.asked_ns, late=True)
            self._batch = None

    def _late_cause(self, tick: MemberTick, which: str) -> KnownCause:
        """Why it was not decided in time."""
        if not self.host.alive():
            return Cause.HOST, "lost"
        if any(event.event == "lost" and event.t_ns > tick.release_ns for event in self.host.events[-4:]):
            return Cause.HOST, "restarting"
        if 2 * (tick.woke_ns - tick.release_ns) >= tick.deadline_ns - tick.release_ns:
            return Cause.WAKE, "scheduler"
        return Cause.DECIDE, which

    def _missed(
        self,
        tick: MemberTick,
        cause: KnownCause,
        now: int,
        found: CharacterDecision | None = None,
        decide_ns: int = 0,
        **more: Any,
    ) -> None:
        member = tick.member
        if member.standing == "call" and self._hold_ns and member.held_until_ns == NEVER:
            member.held_until_ns = member.effect_ns + self._hold_ns
        if member.standing == "call" and self._hold_ns and now < member.held_until_ns:
            self.replies.say(tick, "held", cause=cause[0].value)
            action = "hold"
        else:
            action = "none" if member.standing == "safe" else "safe"
            self.replies.act_safe(member, "miss", now, tick, cause[0].value)
        self._settle(tick, "miss", now, found, decide_ns, cause, action=action, **more)

    def _settle(self, tick: MemberTick, kind: str, now: int, *found: Any, **more: Any) -> None:
        """The tick is over, and the next one is due in its time."""
        member = tick.member
        tick.done, member.tick = True, None
        self.events.settled(tick, kind, now, *found, **more)
        member.stretch = stretched(member.stretch) if kind in ("call", "null") and member.rests else 1
        phase_ns, member.phase_ns = member.phase_ns, 0
        self._schedule(member, tick.release_ns + member.period_ns + phase_ns)

    def _stop_tick(self, member: CrowdMember, now: int) -> None:
        """People hold the calls back: its open tick, if there is one, is over."""
        if member.tick is not None:
            self._settle(member.tick, "held", now, why="paused")
        member.stamp += 1

    def _note_host(self) -> None:
        events: Sequence[Any] = self.host.events
        for event in events[self._noted :]:
            told = {"t_s": self.events.t_s(event.t_ns), "event": event.event, "seconds": round(event.seconds, 3)}
            self.events.emit({"host_event": told})
            self._noted += 1
