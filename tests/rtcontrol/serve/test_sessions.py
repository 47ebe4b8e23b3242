"""Sessions of the wire over real sockets: welcome, both pacings, sequence, epochs, refusals, several calls a tick."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import msgpack
import pytest

from rtcontrol.envs.remote import RemoteEnvironment
from rtcontrol.gateway.source import public_name, source
from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.hosts.remote_api import EndpointSource
from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.checkpoint import ZOO
from rtcontrol.run import assembly
from rtcontrol.serve.options import ServeOptions
from rtcontrol.serve.pools import Pools
from rtcontrol.telemetry.record_reader import read_record
from rtcontrol_client.wire import encode_msgpack
from rtcontrol_client.wire.messages import (
    Bye,
    CallMessage,
    ErrorMessage,
    Executed,
    FunctionCall,
    Instruct,
    Observe,
    Outcome,
    Ping,
    Pong,
    Reset,
    Welcome,
)
from tests.helpers.checkpoints import unnamed
from tests.helpers.processes import until
from tests.rtcontrol.hosts.standin_endpoint import standin
from tests.rtcontrol.serve.wire_peer import WirePeer

PAD = {
    "type": "function",
    "function": {
        "name": "move",
        "description": "Move the pad.",
        "parameters": {
            "type": "object",
            "properties": {"dx": {"type": "integer", "enum": [-1, 0, 1]}, "fast": {"type": "boolean"}},
            "required": ["dx"],
        },
    },
}
OWN: dict[str, Any] = {"tools": [PAD], "instruction": "catch the ball"}
STOP = FunctionCall(name="move", arguments={"dx": 0})


def of(properties: dict[str, Any], required: Any = ()) -> dict[str, Any]:
    """A tool with these parameters."""
    return {"name": "f", "parameters": {"type": "object", "properties": properties, "required": required or []}}


def report(bench: Any, session: str = "session-0001") -> dict[str, Any]:
    """The session's report, once it is written."""
    path = bench.out / session / "report.json"
    until(lambda: path.exists() and path.read_text().endswith("}\n"), f"no {path}; {bench.said}")
    return json.loads(path.read_text())


def test_named_agent_is_welcomed_with_its_tools(peer: WirePeer) -> None:
    welcome = peer.enter()
    assert welcome.agent == "lander" and welcome.tools[0]["function"]["name"] == "engines"
    assert welcome.instruction == "land on the pad"
    assert welcome.safe_call == FunctionCall(name="engines", arguments={"main": 0, "side": 0})
    assert not welcome.resumed and welcome.epoch == 0
    assert (welcome.hz, welcome.period_ms, welcome.deadline_ms) == (16.0, 62.5, 62.5)
    assert welcome.ttl_ms == 500 and welcome.heartbeat_ms == 200 and welcome.session_grace_s == 30
    assert welcome.limits["max_parts"] == 8
    assert len(welcome.session) >= 32


def test_own_tools_are_decided_and_told_to_be_foreign(peer: WirePeer) -> None:
    welcome = peer.enter(**OWN, pacing="client")
    assert welcome.agent is None and not welcome.model_trained_on_tools and welcome.safe_call is None
    calls = [peer.ask(None, data={"ball": [i, 0.5], "over": False}) for i in range(20)]
    assert {c.status for c in calls} == {"fresh"}
    assert all(c.call is not None and c.call.name == "move" for c in calls)
    assert {c.call.arguments["dx"] for c in calls if c.call} <= {-1, 0, 1}
    assert [c.tick for c in calls] == list(range(20))


def test_client_paced_answers_each_observation_in_order(made: Any) -> None:
    peer = made.enter(pacing="client")
    sent = [peer.observe() for _ in range(30)]
    calls = [peer.expect(CallMessage) for _ in sent]
    assert [c.seq_obs for c in calls] == sent
    assert all(c.t_obs_ns is not None and c.timing.age_ms is not None for c in calls)
    assert sum(map(len, encode_msgpack(calls[0]))) < 400
    peer.send(Bye(session=peer.token))
    told = report(made)
    assert told["ticks"] == 30 and told["ended_by"] == "client said bye"
    assert told["wire"]["observations"] == 30 and told["wire"]["calls"]["fresh"] == 30


def test_client_that_runs_ahead_is_refused_by_the_queues_bound(bench: Any) -> None:
    made = bench(queue=4, model="noop")
    peer = made.enter(pacing="client")
    for _ in range(400):
        peer.observe()
    error = peer.refused()
    assert error.code == "rate" and error.retryable and error.seq is not None
    answered = [m.seq_obs for m in peer.inbox if isinstance(m, CallMessage)]
    assert answered == sorted(answered)


def test_server_paced_sends_one_call_a_tick(made: Any) -> None:
    peer = made.enter(hz=50)
    give_up, calls = time.monotonic() + 0.5, []
    while time.monotonic() < give_up:
        peer.observe()
        while (message := peer.receive(0.01)) is not None:
            assert isinstance(message, CallMessage)
            calls.append(message)
    ticks = [c.tick for c in calls]
    assert 10 <= len(ticks) == len(set(ticks))
    peer.send(Bye(session=peer.token))
    told = report(made)
    assert told["releases"] >= len(ticks) and told["misses_by_cause"].get("no_observation", 0) == 0


def test_silent_client_is_held_then_made_safe_between_ticks(peer: WirePeer) -> None:
    peer.enter(hz=5, max_age_ms=100, hold_ms=500)
    peer.observe()
    calls = [peer.expect(CallMessage)]
    while calls[-1].status != "safe":
        calls.append(peer.expect(CallMessage))
    assert calls[0].status == "fresh" and {c.status for c in calls[1:-1]} <= {"fresh", "held"}
    assert any(c.cause == "stale_observation" for c in calls)
    safe = calls[-1]
    assert safe.call == FunctionCall(name="engines", arguments={"main": 0, "side": 0})
    # The hold ends at its limit, not at the next tick, and the safe call has a number of its own.
    assert safe.t_server_ns - calls[-2].t_server_ns < 150e6
    ticks = [c.tick for c in calls]
    assert ticks == sorted(set(ticks))


def test_wrong_token_is_refused_and_the_session_goes_on(made: Any) -> None:
    mine, other = made.peer(), made.peer()
    mine.enter(pacing="client")
    other.enter(pacing="client")
    other.observe(session=mine.token)
    assert other.refused().code == "session"
    other.observe(session="ü" * 20)
    assert other.refused().code == "session"
    assert mine.ask().status == other.ask().status == "fresh"


def test_message_before_hello_is_refused(peer: WirePeer) -> None:
    before = time.monotonic_ns()  # but a ping is answered
    peer.send(Ping(id=7, t_ns=before))
    pong = peer.expect(Pong)
    assert pong.id == 7 and pong.t_ping_ns == before
    assert before <= pong.t_received_ns <= pong.t_sent_ns <= time.monotonic_ns(), "the server's clock"
    peer.send(Observe(session="x" * 20, seq=1, epoch=0, t_ns=1, text="x"))
    error = peer.refused()
    assert error.code == "state" and error.retryable and error.seq == 1 and "hello" in error.remedy


def test_replayed_and_reordered_sequence_numbers(made: Any) -> None:
    peer = made.enter(pacing="client")
    peer.ask(seq=10)
    for seq in (10, 9, 0):
        peer.observe(seq=seq)
        error = peer.refused()
        assert error.code == "sequence" and error.seq == seq
    peer.seq = 10
    assert peer.ask().seq_obs == 11
    peer.send(Bye(session=peer.token))
    assert report(made)["wire"]["refused"] == {"sequence": 3}


def test_epochs(made: Any) -> None:
    peer = made.enter(pacing="client")
    peer.ask()
    peer.observe(epoch=1)
    assert peer.refused().code == "epoch"
    peer.send(Reset(session=peer.token, epoch=5))
    assert peer.refused().code == "epoch"
    peer.send(Reset(session=peer.token, epoch=1, ended=Outcome(seed=7, ret=1.5, success=True, seconds=2.0)))
    peer.epoch = 1
    assert peer.ask().epoch == 1
    peer.observe(epoch=0)
    assert peer.refused().code == "epoch"
    peer.send(Bye(session=peer.token))
    assert report(made)["outcome"]["episodes"] == [
        {"seed": 7, "return": 1.5, "success": True, "seconds": 2.0, "detail": {}}
    ]


def test_instruction_in_flight_is_confirmed_and_recorded(made: Any) -> None:
    peer = made.enter(pacing="client")
    peer.ask()
    peer.send(Instruct(session=peer.token, instruction="hover at 0.7"))
    peer.observe()
    assert peer.expect(Instruct).instruction == "hover at 0.7"
    assert peer.expect(CallMessage).status == "fresh"
    peer.send(Instruct.model_construct(type="instruct", session=peer.token, instruction=" "))
    error = peer.refused()
    assert (error.code, error.field, error.fatal) == ("instruction", "instruction", False) and error.remedy
    peer.send(Bye(session=peer.token))
    assert [i["instruction"] for i in report(made)["instruction_changes"]] == ["hover at 0.7"]


def test_acknowledgements_are_counted_and_foreign_ones_refused(made: Any) -> None:
    peer = made.enter(**OWN, pacing="client", capabilities=["executed"])
    for outcome in ("executed", "expired", "failed"):
        tick = peer.ask(None, data={"x": 1}).tick
        error = "no motor" if outcome == "failed" else None
        peer.send(Executed(session=peer.token, tick=tick, epoch=0, outcome=outcome, t_ns=1, error=error))
    peer.send(Executed(session=peer.token, tick=99, epoch=0, outcome="executed", t_ns=1))
    error = peer.refused()
    assert error.code == "sequence" and error.field == "tick"
    peer.send(Bye(session=peer.token))
    told = report(made)
    assert told["wire"]["acknowledged"] == told["acknowledged"] == {"executed": 1, "expired": 1, "failed": 1}
    # Sent in time, and not carried out: not on time.
    assert (told["on_time"], told["misses"]) == (1, 2)
    assert told["misses_by_subcause"] == {"execute.expired": 1, "execute.failed": 1}
    assert [(e["cause"], e["error"]) for e in told["errors"]] == [("ack", "no motor")]


def test_observation_that_the_agent_cannot_read_is_told(peer: WirePeer) -> None:
    peer.enter(pacing="client", hold_ms=0)
    peer.observe(None, data={"x": 1.0})
    error = peer.refused()
    assert error.code == "invalid" and error.field == "data" and "KeyError" in error.message
    call = next(m for m in peer.inbox if isinstance(m, CallMessage))
    assert call.status == "safe" and call.cause in ("no_observation", "pause", "wake")


@pytest.mark.parametrize(
    ("fields", "code", "says"),
    [
        ({"agent": "nobody"}, "agent", "lander"),
        ({"agent": "/etc/passwd.py"}, "agent", "Known"),
        ({"agent": None}, "agent", "tools"),
        ({"agent": "lander", **OWN}, "invalid", "both"),
        ({"tools": [PAD]}, "instruction", "instruction"),
        ({"tools": [{"name": 3}], "instruction": "x"}, "tools", "name"),
        ({"tools": [PAD, PAD], "instruction": "x"}, "tools", "Two tools"),
        ({"tools": [{"name": "f", "parameters": 7}], "instruction": "x"}, "tools", "object"),
        ({"tools": [{"name": "f", "parameters": {"properties": {"a": 1}}}], "instruction": "x"}, "tools", "a"),
        ({"tools": [{"name": "n" * 257}], "instruction": "x"}, "tools", "256"),
        ({"tools": [{"name": "n" * 60_000}], "instruction": "x"}, "tools", "256"),
        ({"tools": [{"name": "f", "parameters": {"type": "array"}}], "instruction": "x"}, "tools", "array"),
        ({"tools": [of({"a": {"type": "boolean"}}, required="a")], "instruction": "x"}, "tools", "list of parameters"),
        ({"tools": [of({"a": {"type": "integer", "enum": ["x"]}})], "instruction": "x"}, "tools", "no integer"),
        ({"tools": [of({"a": {"type": "string"}}, required=["a"])], "instruction": "x"}, "tools", "parameter a"),
        ({**OWN, "safe_calls": [STOP, FunctionCall(name="move")]}, "tools", "dx"),
        ({"model": "lander", **OWN}, "model", "trained on other tools"),
        ({"model": "lander", "agent": "driver"}, "model", '"driver"'),
        ({**OWN, "safe_call": FunctionCall(name="move", arguments={"dx": 9})}, "tools", "dx"),
        ({"model": "/etc"}, "model", "Use"),
        ({"model": "expert", **OWN}, "model", "expert"),
        ({"deadline_ms": 100.0}, "invalid", "period"),
        ({"max_age_ms": 0.0}, "invalid", "max_age"),
        ({"protocol": [2, 0]}, "version", "1.1"),
        ({"protocol": [1, 0], "agent": "nobody"}, "agent", "lander"),
        ({"protocol": [1, 0], "resume": "x" * 32}, "session", "resume"),
        ({"resume": "x" * 32}, "session", "resume"),
    ],
)
def test_hello_is_refused_with_the_reason(peer: WirePeer, fields: dict[str, Any], code: str, says: str) -> None:
    said = peer.hello(**fields)
    error = peer.refused()
    assert error.code == code, error
    assert says in error.message + error.remedy, error
    assert len(error.message) <= 600 and len(error.remedy) <= 600, "it repeats a long name"
    of_1_1 = said.t_client_ns if said.protocol != [1, 0] else None
    assert error.t_client_ns == of_1_1, "which hello it refuses; nothing of 1.1 to a client of 1.0"
    # The connection is as good as new.
    peer.enter()


def test_a_repeated_hello_is_welcomed_again_and_another_one_refused(peer: WirePeer) -> None:
    first = peer.enter()
    assert peer.enter().session == first.session
    assert peer.denied(hz=5.0).code == "state"
    peer.send(first)  # nor is what servers say
    assert peer.refused().code == "state"


def test_a_robot_has_one_session(made: Any) -> None:
    one, two = made.peer(), made.peer()
    one.enter(robot="arm-1")
    error = two.denied(robot="arm-1")
    assert (error.code, error.field, error.fatal, error.retryable) == ("busy", "robot", True, True)
    one.send(Bye(session=one.token))
    # Messages of two peers have no order among each other: the answer says that the bye has been read.
    one.send(Ping(id=1, t_ns=0))
    one.expect(Pong)
    # A session is over with its bye, whatever its thread has still to do.
    assert two.enter(robot="arm-1").session != one.token


def test_a_full_server_says_so(bench: Any) -> None:
    made = bench(max_sessions=1)
    one, two = made.peer(), made.peer()
    one.enter()
    error = two.denied()
    assert error.code == "busy" and error.retryable


@pytest.mark.parametrize("keep", ["yes", "no"])
def test_a_session_records_what_was_observed_unless_the_server_must_not_keep_it(bench: Any, keep: str) -> None:
    made = bench(record_observations=keep)
    peer = made.enter(pacing="client")
    peer.ask()
    peer.send(Bye(session=peer.token))
    report(made)
    events = [*read_record(made.out / "session-0001" / "record.mcap")]
    assert any("called" in event for event in events)
    assert any("observation" in event for event in events) == (keep == "yes")


def test_two_clients_with_different_tools_do_not_disturb_each_other(made: Any) -> None:
    one, two = made.peer(), made.peer()
    one.enter(pacing="client")
    two.enter(**OWN, pacing="client")
    for _ in range(20):
        seqs = one.observe(), two.observe()
        calls = one.expect(CallMessage), two.expect(CallMessage)
        assert tuple(c.seq_obs for c in calls) == seqs
        assert [c.call.name for c in calls if c.call] == ["engines", "move"]
    assert [s.shown_name for s in made.admission.all()] == ["test", "test"]
    assert made.admission.health()["sessions"]["live"] == 2


def test_garbage_is_answered_within_the_rate_and_counted(made: Any) -> None:
    peer = made.enter(pacing="client")
    began = time.monotonic()
    for _ in range(100):
        peer.socket.send(b"\xc1garbage")
    until(lambda: made.admission.health()["refused"].get("malformed") == 100)
    assert peer.ask().status == "fresh"
    time.sleep(0.2)
    peer.socket.send(b"\xc1")
    until(lambda: made.admission.health()["refused"].get("malformed") == 101)
    told = [message for message in peer.inbox if isinstance(message, ErrorMessage)]
    while len(told) + sum(message.dropped for message in told) < 101:
        told.append(peer.refused())
    assert {message.code for message in told} == {"malformed"}
    assert len(told) + sum(message.dropped for message in told) == 101
    assert 20 <= len(told) <= 20 + 10 * (time.monotonic() - began)
    peer.send(ErrorMessage(code="internal", message="none"))
    until(lambda: made.admission.health()["errors_from_clients"] == 1)


def test_too_many_parts_and_bytes_are_drained(peer: WirePeer) -> None:
    peer.enter(pacing="client")
    peer.socket.send_multipart([b"x"] * 20_000)
    assert peer.refused().code == "too_large"
    peer.socket.send_multipart([b"x" * 500_000] * 3)
    assert peer.refused().code == "too_large"
    assert peer.ask().status == "fresh"


def test_more_messages_than_allowed_are_dropped(bench: Any) -> None:
    made = bench(messages_per_s=50.0, model="noop")
    peer = made.enter()
    for _ in range(300):
        peer.observe()
    error = peer.refused()
    assert error.code == "rate"
    until(lambda: made.admission.health()["refused"]["rate"] > 100)


def test_bye_frees_the_connection_for_another_hello(made: Any) -> None:
    peer = made.peer()
    first = peer.enter(pacing="client")
    peer.ask()
    peer.send(Bye(session=first.session))
    second = peer.enter(**OWN, pacing="client")
    assert second.session != first.session
    assert peer.ask().call.name == "move"
    assert report(made)["ticks"] == 1


def test_a_bye_ends_its_session_also_when_its_connection_was_found_gone_before(made: Any) -> None:
    one, other = made.peer(), made.peer()
    one.enter(hz=50)
    one.observe()
    one.expect(CallMessage)
    (gone,) = made.admission.connections()
    made.admission.disconnected(gone)  # as a call that could not be sent to it tells
    other.send(Bye(session=one.token))
    other.expect(Bye)
    until(lambda: made.admission.health()["sessions"] == {"opening": 0, "live": 0, "parked": 0})
    assert other.denied(resume=one.token).code == "session"
    # One that waits for its client already.
    two = made.enter()
    last = next(reversed(made.admission.connections()))
    made.admission.disconnected(last)
    until(lambda: made.admission.health()["sessions"]["parked"] == 1)
    other.send(Bye(session=two.token))
    until(lambda: made.admission.health()["sessions"]["parked"] == 0)


def test_all_safe_calls_are_in_force_and_told(made: Any) -> None:
    calls = [STOP, FunctionCall(name="move", arguments={"dx": 0, "fast": False})]
    for protocol, told in (([1, 1], [calls]), ([1, 0], [None, None])):
        peer = made.peer()
        welcome = peer.enter(**OWN, safe_calls=calls, hz=20, on_miss="safe", protocol=protocol)
        assert (welcome.safe_call, welcome.safe_calls) == (STOP, calls)
        assert any("first safe call only" in w for w in welcome.warnings) == (protocol == [1, 0])
        peer.observe(None, data={"x": 1})
        peer.expect(CallMessage, status="fresh")
        safe = [peer.expect(CallMessage, status="safe") for _ in told]
        assert [m.calls for m in safe] == told
        assert [m.call for m in safe] == calls[: len(told)]


def test_own_tools_are_not_decided_by_a_model_that_was_trained_on_others(bench: Any) -> None:
    made = bench(model=None)
    peer = made.peer()
    error = peer.denied(**OWN)
    assert (error.code, error.field) == ("model", "model") and "random" in error.remedy and "--model" in error.remedy
    assert peer.enter(**OWN, model="random").trained is None
    peer.send(Bye(session=peer.token))
    lander = assembly.agent("lander").tools.openai()
    welcome = peer.enter(tools=lander, instruction="land on the pad")
    assert (welcome.model, welcome.trained, welcome.model_trained_on_tools) == ("lander", True, True)


def test_a_named_agent_is_not_flown_by_the_servers_model_of_another(bench: Any) -> None:
    made = bench(model="lander")
    peer = made.peer()
    peer.hello(agent="driver")
    error = peer.refused()
    assert (error.code, error.field) == ("model", "model") and '"driver"' in error.remedy
    assert peer.enter(agent="driver", model="random").trained is None


def test_what_the_model_cannot_take_is_told_once_and_never_confirmed(bench: Any, tmp_path: Path) -> None:
    model = unnamed(ZOO / "lander", tmp_path / "some")
    made = bench(model=str(model))
    peer = made.peer()
    long = "word " * 9000
    for tool, says in (
        (
            of({"xs": {"type": "string", "pattern": "^a{5}$", "maxLength": 3}}, ["xs"]),
            "xs: no value satisfies its schema",
        ),
        ({**PAD["function"], "description": long}, ""),
    ):
        error = peer.denied(tools=[tool], instruction="go")
        assert (error.code, error.field, error.fatal) == ("tools", "tools", True) and says in error.message
    peer.enter(**OWN, pacing="client")
    peer.send(Instruct(session=peer.token, instruction=long))
    peer.ask("x 1")
    error = peer.refused()
    assert (error.code, error.field) == ("instruction", "instruction") and "fewer words" in error.remedy
    peer.send(Instruct(session=peer.token, instruction="go left"))
    assert peer.ask("x 1").status == "fresh"
    assert [m.instruction for m in peer.inbox if isinstance(m, Instruct)] == ["go left"]
    seq = peer.observe(long)
    error = peer.refused()
    assert (error.code, error.field, error.seq, error.retryable) == ("too_large", "text", seq, False)
    assert "shorter" in error.remedy


def test_invalid_hello_is_fatal_before_a_session_and_harmless_in_one(peer: WirePeer) -> None:
    bad = msgpack.packb({"type": "hello", "protocol": "1.0"})
    peer.socket.send(bad)
    error = peer.refused()
    assert error.code == "invalid" and error.fatal and error.field == "protocol"
    peer.enter(pacing="client")
    peer.socket.send(bad)
    assert not peer.refused().fatal
    assert peer.ask().status == "fresh"


def test_welcome_beyond_its_own_limits_is_refused(peer: WirePeer) -> None:
    values = [f"v{i}" for i in range(246)]
    tools = [
        {"name": f"tool{i}", "parameters": {"type": "object", "properties": {"a": {"enum": values}}}} for i in range(64)
    ]
    error = peer.denied(tools=tools, instruction="x")
    assert error.code == "too_large" and error.field == "tools" and error.fatal and not error.retryable
    assert "max_total_items" in error.message
    peer.enter(tools=tools[:32], instruction="x")


def test_observation_in_warm_up_is_answered(peer: WirePeer) -> None:
    """The welcome may be late; an observation before it is refused, not lost silently."""
    peer.hello(pacing="client")
    peer.send(Observe(session="x" * 20, seq=1, epoch=0, t_ns=1, text="x"))
    kinds = {type(peer.receive()), type(peer.receive())}
    assert kinds == {Welcome, ErrorMessage}


TOKEN = "t" * 20


def of_one(peer: Any, seq: int) -> list[CallMessage]:
    """All that is told of one observation."""
    told = [peer.expect(CallMessage, seq_obs=seq)]
    while told[-1].more:
        told.append(peer.expect(CallMessage, seq_obs=seq))
    return told


def test_who_asked_for_several_is_told_how_many_and_which_is_a_ticks_last(bench: Any) -> None:
    made = bench(calls_per_tick=3)
    only = [{"name": "move", "parameters": {"properties": {"dx": {"const": 1}}, "required": ["dx"]}}]
    peer = made.enter(tools=only, instruction="go", model="random", pacing="client", calls_per_tick=5)
    assert peer.welcome.calls_per_tick == 3 and "calls_per_tick 5 is above" in " ".join(peer.welcome.warnings)
    for _ in range(20):
        told = of_one(peer, peer.observe())
        # Of these tools there is one call: a model that repeats itself has no further one.
        assert [(m.status, m.call is None, m.more) for m in told] == [("fresh", False, True), ("held", True, None)]
        assert told[0].tick + 1 == told[1].tick and told[0].t_obs_ns == told[1].t_obs_ns
    assert peer.receive(0.05) is None


def said(env: RemoteEnvironment, message: CallMessage, outcome: Any = "executed") -> None:
    env.executed(Executed(session=TOKEN, tick=message.tick, epoch=0, outcome=outcome, t_ns=1))


TURN = {"name": "turn", "parameters": {"properties": {"to": {"enum": ["left", "right"]}}, "required": ["to"]}}


def test_no_session_waits_for_the_endpoint_of_another() -> None:
    with standin(lambda n: (0.5, None)) as made:
        model = f"systemone:{made.url}"
        options = ServeOptions(model=model)
        options.check()
        pools = Pools(options)
        pools.start()
        hosts = [pools.open(f"s{i}", EndpointSource.parse(model, (TURN,))) for i in range(4)]
        began = time.monotonic()
        for host in hosts:
            host.submit(DecisionRequest(1, 1, "x", "go"))
        for host in hosts:
            reply = host.wait(3_000_000_000)
            assert reply is not None and reply.decision is not None
            assert reply.decision.call == Call("turn", {"to": "left"})
        assert time.monotonic() - began < 1.9, "one after the other they take two seconds"
        for host in hosts:
            host.close()
        pools.close()


def test_a_request_of_v1_is_decided_by_the_endpoint() -> None:
    with standin() as made:
        model = f"decisions:{made.url}#secret-name"
        decider = source(model, "torch", (TURN,)).build()
        assert decider.decide(DecisionRequest(1, 1, "x", "go")).call == Call("turn", {"to": "left"})
        assert public_name(model) == "default", "strangers are not told where it is"
