"""The client's core without sockets: no expired call is ever active; acknowledgements."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol_client.client.active import MOST_CALLS, Standing
from rtcontrol_client.client.core import QUEUE, Core
from rtcontrol_client.client.options import Options
from rtcontrol_client.wire import messages
from rtcontrol_client.wire.messages import CallMessage, FunctionCall, Observe
from tests.bridges.behaviour import WELCOME
from tests.bridges.client.worlds import OWN

MS = 1_000_000
S = 1000 * MS
TOKEN = "0123456789abcdef"


def welcome(**changes: Any) -> messages.Welcome:
    newest = 1 << 62  # the welcome answers the newest hello
    return messages.Welcome.model_validate({**WELCOME, "session": TOKEN, "t_client_ns": newest, **changes})


def look(t_ns: int = 1) -> Observe:
    return Observe(session=TOKEN, seq=0, epoch=0, t_ns=t_ns, text="left 40")


def call_message(tick: int, status: str = "fresh", **changes: Any) -> CallMessage:
    fields: dict[str, Any] = {"session": TOKEN, "tick": tick, "epoch": 0, "status": status, "ttl_ms": 500.0}
    return CallMessage(**{**fields, "deadline_ns": 0, "t_server_ns": 0, **changes})


OTHER = "f" * 16
CALLS = st.tuples(
    st.sampled_from([TOKEN, OTHER]),  # its session
    st.integers(0, 2),  # its epoch
    st.integers(-3, 3),  # its tick, after the newest
    st.integers(-50, 800),  # the age of its observation, in ms
    st.sampled_from([0.0, 50.0, 500.0]),  # its time-to-live
    st.sampled_from(["fresh", "fresh", "fresh", "held", "safe"]),
)
EVENTS = st.one_of(CALLS, CALLS, CALLS, st.sampled_from([0, 1, 20, 100, 700, 3000]), st.sampled_from(["reset", "cut"]))


@given(st.lists(EVENTS, max_size=60))
def test_random_events_never_leave_expired_call_active(events: list[Any]) -> None:
    core, now, tick = Core(Options(**{**OWN, "ttl_ms": 0.0}, on_call=print), 10 * S), 10 * S, 3
    greeted(core, now)
    heard: dict[int, CallMessage] = {}  # by id(call): kept alive, so that no id comes twice
    until_ns: dict[tuple[str, int], int] = {}  # (session, epoch) -> the end of what may be active
    acted: list[tuple[str, int]] = []
    last = None
    for event in events:
        now += 1  # no two instants are the same
        if event == "reset":
            core.reset()
        elif event == "cut":
            core.on_lost(now, "cut")
            until_ns.clear()
            acted.clear()
            greeted(core, now + S, session=OTHER if core.session.token == TOKEN else TOKEN)
            now += S
        elif isinstance(event, int):
            now += event * MS
            core.expire(now)
        else:
            session, epoch, ahead, age_ms, ttl_ms, status = event
            call = FunctionCall(name="steer", arguments={"angle": tick})
            given = {"session": session, "epoch": epoch, "ttl_ms": ttl_ms, "t_obs_ns": now - age_ms * MS}
            message = call_message(tick + ahead, status, call=call, **given)
            tick, heard[id(message.call)] = max(tick, message.tick), message
            end_ns = message.t_obs_ns + int(ttl_ms * MS) if ttl_ms else 1 << 62  # type: ignore[operator]
            if status == "fresh" and age_ms >= 0 and now <= end_ns:
                until_ns[session, epoch] = max(end_ns, until_ns.get((session, epoch), 0))
            core.receive(message, now)
        active, taken = core.active.standing_at(now), core.pop_call(False, now)
        last = taken or last
        if active.status != "safe":
            message = heard[id(active.call)]
            assert (message.session, message.epoch) == (core.session.token, core.epoch), "of another world"
            assert now <= until_ns[message.session, message.epoch], "too old"
            assert last is not None and last.call is active.call, "it was not handed out"
        if taken is not None and taken.status != "safe":
            message = heard[id(taken.call)]
            assert all(number < message.tick for _, number in acted), "twice, or out of order"
            acted.append((message.session, message.tick))


def greeted(core: Core, now_ns: int = S, **changes: Any) -> list[str]:
    """Connect and welcome the core; return the types of the messages that it sends then."""
    core.on_connected(now_ns)
    assert said(core, now_ns) == ["hello"]
    core.receive(welcome(**changes), now_ns)
    return said(core, now_ns)


def said(core: Core, now_ns: int) -> list[str]:
    return [m.type for m in core.due_messages(now_ns)]


@pytest.fixture
def core() -> Core:
    """Return a core that was welcomed at one second."""
    core = Core(Options(**OWN, acknowledge=True), S)
    assert greeted(core) == ["ping"]
    return core


def test_acknowledgement_from_earlier_session_is_not_sent(core: Core) -> None:
    core.receive(call_message(5, call=FunctionCall(name="left"), t_obs_ns=S), S + MS)
    before = core.active.standing_at(S + MS)
    core.on_lost(2 * S, "cut")
    greeted(core, 3 * S, session="f" * 16)
    core.receive(call_message(5, session="f" * 16, call=FunctionCall(name="left"), t_obs_ns=3 * S), 3 * S)
    core.acknowledge(before, "failed", 3 * S + MS)
    assert (said(core, 3 * S + MS), core.active.standing_at(3 * S + MS).status) == ([], "fresh")
    core.acknowledge(core.active.standing_at(3 * S), "executed", 3 * S + MS)
    assert said(core, 3 * S + MS) == ["executed"]


def test_failed_call_of_several_makes_client_safe() -> None:
    core = Core(Options(**OWN, acknowledge=True, calls_per_tick=2), S)
    greeted(core)
    observed = {"seq_obs": core.observe(look(S)).seq, "t_obs_ns": S}
    left, right = FunctionCall(name="left"), FunctionCall(name="right")
    core.receive(call_message(0, call=left, more=True, **observed), S + MS)
    core.receive(call_message(1, call=right, **observed), S + 2 * MS)
    assert core.active.standing_at(S + 3 * MS).calls == (left, right)
    core.acknowledge(Standing(left, "fresh", tick=0), "failed", S + 3 * MS)  # the first, which acts next to the second
    assert core.active.standing_at(S + 3 * MS).status == "safe"
    core.receive(call_message(2, call=left, **observed), S + 4 * MS)
    assert core.active.standing_at(S + 4 * MS).calls == (left,)


def test_pings_and_resets_without_session_are_bounded(core: Core) -> None:
    core.on_lost(S, "cut")
    for i in range(3000):
        core.receive(messages.Ping(id=i, t_ns=i), S)
        core.reset()
    assert len(core.send_queue) <= 4 * QUEUE


def test_server_that_announces_endless_calls_adds_seven_at_most() -> None:
    core, call = Core(Options(**OWN, on_call=print), S), FunctionCall(name="steer", arguments={"angle": 10})
    greeted(core, S)
    core.observe(look(S))
    most = 0
    for tick in range(50):
        core.receive(call_message(tick, call=call, more=True, seq_obs=1, t_obs_ns=S), S + MS + tick)
        most = max(most, len(core.active.standing_at(S + MS + tick).calls))
    assert most == MOST_CALLS
