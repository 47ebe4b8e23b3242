"""The crowd's client for Godot in the engine's web build, against a server whose messages are the test's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rtcontrol_client.wire.crowd import (
    CallMany,
    CrowdTerms,
    Join,
    Leave,
    MemberCall,
    MemberError,
    MemberLook,
    ObserveMany,
)
from rtcontrol_client.wire.messages import ErrorMessage, FunctionCall, Hello
from tests.bridges.godot.web import MISSING, Engine, Start
from tests.bridges.program import starting
from tests.bridges.web_ends import Relay
from tests.conformance.check.stand import Stand

TERMS = CrowdTerms(members=512, parts=256)
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)
GO = FunctionCall(name="go", arguments={"way": "left"})


@pytest.fixture
def godot(tmp_path: Path) -> Iterator[Start]:
    """Starts a crowd under its driver: `godot(url, option...)`."""
    yield from starting(lambda url, *options: Engine(tmp_path, "crowd_driver.gd", f"--url={url}", *options))


@pytest.fixture
def crowd(godot: Start, stand: Stand) -> Iterator[Engine]:
    """Anna and bert, whose server is the test's."""
    relay = Relay(stand.endpoint)
    engine = godot(relay.url, "--join=anna,bert", "--set=ttl_ms:60000.0")
    stand.expect(Hello, 20.0, "hello")
    yield engine
    assert engine.faults() == []
    assert relay.refused == []
    relay.close()


def joined(stand: Stand, **changes: Any) -> dict[str, int]:
    """Who joins after the welcome, with the epochs of their lives."""
    stand.welcome(**{"crowd": TERMS, **changes})
    return {member.id: member.epoch for member in stand.expect(Join, 5.0, "join").members}


def looks(stand: Stand, *names: str) -> dict[str, MemberLook]:
    """The newest looks, from one message with all of these."""
    seen = stand.expect(ObserveMany, 5.0, "looks", lambda m: set(names) <= {look.id for look in m.looks})
    return {look.id: look for look in seen.looks}


def answer(stand: Stand, epoch: int, look: MemberLook, **changes: Any) -> MemberCall:
    """A fresh call upon a look, with the next tick, unless it is said otherwise."""
    stand.tick += 1
    fields: dict[str, Any] = {
        "status": "fresh",
        "seq_obs": look.seq,
        "t_obs_ns": look.t_ns,
        "call": GO,
        "ttl_ms": 2000.0,
    }
    return MemberCall(**{"id": look.id, "tick": stand.tick, "epoch": epoch, **fields, **changes})


def tell(stand: Stand, *calls: MemberCall) -> None:
    stand.send(CallMany(session=stand.token, t_server_ns=time.monotonic_ns(), calls=list(calls)))


def test_one_message_has_all_looks_one_answer_all_calls_and_each_ends_in_its_own_time(
    crowd: Engine, stand: Stand
) -> None:
    hello = stand.hello
    assert hello is not None and hello.crowd is not None and hello.tools is not None
    # A parameter before another one stays before it: sorted, it would be another tool, which no model was trained on.
    function = hello.tools[0]["function"]
    assert list(function["parameters"]["properties"]) == ["way", "fast"]
    assert list(function) == ["name", "description", "parameters"]
    epochs = joined(stand)
    assert sorted(epochs) == ["anna", "bert"] and epochs["anna"] != epochs["bert"]
    seen = looks(stand, "anna", "bert")
    tell(
        stand,
        answer(stand, epochs["anna"], seen["anna"], ttl_ms=200.0),
        answer(stand, epochs["bert"], seen["bert"], ttl_ms=60_000.0),
    )
    crowd.event("acted", member="anna", cause="call")
    crowd.event("acted", member="bert", cause="call")
    safe = crowd.event("acted", cause="expired")
    assert safe["member"] == "anna" and safe["call"]["name"] == "stop"
    assert 200 < safe["age_ms"] <= 200 + safe["frames_ms"]
    stats = crowd.stats()
    assert (stats["calls"]["anna"]["status"], stats["calls"]["anna"]["cause"]) == ("safe", "expired")
    assert stats["calls"]["bert"]["calls"] == [{"name": "go", "arguments": {"way": "left"}}]
    assert (stats["accounts"]["anna"]["expired"], stats["accounts"]["bert"]["expired"]) == (1, 0)
    assert stats["statistics"]["latency_ms"]["p99"] > 0


def test_misses_are_told_of_each_and_a_safe_tool_that_would_not_is_tried_until_it_does(
    crowd: Engine, stand: Stand
) -> None:
    epochs = joined(stand)
    seen = looks(stand, "anna", "bert")
    tell(stand, *(answer(stand, epochs[name], seen[name], ttl_ms=60_000.0) for name in ("anna", "bert")))
    crowd.event("acted", member="bert", cause="call")
    crowd.say("stuck anna 3")
    crowd.stats()
    stop = FunctionCall(name="stop")
    missed = answer(stand, epochs["anna"], seen["anna"], status="safe", call=stop, cause="decide")
    held = answer(stand, epochs["bert"], seen["bert"], status="held", call=None, cause="decide")
    tell(stand, missed, held)
    assert crowd.event("told", member="anna", outcome="refused")["tick"] == missed.tick
    assert crowd.event("acted", member="anna", cause="decide")["call"]["name"] == "stop"
    stats = crowd.stats()
    anna, bert = (stats["accounts"][name] for name in ("anna", "bert"))
    assert (anna["missed"], anna["safe"], anna["causes"]) == (1, 1, {"decide": 1})
    assert (bert["missed"], bert["held"], bert["causes"]) == (1, 1, {"decide": 1})
    assert (stats["calls"]["anna"]["cause"], stats["calls"]["bert"]["status"]) == ("decide", "held")


def test_who_is_not_let_in_says_nothing_and_a_freed_node_leaves_by_itself(crowd: Engine, stand: Stand) -> None:
    # godotengine/godot#44134: one that is gone is sent for without end, with an error each time.
    epochs = joined(stand)
    part = MemberError(id="bert", code="busy", message="Full.", remedy="Wait.")
    stand.send(ErrorMessage(code="busy", message="One is refused.", members=[part]))
    assert crowd.event("refused", member="bert")["why"] == "busy: Full. Wait."
    stand.pump(0.3)
    stand.heard.clear()
    stand.pump(0.5)
    said = {look.id for message in stand.heard if isinstance(message, ObserveMany) for look in message.looks}
    assert said == {"anna"}
    assert crowd.stats()["calls"]["bert"]["cause"] == "refused"
    tell(stand, answer(stand, epochs["anna"], looks(stand, "anna")["anna"]))
    crowd.event("acted", member="anna", cause="call")
    crowd.say("free anna")
    assert stand.expect(Leave, 5.0, "leave").ids == ["anna"]
    assert set(crowd.stats()["accounts"]) == {"bert"}
