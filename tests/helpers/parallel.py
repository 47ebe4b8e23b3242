"""The whole suite in several processes (pytest-xdist), and the real-time tests alone.

A module is a unit: its tests run in one process, in order, so that they share a server by a module fixture. Modules
with a test marked `realtime` or `serial` (they start Ray) are one unit together, and begin first. While a `realtime`
test runs, no other process runs a test.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import IO, Any

import pytest

SERIAL = "serial"
ROOT = Path(__file__).resolve().parents[2]
# Their units are many and short: they fill the gaps that the others leave at the end.
LAST = ("tests/models", "tests/agents", "tests/envs", "tests/bridges/wire")


class Turns:
    """Either one real-time test at a time, or any number of others: a lock over processes.

    Whoever comes goes through `gate` first, and a real-time test stays there until the others are done: new ones do not
    overtake it.
    """

    def __init__(self, folder: Path) -> None:
        self._gate: IO[str] = (folder / "gate").open("w")
        self._held: IO[str] = (folder / "held").open("w")
        self._alone = False

    def begin(self, alone: bool) -> None:
        if not (alone and self._alone):
            fcntl.flock(self._gate, fcntl.LOCK_EX)
            fcntl.flock(self._held, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            fcntl.flock(self._gate, fcntl.LOCK_UN)
        self._alone = alone

    def end(self, stays_alone: bool) -> None:
        if not (self._alone and stays_alone):
            fcntl.flock(self._held, fcntl.LOCK_UN)
            self._alone = False


def _alone(item: pytest.Item | None) -> bool:
    return item is not None and item.get_closest_marker("realtime") is not None


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One more than cores, since the tests mostly wait; none where single files are asked for."""
    asked = os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS")
    if asked is not None:
        return int(asked)
    whole = config.args_source == pytest.Config.ArgsSource.TESTPATHS
    return min(len(os.sched_getaffinity(0)) + 1, 8) if whole else 0


@cache
def _unit(module: str) -> str:
    # Which is scheduled by tests' names alone, where their marks are not known. What is slow, too, seldom runs.
    try:
        text = (ROOT / module).read_text("utf-8").replace("@pytest.mark.slow\n@pytest.mark.realtime\n", "")
        marked = re.search(r"pytest\.mark\.(realtime|serial)\b", text)
    except OSError:
        marked = None
    return SERIAL if marked else module


def unit(nodeid: str) -> str:
    """What of a run goes to one process. Mutants are long and share nothing: each is one."""
    module = nodeid.partition("::")[0]
    return nodeid if module.endswith("test_mutants.py") else _unit(module)


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
        config.pluginmanager.register(TakingTurns(Turns(Path(worker["turns"]))))
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
        def order(item: pytest.Item) -> int:
            last = item.nodeid.startswith(LAST)
            return 0 if unit(item.nodeid) == SERIAL else 2 if last else 1

        items.sort(key=order)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        self._turns.begin(_alone(item))
        try:
            return (yield)
        finally:
            self._turns.end(_alone(nextitem))
