"""Sessions over real sockets: pacing, numbers, refusals, several calls per tick, and an interpreter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from rtcontrol.models.checkpoint.checkpoint import ZOO
from rtcontrol_client.wire import encode_msgpack
from rtcontrol_client.wire.messages import (
    CallMessage,
    ErrorMessage,
    Instruct,
)
from tests.helpers.checkpoints import unnamed
from tests.rtcontrol.hosts.chat_server import chat_server, completion
from tests.rtcontrol.serve.conftest import Bench
from tests.rtcontrol.serve.test_negotiate import OWN, PAD, of
from tests.rtcontrol.serve.wire_peer import WirePeer


def test_client_paced_answers_each_observation_in_order(running: Any) -> None:
    peer = running.enter(pacing="client")
    sent = [peer.observe() for _ in range(30)]
    calls = [peer.expect(CallMessage) for _ in sent]
    assert [c.seq_obs for c in calls] == sent
    assert all(c.t_obs_ns is not None and c.timing.age_ms is not None for c in calls)
    assert sum(map(len, encode_msgpack(calls[0]))) < 400
    result = running.report(peer)
    assert result["ticks"] == 30 and result["ended_by"] == "client said bye"
    assert result["wire"]["observations"] == 30 and result["wire"]["calls"]["fresh"] == 30


def test_observation_that_agent_cannot_read_is_reported(running: Any) -> None:
    peer = running.enter(pacing="client", hold_ms=0)
    peer.observe(None, data={"x": 1.0})
    error = peer.refused()
    assert error.code == "invalid" and error.field == "data" and "KeyError" in error.message
    call = next(m for m in peer.inbox if isinstance(m, CallMessage))
    assert call.status == "safe" and call.cause in ("no_observation", "pause", "wake")


def test_too_many_parts_and_bytes_are_drained(running: Any) -> None:
    peer = running.enter(pacing="client")
    peer.socket.send_multipart([b"x"] * 20_000)
    assert peer.refused().code == "too_large"
    peer.socket.send_multipart([b"x" * 500_000] * 3)
    assert peer.refused().code == "too_large"
    assert peer.ask().status == "fresh"


def test_undecidable_text_is_refused_once(bench: Any, tmp_path: Path) -> None:
    model = unnamed(ZOO / "lander", tmp_path / "some")
    running = bench(model=str(model))
    peer = running.peer()
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


def of_one(peer: Any, seq: int) -> list[CallMessage]:
    """Return all calls for one observation."""
    result = [peer.expect(CallMessage, seq_obs=seq)]
    while result[-1].more:
        result.append(peer.expect(CallMessage, seq_obs=seq))
    return result


def test_several_calls_per_tick_mark_the_last(bench: Any) -> None:
    running = bench(calls_per_tick=3)
    only = [{"name": "move", "parameters": {"properties": {"dx": {"const": 1}}, "required": ["dx"]}}]
    peer = running.enter(tools=only, instruction="go", model="random", pacing="client", calls_per_tick=5)
    assert peer.welcome.calls_per_tick == 3 and "calls_per_tick 5 is above" in " ".join(peer.welcome.warnings)
    for _ in range(20):
        result = of_one(peer, peer.observe())
        # Of these tools there is one call: a model that repeats itself has no further one.
        assert [(m.status, m.call is None, m.more) for m in result] == [("fresh", False, True), ("held", True, None)]
        assert result[0].tick + 1 == result[1].tick and result[0].t_obs_ns == result[1].t_obs_ns
    assert peer.receive(0.05) is None


M = TypeVar("M")
HOVER, NONE = completion(("hover", '{"y": 0.7}')), completion(("not_understood", "{}"))


def result(peer: WirePeer, kind: type[M]) -> M:
    """Return the next message of this kind, even if it arrived before an awaited call."""
    matches: Any = next((message for message in peer.inbox if isinstance(message, kind)), None)
    if matches is None:
        return peer.expect(kind, 20.0)
    peer.inbox.remove(matches)
    return matches


def test_sentence_is_answered_with_meaning_or_examples(bench: Callable[..., Bench]) -> None:
    with chat_server(lambda body: HOVER if body["messages"][-1]["content"] == "stay up there" else NONE) as chat:
        running = bench(interpreter=f"chat:{chat.url}#small")
        peer = running.enter(pacing="client")
        peer.ask()
        peer.send(Instruct(session=peer.token, instruction="make me a sandwich"))
        refused = result(peer, ErrorMessage)
        assert (refused.code, refused.field, refused.fatal) == ("instruction", "instruction", False)
        assert "not understood" in refused.message and "land on the left side of the pad" in refused.remedy
        assert peer.ask().status == "fresh" and running.sessions.threads()[0].loop.instruction == "land on the pad"
        peer.send(Instruct(session=peer.token, instruction="stay up there"))
        answer = result(peer, Instruct)
        assert (answer.instruction, answer.said, answer.by) == ("hover at 0.7", "stay up there", "chat:small")
        peer.ask()
        assert result(peer, Instruct).instruction == "hover at 0.7"
        peer.send(Instruct(session=peer.token, instruction="HOVER AT 0.70!"))  # canonical, and active already
        assert result(peer, Instruct).by == "itself"
        assert [body["messages"][-1]["content"] for body in chat.bodies] == ["make me a sandwich", "stay up there"]
