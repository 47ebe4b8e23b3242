"""What the inspector shows: the numbers of the C# client at instants of the test's choice, and the editor's script."""

from __future__ import annotations

from typing import Any

import pytest

from rtcontrol_client.wire.messages import Bye, Hello
from tests.bridges.unity.mono import Driver, Start
from tests.bridges.unity.test_unity import MS, Conversation, play, stub  # noqa: F401
from tests.conformance.check.stand import Stand


@pytest.fixture
def talk(core: Driver) -> Conversation:
    one = Conversation(core)
    one.begin(protocol=[1, 1])
    return one


def figures(talk: Conversation) -> dict[str, Any]:
    found: dict[str, Any] = talk.on("figures")
    return found


def test_before_anything_is_in_force_there_is_no_age_and_no_share(core: Driver) -> None:
    talk = Conversation(core)
    talk.on("connected")
    found = figures(talk)
    assert (found["share"], found["age_ms"], found["force"], found["connected"]) == (None, None, "None", False)
    assert "On time: no tick yet" in found["lines"] and "Trouble: nobody answers" in found["lines"]


def test_age_of_the_call_in_force_grows_until_its_time_is_over(talk: Conversation) -> None:
    talk.on("observe")
    talk.fresh(call={"name": "steer", "arguments": {"angle": 10, "hard": True}}, ttl_ms=500)
    talk.now_ns += 120 * MS
    found = figures(talk)
    assert (found["age_ms"], found["left_ms"], found["in_force"]) == (120, 380, "steer(angle: 10, hard: True)")
    # Decided to go on: it is as old as that observation.
    talk.on("observe")
    talk.call(status="fresh", seq_obs=2, t_obs_ns=talk.now_ns, tick=1, ttl_ms=500)
    assert (figures(talk)["age_ms"], figures(talk)["left_ms"]) == (0, 500)
    talk.call(status="held", tick=2, cause="decide", ttl_ms=500)
    talk.now_ns += 400 * MS
    assert figures(talk)["age_ms"] == 400
    talk.call(status="safe", tick=3, cause="decide", ttl_ms=500)
    found = figures(talk)
    assert (found["force"], found["age_ms"], found["in_force"]) == ("Safe", None, "hold(), stop()")
    talk.on("observe")
    talk.call(status="fresh", seq_obs=3, t_obs_ns=talk.now_ns, tick=4, ttl_ms=500, call={"name": "steer"})
    calls = [{"name": "stop"}, {"name": "brake", "arguments": {"hard": 1}}]
    talk.call(status="safe", tick=5, cause="paused", call=calls[0], calls=calls)
    assert figures(talk)["in_force"] == "stop(), brake(hard: 1)"


def test_share_and_causes_are_of_all_ticks_that_were_told(talk: Conversation) -> None:
    talk.on("observe")
    talk.fresh(call={"name": "steer"}, ttl_ms=60_000)
    causes = ["decide", "observe", "decide", None, "decide", "observe"]
    for tick, cause in enumerate(causes, 1):
        talk.call(status="held", tick=tick, ttl_ms=60_000, **({} if cause is None else {"cause": cause}))
    talk.call(status="safe", tick=90, cause="paused")
    found = figures(talk)
    assert (found["ticks"], found["share"]) == (8, 1 / 8)
    assert found["misses"] == ["decide 3", "observe 2", " 1", "paused 1"]
    assert "On time: 12.5 % of 8 ticks" in found["lines"]
    assert "Missed: no cause told: 1" in found["lines"]
    # What is of an earlier tick is not counted twice.
    talk.call(status="held", tick=5, cause="decide")
    assert figures(talk)["ticks"] == 8


def test_share_is_never_rounded_up_to_all(talk: Conversation) -> None:
    talk.on("observe")
    for tick in range(1999):
        talk.call(status="fresh", seq_obs=1, t_obs_ns=talk.now_ns, tick=tick, ttl_ms=60_000)
    talk.call(status="held", tick=2000, cause="decide", ttl_ms=60_000)
    assert "On time: 99.9 % of 2000 ticks" in figures(talk)["lines"]


def test_server_that_names_ever_new_causes_fills_no_memory(talk: Conversation) -> None:
    for tick in range(500):
        talk.call(status="held", tick=tick, cause=f"cause {tick}")
    found = figures(talk)
    assert (len(found["misses"]), found["ticks"]) == (65, 500)


def test_long_call_is_cut_for_the_inspector(talk: Conversation) -> None:
    talk.on("observe")
    talk.fresh(call={"name": "say", "arguments": {"text": "x" * 5000}}, ttl_ms=500)
    assert len(figures(talk)["in_force"]) < 200


def test_inspector_draws_fields_alone_without_a_client_and_figures_with_one(
    play: Start,  # noqa: F811
    stand: Stand,
) -> None:
    playing = play("play", stand.endpoint, "3")
    stand.expect(Hello, 20.0, "hello")
    stand.welcome()
    stand.call(stand.observation())
    stand.call(stand.observation(), status="held", cause="decide")
    stand.pump(6.0, lambda m: isinstance(m, Bye))
    told = playing.answer()
    drawn = told["drawn"]
    assert drawn[0] == "fields" and drawn[-1] == "again True", drawn
    assert any(line.startswith("Connection: ") for line in drawn)
    assert "On time: 50.0 % of 2 ticks" in drawn and "Missed: decide: 1" in drawn, drawn
    assert told["drawn_after"] == ["fields", "again False"]


def test_inspector_shows_why_nothing_is_connected(play: Start) -> None:  # noqa: F811
    drawn = play("play", "tcp://127.0.0.1:9", "1").answer()["drawn"]
    assert any(line.startswith("Warning: ") and "nobody answers" in line for line in drawn), drawn
