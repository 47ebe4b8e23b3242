"""The whole suite in several processes (pytest-xdist), and the real-time tests by themselves.

A module is a unit: its tests run in one process, in order, so that they share a server by a module fixture; its
real-time tests are another. Modules marked `serial` (they start Ray) are one unit together, and so are those of ROS 2.
Real-time tests begin first; while they run no other test does, and of them no more at once than twice the cores, since
they wait for five sixths of their time.
"""

from __future__ import annotations

import ast
import fcntl
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

import pytest

SERIAL = "serial"
DDS = "tests/bridges/ros2/"  # their robots and bridges are in one domain, and hear each other
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
    """Return 0 where files are named, else the number of cores: with more, tests starve what they start."""
    wanted = os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS")
    if wanted is not None:
        return int(wanted)
    if config.args_source != pytest.Config.ArgsSource.TESTPATHS:
        return 0
    cores = len(os.sched_getaffinity(0))
    return min(cores, 8)


@dataclass(frozen=True)
class Marks:
    """What a module's text says: whether it starts Ray, whether all its tests are real-time ones, and which are."""

    serial: bool = False
    all_realtime: bool = False
    realtime: frozenset[str] = frozenset()

    def is_realtime(self, test: str) -> bool:
        return self.all_realtime or test.partition("[")[0] in self.realtime


@cache
def _marks(module: str) -> Marks:
    # Which is scheduled by tests' names alone, where their marks are not known.
    try:
        text = (ROOT / module).read_text("utf-8")
    except OSError:
        return Marks()
    if "pytest.mark.realtime" not in text:
        return Marks("pytest.mark.serial" in text)
    tests = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    marked = (one.name for one in tests if "pytest.mark.realtime" in map(ast.unparse, one.decorator_list))
    return Marks("pytest.mark.serial" in text, "pytestmark = pytest.mark.realtime" in text, frozenset(marked))


def unit(nodeid: str) -> str:
    """What of a run goes to one process. Mutants are long and share nothing: each is one. A module's real-time tests
    are one of their own: they run in the beginning, and hold up no others later."""
    module, _, test = nodeid.partition("::")
    if module.endswith("test_mutants.py"):
        return nodeid
    marks = _marks(module)
    own = SERIAL if marks.serial else DDS if module.startswith(DDS) else module
    return f"{own}, in real time" if marks.is_realtime(test) else own


def order(nodeid: str) -> int:
    """Real-time tests; Ray's, which take long; then the others."""
    module, _, test = nodeid.partition("::")
    marks = _marks(module)
    if marks.is_realtime(test):
        return 0
    return 1 if marks.serial else 3 if nodeid.startswith(LAST) else 2


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
