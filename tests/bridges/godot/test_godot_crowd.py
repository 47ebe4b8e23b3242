"""The crowd's client for Godot in the engine's web build, against a server whose messages are the test's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rtcontrol_client.wire.crowd import CallMany, CrowdTerms, Join, Leave, MemberCall, ObserveMany
from rtcontrol_client.wire.messages import FunctionCall, Hello
from tests.bridges.godot.web import MISSING, Engine
from tests.bridges.program import starting
from tests.bridges.web_ends import Relay
from tests.conformance.check.stand import Stand

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)


@pytest.fixture
def crowd(tmp_path: Path, stand: Stand) -> Iterator[Engine]:
    """Anna and bert, whose server is the test's."""
    relay = Relay(stand.endpoint)
    for start in starting(lambda *options: Engine(tmp_path, "crowd_driver.gd", f"--url={relay.url}", *options)):
        engine = start("--join=anna,bert", "--set=ttl_ms:60000.0")
        yield engine
        assert engine.faults() == []
    assert relay.refused == []
    relay.close()


def test_members_act_upon_their_calls_and_a_freed_node_leaves_by_itself(crowd: Engine, stand: Stand) -> None:
    hello = stand.expect(Hello, 20.0, "hello")
    assert hello.crowd is not None and hello.tools is not None
    # A parameter before another one stays before it: sorted, it would be another tool, which no model was trained on.
    function = hello.tools[0]["function"]
    assert list(function["parameters"]["properties"]) == ["way", "fast"]
    assert list(function) == ["name", "description", "parameters"]
    stand.welcome(crowd=CrowdTerms(members=512, parts=256))
    epochs = {member.id: member.epoch for member in stand.expect(Join, 5.0, "join").members}
    seen = stand.expect(ObserveMany, 5.0, "looks", lambda message: len(message.looks) == 2)
    go = FunctionCall(name="go", arguments={"way": "left"})
    calls = [
        MemberCall(
            id=look.id,
            tick=tick,
            epoch=epochs[look.id],
            status="fresh",
            seq_obs=look.seq,
            t_obs_ns=look.t_ns,
            call=go,
            ttl_ms=200.0 if look.id == "anna" else 60_000.0,
        )
        for tick, look in enumerate(seen.looks)
    ]
    stand.send(CallMany(session=stand.token, t_server_ns=time.monotonic_ns(), calls=calls))
    for name in ("anna", "bert"):
        crowd.event("acted", member=name, cause="call")
    safe = crowd.event("acted", cause="expired")
    assert safe["member"] == "anna" and safe["call"]["name"] == "stop"
    assert 200 < safe["age_ms"] <= 200 + safe["frames_ms"]
    stats = crowd.stats()
    assert stats["calls"]["bert"]["calls"] == [{"name": "go", "arguments": {"way": "left"}}]
    assert (stats["accounts"]["anna"]["expired"], stats["accounts"]["bert"]["expired"]) == (1, 0)
    # godotengine/godot#44134: one that is gone is sent for without end, with an error each time.
    crowd.say("free anna")
    assert stand.expect(Leave, 5.0, "leave").ids == ["anna"]
    assert set(crowd.stats()["accounts"]) == {"bert"}
