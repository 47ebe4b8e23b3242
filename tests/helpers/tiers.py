"""Derive the tier of a test from what the test uses.

`pytest` runs the default tier; `pytest FILE` runs all tests of the file except nightly ones, which run only if `-m`
names them. A test that starts a process, opens a socket, sleeps, reads a clock or starts Ray is marked `integration`.
To find out, the source of the test, of its fixtures, and of all functions and classes under `tests/` that they use is
searched for the names in `REAL`. `Guard` checks the other tests while they run. At most `MOST_SMOKE` tests, in
`tests/smoke`, may start processes although they are in the default tier.
"""

from __future__ import annotations

import ast
import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import zmq

from rtcontrol.loop.runner import LoopClock

TESTS = Path(__file__).resolve().parents[1]
INTEGRATION = "integration"
NIGHTLY = "slow"
# Each entry covers the name and everything below it.
REAL = frozenset(
    {
        "concurrent.futures",
        "httpx",
        "multiprocessing",
        "os.fork",
        "os.kill",
        "os.posix_spawn",
        "os.system",
        "ray",
        "rtcontrol.gateway.app.Gateway",
        "rtcontrol.gateway.http_server.HTTPServer",
        "rtcontrol.hosts.processes",
        "rtcontrol.models.quantize",
        "rtcontrol.run.carla_bridge",
        "rtcontrol.run.toolsets.list_mcp_tools",
        "rtcontrol.serve.server.Server",
        "socket.create_connection",
        "socket.create_server",
        "socket.socket",
        "socket.socketpair",
        "subprocess",
        "sys.executable",
        "threading.Thread",
        "time.monotonic",
        "time.monotonic_ns",
        "time.sleep",
        "urllib.request",
        "websockets",
        "zmq",
    }
)
# Plugins whose fixtures every test uses, and which only change the environment.
PLUGINS = (TESTS / "conftest.py", TESTS / "helpers" / "orphans.py")
EVENTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "socket.bind"})
SMOKE = TESTS / "smoke"
MOST_SMOKE = 40


@dataclass(slots=True)
class Source:
    """A file under `tests/`: its definitions, and the full names of its imports."""

    definitions: dict[str, list[ast.AST]] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)


@cache
def source(path: Path) -> Source:
    """Parse a file of the tests."""
    read = Source()
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            before = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                name = alias.asname or (alias.name if before else alias.name.partition(".")[0])
                read.imports[name] = before + (alias.name if before or alias.asname else name)
    for statement in tree.body:
        names = (node for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
        for name in [statement.name] if hasattr(statement, "name") else [node.id for node in names]:
            read.definitions.setdefault(name, []).append(statement)
    return read


def _dotted(node: ast.AST) -> str:
    """Return a dotted name as written in the source, starting with a point if its root is not a name."""
    return f"{_dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def real_use(path: Path, name: str) -> str | None:
    """Return the first name in `REAL` that a definition in the tests uses, directly or not, or None."""
    waiting, seen = [(path, name)], set[tuple[Path, str]]()
    while waiting:
        place = waiting.pop()
        if place in seen:
            continue
        seen.add(place)
        read = source(place[0])
        nodes = [node for statement in read.definitions.get(place[1], ()) for node in ast.walk(statement)]
        # A name that is only imported stands for itself.
        for used in {_dotted(node) for node in nodes} if nodes else {place[1]}:
            root, _, rest = used.partition(".")
            if root in read.definitions:
                waiting.append((place[0], root))
            elif root in read.imports:
                full = f"{read.imports[root]}.{rest}".rstrip(".")
                if (real := _real(full)) is not None:
                    return real
                waiting.extend(_place(full))
    return None


def _real(full: str) -> str | None:
    parts = full.split(".")
    return next((name for i in range(len(parts)) if (name := ".".join(parts[: i + 1])) in REAL), None)


def _place(full: str) -> Iterator[tuple[Path, str]]:
    """Yield the files and definitions that a full name may refer to."""
    parts = full.split(".")
    for i in range(len(parts) - 1, 0, -1):
        if (path := _file(".".join(parts[:i]))) is not None:
            yield path, parts[i]
            return


@cache
def _file(module: str) -> Path | None:
    """Return the file of a module of the tests, or None for other modules."""
    loaded = sys.modules.get(module)
    path = Path(getattr(loaded, "__file__", None) or TESTS.parent / f"{module.replace('.', '/')}.py")
    return path if path.is_relative_to(TESTS) and path.is_file() else None


def reason(item: pytest.Item) -> str | None:
    """Return why a test belongs to the integration tier, or None."""
    if not isinstance(item, pytest.Function) or item.path.is_relative_to(SMOKE):
        return None
    name = item.cls.__name__ if item.cls is not None else getattr(item, "originalname", item.name)
    places = [(item.path, name), (item.path, "pytestmark")]
    for found in item._fixtureinfo.name2fixturedefs.values():
        for one in reversed(found):  # the nearest one, and what it overrides only where it wants that
            places.append((Path(inspect.unwrap(one.func).__code__.co_filename), one.func.__name__))
            if one.argname not in one.argnames:
                break
    for path, name in places:
        if path in PLUGINS or not path.is_relative_to(TESTS):
            continue
        if (real := real_use(path, name)) is not None:
            return real
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    smoke = sum(item.path.is_relative_to(SMOKE) for item in items)
    if smoke > MOST_SMOKE:
        raise pytest.UsageError(f"tests/smoke has {smoke} tests, and may have {MOST_SMOKE}")
    for item in items:
        timed = item.get_closest_marker("realtime") or item.get_closest_marker("serial")
        if item.get_closest_marker(NIGHTLY) is None and (timed or reason(item)):
            item.add_marker(INTEGRATION)
    wanted = config.option.markexpr
    left_out = set() if NIGHTLY in wanted else {NIGHTLY}
    if whole(config) and not wanted:
        left_out.add(INTEGRATION)
    dropped = [item for item in items if any(item.get_closest_marker(mark) for mark in left_out)]
    items[:] = [item for item in items if not any(item.get_closest_marker(mark) for mark in left_out)]
    config.hook.pytest_deselected(items=dropped)


def whole(config: pytest.Config) -> bool:
    """Return whether all tests run, not only those of named files."""
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    return worker["whole"] if worker else config.args_source == pytest.Config.ArgsSource.TESTPATHS


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the selection of tests to a pytest-xdist worker."""
    node.workerinput["whole"] = whole(node.config)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return 0 if files are named, otherwise the number of cores; more workers would starve the started processes."""
    return min(len(os.sched_getaffinity(0)), 8) if whole(config) else 0


class Guard:
    """Refuses processes, sockets, sleep and the wall clock in tests of the default tier."""

    def __init__(self) -> None:
        self._refused: list[str] | None = None
        sys.addaudithook(self._audit)
        # Python raises no audit event for these calls.
        self._watch(zmq.Socket, "bind", lambda socket, address: not address.startswith("inproc:"))
        self._watch(time, "sleep", lambda s: s > 0 and threading.current_thread() is threading.main_thread())
        self._watch(LoopClock, "wait", lambda clock, *given: clock.grid.enforced)

    def _watch(self, owner: Any, name: str, counts: Callable[..., bool]) -> None:
        plain = getattr(owner, name)

        def call(*given: Any, **named: Any) -> Any:
            if counts(*given):
                self._refuse(f"{owner.__name__}.{name}")
            return plain(*given, **named)

        setattr(owner, name, call)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in EVENTS:
            self._refuse(f"{event}{arguments!r:.120}")

    def _refuse(self, use: str) -> None:
        if self._refused is not None:
            self._refused.append(use)
            raise RuntimeError(f"{use} in a test of the default tier")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        free = any(item.get_closest_marker(mark) for mark in (INTEGRATION, NIGHTLY)) or item.path.is_relative_to(SMOKE)
        self._refused = None if free else []
        try:
            return (yield)
        finally:
            self._refused = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        result = yield
        if self._refused:
            uses = ", ".join(self._refused)
            pytest.fail(f"A test of the default tier used {uses}. Mark it integration, or add to REAL.")
        return result


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Guard())
