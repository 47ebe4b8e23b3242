"""The client for many characters of one agent over one connection; and, without socket and clock, what it holds: its
members, what each is to do, and what waits to be said."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from rtcontrol_client.client.client import COUNTS, ClientBase, known, quantiles
from rtcontrol_client.client.connection import S
from rtcontrol_client.client.core import Core
from rtcontrol_client.client.errors import ClientError, checked
from rtcontrol_client.client.options import CallLike, Options
from rtcontrol_client.client.session import InForce, Standing, all_of
from rtcontrol_client.client.values import instant, plain
from rtcontrol_client.wire import LIMITS, Message, encode_msgpack, messages
from rtcontrol_client.wire.limits import check_size
from rtcontrol_client.wire.messages import (
    MEMBERS,
    CallMany,
    CrowdWish,
    Join,
    Leave,
    Member,
    MemberError,
    MemberLook,
    ObserveMany,
    Token,
    in_messages,
)

LOOK_NS = S // 50  # so often it is seen whose call ran out
STAMPS, REFUSALS = 64, 256


@dataclass(frozen=True, kw_only=True)
class CrowdOptions(Options):
    """As `Options`, for all members that bring nothing else; `members`: so many at most (None: as the server takes)."""

    members: int | None = None

    def hello(self, t_ns: int, resume: Token | None = None, instruction: str | None = None) -> messages.Hello:
        made = super().hello(t_ns, resume, instruction)
        return made.model_copy(update={"crowd": CrowdWish(members=self.members), "capabilities": []})


class CharacterState:
    """One member: its terms, what is in force for it, and the stamps of its newest looks."""

    def __init__(self, terms: Member, safe_calls: Sequence[messages.FunctionCall]) -> None:
        self.terms = terms
        self.force = InForce(terms.epoch, safe_calls)
        self.seq = 0
        self.stamps: dict[int, int] = {}
        self.refused: MemberError | None = None  # why it is not in


class CrowdCore(Core):
    """A conversation about many members. `news` are those of whom something new was heard."""

    def __init__(self, options: Options, now_ns: int) -> None:
        super().__init__(options, now_ns)
        self.members: dict[str, CharacterState] = {}
        self.news: set[str] = set()
        self.refusals: deque[MemberError] = deque(maxlen=REFUSALS)
        self._lives = itertools.count()  # a life has a higher number than all before it, whoever's they were
        self._looks: dict[str, MemberLook] = {}  # the newest of each that was not said
        self._left: deque[str] = deque(maxlen=MEMBERS)
        self._looked_ns = 0

    # What the user says.

    def join(self, fields: dict[str, Any]) -> Member:
        """A new member. Raises ClientError: there is one of that name."""
        if fields["id"] in self.members:
            raise ClientError(
                f"There is a member {fields['id']!r:.80} already.", "Let it leave first, or use instruct()."
            )
        terms = Member.model_validate({**fields, "epoch": next(self._lives)})
        self.members[terms.id] = CharacterState(terms, terms.safe_calls or self._safe_calls())
        self.say(Join(session=self.token, members=[terms]))
        return terms

    def leave(self, ids: Sequence[str]) -> None:
        """They are gone; of one that is not there, nothing."""
        gone = [name for name in dict.fromkeys(ids) if self.members.pop(name, None) is not None]
        for name in gone:
            self._looks.pop(name, None)
            self.news.discard(name)
        if gone:
            self._left.extend(gone)
            self.say(Leave(session=self.token, ids=gone))

    def change(self, ids: Sequence[str], **terms: Any) -> None:
        """New terms of members that are there. Raises ClientError."""
        for name in ids:
            member = self.member(name)
            member.terms = member.terms.model_copy(update=terms)
        self._say_terms(ids)

    def see(self, look: MemberLook) -> None:
        """What a member saw (its seq is filled in); it replaces what is not said yet. Of one that was not let in
        nothing is said. Raises ClientError."""
        name, member = look.id, self.member(look.id)
        if member.refused is not None:
            self.ignored["refused"] += 1
            return
        member.seq += 1
        member.stamps[member.seq] = look.t_ns
        if len(member.stamps) > STAMPS:
            del member.stamps[next(iter(member.stamps))]
        self.count["superseded"] += name in self._looks
        self.count["observed"] += 1
        self._looks[name] = look.model_copy(update={"seq": member.seq})

    def member(self, name: str) -> CharacterState:
        """Raises ClientError: there is none of that name."""
        member = self.members.get(name)
        if member is None:
            raise ClientError(f"There is no member {name!r:.80}.", "Let it join() first.")
        return member

    def _say_terms(self, names: Sequence[str]) -> None:
        for name in names:
            self.members[name].refused = None  # whoever is refused again is told so again
        for some in in_messages([self.members[name].terms for name in names]):
            self.say(Join(session=self.token, members=some))

    def _safe_calls(self) -> tuple[messages.FunctionCall, ...]:
        welcome = self.welcome
        return self.own_safe_calls or (() if welcome is None else all_of(welcome.safe_calls, welcome.safe_call))

    # What the connection says.

    def due(self, now_ns: int) -> list[Message]:
        said = super().due(now_ns)
        if self._looks and self.error is None and self.connection.open and now_ns >= self._room_ns:
            looks, self._looks = self._looks, {}
            said += [ObserveMany(session=self.token, looks=some) for some in in_messages(looks.values())]
            self._said_ns = now_ns
        return said

    def wake_ns(self, now_ns: int) -> int:
        return min(super().wake_ns(now_ns), now_ns + LOOK_NS) if self.members else super().wake_ns(now_ns)

    def look(self, now_ns: int) -> None:
        super().look(now_ns)
        if now_ns - self._looked_ns >= LOOK_NS:
            self._looked_ns = now_ns
            over = [name for name, member in self.members.items() if member.force.look(now_ns)]
            self.count["expired"] += len(over)
            self._heard(over)

    def hear(self, message: Message, now_ns: int) -> None:
        if isinstance(message, CallMany):
            self.connection.heard_ns = now_ns
            if self.error is None:
                self._calls(message, now_ns)
            return
        ours = isinstance(message, messages.Bye) and message.session in (None, self.token)
        super().hear(message, now_ns)
        if ours:
            self._all_safe("session_ended")

    def end(self, error: ClientError, now_ns: int) -> None:
        super().end(error, now_ns)
        self._all_safe("session_ended")

    def _all_safe(self, cause: str) -> None:
        self._heard([name for name, member in self.members.items() if member.force.ends(cause)])

    def _heard(self, names: Sequence[str]) -> None:
        if names:
            self.news.update(names)
            self.version += 1

    def _greet_anew(self, now_ns: int) -> None:
        was_open = self.connection.open
        super()._greet_anew(now_ns)
        self._looks.clear()  # as old as the gap
        if was_open:
            self._heard([name for name, member in self.members.items() if member.force.lost()])

    def _welcomed(self, welcome: messages.Welcome, now_ns: int) -> None:
        was_open = self.connection.open
        super()._welcomed(welcome, now_ns)
        if was_open or not self.connection.open:
            return
        if welcome.crowd is None:
            self.end(ClientError("The server knows no crowds.", "Update it, or use Client for each."), now_ns)
            return
        # All that waits of members is told by their joining, and those that are there already go on; who left lately is
        # told again, as that may be lost.
        self.drop(Join, Leave)
        gone = [name for name in dict.fromkeys(self._left) if name not in self.members]
        if welcome.resumed and gone:
            self.say(Leave(session=self.token, ids=gone))
        self._say_terms(list(self.members))
        for name, member in self.members.items():
            safe_calls = tuple(member.terms.safe_calls or self._safe_calls())
            if welcome.resumed:
                member.force.safe_calls = safe_calls
            elif member.force.begin(member.terms.epoch, safe_calls):
                self._heard([name])

    def _calls(self, message: CallMany, now_ns: int) -> None:
        if not self.connection.open or message.session != self.token:
            self.ignored["session"] += 1
            return
        if message.faults:
            self.ignored["malformed"] += len(message.faults)
        for call in message.calls:
            member = self.members.get(call.id)
            reason = None
            if member is None:
                reason = "member"
            elif call.epoch != member.force.epoch:
                reason = "epoch"
            elif call.tick <= member.force.last_tick:
                reason = "order"
            elif call.status == "fresh" and member.stamps.get(call.seq_obs or -1, call.t_obs_ns) != call.t_obs_ns:
                reason = "stamp"  # it would live longer, or shorter, than its look allows
            if member is None or reason is not None:
                self.ignored[reason or ""] += 1
                continue
            member.refused = None
            self.count[call.status] += 1
            if call.status == "fresh" and call.t_obs_ns is not None:
                self.latency_ns.append(now_ns - call.t_obs_ns)
            own_ms = member.terms.ttl_ms
            member.force.own_ttl_ms = self.options.ttl_ms if own_ms is None else own_ms
            _, too_old = member.force.receive(call, now_ns)
            self.count["expired"] += too_old
            self.news.add(call.id)
        self.version += 1

    def _error(self, message: messages.ErrorMessage, now_ns: int) -> None:
        if not message.members:
            super()._error(message, now_ns)
            return
        self.count["errors"] += 1
        self.last_error = f"{message.code}: {message.message} {message.members[0].message}"[:500]
        self.refusals.extend(message.members)
        for one in message.members:
            member = self.members.get(one.id or "")
            if member is not None and one.seq is None and member.force.last_tick < 0:
                member.refused = one  # it was not let in
        self._heard([one.id for one in message.members if one.id in self.members and one.id is not None])


NOT_OF_CROWDS = ("pacing", "calls_per_tick", "on_call", "on_safe", "look", "acknowledge")


class Crowd(ClientBase):
    """Members of one agent (the same tools, the same model), each decided for by itself: with a goal, a rate, a
    priority, a time-to-live and a safe call of its own. All methods may be called from any thread; none but `connect`
    and `wait` blocks, and what they return is never older than its time-to-live. After a lost connection the members
    join again by themselves.

    Example:

        with Crowd.connect("tcp://127.0.0.1:5555", agent="village", hz=4) as crowd:
            for name in village:
                crowd.join(name, instruction="Gather at the well.")
            while True:
                crowd.observe({name: one.look() for name, one in village.items()})
                for name, standing in crowd.wait(0.2).items():
                    for call in standing.calls:
                        village[name].act(call.name, call.arguments)
    """

    _core: CrowdCore

    @classmethod
    def connect(cls, endpoint: str, **options: Any) -> Self:
        """Connect to a server and wait for its welcome. The endpoint and the options are those of
        `Client`, for members that bring nothing else, and `members`: how many there will be at most. Raises
        ClientError, and Refused, as `Client`."""
        return cls(endpoint, options)._ready()

    def __init__(self, endpoint: str, options: Mapping[str, Any]) -> None:
        """Begin to connect, and do not wait."""
        known(CrowdOptions, options, " of a crowd", NOT_OF_CROWDS)
        super().__init__(endpoint, CrowdCore(CrowdOptions(**options), time.monotonic_ns()))

    # -- what is ------------------------------------------------------------------------------------------------------

    @property
    def members(self) -> list[str]:
        """Who has joined, and not left."""
        with self._link.lock:
            return list(self._core.members)

    @property
    def refusals(self) -> list[MemberError]:
        """The newest of what the server refused of single members, in order."""
        with self._link.lock:
            return list(self._core.refusals)

    @property
    def statistics(self) -> dict[str, Any]:
        """Counts over all members, as `Client.statistics` has them, and `latency_ms` from a look's stamp to the arrival
        of its call, of the last 4096 fresh calls."""
        with self._link.lock:
            core = self._core
            found = {**{name: core.count[name] for name in COUNTS}, "ignored": dict(core.ignored)}
            return {**found, "members": len(core.members), "latency_ms": quantiles(core.latency_ns)}

    def call(self, member: str) -> Standing:
        """What is in force for a member at this instant. Raises ClientError: there is no such member."""
        with self._link.lock:
            state = self._core.member(member)
            standing = state.force.at(time.monotonic_ns())
            return standing if state.refused is None else state.force.safe("refused")

    def calls(self) -> dict[str, Standing]:
        """The same of all members."""
        with self._link.lock:
            now_ns = time.monotonic_ns()
            return {name: one.force.at(now_ns) for name, one in self._core.members.items()}

    def wait(self, timeout: float | None = None) -> dict[str, Standing]:
        """What is in force for those of whom something new came since the last `wait` (a call, held, safe, an expiry):
        as soon as there is one, at the latest after `timeout` seconds, or when the session has ended."""
        core = self._core
        self._until(lambda: core.version != self._seen or core.error is not None, timeout)
        with self._link.lock:
            self._seen, now_ns = core.version, time.monotonic_ns()
            news, core.news = core.news, set()
            return {name: core.members[name].force.at(now_ns) for name in sorted(news) if name in core.members}

    # -- what is said -------------------------------------------------------------------------------------------------

    def join(
        self,
        member: str,
        *,
        instruction: str | None = None,
        hz: float | None = None,
        deadline_ms: float | None = None,
        ttl_ms: float | None = None,
        priority: int = 0,
        every_tick: bool = False,
        safe_call: CallLike | list[CallLike] | None = None,
    ) -> None:
        """A member comes in; what is None is as the crowd's options say. `priority` 9 is the most urgent; `every_tick`:
        it is asked at its full rate also while nothing happens to it. Raises ClientError: there is one of that name, or
        a field that the protocol forbids. What the server refuses is in `refusals`: such a member is safe, and comes in
        by `leave` and another `join` alone."""
        given = safe_call if isinstance(safe_call, list) or safe_call is None else [safe_call]
        calls = given and [{"name": call} if isinstance(call, str) else call for call in given]
        told: dict[str, Any] = {
            "id": member,
            "instruction": instruction,
            "hz": hz,
            "deadline_ms": deadline_ms,
            "ttl_ms": ttl_ms,
        }
        told |= {"priority": priority, "every_tick": every_tick, "safe_calls": calls}
        with checked("join"), self._link.lock:
            self._core.join(plain(told, "member"))
        self._link.wake()

    def leave(self, *members: str) -> None:
        """They go at once."""
        with checked("leave"), self._link.lock:
            self._core.leave(plain(list(members), "ids"))
        self._link.wake()

    def observe(self, looks: Mapping[str, str | Mapping[str, Any]], *, t_ns: int | None = None) -> None:
        """What members saw, each a text or data; `t_ns`: when, by time.monotonic_ns() (default: now). Only the newest
        of each counts. Raises ClientError, and says nothing: no such member, a field that the protocol forbids."""
        captured_ns = instant(t_ns)
        made = []
        for name, look in looks.items():
            with checked("observe_many"):
                shown = {"text" if isinstance(look, str) else "data": plain(look, str(name))}
                made.append(MemberLook(id=name, seq=0, t_ns=captured_ns, **shown))
                if "data" in shown:
                    alone = ObserveMany(session="-" * 16, looks=[made[-1]])
                    check_size([len(each) for each in encode_msgpack(alone)], LIMITS)
        with self._link.lock:
            for one in made:
                self._core.member(one.id)
            for one in made:
                self._core.see(one)
        self._link.wake()

    def instruct(self, instruction: str, *members: str) -> None:
        """Another goal of these members, or of all, in flight; it survives reconnects. Raises ClientError."""
        with checked("instruct"), self._link.lock:
            text = plain(instruction, "instruction")
            if not members:
                self._core.instruct(text)
            self._core.change(list(members or self._core.members), instruction=text)
        self._link.wake()
