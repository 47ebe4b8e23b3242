"""The page's session under Node, against a server that does what the test says."""

from __future__ import annotations

import contextlib
import json
import queue
import secrets
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from websockets.exceptions import ConnectionClosedError
from websockets.sync.server import Server, ServerConnection, serve
from websockets.typing import Subprotocol

from rtcontrol.bridges.wire import PROTOCOL, decode_json, encode_json
from rtcontrol.bridges.wire.messages import (
    Bye,
    CallMessage,
    ErrorMessage,
    FunctionCall,
    Hello,
    Instruct,
    Message,
    Observe,
    Program,
    Welcome,
)
from rtcontrol.gateway.app import PAGE

NODE = shutil.which("node")
SCRIPT = Path(__file__).parent / "page" / "session.mjs"
FLAG = "--experimental-websocket"


def _has_websocket() -> bool:
    if NODE is None:
        return False
    asked = [NODE, FLAG, "-e", "process.exit(typeof WebSocket === 'function' ? 0 : 1)"]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not _has_websocket(), reason="there is no `node` with a WebSocket to run the page's")
M = TypeVar("M", bound=Message)
MOVE = FunctionCall(name="move", arguments={"velocity": 2})
REST = FunctionCall(name="move", arguments={"velocity": 0})


class Peer:
    """The server's end, one connection at a time; messages of all connections land in `heard`."""

    def __init__(self) -> None:
        self.heard: queue.Queue[tuple[ServerConnection, Message]] = queue.Queue()
        self.line: ServerConnection | None = None
        self.server: Server = serve(
            self._serve, "127.0.0.1", 0, compression=None, subprotocols=[Subprotocol("rtcontrol.v1")]
        )
        self.url = f"ws://127.0.0.1:{self.server.socket.getsockname()[1]}/ws"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def _serve(self, line: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosedError):
            for text in line:
                self.heard.put((line, decode_json(text)))

    def expect(self, kind: type[M], seconds: float = 10.0) -> M:
        """The next message of the kind; its connection is the one that is answered from now on."""
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            try:
                self.line, message = self.heard.get(timeout=left_s)
            except queue.Empty:
                break
            if isinstance(message, kind):
                return message
        raise AssertionError(f"no {kind.__name__} in {seconds:g} s")

    def send(self, message: Message) -> None:
        assert self.line is not None
        self.line.send(encode_json(message))

    def cut(self) -> None:
        assert self.line is not None
        self.line.close()

    def welcome(self, resume: str | None = None, instruction: str = "play") -> str:
        token = resume or secrets.token_urlsafe(24)
        self.send(
            Welcome(
                protocol=list(PROTOCOL),
                server=Program(name="test"),
                session=token,
                resumed=resume is not None,
                epoch=0,
                t_client_ns=1,
                t_server_ns=1,
                tools=[{"type": "function", "function": {"name": "move"}}],
                instruction=instruction,
                model="none",
                model_trained_on_tools=False,
                safe_call=REST,
                pacing="server",
                hz=10.0,
                period_ms=100.0,
                deadline_ms=100.0,
                ttl_ms=60_000.0,
                max_age_ms=1000.0,
                on_miss="hold",
                hold_ms=250.0,
                heartbeat_ms=60_000.0,
                session_grace_s=30.0,
                limits={},
            )
        )
        return token


class Page:
    """The session in its process."""

    def __init__(self, folder: Path, url: str) -> None:
        shutil.copytree(PAGE, folder / "page")
        (folder / "page" / "package.json").write_text('{"type": "module"}')
        command = [str(NODE), FLAG, "--no-warnings", str(SCRIPT), str(folder / "page"), url]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._events: queue.Queue[list[Any]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._events.put(json.loads(line))

    def until(self, *event: Any) -> None:
        seen: list[list[Any]] = []
        while not seen or seen[-1] != [*event]:
            try:
                seen.append(self._events.get(timeout=10))
            except queue.Empty:
                raise AssertionError(f"no {event}, but {seen}") from None

    def do(self, script: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{script}\n")
        self._process.stdin.flush()
        while (event := self._events.get(timeout=10))[0] != "did":
            pass
        return event[1]

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def peer() -> Iterator[Peer]:
    one = Peer()
    yield one
    one.server.shutdown()


@pytest.fixture
def page(tmp_path: Path, peer: Peer) -> Iterator[Page]:
    one = Page(tmp_path, peer.url)
    yield one
    one.end()


def live(peer: Peer, page: Page) -> str:
    assert peer.expect(Hello).resume is None
    token = peer.welcome()
    page.until("state", "live")
    return token


def call(token: str, tick: int, t_obs_ns: int) -> CallMessage:
    return CallMessage(
        session=token,
        tick=tick,
        epoch=0,
        seq_obs=1,
        t_obs_ns=t_obs_ns,
        status="fresh",
        call=MOVE,
        ttl_ms=60_000.0,
        deadline_ns=1,
        t_server_ns=1,
    )


def moving(peer: Peer, page: Page, token: str) -> None:
    assert page.do("session.observe({x: 1})") is True
    peer.send(call(token, 0, peer.expect(Observe).t_ns))
    page.until("act", "call", MOVE.model_dump())


def test_an_instruction_typed_while_disconnected_is_said_after_resuming(peer: Peer, page: Page) -> None:
    token = live(peer, page)
    peer.cut()
    page.until("state", "waiting")
    assert page.do("session.instruct('aim high')") is False
    assert peer.expect(Hello).resume == token
    peer.welcome(resume=token)
    said = peer.expect(Instruct)
    assert (said.session, said.instruction) == (token, "aim high")


def test_an_instruction_is_said_again_until_it_is_in_force_and_then_begins_new_sessions(peer: Peer, page: Page) -> None:
    token = live(peer, page)
    assert page.do("session.instruct('aim high')") is True
    peer.expect(Instruct)
    peer.cut()  # before it came into force
    assert peer.expect(Hello).resume == token
    peer.welcome(resume=token)
    peer.expect(Instruct)
    peer.send(Instruct(session=token, instruction="aim high"))
    page.until("instruct", "aim high")
    peer.send(Bye(session=token, reason="stopped"))
    hello = peer.expect(Hello)
    assert (hello.resume, hello.instruction) == (None, "aim high")
    peer.welcome(instruction="aim high")
    page.until("state", "live")
    page.do("session.observe({x: 1})")
    assert isinstance(peer.heard.get(timeout=10)[1], Observe)


def test_a_refused_instruction_is_not_said_again(peer: Peer, page: Page) -> None:
    token = live(peer, page)
    page.do("session.instruct('too long')")
    peer.expect(Instruct)
    peer.send(ErrorMessage(code="instruction", message="Too long.", remedy="Shorten it."))
    peer.send(Bye(session=token))
    assert peer.expect(Hello).instruction is None
    peer.welcome()
    page.until("state", "live")
    page.do("session.observe({x: 1})")
    assert isinstance(peer.heard.get(timeout=10)[1], Observe)


@pytest.mark.parametrize("code", ["state", "session"])
def test_a_live_session_that_was_taken_over_is_resumed(peer: Peer, page: Page, code: str) -> None:
    token = live(peer, page)
    page.do("session.observe({x: 1})")
    peer.expect(Observe)
    peer.send(ErrorMessage(code=code, message="This connection has no session.", remedy="Say hello.", retryable=True))
    page.until("state", "waiting")
    assert page.do("session.observe({x: 1})") is False
    assert peer.expect(Hello).resume == token
    peer.send(ErrorMessage(code="session", message="There is no such session.", remedy="Say hello.", retryable=True))
    assert peer.expect(Hello).resume is None


def test_a_new_session_ends_what_the_old_one_had_in_force(peer: Peer, page: Page) -> None:
    token = live(peer, page)
    moving(peer, page, token)
    peer.cut()
    assert peer.expect(Hello).resume == token
    peer.send(ErrorMessage(code="session", message="There is no such session.", remedy="Say hello.", retryable=True))
    assert peer.expect(Hello).resume is None
    other = peer.welcome()
    page.until("act", "safe", REST.model_dump())
    assert page.do("session.inForce.kind") == "none"
    moving(peer, page, other)


def test_bye_ends_what_is_in_force_and_the_session_at_once(peer: Peer, page: Page) -> None:
    token = live(peer, page)
    moving(peer, page, token)
    peer.send(Bye(session=token, reason="stopped"))
    page.until("act", "safe", REST.model_dump())
    page.until("state", "waiting")
    assert page.do("session.observe({x: 1})") is False
