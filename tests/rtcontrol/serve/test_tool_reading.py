"""Tools of strangers are read in a process apart, within a time, and never in the way of others."""

from __future__ import annotations

import signal
import threading
from typing import Any

import psutil
import pytest

from rtcontrol.hosts.protocol import DecoderUnavailable
from rtcontrol.models.errors import UserError
from rtcontrol.serve import tool_reading
from rtcontrol.serve.tool_reading import ToolReading
from rtcontrol_client.wire.messages import Bye, Welcome
from tests.helpers.processes import until

TURN: dict[str, Any] = {"name": "turn", "parameters": {"properties": {"to": {"enum": ["left", "right"]}}}}


def slow(number: int) -> dict[str, Any]:
    """60 kB that take long to read, however well that is done; each number's is another."""
    values = [{"const": f"value {number} {i}"} for i in range(2500)]
    return {"name": f"f{number}", "parameters": {"properties": {"a": {"oneOf": values}}, "required": ["a"]}}


def large(number: int) -> list[dict[str, Any]]:
    """A large set that is soon read; each number's is another."""
    values = [f"{number} {i} {'x' * 40}" for i in range(300)]
    return [{"name": "f", "parameters": {"properties": {"a": {"enum": values}}}}]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_reading, "READ_S", 0.01)


@pytest.fixture
def reader() -> Any:
    BEFORE[:] = _readers()
    made = ToolReading()
    yield made
    made.close()


BEFORE: list[psutil.Process] = []  # of servers that other tests share


def children() -> list[psutil.Process]:
    return [reader for reader in _readers() if reader not in BEFORE]


def _readers() -> list[psutil.Process]:
    return [c for c in psutil.Process().children() if "rtcontrol.serve.tool_reading" in c.cmdline()]


def test_what_takes_too_long_is_refused_and_known_from_then_on(hasty: None, reader: ToolReading) -> None:
    for _ in range(2):
        with pytest.raises(UserError, match=r"takes more than 0.01 s of a processor's time"):
            reader.check([slow(1)])
        assert not children(), "it was ended, and is not asked again"


def test_what_can_be_read_is_and_what_is_wrong_with_it_is_told_elsewhere(reader: ToolReading) -> None:
    for tools in ([TURN], [{"name": 3}], [], [{"name": "f", "parameters": {"properties": {"a": {"enum": []}}}}]):
        assert reader.check(tools)
    (child,) = children()
    assert child.nice() >= 10
    reader.close()
    assert not children()


def test_what_takes_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch, reader: ToolReading) -> None:
    monkeypatch.setattr(tool_reading, "READ_S", 60.0)
    wide = {"type": "object", "properties": {"a": {"enum": ["x" * 60_000]}}}
    assert reader.check([{"name": "f", "parameters": wide}])
    (child,) = children()
    most, _ = child.rlimit(psutil.RLIMIT_AS)
    assert tool_reading.MEMORY_BYTES < most < tool_reading.MEMORY_BYTES + child.memory_info().vms + (64 << 20)


def test_what_takes_more_memory_than_there_is_is_known_from_then_on(
    monkeypatch: pytest.MonkeyPatch, reader: ToolReading
) -> None:
    monkeypatch.setattr(tool_reading, "READ_S", 60.0)
    monkeypatch.setattr(tool_reading, "MEMORY_BYTES", 16 << 20)
    assert reader.check([TURN])
    for _ in range(2):
        with pytest.raises(UserError, match="too much memory") as told:
            reader.check([slow(i) for i in range(12)])
        assert not isinstance(told.value, DecoderUnavailable)
        assert len(children()) == 1, "that of small sets: the other is not asked again"


def test_a_set_whose_process_was_killed_is_not_refused_and_may_come_again(
    monkeypatch: pytest.MonkeyPatch, reader: ToolReading
) -> None:
    monkeypatch.setattr(tool_reading, "READ_S", 60.0)
    told: list[Exception] = []

    def ask() -> None:
        try:
            reader.check(heavy)
        except Exception as error:
            told.append(error)

    heavy = [slow(i) for i in range(60)]
    for _ in range(2):
        one = threading.Thread(target=ask, daemon=True)
        one.start()
        until(children)
        children()[0].kill()
        one.join(10)
    assert len(told) == 2
    assert all(isinstance(error, DecoderUnavailable) and "(SIGKILL)" in error.what for error in told)
    assert reader.check([TURN])


@pytest.mark.parametrize("end", [signal.SIGABRT, signal.SIGSEGV])
def test_a_set_at_whose_reading_a_library_gave_up_is_known_from_then_on(
    monkeypatch: pytest.MonkeyPatch, reader: ToolReading, end: signal.Signals
) -> None:
    monkeypatch.setattr(tool_reading, "READ_S", 60.0)
    told: list[Exception] = []

    def ask() -> None:
        try:
            reader.check(heavy)
        except Exception as error:
            told.append(error)

    heavy = [slow(i) for i in range(60)]
    one = threading.Thread(target=ask, daemon=True)
    one.start()
    until(children)
    children()[0].send_signal(end)
    one.join(10)
    ask()
    assert len(told) == 2 and all("too much memory" in str(error) for error in told)
    assert not any(isinstance(error, DecoderUnavailable) for error in told)


def test_a_process_that_reads_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch, reader: ToolReading) -> None:
    monkeypatch.setattr(tool_reading, "READ_S", 60.0)
    assert reader.check(large(0))
    (child,) = children()
    child.suspend()
    monkeypatch.setattr(tool_reading, "GIVE_UP_S", 0.5)
    with pytest.raises(DecoderUnavailable, match="not read within 0.5 s"):
        reader.check([*large(0), TURN])
    assert not children()
    monkeypatch.setattr(tool_reading, "GIVE_UP_S", 20.0)
    assert reader.check([*large(0), TURN])


def test_the_memory_for_tools_is_what_they_take_once_the_checkpoint_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_reading, "READ_S", 0.5)
    monkeypatch.setattr(tool_reading, "MEMORY_BYTES", 96 << 20)  # less than the libraries take that open it
    patterns = [{"type": "string", "pattern": f"^a{i}.*b{i}$"} for i in range(1000)]
    reader = ToolReading("lander")
    try:
        assert reader.check([TURN])
        with pytest.raises(UserError, match=r"takes more than 0.5 s"):  # it is compiled, else it were read at once
            reader.check([{"name": "f", "parameters": {"properties": {"a": {"anyOf": patterns}}}}])
    finally:
        reader.close()


def test_it_is_given_up_when_its_client_has_gone(monkeypatch: pytest.MonkeyPatch, reader: ToolReading) -> None:
    monkeypatch.setattr(tool_reading, "READ_S", 60.0)
    gone = threading.Event()
    found: list[bool] = []
    heavy = [slow(i) for i in range(60)]
    one = threading.Thread(target=lambda: found.append(reader.check(heavy, gone.is_set)), daemon=True)
    one.start()
    until(children)
    waiting = threading.Thread(target=lambda: found.append(reader.check([slow(1)], gone.is_set)), daemon=True)
    waiting.start()
    gone.set()
    one.join(10)
    waiting.join(10)
    assert found == [False, False] and not children()
    assert reader.check([TURN])


def test_small_sets_do_not_wait_behind_large_ones_and_too_many_are_told_to_come_again(
    monkeypatch: pytest.MonkeyPatch, reader: ToolReading
) -> None:
    monkeypatch.setattr(tool_reading, "READ_S", 60.0)
    gone, told = threading.Event(), []
    assert reader.check(large(0))
    (child,) = children()
    child.suspend()  # it reads for as long as the test looks

    def ask(number: int) -> None:
        try:
            reader.check(large(number), gone.is_set)
        except DecoderUnavailable as trouble:
            told.append(trouble)

    threads = [threading.Thread(target=ask, args=(n,), daemon=True) for n in range(1, tool_reading.MAX_WAITING + 5)]
    for thread in threads:
        thread.start()
    until(lambda: told, seconds=60)
    assert all(trouble.full for trouble in told)
    assert reader.check([TURN])
    gone.set()
    for thread in threads:
        thread.join(20)


def test_hostile_hellos_keep_nobody_from_opening_or_resuming(bench: Any, hasty: None) -> None:
    made = bench(own_reading=True)
    kept = made.enter(pacing="client")
    token = kept.token
    hostile = [made.peer() for _ in range(3)]
    for number, peer in enumerate(hostile):
        peer.hello(tools=[slow(number)], instruction="go", safe_call=None)
    made.admission.drop(made.admission.connections()[0])
    until(lambda: made.admission.health()["sessions"]["parked"] == 1)
    honest, again = made.peer(), made.peer()
    honest.enter(pacing="client")
    again.hello(resume=token)
    assert again.expect(Welcome).resumed
    for peer in hostile:
        refusal = peer.refused(30)
        assert refusal.code == "tools" and "processor's time" in refusal.message and refusal.fatal
    honest.send(Bye(session=honest.token))


def test_nobody_waits_behind_strangers_to_come_back(made: Any) -> None:
    peer = made.enter(pacing="client")
    token = peer.token
    (connection,) = made.admission.connections()
    made.admission.drop(connection)
    until(lambda: made.admission.health()["sessions"]["parked"] == 1)
    for _ in range(2):
        made.admission.opening.acquire()
    try:
        again = made.peer()
        again.enter(resume=token)
        assert again.welcome.resumed
    finally:
        for _ in range(2):
            made.admission.opening.release()
