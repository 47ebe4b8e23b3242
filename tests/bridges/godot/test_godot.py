"""The shipped Godot project in a real engine: its server is killed, and started again. More in test_godot_live.py."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.bridges.client.worlds import until
from tests.bridges.godot.engine import Engine, Served

TTL_MS = 500.0
IDLE = 0


def test_safe_tool_that_wants_arguments_is_told_before_anything_is_connected(
    godot: Callable[..., Engine],
) -> None:
    engine = godot("ws://127.0.0.1:9/ws", '--set=safe_tool:"go"')
    engine.event("ready")
    assert engine.stats()["state"] == IDLE
    assert "the safe tool go must do without arguments" in engine.errors()


def test_tool_with_more_parameters_than_its_method_is_told_before_anything_is_connected(
    godot: Callable[..., Engine],
) -> None:
    engine = godot("ws://127.0.0.1:9/ws", '--tool=observe:{"from": {"type": "string"}}')
    engine.event("ready")
    assert engine.stats()["state"] == IDLE
    assert "the tool observe has 1 parameters, its method takes 0." in engine.errors()


def test_what_is_driven_may_be_gone_before_its_client(godot: Callable[..., Engine], own_served: Served) -> None:
    engine = godot(own_served.url)
    engine.event("acted", cause="call")
    engine.say("lose")
    assert engine.event("ended")["why"] == "what is driven is gone"
    until(lambda: "bye" in own_served.logs(), "the server heard no bye")
    assert engine.faults() == []


def test_killed_server_means_safe_within_its_time_to_live_and_a_new_session(
    godot: Callable[..., Engine], own_served: Served
) -> None:
    engine = godot(own_served.url)
    engine.event("acted", cause="call")
    engine.say("instruct Go home.")
    engine.event("instructed")
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
