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
    Executed,
    FunctionCall,
    Hello,
    Instruct,
    Message,
    Observe,
    Ping,
    Pong,
    Program,
    Welcome,
)
from rtcontrol.gateway.app import PAGE
from tests.helpers.processes import until

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
OBSERVE = "session.observe({x: 1})"
LAMP = FunctionCall(name="lamp", arguments={"level": 0})


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
                message = decode_json(text)
                if isinstance(message, Ping):
                    now = time.monotonic_ns()
                    pong = Pong(id=message.id, t_ping_ns=message.t_ns, t_received_ns=now, t_sent_ns=now)
                    line.send(encode_json(pong))
                else:
                    self.heard.put((line, message))

    def expect(self, kind: type[M]) -> M:
        """The next message of the kind; its connection is the one that is answered from now on."""
        while True:
            self.line, message = self.heard.get(timeout=10)
            if isinstance(message, kind):
                return message

    def send(self, message: Message) -> None:
        assert self.line is not None
        self.line.send(encode_json(message))

    def cut(self) -> None:
        assert self.line is not None
        self.line.close()

    def welcome(self, resume: str | None = None, **changes: Any) -> str:
        token = resume or secrets.token_urlsafe(24)
        told: dict[str, Any] = {
            "protocol": list(PROTOCOL),
            "server": Program(name="test"),
            "session": token,
            "resumed": resume is not None,
            **dict.fromkeys(("epoch", "t_client_ns", "t_server_ns"), 0),
            "tools": [{"type": "function", "function": {"name": "move"}}],
            "instruction": "play",
            "model": "none",
            "model_trained_on_tools": False,
            "safe_call": REST,
            "pacing": "server",
            "hz": 10.0,
            **dict.fromkeys(("period_ms", "deadline_ms", "hold_ms"), 100.0),
            **dict.fromkeys(("ttl_ms", "heartbeat_ms", "max_age_ms"), 60_000.0),
            "on_miss": "hold",
            "session_grace_s": 30.0,
            "limits": {},
        }
        self.send(Welcome(**{**told, **changes}))
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

    def until(self, *event: Any) -> list[list[Any]]:
        """Waits for an event; all since the last one that was waited for."""
        seen: list[list[Any]] = []
        while not seen or seen[-1] != [*event]:
            try:
                seen.append(self._events.get(timeout=10))
            except queue.Empty:
                raise AssertionError(f"no {event}, but {seen}") from None
        return seen

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


def live(peer: Peer, page: Page, **changes: Any) -> str:
    assert peer.expect(Hello).resume is None
    token = peer.welcome(**changes)
    page.until("state", "live")
    return token


def call(token: str, tick: int, t_obs_ns: int, **changes: Any) -> CallMessage:
    told: dict[str, Any] = {
        "session": token,
        "tick": tick,
        **dict.fromkeys(("epoch", "deadline_ns", "t_server_ns"), 0),
        "t_obs_ns": t_obs_ns,
        "status": "fresh",
        "call": MOVE,
        "ttl_ms": 60_000.0,
    }
    return CallMessage(**{**told, **changes})


def moving(peer: Peer, page: Page, token: str, tick: int = 0, **changes: Any) -> None:
    assert page.do(OBSERVE) is True
    peer.send(call(token, tick, peer.expect(Observe).t_ns, **changes))
    page.until("act", "call", MOVE.model_dump())


def resumed(peer: Peer, token: str) -> None:
    assert peer.expect(Hello).resume == token
    peer.welcome(resume=token)


def unknown(peer: Peer, token: str) -> None:
    """Its session is refused, and it asks for a new one."""
    assert peer.expect(Hello).resume == token
    peer.send(ErrorMessage(code="session", message="There is no such session.", remedy="Say hello.", retryable=True))
    assert peer.expect(Hello).resume is None


def after_new_session(peer: Peer, page: Page, **changes: Any) -> None:
    """Once it is live, an observation is the next that is said: nothing was left over from the last session."""
    peer.welcome(**changes)
    page.until("state", "live")
    page.do(OBSERVE)
    assert isinstance(peer.heard.get(timeout=10)[1], Observe)


def did(*calls: FunctionCall) -> list[list[Any]]:
    return [["act", "safe", one.model_dump()] for one in calls]


def test_safe_calls_are_all_executed_and_one_that_throws_until_it_no_longer_does(peer: Peer, page: Page) -> None:
    token = live(peer, page)
    moving(peer, page, token)
    peer.expect(Executed)
    page.do("session.stuck.move = 3")
    peer.send(call(token, 1, 0, status="safe", call=REST, calls=[REST, LAMP]))
    told = peer.expect(Executed)
    assert (told.tick, told.outcome, told.error) == (1, "failed", "move: Error: It is stuck.")
    stuck = ["stuck", "safe", "move"]
    assert page.until("act", "safe", REST.model_dump()) == [stuck, *did(LAMP), stuck, stuck, *did(REST)]
    assert page.do("[session.inForce.kind, session.inForce.owed]") == ["safe", None]


@pytest.mark.parametrize("ttl_ms", [0.0, 400.0])
def test_safe_call_that_throws_when_the_server_is_gone_is_tried_again(peer: Peer, page: Page, ttl_ms: float) -> None:
    token = live(peer, page, safe_calls=[REST, LAMP])
    page.do("session.stuck.lamp = 2")
    moving(peer, page, token, ttl_ms=ttl_ms)
    peer.server.shutdown()
    page.until(*did(REST)[0])
    acts = [event for event in page.until(*did(LAMP)[0]) if event[0] != "state"]
    assert acts == [["stuck", "safe", "lamp"]] * 2 + did(LAMP)


def test_call_that_throws_is_told_as_failed_and_safe_follows(peer: Peer, page: Page) -> None:
    token = live(peer, page)
    page.do("session.stuck.move = 1")
    page.do(OBSERVE)
    peer.send(call(token, 0, peer.expect(Observe).t_ns))
    assert peer.expect(Executed).outcome == "failed"
    assert page.until(*did(REST)[0])[-2:] == [["stuck", "call", "move"], *did(REST)]
    assert page.do("session.inForce.kind") == "safe"


def test_new_call_ends_the_tries_of_a_safe_one(peer: Peer, page: Page) -> None:
    token = live(peer, page)
    page.do("session.stuck.lamp = 1e9")
    peer.send(call(token, 0, 0, status="safe", calls=[LAMP], call=LAMP))
    page.until("stuck", "safe", "lamp")
    moving(peer, page, token, 1)
    assert page.do("session.inForce.owed") is None


def test_server_of_1_0_has_all_own_safe_calls_executed(peer: Peer, page: Page) -> None:
    live(peer, page)
    own = json.dumps({"agent": "paddle", "safe_calls": [REST.model_dump(), LAMP.model_dump()]})
    page.do(f"session.hello = {own}")
    peer.cut()
    peer.expect(Hello)
    token = peer.welcome(protocol=[1, 0])
    moving(peer, page, token)
    peer.send(call(token, 1, 0, status="safe", call=REST))
    page.until(*did(REST)[0])
    page.until(*did(LAMP)[0])


def test_observation_is_timed_before_the_next_release_of_the_server(peer: Peer, page: Page) -> None:
    live(peer, page)
    assert page.do("session.nextObservationNs(2e7)") is None  # a server of 1.0, or one without ticks yet
    peer.cut()
    peer.expect(Hello)
    release_ns = time.monotonic_ns()
    peer.welcome(release_ns=release_ns)
    page.until("state", "live")
    until(lambda: page.do("session.clock.at(session.helloNs)") is not None, "no pong was heard")
    now_ns, next_ns = page.do("[performance.now() * 1e6, session.nextObservationNs(2e7)]")
    offset_ns = time.monotonic_ns() - now_ns
    assert -1e6 < next_ns - now_ns <= 101e6
    beside_ns = (next_ns + 20e6 + offset_ns - release_ns + 50e6) % 100e6 - 50e6
    assert abs(beside_ns) < 30e6  # how long it takes to ask, on a busy machine; the period is 100 ms


def test_refusal_of_another_hello_ends_nothing(peer: Peer, page: Page) -> None:
    token = live(peer, page)
    error = ErrorMessage(code="busy", message="Another has it.", t_client_ns=1, fatal=True)
    peer.send(error)
    moving(peer, page, token)
    assert page.do("session.state") == "live"


def test_an_instruction_typed_while_disconnected_is_said_after_resuming(peer: Peer, page: Page) -> None:
    token = live(peer, page)
    peer.cut()
    page.until("state", "waiting")
    assert page.do("session.instruct('aim high')") is False
    resumed(peer, token)
    said = peer.expect(Instruct)
    assert (said.session, said.instruction) == (token, "aim high")


def test_an_instruction_is_said_again_until_it_is_in_force_and_then_begins_new_sessions(peer: Peer, page: Page) -> None:
    token = live(peer, page)
    assert page.do("session.instruct('aim high')") is True
    peer.expect(Instruct)
    peer.cut()  # before it came into force
    resumed(peer, token)
    peer.expect(Instruct)
    peer.send(Instruct(session=token, instruction="aim high"))
    page.until("instruct", "aim high")
    peer.send(Bye(session=token, reason="stopped"))
    hello = peer.expect(Hello)
    assert (hello.resume, hello.instruction) == (None, "aim high")
    after_new_session(peer, page, instruction="aim high")


def test_a_refused_instruction_is_not_said_again(peer: Peer, page: Page) -> None:
    token = live(peer, page)
    page.do("session.instruct('too long')")
    peer.expect(Instruct)
    peer.send(ErrorMessage(code="instruction", message="Too long.", remedy="Shorten it."))
    peer.send(Bye(session=token))
    assert peer.expect(Hello).instruction is None
    after_new_session(peer, page)


@pytest.mark.parametrize("code", ["state", "session"])
def test_a_live_session_that_was_taken_over_is_resumed(peer: Peer, page: Page, code: str) -> None:
    token = live(peer, page)
    page.do(OBSERVE)
    peer.expect(Observe)
    peer.send(ErrorMessage(code=code, message="This connection has no session.", remedy="Say hello.", retryable=True))
    page.until("state", "waiting")
    assert page.do(OBSERVE) is False
    unknown(peer, token)


def test_a_new_session_ends_what_the_old_one_had_in_force(peer: Peer, page: Page) -> None:
    token = live(peer, page)
    moving(peer, page, token)
    peer.cut()
    unknown(peer, token)
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
    assert page.do(OBSERVE) is False
