"""Sessions with an interpreter over real sockets: a sentence is answered with its meaning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from rtcontrol_client.wire.messages import ErrorMessage, Instruct
from tests.rtcontrol.hosts.chat_server import chat_server, completion
from tests.rtcontrol.serve.conftest import Bench
from tests.rtcontrol.serve.wire_peer import WirePeer

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
        assert peer.ask().status == "fresh" and running.sessions.all()[0].loop.instruction == "land on the pad"
        peer.send(Instruct(session=peer.token, instruction="stay up there"))
        answer = result(peer, Instruct)
        assert (answer.instruction, answer.said, answer.by) == ("hover at 0.7", "stay up there", "chat:small")
        peer.ask()
        assert result(peer, Instruct).instruction == "hover at 0.7"
        peer.send(Instruct(session=peer.token, instruction="HOVER AT 0.70!"))  # canonical, and active already
        assert result(peer, Instruct).by == "itself"
        assert [body["messages"][-1]["content"] for body in chat.bodies] == ["make me a sandwich", "stay up there"]
