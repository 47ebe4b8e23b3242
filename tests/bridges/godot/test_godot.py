"""The shipped Godot project in a real engine: its server is killed, and started again. More in test_godot_live.py."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from rtcontrol.bridges.wire.messages import ErrorMessage, Executed, FunctionCall, Hello
from tests.bridges.client.worlds import until
from tests.bridges.godot.engine import Engine, Served, Start
from tests.bridges.godot.relay import Relay
from tests.conformance.check.stand import TTL_MS as STAND_TTL_MS
from tests.conformance.check.stand import Stand

TTL_MS = 500.0
IDLE, LIVE = 0, 3


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ('--set=safe_tool:"go"', "the safe tool go must do without arguments"),
        ('--tool=observe:{"from": {"type": "string"}}', "the tool observe has 1 parameters, its method takes 0."),
    ],
    ids=["safe tool", "parameters"],
)
def test_mistaken_tool_is_told_before_anything_is_connected(godot: Start, option: str, told: str) -> None:
    engine = godot("ws://127.0.0.1:9/ws", option)
    engine.event("ready")
    assert engine.stats()["state"] == IDLE
    assert told in engine.errors()


@pytest.fixture
def stubborn(godot: Start, stand: Stand) -> Iterator[Engine]:
    """Drives what has two safe tools, connected to the stand."""
    relay = Relay(stand.endpoint)
    engine = godot(relay.url, "--stubborn", "--tool=hold:{}", '--set=safe_tools:["hold", "stop"]')
    stand.expect(Hello, 20.0, "hello")
    yield engine
    assert engine.faults() == []
    relay.close()


def acts(engine: Engine, *begin: str) -> list[tuple[str, str]]:
    """What was tried and done since an event of that kind and cause."""
    told = [e for e in engine.events if e["event"] in ("stuck", "acted")]
    names = [(e["event"], e.get("name") or e["call"]["name"]) for e in told]
    return names[len(names) - names[::-1].index(begin) :]


GO = FunctionCall(name="go", arguments={"direction": "up"})


def test_safe_tools_that_would_not_are_tried_each_frame_until_the_server_is_dead_and_after(
    stubborn: Engine, stand: Stand
) -> None:
    assert stand.hello is not None and stand.hello.safe_calls is not None
    assert [call.name for call in stand.hello.safe_calls] == ["hold", "stop"]
    stand.welcome()
    observed = stand.observation()
    stand.call(observed, call=GO)
    stubborn.event("acted", cause="call")
    stubborn.say("stuck 3")
    stop, hold = FunctionCall(name="stop"), FunctionCall(name="hold")
    stubborn.stats()
    sent = stand.call(observed, status="safe", call=stop, calls=[stop, hold], cause="decide")
    told = stand.expect(Executed, 5.0, "executed", lambda m: m.tick == sent.tick)
    assert (told.outcome, told.error) == ("failed", "stop would not; hold would not")
    stubborn.until(lambda e: e["event"] == "acted" and e["call"]["name"] == "stop", "stop is tried again")
    three = [("stuck", "stop"), ("stuck", "hold"), ("stuck", "stop")]
    assert acts(stubborn, "acted", "go") == [*three, ("acted", "hold"), ("acted", "stop")]
    assert stubborn.stats()["owed"] == []
    # The same when nobody is there any more, with its own safe tools in their order.
    stand.call(stand.observation(), call=GO)
    stubborn.event("acted", cause="call")
    stubborn.say("stuck 3")
    stand.alive = False
    assert stubborn.event("acted", cause="expired")["age_ms"] > STAND_TTL_MS
    stubborn.until(lambda e: e["event"] == "acted" and e["call"]["name"] == "hold", "hold is tried again")
    assert acts(stubborn, "acted", "go")[:3] == [("stuck", "hold"), ("stuck", "stop"), ("stuck", "hold")]


def test_call_without_a_time_to_live_ends_with_the_server(stubborn: Engine, stand: Stand) -> None:
    stand.welcome()
    stand.call(stand.observation(), call=GO, ttl_ms=0)
    stubborn.event("acted", cause="call")
    stand.alive = False
    assert stubborn.event("acted", cause="lost")["call"]["name"] == "hold"


def test_call_that_grew_too_old_before_it_could_act_is_not_executed(stubborn: Engine, stand: Stand) -> None:
    stand.welcome()
    stubborn.say(f"slow {STAND_TTL_MS + 50:.0f}")
    stubborn.stats()
    sent = stand.call(stand.observation(), call=GO)
    assert stand.expect(Executed, 5.0, "executed", lambda m: m.tick == sent.tick).outcome == "expired"
    assert stubborn.event("acted")["cause"] == "expired"


def test_safe_tool_that_would_not_is_tried_again_after_the_end(stubborn: Engine, stand: Stand) -> None:
    stand.welcome()
    stand.call(stand.observation(), call=GO)
    stubborn.event("acted", cause="call")
    stubborn.say("stuck 3")
    stubborn.say("stop")
    stubborn.event("ended")
    stubborn.until(lambda e: e["event"] == "acted" and e["call"]["name"] == "hold", "hold is tried again")
    assert acts(stubborn, "acted", "go")[3:] == [("acted", "stop"), ("acted", "hold")]


def test_server_of_1_0_has_all_own_safe_tools_carried_out(stubborn: Engine, stand: Stand) -> None:
    stand.minor = 0
    stand.welcome()
    observed = stand.observation()
    stand.call(observed, call=GO)
    stubborn.event("acted", cause="call")
    stand.call(observed, status="safe", call=FunctionCall(name="hold"), cause="decide")
    stubborn.until(lambda e: e["event"] == "acted" and e["call"]["name"] == "stop", "all safe tools")
    assert acts(stubborn, "acted", "go") == [("acted", "hold"), ("acted", "stop")]
    stubborn.say("next 0")
    assert stubborn.event("next")["release_ns"] == -1


def test_observation_is_timed_before_the_next_release_and_refusals_of_other_hellos_end_nothing(
    stubborn: Engine, stand: Stand
) -> None:
    stand.welcome()
    stand.send(ErrorMessage(code="busy", message="Another has it.", t_client_ns=0, fatal=True))
    release_ns = time.monotonic_ns() - 10**9
    stand.call(stand.observation(), status="held", release_ns=release_ns)
    stand.observation()
    stubborn.say("next 20000000")
    told = stubborn.event("next")
    assert 0 < told["in_ns"] <= 100e6
    offset_ns = min(told["clock"])[1]
    beside_ns = (told["now_ns"] + told["in_ns"] + 20e6 + offset_ns - release_ns + 50e6) % 100e6 - 50e6
    assert abs(beside_ns) < 1e6  # the engine's writer of JSON rounds to six digits
    assert stubborn.stats()["state"] == LIVE


def test_error_about_an_observation_of_before_does_not_end_a_greeting(stubborn: Engine, stand: Stand) -> None:
    stand.welcome()
    stand.observation()
    stand.send(ErrorMessage(code="state", message="No session.", retryable=True))
    assert stand.expect(Hello, 5.0, "hello").resume == stand.token
    stand.send(ErrorMessage(code="invalid", message="No.", seq=1))
    stand.welcome(resumed=True)
    stand.observation()
    assert stubborn.stats()["state"] == LIVE


def test_what_is_driven_may_be_gone_before_its_client(godot: Start, own_served: Served) -> None:
    engine = godot(own_served.url)
    engine.event("acted", cause="call")
    engine.say("lose")
    assert engine.event("ended")["why"] == "what is driven is gone"
    until(lambda: "bye" in own_served.logs(), "the server heard no bye")
    assert engine.faults() == []


def test_killed_server_means_safe_within_its_time_to_live_and_a_new_session(godot: Start, own_served: Served) -> None:
    engine = godot(own_served.url)
    engine.event("acted", cause="call")
    engine.say("instruct Go home.")
    engine.event("instructed")
    engine.say("next 0")
    assert 0 < engine.event("next")["in_ns"] <= 1e9 / 16  # the real server tells its ticks' phase
    engine.event("acted", cause="call")
    own_served.kill()
    safe = engine.event("acted", cause="expired")
    assert safe["call"]["name"] == "stop"
    print(f"\nsafe {safe['age_ms']:.0f} ms after the last call's observation (ttl {TTL_MS:.0f})")
    # In the first frame after the end of its time-to-live: that was not over yet in the frame before.
    assert TTL_MS < safe["age_ms"] <= TTL_MS + safe["frames_ms"]
    own_served.start()
    up = time.monotonic()
    assert engine.event("welcomed")["instruction"] == "Go home."
    engine.event("acted", cause="call")
    print(f"back {time.monotonic() - up:.2f} s after the server listened")
    stats = engine.stats()
    assert (stats["counts"]["sessions"], stats["too_old"]) == (2, 0)
    assert engine.faults() == []
    # What the engine's RegEx prints at each use, in a console that people read.
    assert "free_static" not in engine.errors()
