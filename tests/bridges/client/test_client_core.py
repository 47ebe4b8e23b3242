"""The client's core without sockets: whatever a server, a network and a clock do to it, nothing old acts, what is in
force is handed out, and what the user said arrives."""

from __future__ import annotations

import random
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtcontrol_client import Standing
from rtcontrol_client.client.connection import OffsetFilter
from rtcontrol_client.client.core import Core
from rtcontrol_client.client.options import Options
from rtcontrol_client.client.session import QUEUE
from rtcontrol_client.wire import LIMITS, PROTOCOL, Message, messages
from rtcontrol_client.wire.messages import CallMessage, FunctionCall, Observe
from tests.bridges.client.worlds import OWN

MS = 1_000_000
S = 1000 * MS
TOKEN = "0123456789abcdef"


def welcome(**changes: Any) -> messages.Welcome:
    fields: dict[str, Any] = {
        "protocol": list(PROTOCOL),
        "server": {"name": "test"},
        "session": TOKEN,
        "resumed": False,
        "tools": [],
        "instruction": "Go.",
        "model": "none",
        "model_trained_on_tools": False,
        "pacing": "server",
        "on_miss": "hold",
        "heartbeat_ms": 1000.0,
        "session_grace_s": 30.0,
        "limits": LIMITS.to_dict(),
        "t_client_ns": 1 << 62,  # of the newest hello
        **dict.fromkeys(("epoch", "t_server_ns"), 0),
        **dict.fromkeys(("hz", "period_ms", "deadline_ms", "max_age_ms", "hold_ms", "ttl_ms"), 100.0),
    }
    return messages.Welcome(**{**fields, **changes})


def look(t_ns: int = 1) -> Observe:
    return Observe(session=TOKEN, seq=0, epoch=0, t_ns=t_ns, text="left 40")


def call_message(tick: int, status: str = "fresh", **changes: Any) -> CallMessage:
    fields: dict[str, Any] = {"session": TOKEN, "tick": tick, "epoch": 0, "status": status, "ttl_ms": 500.0}
    return CallMessage(**{**fields, "deadline_ns": 0, "t_server_ns": 0, **changes})


STEPS = {"time_passes": 4, "observe": 4, "decide": 6, "handler_takes": 4, "send": 4, "deliver": 4, "reset": 2}
STEPS |= {"stray": 2, "connect": 3, "send_in_vain": 1, "cut": 1, "server_restarts": 1, "refuse": 1}


class Conversation:
    """A core, a server that keeps sessions until it is restarted, and between them a network that delays, reorders,
    repeats and loses. A handler takes what begins to be in force, sooner or later."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.now_ns = 10 * S
        self.core = Core(Options(**OWN, on_call=print), self.now_ns)
        self.sessions: dict[str, int] = {}  # token -> epoch
        self.joined: str | None = None  # the session of this connection
        self.tokens, self.tick = count(), 0
        self.seen: list[Observe] = []
        self.flying: list[Message] = []  # to the client
        self.heard: dict[int, CallMessage] = {}  # by id(call): kept alive, so that no id comes twice
        self.until_ns: dict[tuple[str, int], int] = {}  # (session, epoch) -> the end of what may be in force
        self.told: set[tuple[str, int]] = set()
        self.acted: list[tuple[str, int]] = []
        self.last: Standing | None = None
        self.connect()
        self.send()
        self.hear(self.flying.pop())

    # The client's side.

    def step(self) -> None:
        """Something happens."""
        self.now_ns += 1  # no two instants are the same
        steps, weights = zip(*STEPS.items(), strict=True)
        getattr(self, self.chance.choices(steps, weights)[0])()

    def maybe(self, share: float = 0.5) -> bool:
        return self.chance.random() < share

    def time_passes(self) -> None:
        self.now_ns += self.chance.choice([0, 1, 20, 100, 300, 700, 3000, 86_400_000]) * MS
        if self.maybe():
            self.core.look(self.now_ns)
            over = self.core.force.kind == "call" and self.core.force.at(self.now_ns).status == "safe"
            assert not over, "what ran out has not ended"

    def observe(self) -> None:
        self.core.observe(look(self.now_ns - self.chance.randint(0, 200) * MS))
        if self.maybe():
            self.send()

    def reset(self) -> None:
        before = self.core.epoch
        assert self.core.reset() == before + 1

    def handler_takes(self) -> None:
        taken = self.core.take(False, self.now_ns)
        if taken is None:
            return
        self.last = taken
        if taken.status != "safe":
            message = self.heard[id(taken.call)]
            assert (message.session, message.epoch) == (self.core.token, self.core.epoch), "of another world"
            assert self.now_ns <= self.until_ns[message.session, message.epoch], "too old"
            assert (message.session, message.tick) not in self.acted, "twice"
            assert all(tick < message.tick for token, tick in self.acted if token == message.session), "out of order"
            self.acted.append((message.session, message.tick))
        if taken.tick is not None:
            self.core.acknowledge(taken, "executed", self.now_ns)

    def send(self) -> None:
        for message in self.core.due(self.now_ns):
            self.serve(message)

    def send_in_vain(self) -> None:
        if due := self.core.due(self.now_ns):
            self.core.unsent(due, self.now_ns)

    # The network's.

    def connect(self) -> None:
        if not self.core.connection.up:
            self.joined = None
            self.core.connected(self.now_ns)

    def cut(self) -> None:
        if self.core.connection.up:
            if self.maybe():
                self.core.due(self.now_ns)  # leaves, and never arrives
            self.core.lost(self.now_ns, "cut")

    def deliver(self) -> None:
        if self.flying:
            i = self.chance.randrange(len(self.flying))
            self.hear(self.flying[i] if self.maybe() else self.flying.pop(i))

    def hear(self, message: Message) -> None:
        if isinstance(message, CallMessage) and message.call is not None:
            self.heard[id(message.call)] = message
        if isinstance(message, CallMessage) and message.status == "fresh" and message.t_obs_ns is not None:
            until_ns = message.t_obs_ns + int(message.ttl_ms * MS) if message.ttl_ms else 1 << 62
            if message.t_obs_ns <= self.now_ns <= until_ns:
                world = message.session, message.epoch
                self.until_ns[world] = max(until_ns, self.until_ns.get(world, 0))
        self.core.hear(message, self.now_ns)

    # The server's.

    def serve(self, message: Message) -> None:
        if isinstance(message, messages.Hello):
            resumed = message.resume in self.sessions
            t_ns = message.t_client_ns
            if message.resume is not None and not resumed:
                unknown = messages.ErrorMessage(code="session", message="?", t_client_ns=t_ns, retryable=True)
                self.flying.append(unknown)
                return
            self.joined = message.resume if resumed else f"{next(self.tokens):016}"
            epoch = self.sessions.setdefault(str(self.joined), 0)
            self.flying.append(welcome(session=self.joined, resumed=resumed, epoch=epoch, t_client_ns=t_ns))
        elif isinstance(message, messages.Ping | messages.Pong):
            return
        elif message.session != self.joined:
            self.flying.append(messages.ErrorMessage(code="session", message="not this one", retryable=True))
        elif isinstance(message, messages.Reset):
            assert message.epoch == self.sessions[message.session] + 1, "a reset was lost, or said twice"
            self.sessions[message.session] = message.epoch
        elif isinstance(message, Observe):
            self.seen.append(message)
        elif isinstance(message, messages.Executed):
            assert (message.session, message.tick) not in self.told, "acknowledged twice"
            self.told.add((message.session, message.tick))

    def server_restarts(self) -> None:
        self.sessions.clear()
        self.joined = None

    def decide(self) -> None:
        if self.joined not in self.sessions:
            return
        self.tick += 1
        status = self.chance.choice(["fresh", "fresh", "fresh", "held", "safe"])
        fields: dict[str, Any] = {"session": self.joined, "epoch": self.sessions[str(self.joined)]}
        if status == "fresh" and self.seen:
            seen = self.seen[-1]
            fields = {"seq_obs": seen.seq, "t_obs_ns": seen.t_ns, "session": seen.session, "epoch": seen.epoch}
        call = FunctionCall(name="steer", arguments={"angle": 0 if status == "safe" else self.tick})
        fields |= {"call": call if self.maybe(0.7) else None, "ttl_ms": self.chance.choice([0.0, 50.0, 500.0])}
        message = call_message(self.tick, status, **fields)
        if self.maybe():
            self.hear(message)
        else:
            self.flying.append(message)

    def stray(self) -> None:
        token, stamp = self.core.token if self.maybe() else TOKEN, self.now_ns - self.chance.randint(-50, 800) * MS
        tick, epoch = self.tick + self.chance.randint(-3, 3), self.core.epoch + self.chance.randint(-1, 1)
        self.tick = max(self.tick, tick)  # else all that comes after it were out of order
        call = FunctionCall(name="steer", arguments={})
        self.hear(call_message(max(0, tick), session=token, epoch=max(0, epoch), t_obs_ns=stamp, call=call))

    def refuse(self) -> None:
        what, retryable = self.chance.choice(["state", "session", "rate", "instruction"]), self.maybe()
        if what != "state" or retryable:  # else the connection is to be closed
            self.hear(
                messages.ErrorMessage(code=what, message="No.", retryable=retryable or not self.core.connection.open)
            )

    # What holds at every instant.

    def nothing_old_is_in_force(self) -> None:
        now = self.core.force.at(self.now_ns)
        if now.status == "safe":
            assert now.call is not None and now.call.arguments == {"angle": 0}
            return
        message = self.heard[id(now.call)]
        assert (message.session, message.epoch) == (self.core.token, self.core.epoch)
        assert self.now_ns <= self.until_ns[message.session, message.epoch]

    def what_is_in_force_was_handed_out(self) -> None:
        newest = self.core.begun.get(False, self.last)
        if self.core.force.kind == "safe":
            assert newest is not None and newest.status == "safe"
        elif (now := self.core.force.at(self.now_ns)).status != "safe":
            assert newest is not None and newest.call is now.call

    def memory_is_bounded(self) -> None:
        assert len(self.core.waiting) <= 5 * QUEUE and len(self.core.stamps) <= 4 * QUEUE + 1

    def ends_well(self) -> None:
        """In the end all is well again, and the server is in the client's epoch."""
        if self.core.error is not None:
            assert self.core.due(self.now_ns) == []
            return
        if self.core.connection.up:
            self.core.lost(self.now_ns, "cut")
        self.flying.clear()
        self.connect()
        for _ in range(40):
            self.now_ns += 500 * MS
            for message in self.core.due(self.now_ns):
                self.serve(message)
            while self.flying:
                self.hear(self.flying.pop(0))
        assert self.core.connection.open and self.sessions[self.core.token] == self.core.epoch, "a reset was lost"


@settings(max_examples=200, deadline=None)
@given(st.randoms(use_true_random=True))
def test_whatever_happens_nothing_old_acts_and_what_is_in_force_was_handed_out(chance: random.Random) -> None:
    world = Conversation(chance)
    for _ in range(60):
        world.step()
        world.nothing_old_is_in_force()
        world.what_is_in_force_was_handed_out()
        world.memory_is_bounded()
    world.ends_well()


# Single rules.


def greeted(core: Core, now_ns: int = S, **changes: Any) -> list[str]:
    """Connected, and welcomed; what is said then."""
    core.connected(now_ns)
    assert said(core, now_ns) == ["hello"]
    core.hear(welcome(**changes), now_ns)
    return said(core, now_ns)


def said(core: Core, now_ns: int) -> list[str]:
    return [m.type for m in core.due(now_ns)]


@pytest.fixture
def core() -> Core:
    """Welcomed at one second."""
    core = Core(Options(**OWN, acknowledge=True), S)
    assert greeted(core) == ["ping"]
    return core


def flying(core: Core, ttl_ms: float = 500.0) -> FunctionCall:
    left = FunctionCall(name="left")
    core.hear(call_message(5, call=left, t_obs_ns=S, ttl_ms=ttl_ms), S + MS)
    assert core.force.at(S + MS).call == left
    return left


def test_each_call_is_acknowledged_once_and_only_in_its_own_epoch(core: Core) -> None:
    flying(core)
    for _ in range(2):
        core.acknowledge(5, "executed", S + 2 * MS)
    assert said(core, S + 3 * MS) == ["executed"]
    core.hear(call_message(6, call=FunctionCall(name="left"), t_obs_ns=S), S + 4 * MS)
    core.reset()
    core.acknowledge(6, "executed", S + 5 * MS)
    core.acknowledge(99, "executed", S + 5 * MS)
    assert said(core, S + 6 * MS) == ["reset"]


@pytest.mark.parametrize("status", ["fresh", "safe"])
def test_call_with_the_number_of_one_missed_in_the_session_before_is_acknowledged_as_it_went(status: str) -> None:
    core = Core(Options(**OWN, on_call=print), S)
    greeted(core)
    core.hear(call_message(5, "safe"), S)  # the handler is busy
    core.lost(2 * S, "cut")
    greeted(core, 3 * S, session="f" * 16)
    call = FunctionCall(name="left") if status == "fresh" else None
    core.hear(call_message(5, status, session="f" * 16, call=call, t_obs_ns=3 * S), 3 * S + MS)
    core.acknowledge(5, "executed", 3 * S + 2 * MS)
    assert [m.outcome for m in core.due(3 * S + 3 * MS) if isinstance(m, messages.Executed)] == ["executed"]


def test_acknowledgement_of_a_call_of_the_session_before_is_none_of_one_with_its_number(core: Core) -> None:
    flying(core)
    before = core.force.at(S + MS)
    core.lost(2 * S, "cut")
    greeted(core, 3 * S, session="f" * 16)
    core.hear(call_message(5, session="f" * 16, call=FunctionCall(name="left"), t_obs_ns=3 * S), 3 * S)
    core.acknowledge(before, "failed", 3 * S + MS)
    assert (said(core, 3 * S + MS), core.force.at(3 * S + MS).status) == ([], "fresh")
    core.acknowledge(core.force.at(3 * S), "executed", 3 * S + MS)
    assert said(core, 3 * S + MS) == ["executed"]


@pytest.mark.parametrize("by_tick", [False, True])
@pytest.mark.parametrize(("outcome", "after"), [("failed", "safe"), ("refused", "fresh"), ("executed", "fresh")])
def test_call_that_failed_ends_at_once(core: Core, outcome: Any, after: str, by_tick: bool) -> None:
    flying(core)
    version = core.version
    core.acknowledge(5 if by_tick else core.force.at(S + MS), outcome, S + 2 * MS)
    now = core.force.at(S + 2 * MS)
    assert (now.status, now.cause, core.version > version) == (
        after,
        "failed" if after == "safe" else None,
        after == "safe",
    )
    assert said(core, S + 2 * MS) == ["executed"]


def test_call_that_failed_ends_no_call_that_came_after_it(core: Core) -> None:
    flying(core)
    core.hear(call_message(6, call=FunctionCall(name="right"), t_obs_ns=S), S + 2 * MS)
    core.acknowledge(5, "failed", S + 3 * MS)
    assert core.force.at(S + 3 * MS).name == "right"


@given(st.integers(0, 10**12), st.floats(1, 200), st.integers(0, 40), st.integers(0, 10**10), st.booleans())
def test_next_observation_leads_a_tick_of_the_server(
    offset_ns: int, period_ms: float, lead_ms: int, later_ns: int, of_call: bool
) -> None:
    core, release_ns = Core(Options(**OWN), S), S + offset_ns
    greeted(core, period_ms=period_ms, release_ns=None if of_call else release_ns)
    assert core.next_observation_ns(0, S) is None and core.next_observation_ns(None, S) is None, "unknown"
    core.hear(messages.Pong(id=1, t_ping_ns=S, t_received_ns=release_ns, t_sent_ns=release_ns), S)
    if of_call:
        core.hear(call_message(0, "held", release_ns=release_ns), S)
    now_ns, period_ns = S + later_ns, int(period_ms * 1e6)
    at_ns = core.next_observation_ns(lead_ms * MS, now_ns)
    assert at_ns is not None and now_ns < at_ns <= now_ns + period_ns
    assert (at_ns + lead_ms * MS - S) % period_ns == 0


def test_pings_and_resets_without_a_session_fill_no_memory(core: Core) -> None:
    core.lost(S, "cut")
    for i in range(3000):
        core.hear(messages.Ping(id=i, t_ns=i), S)
        core.reset()
    assert len(core.waiting) <= 4 * QUEUE


delays = st.integers(0, 10**9)


@given(st.integers(-(10**15), 10**15), st.lists(st.tuples(delays, delays, delays), min_size=1, max_size=16))
def test_true_offset_lies_within_half_of_the_best_round_trip(offset: int, ways: list[tuple[int, int, int]]) -> None:
    believed, t0 = OffsetFilter(), 10**16
    for there, busy, back in ways:
        t1, t3 = t0 + offset + there, t0 + there + busy + back
        believed.add(t0, t1, t1 + busy, t3)
        t0 = t3
    found = believed.now(t0)
    assert found is not None and found.rtt_ns == min(there + back for there, _, back in ways)
    assert abs(found.offset_ns - offset) <= found.rtt_ns / 2 + 0.5  # rounded to whole nanoseconds
    assert believed.now(t0 + 61 * S) is None
