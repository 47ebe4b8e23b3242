"""The client of a crowd against real servers: each member's calls, rejoining members, and refusals."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rtcontrol_client import ClientError, Crowd
from rtcontrol_client.client.connection import S
from rtcontrol_client.client.crowd import CrowdCore, CrowdOptions
from rtcontrol_client.wire import decode_json, encode_json
from rtcontrol_client.wire.messages import CallMany, MemberCall, ObservationPart, ObserveMany, Welcome
from tests.bridges.client.worlds import Process, free_port
from tests.conformance import load
from tests.helpers.processes import until

SEEN = "x 0 y 100 vx 0 vy 0 angle 0 spin 0 legs 0 0"
SAFE = {"name": "engines", "arguments": {"main": 0, "side": 0}}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Process]:
    process = Process(tmp_path, free_port(), "--agent", "lander", "--model", "random")
    process.start()
    yield process
    process.kill()


def until_fresh(crowd: Crowd, *names: str) -> None:
    """Observe until a fresh call is active for each of these members."""

    def fresh() -> bool:
        crowd.observe(dict.fromkeys(crowd.members, SEEN))
        crowd.wait(0.05)
        return all(crowd.call(name).status == "fresh" for name in names)

    until(fresh, f"no fresh calls: {crowd.error} {crowd.refusals}")


def test_killed_server_ends_calls_and_members_join_next_server(server: Process) -> None:
    options: dict[str, Any] = {"agent": "lander", "hz": 20, "safe_call": SAFE, "persist": True}
    with Crowd.connect(server.endpoint, **options) as crowd:
        crowd.join("anna", ttl_ms=400)
        crowd.join("bert", ttl_ms=400, instruction="Land softly.")
        until_fresh(crowd, "anna", "bert")
        server.kill()
        until(lambda: {one.status for one in crowd.calls().values()} == {"safe"}, "calls outlive their ttl")
        assert crowd.call("anna").arguments == SAFE["arguments"]
        server.start()
        until(lambda: crowd.connected, "it does not come back")
        until_fresh(crowd, "anna", "bert")
        assert crowd.statistics["sessions"] == 2


def test_member_errors_are_raised_before_sending(server: Process) -> None:
    with Crowd.connect(server.endpoint, agent="lander", hz=20, members=3) as crowd:
        crowd.join("anna", safe_call={"name": "engines", "arguments": {"main": 100, "side": 0}})
        crowd.join("bert", priority=9)
        wrong: list[tuple[Callable[[], Any], str]] = [
            (lambda: crowd.join("anna"), "anna"),
            (lambda: crowd.join("carl", priority=10), "priority"),
            (lambda: crowd.join("carl", safe_call=[7]), "safe_call"),
            (lambda: crowd.observe({"carl": SEEN}), "carl"),
            (lambda: crowd.observe({"anna": {"x": float("nan")}}), "finite"),
            (lambda: crowd.observe({"anna": "x" * 70_000}), "70000"),
            (lambda: crowd.observe({"anna": SEEN}, t_ns=time.monotonic_ns() + 10**12), "future"),
            (lambda: crowd.call("carl"), "carl"),
            (lambda: Crowd.connect("tcp://127.0.0.1:1", on_call=print), "on_call"),
        ]
        for say, words in wrong:
            with pytest.raises(ClientError, match=words):
                say()
        assert crowd.call("anna").arguments["main"] == 100 != crowd.call("bert").arguments["main"]
        until_fresh(crowd, "anna", "bert")
        crowd.leave("bert", "nobody")
        assert crowd.members == ["anna"]
        crowd.instruct("land on the pad", "anna")
        until_fresh(crowd, "anna")
        counts = crowd.statistics
        assert counts["members"] == 1 and counts["fresh"] > 2 and "p99" in counts["latency_ms"]
    assert {one.status for one in crowd.calls().values()} == {"safe"}


# RandyGaul/cute_headers#305: whoever was refused once stays out, also when the server has room.
def test_refused_member_is_decided_once_there_is_room(server: Process) -> None:
    with Crowd.connect(server.endpoint, agent="lander", hz=20, members=1, safe_call=SAFE) as crowd:
        crowd.join("anna")
        crowd.join("bert")
        until_fresh(crowd, "anna")
        until(lambda: bool(crowd.refusals), "nothing is told")
        assert (crowd.refusals[0].id, crowd.refusals[0].code) == ("bert", "busy")
        reported = len(crowd.refusals)
        crowd.instruct("hover at 0.7", "bert")
        until(lambda: len(crowd.refusals) > reported, "its terms are not refused again")
        assert crowd.call("bert").cause == "refused" and crowd.call("bert").arguments == SAFE["arguments"]
        crowd.leave("anna")
        crowd.instruct("land on the pad", "bert")
        until_fresh(crowd, "bert")


def test_many_members_are_split_into_messages_within_limits() -> None:
    core = CrowdCore(CrowdOptions(agent="lander"), S)
    core.on_connected(S)
    assert [m.type for m in core.due_messages(S)] == ["hello"]
    vector = next(v["json"] for v in load("crowd")["valid"] if v["json"]["type"] == "welcome")
    core.receive(Welcome(**{**vector, "t_client_ns": S, "resumed": False}), S)
    for i in range(1500):
        core.join({"id": f"m{i}"})
        core.queue_observation(ObservationPart(id=f"m{i}", seq=0, t_ns=S, text="\x01" * 400))
    looks = [m for m in core.due_messages(S) if isinstance(m, ObserveMany)]
    assert sum(len(m.looks) for m in looks) == 1500 and len(looks) > 1
    for message in looks:
        assert len(encode_json(message)) < 1 << 20
        assert decode_json(encode_json(message)) == message


def test_member_without_ttl_keeps_to_that_of_the_session() -> None:
    core = CrowdCore(CrowdOptions(agent="lander"), S)
    core.on_connected(S)
    core.due_messages(S)
    vector = next(v["json"] for v in load("crowd")["valid"] if v["json"]["type"] == "welcome")
    welcome = Welcome(**{**vector, "t_client_ns": S, "resumed": False, "ttl_ms": 500.0})
    core.receive(welcome, S)
    core.join({"id": "anna"})
    core.queue_observation(ObservationPart(id="anna", seq=0, t_ns=S, text=SEEN))
    core.due_messages(S)
    call = {"id": "anna", "tick": 0, "epoch": 0, "status": "fresh", "ttl_ms": 0.0, "seq_obs": 0, "t_obs_ns": S}
    call["call"] = {"name": "engines", "arguments": {"main": 1, "side": 0}}
    core.receive(CallMany(session=welcome.session, t_server_ns=1, calls=[MemberCall.model_validate(call)]), S)
    assert core.members["anna"].active.max_ttl_ms == 500.0  # the server's message has no limit
