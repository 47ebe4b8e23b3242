"""The client's rule, where the vectors do not reach: random histories, a lost server, a new session."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.bridges.wire.inforce import InForce, Step
from rtcontrol.bridges.wire.messages import CallMessage, FunctionCall

MS = 1_000_000
SAFE = FunctionCall(name="stop")
LEFT = FunctionCall(name="left")


def message(tick: int, status: str, t_obs_ns: int | None, call: FunctionCall | None, ttl_ms: float) -> CallMessage:
    return CallMessage.model_validate(
        {
            "type": "call",
            "session": "t" * 16,
            "tick": tick,
            "epoch": 0,
            "status": status,
            "t_obs_ns": t_obs_ns,
            "call": None if call is None else call.model_dump(),
            "ttl_ms": ttl_ms,
            "deadline_ns": 0,
            "t_server_ns": 0,
        }
    )


events = st.tuples(
    st.integers(0, 300),  # ms since the event before
    st.none() | st.tuples(st.sampled_from(["fresh", "held", "safe"]), st.booleans(), st.integers(-50, 600)),
)


@given(st.lists(events, max_size=40), st.sampled_from([100.0, 250.5, 500.0]))
def test_no_call_is_in_force_beyond_the_newest_stamp_plus_its_time_to_live(
    history: list[tuple[int, tuple[str, bool, int] | None]], ttl_ms: float
) -> None:
    force, now, newest = InForce(0, (SAFE,)), 10**10, 0
    for tick, (pause, event) in enumerate(history):
        now += pause * MS
        if event is None:
            step = force.look(now)
        else:
            status, with_call, age_ms = event
            if status == "fresh" and age_ms >= 0:
                newest = max(newest, now - age_ms * MS)
            step = force.receive(message(tick, status, now - age_ms * MS, LEFT if with_call else None, ttl_ms), now)
        if force.kind == "call":
            assert now <= newest + ttl_ms * MS
            assert force.expires_ns is not None and force.expires_ns <= newest + ttl_ms * MS
        if step.act == "call":
            assert event is not None and event[0] == "fresh" and event[1] and 0 <= event[2] <= ttl_ms
        if step.act == "safe":
            assert force.kind == "safe"


def flying(ttl_ms: float) -> InForce:
    force = InForce(0, (SAFE,))
    assert force.receive(message(5, "fresh", 0, LEFT, ttl_ms), 10 * MS) == Step("call", (LEFT,), tick=5)
    return force


def test_a_lost_server_ends_only_what_would_never_expire() -> None:
    force = flying(500)
    assert force.server_lost() == Step()
    assert force.kind == "call"
    force = flying(0)
    assert force.server_lost() == Step("safe", (SAFE,))
    assert force.server_lost() == Step()


def test_the_end_of_a_session_is_safe_at_once() -> None:
    force = flying(500)
    assert force.server_left() == Step("safe", (SAFE,))
    assert force.server_left() == Step()


def test_a_new_session_ends_the_old_call_and_counts_ticks_anew() -> None:
    force, brake = flying(0), FunctionCall(name="brake")
    assert force.new_session(3, brake) == Step("safe", brake)
    assert (force.kind, force.epoch) == ("none", 3)
    assert force.new_session(0, SAFE) == Step()
    assert force.receive(message(0, "fresh", 100 * MS, LEFT, 500), 120 * MS).act == "call"


def test_acknowledgement_of_a_safe_message_has_its_tick_and_of_an_own_act_none() -> None:
    assert flying(500).receive(message(6, "safe", None, None, 500), 20 * MS) == Step("safe", (SAFE,), tick=6)
    assert flying(500).look(501 * MS).tick is None
    both = flying(500).receive(message(6, "fresh", 5 * MS, LEFT, 100), 501 * MS)
    assert both == Step("safe", (SAFE,), expired=True, tick=6)
