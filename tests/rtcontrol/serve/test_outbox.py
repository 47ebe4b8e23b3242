"""What the server says must not depend on anybody reading it."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rtcontrol.bridges.wire.messages import Bye
from rtcontrol.serve.outbox import MAX_WAITING, Outbox, OutboxLog
from tests.helpers.processes import Program, until
from tests.rtcontrol.serve.wire_peer import WirePeer


@pytest.fixture
def full() -> Iterator[tuple[int, int]]:
    """A pipe that takes no more: the file descriptors of its two ends."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writing, True)
    yield reading, writing
    for end in (reading, writing):
        os.close(end)


def read_lines(reading: int, last: str) -> list[str]:
    text = b""
    while last.encode() not in text:
        text += os.read(reading, 65_536)
    return text.decode().splitlines()


def test_lines_come_in_order() -> None:
    reading, writing = os.pipe()
    with Outbox(writing) as outbox, OutboxLog(outbox):
        for i in range(100):
            outbox.say(f"line {i}")
        logging.getLogger("rtcontrol.serve").warning("refused a key")
    assert read_lines(reading, "refused a key\n") == [*(f"line {i}" for i in range(100)), "refused a key"]
    os.close(reading)
    os.close(writing)


def test_reader_that_stops_loses_lines_and_is_told_how_many(full: tuple[int, int]) -> None:
    reading, writing = full
    with Outbox(writing) as outbox:
        for i in range(MAX_WAITING + 500):
            outbox.say(f"line {i}")
        assert 498 <= outbox.dropped <= 500
        reader: list[str] = []
        thread = threading.Thread(target=lambda: reader.extend(read_lines(reading, "again\n")), daemon=True)
        thread.start()
        until(lambda: not outbox._waiting)
        outbox.say("again")
        thread.join(10)
    assert any("lines were lost" in line for line in reader)
    assert reader[-1] == "again"


def test_reader_that_has_gone_ends_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with Outbox(writing) as outbox:
        for _ in range(10):
            outbox.say("line")
        until(lambda: outbox.dropped > 0)
    os.close(writing)


def test_server_whose_output_nobody_reads_serves_and_ends_in_order(full: tuple[int, int], tmp_path: Path) -> None:
    _, writing = full
    assert fcntl.fcntl(writing, fcntl.F_GETFL) & os.O_NONBLOCK == 0
    endpoint = f"ipc://{tmp_path}/s"
    command = ["-m", "rtcontrol", "serve", "--bind", endpoint, "--model", "random", "--out", str(tmp_path / "out")]
    server = Program(command, tmp_path / "log", stdout=writing, stderr=writing)
    try:
        with WirePeer(endpoint) as refused, WirePeer(endpoint) as peer:
            for _ in range(10):
                refused.hello(agent="nobody")
                assert refused.refused(60).code in ("agent", "rate")
            for _ in range(3):
                peer.enter(pacing="client")
                assert peer.ask().status == "fresh"
                peer.send(Bye(session=peer.token))
        assert server.end() == 143
    finally:
        server.kill()
    assert len(list((tmp_path / "out").glob("session-*/report.json"))) == 3


def test_refusals_are_said_within_a_rate(made: Any) -> None:
    for _ in range(12):
        peer = made.peer()
        for _ in range(10):
            assert peer.denied(agent="nobody").code == "agent"
    said = [line for line in made.said if "refused" in line]
    assert 20 <= len(said) <= 60
    assert made.admission.health()["refused"]["agent"] == 120
