"""The link to a policy server: messages with arrays, and which answer belongs to which question (simulated time)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import os
import random
import subprocess
from collections.abc import Callable, Coroutine
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosedError

from rtcontrol.hosts import policy_link
from rtcontrol.hosts.policy_link import (
    OPEN_S,
    RETRY_S,
    Conversation,
    MalformedMessage,
    pack_message,
    unpack_message,
)
from rtcontrol.hosts.protocol import DecisionLost

HELLO = pack_message({"policy": "standin"})
MS = 1e-3
Script = Callable[["Line", bytes], None]


class ClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer."""

    now_s = 0.0

    def time(self) -> float:
        return self.now_s

    def _run_once(self) -> None:
        timers = [timer.when() for timer in self._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
        if timers and not self._ready:  # type: ignore[attr-defined]
            self.now_s = max(self.now_s, min(timers))
        super()._run_once()  # type: ignore[misc]


def simulated(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        with asyncio.Runner(loop_factory=ClockLoop) as runner:
            runner.run(test(*arguments, **named))

    return run


def now_ms() -> float:
    return asyncio.get_running_loop().time() / MS


class Line:
    """A fake connection: the client reads what the server's `script` sends, in order, until the connection is cut."""

    def __init__(self, script: Script, first: Any = HELLO) -> None:
        self._script, self.transport = script, self
        self._coming: asyncio.Queue[Any] = asyncio.Queue()
        self._last_s = 0.0
        self.cut = False
        if first is not None:
            self.say(first)

    def say(self, event: Any, after_ms: float = 0.0) -> None:
        """Send an event to the client: an exception ends the connection, a future is a ping to answer."""
        loop = asyncio.get_running_loop()
        self._last_s = max(self._last_s, loop.time() + after_ms * MS)
        loop.call_at(self._last_s, self._bring, event)

    def _bring(self, event: Any) -> None:
        if isinstance(event, asyncio.Future):
            if not event.done() and not self.cut:
                event.set_result(0.0)
        elif not self.cut:
            self._coming.put_nowait(event)

    async def send(self, packed: bytes) -> None:
        assert not self.cut
        self._script(self, packed)

    async def recv(self) -> Any:
        event = await self._coming.get()
        if isinstance(event, Exception):
            self._coming.put_nowait(event)
            raise event
        return event

    async def ping(self) -> Any:
        pong = asyncio.get_running_loop().create_future()
        self.say(pong, 2.0)
        return pong

    def abort(self) -> None:
        self.cut = True


ENDED = ConnectionClosedError(None, None)


def echo(line: Line, packed: bytes) -> None:
    line.say(packed, 5.0)


class Server:
    """A fake server whose connections run these scripts in order, then echo; an exception refuses a connection."""

    def __init__(self, *scripts: Any) -> None:
        self._scripts = list(scripts)
        self.lines: list[Line] = []
        self.talk = Conversation("ws://robot:8000", self.connected)  # type: ignore[arg-type]

    async def connected(self) -> Line:
        script = self._scripts.pop(0) if self._scripts else echo
        if isinstance(script, Exception):
            raise script
        line = script if isinstance(script, Line) else Line(script)
        self.lines.append(line)
        return line

    async def ask(self, text: str, ms: float = 50.0) -> str:
        """Return the answer, or the loss and its message."""
        try:
            return (await self.talk.ask(text.encode(), ms * MS)).decode()
        except DecisionLost as lost:
            return f"{lost.loss}: {lost}"


# Physical-Intelligence/openpi#938: while such a server decides or sends, its event loop answers no ping.
@simulated
async def test_question_waits_for_the_last_pong() -> None:
    server = Server()
    assert await server.ask("1") == "1" and now_ms() == pytest.approx(5)
    assert await server.ask("2") == "2" and now_ms() == pytest.approx(12)
    assert len(server.lines) == 1


# huggingface/OpenEnv#1143: it takes no timeout, an answer too many shifts all later ones as well.
@pytest.mark.parametrize(("after_ms", "first"), [(0.0, "malformed: the policy server sent two answers"), (1.0, "1")])
@simulated
async def test_second_answer_is_not_used_for_later_question(after_ms: float, first: str) -> None:
    def twice(line: Line, packed: bytes) -> None:
        line.say(packed, 5.0)
        line.say(packed, 5.0 + after_ms)

    server = Server(twice)
    assert await server.ask("1") == first
    assert await server.ask("2") == "2"
    assert server.lines[0].cut and len(server.lines) == 2


# huggingface/OpenEnv#1143: after a timeout the socket was kept, and each answer from then on was one too old.
@simulated
async def test_late_answer_is_not_used_for_later_question() -> None:
    server = Server(lambda line, packed: line.say(packed, 80.0))
    assert await server.ask("1", 20.0) == "timeout: no answer came in time" and now_ms() == pytest.approx(20)
    await asyncio.sleep(1 * MS)
    assert server.lines[0].cut and len(server.lines) == 2, "the next question has a connection"
    assert await server.ask("2") == "2"


# strands-labs/robots#3321: a listener that accepts the connection and says nothing held its client for ever.
@simulated
async def test_silent_listener_costs_only_time_of_question() -> None:
    server = Server(Line(echo, None))
    for _ in range(2):
        assert await server.ask("1", 100.0) == "timeout: no answer came in time"
    assert now_ms() == pytest.approx(200) and len(server.lines) == 1, "one try to open at a time"
    assert "accepted no connection within 10 s" in await server.ask("2", 2 * OPEN_S / MS)
    assert now_ms() == pytest.approx(OPEN_S / MS) and server.lines[0].cut


@simulated
async def test_refused_connection_is_tried_again_after_a_pause() -> None:
    server = Server(OSError("no route"))
    for _ in range(2):
        assert (await server.ask("1")).startswith("connection: ") and now_ms() < 1
    await asyncio.sleep(RETRY_S)
    assert await server.ask("2") == "2"


@pytest.mark.parametrize(
    ("first", "lost"),
    [
        ("Traceback\nValueError: no checkpoint", "server_error: the policy server failed: ValueError: no checkpoint"),
        (b"\xc1", "malformed: the first message of ws://robot:8000 is not from a policy server"),
        (b"\x07", "malformed: the first message of ws://robot:8000 is not from a policy server: it is not a map"),
    ],
)
@simulated
async def test_first_message_without_metadata_loses_question(first: Any, lost: str) -> None:
    server = Server(Line(echo, first))
    assert (await server.ask("1")).startswith(lost) and server.lines[0].cut


@simulated
async def test_closed_connection_loses_pending_question() -> None:
    server = Server(lambda line, packed: line.say(ENDED))
    assert (await server.ask("1")).startswith("connection: the connection to the policy server ended")
    assert await server.ask("2") == "2"
    server.lines[1].say(ENDED)
    assert await server.ask("3") == "3", "one that ended between two questions loses none"


@simulated
async def test_text_message_is_server_error_and_cuts_connection() -> None:
    server = Server(lambda line, packed: line.say("Traceback ...\nRuntimeError: CUDA out of memory\n"))
    assert await server.ask("1") == "server_error: the policy server failed: RuntimeError: CUDA out of memory"
    assert server.lines[0].cut and await server.ask("2") == "2"


@simulated
async def test_cancelled_or_rejected_question_cuts_connection() -> None:
    server = Server(lambda line, packed: None)
    asking = asyncio.create_task(server.ask("1"))
    await asyncio.sleep(1 * MS)
    asking.cancel()
    assert await server.ask("2") == "2" and server.lines[0].cut
    server.talk.disconnect()
    assert server.lines[1].cut and await server.ask("3") == "3"


@pytest.mark.parametrize("seed", range(25))
@simulated
async def test_random_conversation_gives_each_question_its_own_answer(seed: int) -> None:
    """Each question ends once and never gets another question's answer, if the server answers twice, late or never."""
    chance = random.Random(seed)

    def any_script(line: Line, packed: bytes) -> None:
        at_ms = chance.choice((5.0, 5.0, 5.0, 80.0))
        event = chance.choice(["two", "close", "words", *["answer"] * 18])
        line.say({"close": ENDED, "words": "Traceback"}.get(event, packed), at_ms)
        if event == "two" or chance.random() < 0.15:
            line.say(packed, at_ms + chance.choice((0.0, 1.0, 3.0)))

    server = Server(*(OSError() if chance.random() < 0.1 else any_script for _ in range(200)))
    answered = 0
    for number in range(80):
        began_ms = now_ms()
        asking = asyncio.create_task(server.ask(f"{number}"))
        if chance.random() < 0.1:
            await asyncio.sleep(chance.uniform(0.0, 10.0) * MS)
            asking.cancel()
        await asyncio.wait([asking])
        assert now_ms() - began_ms < 51, "each question ends within its time"
        if not asking.cancelled() and ":" not in asking.result():
            assert asking.result() == f"{number}"
            answered += 1
        await asyncio.sleep(chance.uniform(0.0, 20.0) * MS)
    assert answered > 10


# -- messages -------------------------------------------------------------------------------------------------------

# What openpi-client 0.1.2 packs of {"a": arange(6, "f4").reshape(2, 3), "g": float64(2), "i": int64(3)}.
OPENPI = bytes.fromhex(
    "83a16184c40b5f5f6e6461727261795f5fc3c40464617461c418000000000000803f0000004000004040000080400000a040c4056474"
    "797065a33c6634c4057368617065920203a167cb4000000000000000a16983c40d5f5f6e7067656e657269635f5fc3c4046461746103"
    "c4056474797065a33c6938"
)


def array(**changed: Any) -> bytes:
    fields = {"data": b"\0" * 24, "dtype": "<f4", "shape": [2, 3]} | changed
    return msgpack.packb({"a": {b"__ndarray__": True, **{k.encode(): v for k, v in fields.items()}}})


def test_message_of_openpi_client_is_read_and_packed() -> None:
    unpacked = unpack_message(OPENPI)
    assert unpacked["a"].dtype == np.float32 and unpacked["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert type(unpacked["g"]) is float and type(unpacked["i"]) is np.int64 and (unpacked["g"], unpacked["i"]) == (2, 3)
    assert pack_message(unpacked) == OPENPI


@pytest.mark.parametrize(
    "value", [np.zeros((0, 3), "f2"), np.array([True, False]), np.array(["on", "off"]), np.uint8(7)]
)
def test_packed_arrays_unpack_unchanged(value: Any) -> None:
    unpacked = unpack_message(pack_message({"value": value}))["value"]
    assert unpacked.dtype == value.dtype and unpacked.shape == value.shape and np.array_equal(unpacked, value)


MALFORMED = {
    "no msgpack": b"\xc1",
    "two values": OPENPI + b"\x01",
    "fewer bytes than the shape says": array(data=b"\0" * 23),
    "a shape beyond all memory": array(shape=[1 << 40, 1 << 40]),
    "objects": array(dtype="|O", shape=[3]),
    "a dtype with a shape": array(dtype="(2,3)f4", shape=[1]),
    "a dtype of a book's length": array(dtype=",".join(["f4"] * 100_000), shape=[0], data=b""),
    "an extension": msgpack.packb(msgpack.ExtType(4, b"x")),
    "a key that is a list": b"\x81\x90\x01",
    "a text of a gigabyte": msgpack.packb({b"__npgeneric__": True, b"data": 1 << 30, b"dtype": "|S"}),
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_message_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        unpack_message(data)


def listed(lists: int, one: bytes) -> bytes:
    """Return a message with this many lists of 16,384 items."""
    inner = b"\xdc\x40\x00" + one * (1 << 14)
    return b"\x81\xa7actions\xdc" + lists.to_bytes(2) + inner * lists


# msgpack/msgpack-python#97 and kriszyp/msgpackr#200: few bytes of lists hold the reader for seconds, or all memory.
CROWDED = {
    "empty lists": listed(1000, b"\x90"),
    "a list that says it is long": b"\xdd\xff\x00\x00\x00",
    "a map that says it is long": b"\xdf\x00\x00\x0f\xff" + b"\xc0" * 10_000,
    "nested": b"\x91" * 5000 + b"\xc0",
}


@pytest.mark.parametrize("data", CROWDED.values(), ids=CROWDED.keys())
def test_message_of_many_items_is_not_unpacked(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bytes] = []
    monkeypatch.setattr(policy_link.msgpack, "unpackb", lambda packed, **more: made.append(packed))
    with pytest.raises(MalformedMessage, match="more than 4096 items"):
        unpack_message(data)
    assert not made


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_a_message_or_refused(data: bytes) -> None:
    with contextlib.suppress(MalformedMessage):
        unpack_message(data)


def test_openpi_code_reads_our_messages() -> None:
    python = os.environ.get("RTCONTROL_OPENPI")
    if not python:
        pytest.skip("RTCONTROL_OPENPI names no interpreter that has openpi-client")
    sent = pack_message({"a": np.full((2, 2), math.pi), "b": np.float32(0.5), "c": "on", "d": np.array([], "i2")})
    code = (
        "import sys\nfrom openpi_client.msgpack_numpy import packb, unpackb\nfound = unpackb(sys.stdin.buffer.read())\n"
        "assert found['a'].shape == (2, 2) and found['d'].dtype.str == '<i2'\nsys.stdout.buffer.write(packb(found))"
    )
    done = subprocess.run([python, "-c", code], input=sent, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == sent
