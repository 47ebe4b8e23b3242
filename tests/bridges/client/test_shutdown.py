"""Signals that end or suspend a program in order, tested in this process and without waiting."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from rtcontrol_client.shutdown import OTHERS, SIGNALS, SUSPENDS, TERMINAL, Interrupted, Shutdown, read_lines

ALL = (*SIGNALS, *OTHERS, SUSPENDS, *TERMINAL)
LIBC = ctypes.CDLL(None)
LIBC.signal.restype, LIBC.signal.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
DEFAULT = 0


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Set the default signal handlers, and restore the test runner's handlers at the end."""
    before = {number: signal.getsignal(number) for number in ALL}
    for number in ALL:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [*SIGNALS, *OTHERS])
def test_first_signal_stops_program_with_its_status(number: signal.Signals) -> None:
    stops: list[str] = []
    with Shutdown(stops.append) as ending:
        signal.raise_signal(number)
        assert (stops, ending.status) == ([number.name], 128 + number)


def test_timer_signals_never_count_as_further_signals() -> None:
    stops: list[str] = []
    with Shutdown(stops.append) as ending:
        for _ in range(5):  # as of a limit of processor time, each second
            signal.raise_signal(signal.SIGXCPU)
        signal.raise_signal(signal.SIGINT)
        assert not ending.forced()
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGINT)
        assert ending.forced()
    assert stops == ["SIGXCPU"]


def by_python(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)


def by_c(number: int) -> None:
    LIBC.signal(number, DEFAULT)


@pytest.mark.parametrize("take", [by_python, by_c])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_handler_replaced_by_user_code_is_restored(take: Callable[[int], None], number: signal.Signals) -> None:
    stops: list[str] = []
    with Shutdown(stops.append) as ending:
        take(number)
        assert ending.retake() == [number.name]
        assert ending.retake() == []
        # Before it is raised: the default action would end the tests.
        assert signal.getsignal(number) == ending._handle and not ending._kernel.changed(number)
        signal.raise_signal(number)
        assert stops == [number.name]


def test_signal_handler_replaced_in_c_is_restored_by_other_thread() -> None:
    stops: list[str] = []
    with Shutdown(stops.append) as ending:
        by_c(signal.SIGTERM)
        thread = threading.Thread(target=ending.retake)
        thread.start()
        thread.join()
        signal.raise_signal(signal.SIGTERM)
    assert stops == ["SIGTERM"]


def test_blocked_signal_is_unblocked_again() -> None:
    stops: list[str] = []
    with Shutdown(stops.append) as ending:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        signal.raise_signal(signal.SIGTERM)
        assert stops == []
        ending.retake()
    assert stops == ["SIGTERM"]


def test_timer_signal_of_user_code_keeps_its_handler() -> None:
    rings: list[int] = []
    with Shutdown(lambda name: None) as ending:
        signal.signal(signal.SIGALRM, lambda number, frame: rings.append(number))
        assert ending.retake() == []
        signal.raise_signal(signal.SIGALRM)
        assert (rings, ending.status) == ([signal.SIGALRM], 0)


def test_signal_ends_a_forked_helper() -> None:
    with Shutdown(lambda name: None):
        if (helper := os.fork()) == 0:
            time.sleep(5)
            os._exit(0)
        os.kill(helper, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(helper, 0)[1]) == -signal.SIGTERM


def test_terminal_does_not_stop_program_in_background() -> None:
    with Shutdown():
        for number in TERMINAL:
            signal.raise_signal(number)  # by default it stops this process
    assert {signal.getsignal(number) for number in TERMINAL} == {signal.SIG_DFL}


def test_lines_are_read_whole_and_without_spaces() -> None:
    ours, theirs = os.pipe()
    os.write(theirs, "\ufeffgo  to 1\n\n /pause \nlast \xff".encode("utf-8"))
    os.close(theirs)
    assert list(read_lines(ours)) == ["go  to 1", "/pause", "last \xff"]
    os.close(ours)


def test_ctrl_z_passes_stop_function_to_suspend(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[object] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((number, signal.getsignal(number))))
    halts: list[Callable[[], None]] = []
    with Shutdown(lambda name: None, halts.append):
        signal.raise_signal(SUSPENDS)
        assert len(halts) == 1 and not sent
        halts[0]()
        assert sent == [(SUSPENDS, signal.SIG_DFL)]
        signal.raise_signal(SUSPENDS)
        assert len(halts) == 2
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(SUSPENDS)  # it ends: nothing is left to suspend
        assert len(halts) == 2


def test_ctrl_z_without_suspend_stops_process_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(number))
    with Shutdown(lambda name: None):
        signal.raise_signal(SUSPENDS)
    assert sent == [SUSPENDS]
