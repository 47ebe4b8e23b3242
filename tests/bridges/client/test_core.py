"""The client's core without sockets: whatever a server, a network and a clock do to it, nothing old acts, what is in
force is handed out, and what the user said arrives."""

from __future__ import annotations

import random
from itertools import count, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtcontrol_client import ClientError, Standing
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


@pytest.mark.parametrize("ttl_ms", [0.0, 500.0])
def test_lost_server_ends_at_once_only_what_would_never_expire(core: Core, ttl_ms: float) -> None:
    flying(core, ttl_ms)
    core.lost(S + 2 * MS, "cut")
    now = core.force.at(S + 3 * MS)
    assert (now.status, now.cause) == (("fresh", None) if ttl_ms else ("safe", "server_lost"))


@pytest.mark.parametrize("ends", ["bye", "fatal"])
def test_end_of_the_session_is_safe_at_once_and_the_client_rests(core: Core, ends: str) -> None:
    flying(core)
    fatal = messages.ErrorMessage(code="busy", message="No.", fatal=True)
    core.hear(messages.Bye(reason="over") if ends == "bye" else fatal, S + 2 * MS)
    now = core.force.at(S + 3 * MS)
    assert (now.status, now.cause, now.arguments) == ("safe", "session_ended", {"angle": 0})
    assert core.due(S + 10 * S) == [] and not core.reconnects(S + 100 * S)
    assert core.wake_ns(S) >= S + S // 2


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


@pytest.mark.parametrize(("minor", "executes"), [([1], "own"), ([1, 0], "own"), ([1, 1], "told"), ([1, 2], "told")])
def test_safe_of_a_server_of_1_0_is_all_own_safe_calls(minor: list[int], executes: str) -> None:
    own = (FunctionCall(name="stop"), FunctionCall(name="dim"))
    core = Core(Options(tools=OWN["tools"], instruction="Go.", safe_call=["stop", "dim"]), S)
    greeted(core, protocol=minor, safe_call=own[0])
    core.hear(call_message(0, call=FunctionCall(name="left"), t_obs_ns=S), S)
    core.hear(call_message(1, "safe", call=own[0]), S)
    assert core.force.at(S).calls == (own if executes == "own" else own[:1])


@pytest.mark.parametrize("seq", [None, 7])
def test_errors_about_what_was_said_before_delay_no_hello_and_end_nothing(core: Core, seq: int | None) -> None:
    kept = {"code": "state", "retryable": True} if seq is None else {"code": "invalid"}
    core.hear(messages.ErrorMessage(code="state", message="No session.", retryable=True), 2 * S)
    for _ in range(3):
        core.hear(messages.ErrorMessage(message="No.", seq=seq, **kept), 2 * S)  # type: ignore[arg-type]
    assert core.error is None
    assert [m.resume for m in core.due(2 * S) if isinstance(m, messages.Hello)] == [TOKEN]


def test_end_of_the_session_that_may_pass_is_safe_at_once_too(core: Core) -> None:
    flying(core)
    core.hear(messages.ErrorMessage(code="decoder", message="No.", fatal=True, retryable=True), S + 2 * MS)
    assert core.force.at(S + 3 * MS).cause == "session_ended" and core.error is None
    assert [m.resume for m in core.due(10 * S) if isinstance(m, messages.Hello)] == [None]


def test_free_words_that_were_understood_are_not_said_again() -> None:
    core = Core(Options(**OWN), S)
    core.instruct("to the left, please")  # the hello says it
    assert "instruct" not in greeted(core, instruction="Go left.")
    for at_s in (2, 4):
        core.lost(at_s * S, "cut")
        assert "instruct" not in greeted(core, at_s * S + S, resumed=True, instruction="Go left.")
    core.instruct("home with you")
    assert said(core, 6 * S) == ["instruct"]
    core.hear(messages.Instruct(session=TOKEN, instruction="Go home.", said="home with you", by="chat"), 6 * S)
    core.lost(7 * S, "cut")
    assert "instruct" not in greeted(core, 8 * S, resumed=True, instruction="Go home.")


@pytest.mark.parametrize(("told", "again"), [("Go.", ["Go home."]), ("Go home.", [])])
def test_instruction_that_was_lost_with_the_connection_is_said_again(core: Core, told: str, again: list[str]) -> None:
    core.instruct("Go home.")
    assert said(core, S) == ["instruct"]
    for at_s in (2, 4):
        core.lost(at_s * S, "cut")
        core.connected(at_s * S + S)
        assert said(core, at_s * S + S) == ["hello"]
        core.hear(welcome(resumed=True, instruction=told), at_s * S + S)
        got = [m.instruction for m in core.due(at_s * S + S) if isinstance(m, messages.Instruct)]
        assert got == again
    # Somebody else's wins over one that was in force.
    core.hear(messages.Instruct(session=TOKEN, instruction="Go home."), 5 * S)
    core.lost(6 * S, "cut")
    assert "instruct" not in greeted(core, 7 * S, resumed=True, instruction="Wait.")


def test_call_whose_stamp_is_not_its_observations_is_void(core: Core) -> None:
    seq = core.observe(look(S)).seq
    core.hear(call_message(5, call=FunctionCall(name="left"), seq_obs=seq, t_obs_ns=S + MS), S + 2 * MS)
    assert (core.force.kind, core.ignored["stamp"]) == ("none", 1)


def turned_away(core: Core, seconds: int, **error: Any) -> list[int]:
    """When it said hello to a server that refuses each, in ms."""
    core.connected(S)
    hellos = []
    for ms in range(0, 1000 * seconds, 10):
        if "hello" in said(core, S + ms * MS):
            hellos.append(ms)
            core.hear(messages.ErrorMessage(message="No.", retryable=True, **error), S + ms * MS)
    return hellos


def test_server_that_knows_no_session_ever_is_not_flooded_with_hellos() -> None:
    assert 10 <= len(turned_away(Core(Options(**OWN), S), 10, code="session")) <= 52


@pytest.mark.parametrize("fatal", [False, True])
def test_who_is_told_busy_greets_after_growing_pauses_until_there_is_room(fatal: bool) -> None:
    core = Core(Options(**OWN), S)
    hellos = turned_away(core, 60, code="busy", fatal=fatal)
    pauses = [later - at for at, later in pairwise(hellos)]
    for pause, longest in zip(pauses, [1000, 2000, *[4000] * 58], strict=False):
        assert longest // 2 <= pause <= longest + 10
    assert core.wake_ns(61 * S) <= 61 * S + S // 2, "it does not go on"
    assert said(core, 65 * S)[0] == "hello"
    core.hear(welcome(), 65 * S)
    assert core.connection.open


def test_answers_to_hellos_of_before_open_nothing_and_end_nothing(core: Core) -> None:
    core.reset()
    assert said(core, S) == ["reset"]
    core.lost(2 * S, "cut")
    core.connected(3 * S)
    for greets in (False, True):
        if greets:
            assert said(core, 3 * S) == ["hello"]
        core.hear(welcome(t_client_ns=S), 3 * S)
        core.hear(welcome(t_client_ns=S, resumed=True), 3 * S)
        core.hear(messages.ErrorMessage(code="tools", message="No.", fatal=True, t_client_ns=S), 3 * S)
        assert (core.connection.open, core.error) == (False, None)
    core.hear(welcome(t_client_ns=3 * S, resumed=True, epoch=1), 3 * S)
    assert (core.connection.open, core.epoch, said(core, 4 * S)) == (True, 1, ["ping"])


def test_observation_of_before_the_gap_is_not_said_after_it_but_the_reset_is(core: Core) -> None:
    core.reset()
    core.observe(look())
    core.unsent(core.due(S + MS), S + MS)
    assert said(core, S + MS) == []
    assert said(core, core.wake_ns(S + MS)) == ["reset"]
    core.observe(look())
    core.lost(S + 100 * MS, "cut")
    assert greeted(core, 2 * S, resumed=True, epoch=1) == []
    core.lost(3 * S, "cut")
    assert greeted(core, 4 * S, resumed=True, epoch=0) == ["reset"], "the server has not had it"


def test_instruction_given_while_greeting_waits_for_the_welcome() -> None:
    core = Core(Options(**OWN), S)
    core.connected(S)
    first = core.due(S)
    core.instruct("Go home.")
    again = core.due(3 * S)
    # The server refuses another hello on the same connection.
    assert [m.instruction for m in (*first, *again) if isinstance(m, messages.Hello)] == [OWN["instruction"]] * 2
    assert [m.type for m in again] == ["hello", "ping"]
    core.hear(welcome(), 3 * S)
    assert [m.instruction for m in core.due(3 * S) if isinstance(m, messages.Instruct)] == ["Go home."]


def test_clocks_are_compared_by_who_is_never_silent_too_and_anew_with_another_server() -> None:
    core = Core(Options(**OWN), S)
    core.observe(look())
    assert greeted(core) == ["observe", "ping"]
    core.hear(messages.Pong(id=1, t_ping_ns=S, t_received_ns=5, t_sent_ns=5), S + MS)
    assert core.offset.now(S + MS)
    core.lost(2 * S, "cut")
    assert greeted(core, 3 * S, session="f" * 16) == ["ping"]
    assert core.offset.now(3 * S) is None


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


def test_several_safe_calls_are_in_force_together() -> None:
    stop, dim = FunctionCall(name="stop"), FunctionCall(name="lamp", arguments={"level": 0})
    options = Options(
        tools=OWN["tools"], instruction="Go.", safe_call=["stop", {"name": "lamp", "arguments": {"level": 0}}]
    )
    hello = options.hello(0)
    assert (hello.safe_call, hello.safe_calls) == (stop, [stop, dim])
    core = Core(options, S)
    greeted(core)
    assert core.force.at(S).calls == (stop, dim)
    told = Core(Options(agent="house"), S)
    greeted(told, safe_call=dim, safe_calls=[dim, stop])
    told.hear(call_message(0, "safe", call=stop, calls=[stop, dim]), S)
    assert told.force.at(S).calls == (stop, dim)
    told.end(ClientError("", ""), S)
    assert told.force.at(S).calls == (stop, dim)
    told.reset()
    assert told.force.at(S).calls == (dim, stop)


def test_heartbeat_of_nothing_is_no_reason_to_give_the_server_up() -> None:
    core = Core(Options(**OWN), S)
    greeted(core, heartbeat_ms=0.0)
    assert not core.reconnects(S) and core.connection.up and core.wake_ns(S) > S


@pytest.mark.parametrize(("welcomed", "silence_s"), [(False, 10), (True, 3)])
def test_server_that_says_nothing_more_is_found(welcomed: bool, silence_s: int) -> None:
    core = Core(Options(**OWN), S)
    core.connected(S)
    if welcomed:
        greeted(core)
    core.reconnects(S + silence_s * S)
    assert core.connection.up
    core.reconnects(S + silence_s * S + 1)
    assert (core.connection.up, core.connection.trouble) == (False, "the server is silent")


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
