"""The client of a crowd, whose many members are driven over a single connection."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from rtcontrol_client import clock
from rtcontrol_client.client.active import ActiveStanding, Standing
from rtcontrol_client.client.client import ClientBase
from rtcontrol_client.client.connection import S
from rtcontrol_client.client.core import Core
from rtcontrol_client.client.errors import ClientError, wrap_errors
from rtcontrol_client.client.options import CallLike, Options, to_call_list
from rtcontrol_client.client.values import capture_ns, to_plain
from rtcontrol_client.wire import LIMITS, Message, encode_msgpack, messages
from rtcontrol_client.wire.limits import check_size
from rtcontrol_client.wire.messages import Join, Leave, Member, MemberError, ObservationPart, ObserveMany

EXPIRE_NS = S // 50  # interval at which members are checked for expired calls
STAMPS, REFUSALS = 64, 256


@dataclass(frozen=True, kw_only=True)
class CrowdOptions(Options):
    """The options of a crowd: defaults for its members, and the maximum number of members (None: server's limit)."""

    excluded_options: ClassVar = ("pacing", "calls_per_tick", "on_call", "on_safe", "look", "acknowledge")

    members: int | None = None

    def hello(self, t_ns: int, resume: str | None = None, instruction: str | None = None) -> messages.Hello:
        crowd = {"crowd": messages.CrowdRequest(members=self.members), "capabilities": []}
        return super().hello(t_ns, resume, instruction).model_copy(update=crowd)


class MemberState:
    """The state of a member: its settings (`terms`), active call, and capture times of its observations by number."""

    def __init__(self, terms: Member, safe_calls: Sequence[messages.FunctionCall]) -> None:
        self.terms, self.active = terms, ActiveStanding(terms.epoch, safe_calls)
        self.seq = 0
        self.captured_ns: dict[int, int] = {}
        self.refusal: MemberError | None = None  # why the server refused this member


class CrowdCore(Core):
    """The state of a crowd's client. `changed_members` are the members whose active call has changed since `wait`."""

    def __init__(self, options: Options, now_ns: int) -> None:
        super().__init__(options, now_ns)
        self.members: dict[str, MemberState] = {}
        self.changed_members: set[str] = set()
        self.refusals: deque[MemberError] = deque(maxlen=REFUSALS)
        self._epochs = itertools.count()  # each member that joins gets a higher epoch than all members before
        self._unsent: dict[str, ObservationPart] = {}  # by member: its newest unsent observation
        self._left_members: deque[str] = deque(maxlen=messages.MEMBERS)
        self._expiry_check_ns = 0

    # The methods below are the user's actions.

    def join(self, fields: dict[str, Any]) -> None:
        """Add a member with the fields of `Member`. Raises ClientError if its name is already used."""
        if fields["id"] in self.members:
            text = f"The member {fields['id']!r:.80} has already joined."
            raise ClientError(text, "Call leave() for it first, or use instruct().")
        terms = Member.model_validate({**fields, "epoch": next(self._epochs)})
        self.members[terms.id] = MemberState(terms, terms.safe_calls or self.safe_calls())
        self.send(Join(session=self.session.token, members=[terms]))

    def leave(self, ids: Sequence[str]) -> None:
        """Remove members; unknown names are ignored."""
        left_members = [name for name in dict.fromkeys(ids) if self.members.pop(name, None) is not None]
        for name in left_members:
            self._unsent.pop(name, None)
            self.changed_members.discard(name)
        if left_members:
            self._left_members.extend(left_members)
            self.send(Leave(session=self.session.token, ids=left_members))

    def change_terms(self, ids: Sequence[str], **terms: Any) -> None:
        """Change settings of members. Raises ClientError if a member is unknown."""
        for name in ids:
            member = self.member(name)
            member.terms = member.terms.model_copy(update=terms)
        self._send_terms(ids)

    def queue_observation(self, part: ObservationPart) -> None:
        """Number and queue an observation of a member; it replaces an unsent one. Ignore it if the member is refused.

        Raises ClientError if the member is unknown.
        """
        name, member = part.id, self.member(part.id)
        if member.refusal is not None:
            self.tally.ignored["refused"] += 1
            return
        member.seq += 1
        member.captured_ns[member.seq] = part.t_ns
        if len(member.captured_ns) > STAMPS:
            del member.captured_ns[next(iter(member.captured_ns))]
        self.tally.count["superseded"] += name in self._unsent
        self.tally.count["observed"] += 1
        self._unsent[name] = part.model_copy(update={"seq": member.seq})

    def member(self, name: str) -> MemberState:
        """Return the member with this name. Raises ClientError if it is unknown."""
        member = self.members.get(name)
        if member is None:
            raise ClientError(f"There is no member {name!r:.80}.", "Call join() for it first.")
        return member

    def _send_terms(self, names: Sequence[str]) -> None:
        for name in names:
            self.members[name].refusal = None  # the server reports a further refusal again
        for part in messages.split_into_batches([self.members[name].terms for name in names]):
            self.send(Join(session=self.session.token, members=part))

    # The methods below handle the connection, and messages that are due.

    def _session_messages(self, now_ns: int) -> list[Message]:
        if self._unsent and self.connection.can_send(now_ns):
            looks, self._unsent = self._unsent, {}
            parts, token = messages.split_into_batches(looks.values()), self.session.token
            self.send_queue += [ObserveMany(session=token, looks=part) for part in parts]
        return super()._session_messages(now_ns)

    def wake_ns(self, now_ns: int) -> int:
        wake_ns = super().wake_ns(now_ns)
        return min(wake_ns, now_ns + EXPIRE_NS) if self.members else wake_ns

    def expire(self, now_ns: int) -> None:
        super().expire(now_ns)
        if now_ns - self._expiry_check_ns >= EXPIRE_NS:
            self._expiry_check_ns = now_ns
            expired = [name for name, member in self.members.items() if member.active.expire(now_ns)]
            self.tally.count["expired"] += len(expired)
            self._mark_changed(expired)

    def end(self, error: ClientError, now_ns: int) -> None:
        super().end(error, now_ns)
        self._end_all_calls("session_ended")

    def _end_all_calls(self, cause: str) -> None:
        self._mark_changed([name for name, member in self.members.items() if member.active.end(cause)])

    def _mark_changed(self, names: Sequence[str]) -> None:
        if names:
            self.changed_members.update(names)
            self.version += 1

    def _close_session(self, now_ns: int) -> None:
        was_open = self.connection.is_open
        super()._close_session(now_ns)
        self._unsent.clear()  # they would be too old after a reconnect
        if was_open:
            self._mark_changed([name for name, member in self.members.items() if member.active.disconnect()])

    # The methods below handle messages from the server.

    def receive(self, message: Message, now_ns: int) -> None:
        if isinstance(message, messages.CallMany):
            self.connection.heartbeat.received_ns = now_ns
            if self.error is None:
                self._receive_calls(message, now_ns)
            return
        ends_session = isinstance(message, messages.Bye) and message.session in (None, self.session.token)
        super().receive(message, now_ns)
        if ends_session:
            self._end_all_calls("session_ended")

    def _receive_welcome(self, welcome: messages.Welcome, now_ns: int) -> None:
        was_open = self.connection.is_open
        super()._receive_welcome(welcome, now_ns)
        if was_open or not self.connection.is_open:
            return
        if welcome.crowd is None:
            self.end(ClientError("The server has no crowds.", "Update it, or use one Client per member."), now_ns)
            return
        # Send `join` again for all members (members that the server knows continue), and `leave` for members that left
        # recently, because these messages may be lost.
        self.drop_messages(Join, Leave)
        left_members = [name for name in dict.fromkeys(self._left_members) if name not in self.members]
        if welcome.resumed and left_members:
            self.send(Leave(session=self.session.token, ids=left_members))
        self._send_terms(list(self.members))
        for name, member in self.members.items():
            safe_calls = tuple(member.terms.safe_calls or self.safe_calls())
            if welcome.resumed:
                member.active.safe_calls = safe_calls
            elif member.active.start(member.terms.epoch, safe_calls):
                self._mark_changed([name])

    def _receive_calls(self, message: messages.CallMany, now_ns: int) -> None:
        ignored = self.tally.ignored
        if not self.connection.is_open or message.session != self.session.token:
            ignored["session"] += 1
            return
        if message.faults:
            ignored["malformed"] += len(message.faults)
        for call in message.calls:
            member = self.members.get(call.id)
            if member is None:
                ignored["member"] += 1
            elif (reason := member.active.reason_to_ignore(call, member.captured_ns)) is not None:
                ignored[reason] += 1
            else:
                self._receive_member_call(member, call, now_ns)
        self.version += 1

    def _receive_member_call(self, member: MemberState, call: messages.MemberCall, now_ns: int) -> None:
        member.refusal = None
        self.tally.count[call.status] += 1
        if call.status == "fresh" and call.t_obs_ns is not None:
            self.tally.latency_ns.append(now_ns - call.t_obs_ns)
        ttl_ms = member.terms.ttl_ms
        member.active.max_ttl_ms = self.active.max_ttl_ms if ttl_ms is None else ttl_ms
        _, too_old = member.active.receive(call, now_ns)
        self.tally.count["expired"] += too_old
        self.changed_members.add(call.id)

    def _receive_error(self, message: messages.ErrorMessage, now_ns: int) -> None:
        if not message.members:
            super()._receive_error(message, now_ns)
            return
        self.tally.count["errors"] += 1
        self.tally.last_error = f"{message.code}: {message.message} {message.members[0].message}"[:500]
        self.refusals.extend(message.members)
        for refusal in message.members:
            member = self.members.get(refusal.id or "")
            if member is not None and refusal.seq is None and member.active.last_tick < 0:
                member.refusal = refusal  # the server rejected this member
        self._mark_changed([part.id for part in message.members if part.id in self.members and part.id is not None])


class Crowd(ClientBase):
    """A client that drives many members, such as the characters of a game, with one agent. Each member has an
    instruction, rate, priority, time-to-live and safe call. Any thread may call any method; only `connect`, `wait` and
    `close` block. A returned call is never older than its time-to-live. After a lost connection, the members join again
    automatically. docs/crowds.md has an example.
    """

    _core: CrowdCore

    @classmethod
    def connect(cls, endpoint: str, **options: Any) -> Self:
        """Connect to a server and wait for its welcome message. `options` are the fields of `CrowdOptions`, and the
        endpoint and the errors are those of `Client.connect`."""
        return cls(endpoint, options)._wait_for_welcome()

    def __init__(self, endpoint: str, options: Mapping[str, Any]) -> None:
        """Start to connect without waiting for the connection."""
        super().__init__(endpoint, CrowdCore(CrowdOptions.from_values(options), clock.now_ns()))

    @property
    def members(self) -> list[str]:
        """Return the names of the current members."""
        with self._link.lock:
            return list(self._core.members)

    @property
    def refusals(self) -> list[MemberError]:
        """Return the newest refusals of members by the server, oldest first."""
        with self._link.lock:
            return list(self._core.refusals)

    @property
    def statistics(self) -> dict[str, Any]:
        """Return counts over all members and the quantiles `latency_ms`, as in `Client.statistics`, and the number of
        members."""
        with self._link.lock:
            return {**self._statistics(), "members": len(self._core.members)}

    def call(self, member: str) -> Standing:
        """Return the active call of a member. Raises ClientError if the member is unknown."""
        with self._link.lock:
            state = self._core.member(member)
            standing = state.active.standing_at(clock.now_ns())
            return standing if state.refusal is None else state.active.safe_state("refused")

    def calls(self) -> dict[str, Standing]:
        """Return the active call of each member, by the member's name."""
        with self._link.lock:
            now_ns = clock.now_ns()
            return {name: member.active.standing_at(now_ns) for name, member in self._core.members.items()}

    def wait(self, timeout: float | None = None) -> dict[str, Standing]:
        """Wait until calls of members arrive or change (since the previous `wait`); return the active calls of these
        members. Also returns after `timeout` seconds, or when the client has ended."""
        self._wait_for_change(timeout)
        core = self._core
        with self._link.lock:
            self._version, now_ns = core.version, clock.now_ns()
            names, core.changed_members = sorted(core.changed_members & core.members.keys()), set()
            return {name: core.members[name].active.standing_at(now_ns) for name in names}

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
        """Add a member; None means the default in the crowd's options. `priority` is 0 to 9 (most urgent). With
        `every_tick`, the member gets a call at its full rate, even while its observations do not change.

        Raises ClientError if the name is already used, or a field is not valid. If the server refuses the member, it
        appears in `refusals`, and only its safe call is active until it leaves and joins again.
        """
        terms: dict[str, Any] = {"id": member, "instruction": instruction, "hz": hz, "deadline_ms": deadline_ms}
        terms |= {"ttl_ms": ttl_ms, "priority": priority, "every_tick": every_tick}
        terms["safe_calls"] = to_call_list(safe_call) or None
        with wrap_errors("join"), self._link.lock:
            self._core.join(to_plain(terms, "member"))
        self._link.wake()

    def leave(self, *members: str) -> None:
        """Remove these members; unknown names are ignored."""
        with wrap_errors("leave"), self._link.lock:
            self._core.leave(to_plain(list(members), "ids"))
        self._link.wake()

    def observe(self, looks: Mapping[str, str | Mapping[str, Any]], *, t_ns: int | None = None) -> None:
        """Send observations, as text or data by the member's name. `t_ns` is the time of their capture by
        `time.monotonic_ns()` (default: now). Only the newest observation of a member is used. Raises ClientError, and
        sends nothing, if a member is unknown or a field is not valid."""
        captured_ns = capture_ns(t_ns)
        parts = []
        for name, look in looks.items():
            with wrap_errors("observe_many"):
                shown = {"text" if isinstance(look, str) else "data": to_plain(look, str(name))}
                parts.append(ObservationPart(id=name, seq=0, t_ns=captured_ns, **shown))
                if "data" in shown:
                    alone = ObserveMany(session="-" * 16, looks=[parts[-1]])
                    check_size([len(each) for each in encode_msgpack(alone)], LIMITS)
        with self._link.lock:
            for part in parts:
                self._core.member(part.id)
            for part in parts:
                self._core.queue_observation(part)
        self._link.wake()

    def instruct(self, instruction: str, *members: str) -> None:
        """Set an instruction for members (default: all). Raises ClientError for an unknown member or invalid text."""
        with wrap_errors("instruct"), self._link.lock:
            text = to_plain(instruction, "instruction")
            if not members:
                self._core.instruct(text)
            self._core.change_terms(list(members or self._core.members), instruction=text)
        self._link.wake()
