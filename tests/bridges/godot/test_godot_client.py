"""The Godot client in the engine's web build, driven by a real server and by a scripted one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from rtcontrol_client.wire.messages import (
    Bye,
    CallMany,
    CrowdTerms,
    Executed,
    FunctionCall,
    Hello,
    Join,
    Leave,
    MemberCall,
    ObserveMany,
)
from tests.bridges.client.worlds import free_port
from tests.bridges.godot.web import MISSING, Engine, Start
from tests.bridges.program import starting
from tests.bridges.web_ends import Relay
from tests.conformance.check import check_any_client
from tests.conformance.check.stand import Stand

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)
GO = FunctionCall(name="go", arguments={"direction": "up"})


@pytest.fixture
def godot(tmp_path: Path) -> Iterator[Start]:
    """A function that runs the sample's scene under the driver: `godot(url, option...)`."""
    yield from starting(lambda url, *options: Engine(tmp_path, "driver.gd", f'--set=url:"{url}"', *options))


def test_conforms_to_the_checker_of_clients(godot: Start) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    with closing(Relay(endpoint)) as relay:
        engine = godot(relay.url)
        findings = check_any_client(endpoint)
        assert [f.name for f in findings if f.status != "passed"] == [], findings
        assert relay.refused == []
        assert engine.process.poll() is None and engine.faults() == []


@pytest.fixture
def stubborn(godot: Start, stand: Stand) -> Iterator[Engine]:
    """Drive a node with two safe tools from the scripted server."""
    tools = ("--tool=hold:{}", '--set=safe_tools:["hold", "stop"]')
    with closing(Relay(stand.endpoint)) as relay:
        engine = godot(relay.url, "--stubborn", "--set=ttl_ms:60000.0", *tools)
        stand.expect(Hello, 20.0, "hello")
        yield engine
        assert engine.faults() == []


def acts(engine: Engine, *begin: str) -> list[tuple[str, str]]:
    """Return the calls that were tried and executed since an event of this kind and cause."""
    reported = [e for e in engine.events if e["event"] in ("stuck", "acted")]
    names = [(e["event"], e.get("name") or e["call"]["name"]) for e in reported]
    return names[len(names) - names[::-1].index(begin) :]


def test_wrong_option_is_reported_before_connecting(godot: Start) -> None:
    wrong = '--set=url:"ws://127.0.0.1:9/ws,127.0.0.1:8?token=secret-1"'
    for option, reported in (('--set=safe_tool:"go"', "must do without arguments"), (wrong, "which is no address")):
        engine = godot("ws://127.0.0.1:9/ws", option)
        assert engine.stats()["state"] == 0
        assert reported in engine.errors() and "secret-1" not in engine.errors()


def test_failing_safe_tools_are_retried_each_frame(stubborn: Engine, stand: Stand) -> None:
    stand.welcome()
    observed = stand.observation()
    stand.call(observed, call=GO)
    stubborn.event("acted", cause="call")
    stubborn.say("stuck 3")
    stop, hold = FunctionCall(name="stop"), FunctionCall(name="hold")
    stubborn.stats()
    sent = stand.call(observed, status="safe", call=stop, calls=[stop, hold], cause="decide")
    reported = stand.expect(Executed, 5.0, "executed", lambda m: m.tick == sent.tick)
    assert (reported.outcome, reported.error) == ("failed", "stop would not; hold would not")
    stubborn.until(lambda e: e["event"] == "acted" and e["call"]["name"] == "stop", "stop is tried again")
    three = [("stuck", "stop"), ("stuck", "hold"), ("stuck", "stop")]
    assert acts(stubborn, "acted", "go") == [*three, ("acted", "hold"), ("acted", "stop")]
    assert stubborn.stats()["owed"] == []


def test_connect_url_leads_to_the_websocket_of_the_same_host(godot: Start, stand: Stand) -> None:
    with closing(Relay(stand.endpoint)) as relay:
        url = relay.url.replace("ws://", "http://").replace("/ws", "/connect")
        engine = godot(url, "--set=persist:false", "--set=ttl_ms:60000.0")
        stand.expect(Hello, 20.0, "hello")
        stand.welcome()
        stand.call(stand.observation(), call=GO)
        engine.event("acted", cause="call")
        assert engine.stats()["address"] == relay.url
        stand.send(Bye(session=stand.token, reason="draining", reconnect=True))
        engine.event("acted", cause="session_ended")
        assert stand.expect(Hello, 20.0, "hello after the bye").resume is None
        assert engine.faults() == []


# A crowd, against a scripted server.


@pytest.fixture
def crowd(tmp_path: Path, stand: Stand) -> Iterator[Engine]:
    """A crowd of two members, anna and bert, with a scripted server."""
    relay = Relay(stand.endpoint)
    for start in starting(lambda *options: Engine(tmp_path, "crowd_driver.gd", f"--url={relay.url}", *options)):
        engine = start("--join=anna,bert", "--set=ttl_ms:60000.0")
        yield engine
        assert engine.faults() == []
    assert relay.refused == []
    relay.close()


def test_members_execute_calls_and_a_freed_node_leaves(crowd: Engine, stand: Stand) -> None:
    hello = stand.expect(Hello, 20.0, "hello")
    assert hello.crowd is not None and hello.tools is not None
    # The order of parameters is kept: sorted parameters would make another tool, for which no model was trained.
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
    # godotengine/godot#44134: observing a freed node again and again raises an error each time.
    crowd.say("free anna")
    assert stand.expect(Leave, 5.0, "leave").ids == ["anna"]
    assert set(crowd.stats()["accounts"]) == {"bert"}
