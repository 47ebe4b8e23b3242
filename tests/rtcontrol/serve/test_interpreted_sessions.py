"""Sessions of a server with an interpreter, over real sockets: what a client says is answered with what it means."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from rtcontrol_client.wire.messages import ErrorMessage, Instruct
from tests.helpers.processes import until
from tests.rtcontrol.evaluation.chat_server import ChatServer, chat_server, completion
from tests.rtcontrol.serve.conftest import Bench
from tests.rtcontrol.serve.wire_peer import WirePeer

M = TypeVar("M")
HOVER, NONE = completion(("hover", '{"y": 0.7}')), completion(("not_understood", "{}"))
ANSWERS = {"stay up there": HOVER, "hold it a bit": HOVER, "to the left": completion(("land_left", "{}"))}


@pytest.fixture
def chat() -> Iterator[ChatServer]:
    with chat_server(lambda body: ANSWERS.get(body["messages"][-1]["content"], NONE)) as server:
        yield server


@pytest.fixture
def interpreted(bench: Callable[..., Bench], chat: ChatServer) -> Callable[..., Bench]:
    return lambda **options: bench(interpreter=f"chat:{chat.url}#small", **options)


def say(peer: WirePeer, text: str) -> None:
    peer.send(Instruct(session=peer.token, instruction=text))


def told(peer: WirePeer, kind: type[M]) -> M:
    """The next message of this kind, also of those that came before a call that was waited for."""
    for message in peer.inbox:
        if isinstance(message, kind):
            peer.inbox.remove(message)
            return message
    return peer.expect(kind, 20.0)


def said(chat: ChatServer) -> list[str]:
    return [body["messages"][-1]["content"] for body in chat.bodies]


def test_an_instruct_is_answered_with_what_it_was_understood_as(
    interpreted: Callable[..., Bench], chat: ChatServer
) -> None:
    made = interpreted()
    peer = made.enter(pacing="client")
    assert peer.welcome is not None and peer.welcome.instruction == "land on the pad"
    peer.ask()
    say(peer, "stay up there")
    answer = told(peer, Instruct)
    assert (answer.instruction, answer.said, answer.by) == ("hover at 0.7", "stay up there", "chat:small")
    session = made.admission.all()[0]
    peer.ask()
    in_force = told(peer, Instruct)
    assert (in_force.instruction, in_force.said) == ("hover at 0.7", None)
    assert session.loop.instruction == "hover at 0.7"
    say(peer, "HOVER AT 0.70!")  # canonical, in force already, and answered all the same
    assert told(peer, Instruct).by == "itself"
    assert said(chat) == ["stay up there"]


def test_what_is_not_understood_is_refused_with_what_can_be_said(interpreted: Callable[..., Bench]) -> None:
    made = interpreted()
    peer = made.enter(pacing="client")
    peer.ask()
    say(peer, "make me a sandwich")
    refused = told(peer, ErrorMessage)
    assert (refused.code, refused.field, refused.fatal) == ("instruction", "instruction", False)
    assert "not understood" in refused.message and "land on the left side of the pad" in refused.remedy
    assert peer.ask().status == "fresh"
    assert made.admission.all()[0].loop.instruction == "land on the pad"


def test_a_resumed_session_tells_nothing_of_the_old_instruction_before_its_welcome(
    bench: Callable[..., Bench],
) -> None:
    """A client would take it for newer than what it said last, and never say that again."""
    free = threading.Event()
    with chat_server(lambda body: (free.wait(60), HOVER)[1]) as server:
        made = bench(interpreter=f"chat:{server.url}")
        peer = made.enter(pacing="client")
        peer.ask()
        say(peer, "stay up there")
        until(lambda: bool(server.bodies))
        peer.close()
        session = made.admission.all()[0]
        until(lambda: session.state == "parked")
        back = made.peer()
        assert back.enter(resume=peer.token).instruction == "land on the pad"
        assert not [message for message in back.inbox if isinstance(message, Instruct)]
        free.set()


def parked(made: Bench, peer: WirePeer) -> Any:
    """Its session, when nobody is connected any more."""
    session = made.admission.all()[0]
    peer.close()
    until(lambda: session.state == "parked")
    return session
