"""The whole suite in several processes (pytest-xdist), and the real-time tests by themselves.

A module is a unit: its tests run in one process, in order, so that they share a server by a module fixture. Modules
marked `serial` (they start Ray) are one unit together. Real-time tests begin first; while they run no other test does,
and of them no more at once than twice the cores, since they wait for five sixths of their time.
"""

from __future__ import annotations

import fcntl
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Any

import pytest

SERIAL = "serial"
ROOT = Path(__file__).resolve().parents[2]
# Their units are many and short: they fill the gaps that the others leave at the end.
LAST = ("tests/models", "tests/agents", "tests/envs", "tests/bridges/wire")
# Of torch, here and in the processes that tests start: several that share the cores wait for each other's threads, and
# then a step of a small model takes six times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Compiled code is kept, whatever this shell says: else each of a thousand processes compiles all modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


class Turns:
    """Either real-time tests, as many as there are `seats`, or any number of others: locks over processes, which a
    process that dies gives back. A real-time test waits until the others that run are done, and no new one begins;
    others wait until no real-time test runs.
    """

    def __init__(self, folder: Path, seats: int) -> None:
        self._gate, self._ours, self._others = ((folder / name).open("w") for name in ("gate", "realtime", "others"))
        self._seats = [(folder / f"seat-{i}").open("w") for i in range(seats)]
        self._seat: IO[str] | None = None

    def begin(self, realtime: bool) -> None:
        if realtime and self._seat is None:
            self._seat = self._free_seat()
            with _held(self._gate), _held(self._others):
                fcntl.flock(self._ours, fcntl.LOCK_SH)
        while not realtime:
            with _held(self._gate):
                if _taken(self._ours):
                    fcntl.flock(self._others, fcntl.LOCK_SH)
                    fcntl.flock(self._ours, fcntl.LOCK_UN)
                    return
            time.sleep(0.02)

    def end(self, goes_on: bool) -> None:
        """`goes_on`: with another real-time test of the same module."""
        if self._seat is None:
            fcntl.flock(self._others, fcntl.LOCK_UN)
        elif not goes_on:
            for lock in (self._ours, self._seat):
                fcntl.flock(lock, fcntl.LOCK_UN)
            self._seat = None

    def _free_seat(self) -> IO[str]:
        while True:
            for seat in self._seats:
                if _taken(seat):
                    return seat
            time.sleep(0.02)


@contextmanager
def _held(lock: IO[str]) -> Iterator[None]:
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)


def _taken(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _realtime(item: pytest.Item) -> bool:
    return item.get_closest_marker("realtime") is not None


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Twice the cores, since the tests mostly wait; none where single files are asked for."""
    asked = os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS")
    if asked is not None:
        return int(asked)
    whole = config.args_source == pytest.Config.ArgsSource.TESTPATHS
    return min(2 * len(os.sched_getaffinity(0)), 8) if whole else 0


@cache
def _marks(module: str) -> set[str]:
    # Which is scheduled by tests' names alone, where their marks are not known. What is slow, too, seldom runs.
    try:
        text = (ROOT / module).read_text("utf-8").replace("@pytest.mark.slow\n@pytest.mark.realtime\n", "")
    except OSError:
        return set()
    return set(re.findall(r"pytestmark = pytest\.mark\.realtime|pytest\.mark\.(?:realtime|serial)\b", text))


def unit(nodeid: str) -> str:
    """What of a run goes to one process. Mutants are long and share nothing: each is one."""
    module = nodeid.partition("::")[0]
    if module.endswith("test_mutants.py"):
        return nodeid
    return SERIAL if "pytest.mark.serial" in _marks(module) else module


def order(nodeid: str) -> int:
    """Modules of real-time tests alone; those with some, and Ray's, which take long; then the others."""
    marks = _marks(nodeid.partition("::")[0])
    if "pytestmark = pytest.mark.realtime" in marks:
        return 0
    return 1 if marks else 3 if nodeid.startswith(LAST) else 2


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Of `--dist loadfile`."""
    from xdist.scheduler import LoadScopeScheduling

    if config.getoption("dist") != "loadfile":
        return None

    class ByUnit(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit(nodeid)

    return ByUnit(config, log)


def pytest_configure(config: pytest.Config) -> None:
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is not None and "turns" in worker:
        config.pluginmanager.register(TakingTurns(Turns(Path(worker["turns"]), 2 * len(os.sched_getaffinity(0)))))
    elif config.getoption("numprocesses", None):
        config.pluginmanager.register(Controller(config))


class Controller:
    def __init__(self, config: pytest.Config) -> None:
        folder = tempfile.TemporaryDirectory()
        self._turns = folder.name
        config.add_cleanup(folder.cleanup)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["turns"] = self._turns


class TakingTurns:
    """In a worker."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: order(item.nodeid))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        self._turns.begin(_realtime(item))
        try:
            return (yield)
        finally:
            same = nextitem is not None and nextitem.path == item.path
            self._turns.end(nextitem is not None and same and _realtime(nextitem))
