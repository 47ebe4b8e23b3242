"""What a program says must not depend on anybody reading it."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rtcontrol.bridges.console import MAX_WAITING, Outbox, OutboxLog
from tests.helpers.processes import Program, full_pipe, until


@pytest.fixture
def full() -> Iterator[tuple[int, int]]:
    with full_pipe() as ends:
        yield ends


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
        logging.getLogger("uvicorn.error").warning("no request")
    assert read_lines(reading, "no request\n") == [*(f"line {i}" for i in range(100)), "refused a key", "no request"]
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


def test_whatever_a_process_prints_warns_or_logs_keeps_none_of_its_threads(
    full: tuple[int, int], tmp_path: Path
) -> None:
    said = tmp_path / "said"
    code = (
        "import asyncio, logging, sys, threading, warnings\n"
        "from pathlib import Path\n"
        "from rtcontrol.bridges.console import StandardStreams\n"
        "def broken(): raise LookupError\n"
        "with StandardStreams():\n"
        "    for i in range(3000):\n"
        "        print('x' * 100); print('y' * 100, file=sys.stderr); sys.stdout.write('no end')\n"
        "        warnings.warn(f'number {i}'); logging.getLogger(f'asyncio').error('z' * 100)\n"
        "    thread = threading.Thread(target=broken); thread.start(); thread.join()\n"
        f"    Path({str(said)!r}).write_text('all')\n"
    )
    started = Program(["-c", code], tmp_path / "log", stdout=full[1], stderr=full[1])
    try:
        assert started.popen.wait(30) == 0
    finally:
        started.kill()
    assert said.read_text() == "all"


def test_a_second_signal_ends_nothing_by_its_own_line(full: tuple[int, int], tmp_path: Path) -> None:
    code = (
        "import os, time\nfrom rtcontrol.bridges.shutdown import Shutdown\n"
        "with Shutdown(lambda name: None) as ending:\n"
        "    for _ in range(2): os.kill(os.getpid(), 15); time.sleep(0.05)\n"
    )
    started = Program(["-c", code], tmp_path / "log", stdout=full[1], stderr=full[1])
    try:
        assert started.popen.wait(20) == 0
    finally:
        started.kill()


def test_texts_of_others_forge_no_line_and_move_no_cursor() -> None:
    reading, writing = os.pipe()
    log = logging.getLogger("rtcontrol.serve")
    with Outbox(writing) as outbox, OutboxLog(outbox):
        outbox.say("session-0001: \x1b[2J\r\nlistening on tcp://evil\x85\u2028\u202ereversed")
        log.warning("%s: refused", "a\x1b]0;title\x07\nsession-0002: over")
        try:
            raise ValueError("b\nsession-0003: over\x9b31m")
        except ValueError:
            log.exception("it failed")
        log.warning("%s", "x" * 65_536)
        log.warning("the last one")
    lines = read_lines(reading, "the last one\n")
    assert lines[0] == r"session-0001: \x1b[2J\r\nlistening on tcp://evil\x85\u2028\u202ereversed"
    assert lines[1] == r"a\x1b]0;title\x07\nsession-0002: over: refused"
    assert not [line for line in lines if line.startswith("session-0003")] and all(line.isprintable() for line in lines)
    assert any(line.startswith("  | session-0003: over") for line in lines)
    assert lines[-2].startswith("xxx") and lines[-2].endswith("(65536 characters)") and len(lines[-2]) < 2100
    os.close(reading)
    os.close(writing)
