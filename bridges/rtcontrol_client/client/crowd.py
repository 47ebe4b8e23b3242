"""The client for many characters of one agent over one connection."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Self

from rtcontrol_client.client.client import COUNTS, ClientBase, known, quantiles
from rtcontrol_client.client.crowd_core import CrowdCore, CrowdOptions
from rtcontrol_client.client.errors import checked
from rtcontrol_client.client.options import CallLike
from rtcontrol_client.client.session import Standing
from rtcontrol_client.client.values import instant, plain
from rtcontrol_client.wire import LIMITS, encode_msgpack
from rtcontrol_client.wire.limits import check_size
from rtcontrol_client.wire.messages import MemberError, MemberLook, ObserveMany

NOT_OF_CROWDS = ("pacing", "calls_per_tick", "on_call", "on_safe", "look", "acknowledge")


class Crowd(ClientBase[CrowdCore]):
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

    @classmethod
    def connect(cls, endpoint: str, **options: Any) -> Self:
        """Connect to a server and wait for its welcome. The endpoint and the options are those of
        `Client`, for members that bring nothing else, and `members`: how many there will be at most. Raises
        ClientError, and Refused, as `Client`."""
        return cls(endpoint, options)._ready()

    def __init__(self, endpoint: str, options: Mapping[str, Any]) -> None:
        """Begin to connect, and do not wait."""
        known(CrowdOptions, options, " of a crowd", NOT_OF_CROWDS)
        super().__init__(endpoint, CrowdOptions(**options), CrowdCore)

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
        made: dict[str, tuple[str | None, dict[str, Any] | None]] = {}
        for name, look in looks.items():
            with checked("observe_many"):
                made[name] = (plain(look, name), None) if isinstance(look, str) else (None, plain(look, str(name)))
                text, data = made[name]
                part = MemberLook(id=name, seq=0, t_ns=captured_ns, text=text, data=data)
                if data is not None or (text is not None and len(text) > 4096):
                    alone = ObserveMany(session="-" * 16, looks=[part])
                    check_size([len(each) for each in encode_msgpack(alone)], LIMITS)
        with self._link.lock:
            for name in made:
                self._core.member(name)
            for name, (text, data) in made.items():
                self._core.see(name, captured_ns, text, data)
        self._link.wake()

    def instruct(self, instruction: str, *members: str) -> None:
        """Another goal of these members, or of all, in flight; it survives reconnects. Raises ClientError."""
        with checked("instruct"), self._link.lock:
            text = plain(instruction, "instruction")
            if not members:
                self._core.instruct(text)
            self._core.change(list(members or self._core.members), instruction=text)
        self._link.wake()
