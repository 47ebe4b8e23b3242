"""A session that would make the calls of others late is refused, with the figures."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.bridges.wire.messages import Bye, ErrorMessage, Welcome
from rtcontrol.hosts.protocol import DecoderUnavailable
from rtcontrol.run import assembly
from rtcontrol.serve import session
from rtcontrol.serve.limits import Need, undisturbed, weigh
from tests.helpers.processes import until

NEEDS = st.builds(Need, st.floats(0.1, 1000), st.floats(1e-5, 1))
MOST = 0.8
LANDER = {"tools": assembly.agent("lander").tools.openai(), "instruction": "hover at 0.7"}


@given(need=NEEDS, others=st.lists(NEEDS, max_size=20))
def test_no_more_than_most_of_the_decoders_time_is_given_away(need: Need, others: list[Need]) -> None:
    taken = sum(other.busy for other in others if other.busy <= MOST)
    try:
        weigh(need, others, MOST)
    except DecoderUnavailable as error:
        assert taken and taken + need.busy > MOST
        assert error.full and f"{need.hz:g} Hz" in error.what
    else:
        assert not taken or taken + need.busy <= MOST * (1 + 1e-9)


def test_the_rate_that_is_left_is_named() -> None:
    with pytest.raises(DecoderUnavailable) as error:
        weigh(Need(150, 0.004), [Need(30, 0.01), Need(12, 0.01), Need(1000, 1.0)], MOST)
    assert "42% of its time by 2 other" in error.value.what and "60% (150 Hz, 4 ms" in error.value.what
    assert "at most 95 Hz" in error.value.remedy


def test_a_session_alone_may_ask_for_more_than_there_is() -> None:
    weigh(Need(1000, 1.0), [], MOST)


def test_decisions_that_something_else_made_longer_do_not_count() -> None:
    assert undisturbed([2.0] * 30 + [50.0] * 60) == 2.0
    assert undisturbed([3.0]) == 3.0


def test_a_second_session_that_would_make_the_first_late_is_refused_and_a_slower_one_is_not(bench: Any) -> None:
    made = bench(model="lander", hz_max=1000)
    made.enter(**LANDER, hz=10)
    error = made.peer().denied(**LANDER, hz=1000)
    assert error.code == "busy" and error.retryable and "ms a decision" in error.message
    made.enter(**LANDER, hz=1)


@pytest.fixture
def half(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Of a hello: what takes half of the decoder's time, whatever its decisions take on this machine."""
    monkeypatch.setattr(session, "undisturbed", lambda shares: 25e6)
    return {**LANDER, "hz": 20}


def test_of_two_that_are_warm_at_once_one_gets_in_where_there_is_room_for_one(
    bench: Any, half: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    both, started = threading.Barrier(2), session.Session._started

    def start(self: session.Session) -> None:
        both.wait(20)
        started(self)

    monkeypatch.setattr(session.Session, "_started", start)
    made = bench(model="lander")
    peers = [made.peer(), made.peer()]
    for peer in peers:
        peer.hello(**half)
    answers = [peer.receive(20) for peer in peers]
    assert {type(answer) for answer in answers} == {Welcome, ErrorMessage}
    (refusal,) = [answer for answer in answers if isinstance(answer, ErrorMessage)]
    assert refusal.code == "busy" and refusal.retryable


def test_a_session_that_waits_for_its_client_keeps_its_part(bench: Any, half: dict[str, Any]) -> None:
    made = bench(model="lander")
    lost = made.enter(**half)
    lost.close()
    until(lambda: made.admission.health()["sessions"]["parked"] == 1)
    assert made.peer().denied(**half).code == "busy"
    back = made.enter(resume=lost.token)
    assert back.welcome is not None and back.welcome.resumed
    assert made.peer().denied(**half).code == "busy"
    back.send(Bye(session=back.token))
    until(lambda: not made.admission.all())
    made.enter(**half)
