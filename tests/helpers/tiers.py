"""The tier of a test, derived from what it uses.

A test that starts a process, opens a socket, sleeps, starts Ray or judges the wall clock is marked `integration`; what
is left is the default tier. What a test uses is read from its source: its own, that of its fixtures, and that of every
function and class below `tests/` that they name. `REAL` lists the names from elsewhere that make a test integration.

`pytest` runs the default tier, `pytest FILE` all tests of the file but nightly ones, which run only where `-m` names
them.

`Guard` holds the default tier to this: a test that starts a process, binds a socket or sleeps all the same fails.
"""

from __future__ import annotations

import ast
import inspect
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import zmq

from rtcontrol.loop.clock import WallClock

TESTS = Path(__file__).resolve().parents[1]
INTEGRATION = "integration"
NIGHTLY = "slow"
# A name, and all that is below it.
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
        "rtcontrol.gateway.Gateway",
        "rtcontrol.gateway.http_server",
        "rtcontrol.hosts.processes",
        "rtcontrol.models.quantize",
        "rtcontrol.run.carla_bridge",
        "rtcontrol.run.mcp_tools",
        "rtcontrol.serve.server.Server",
        "socket.create_connection",
        "socket.create_server",
        "socket.socket",
        "socket.socketpair",
        "subprocess",
        "sys.executable",
        "threading.Thread",
        "time.sleep",
        "urllib.request",
        "websockets",
        "zmq",
    }
)
# Fixtures of every test, which only change the environment.
PLUGINS = (TESTS / "conftest.py", TESTS / "helpers" / "orphans.py", TESTS / "helpers" / "realtime.py")
EVENTS = frozenset(
    {
        "subprocess.Popen",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "os.system",
        "socket.bind",
        "time.sleep",
        "WallClock.wait",
    }
)


@dataclass(slots=True)
class Source:
    """A file below `tests/`: its definitions, and the full names of what it imports."""

    definitions: dict[str, list[ast.AST]] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)


@cache
def source(path: Path) -> Source:
    """Read a file of the tests."""
    read = Source()
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                read.imports[name] = alias.name if alias.asname else name
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                read.imports[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for statement in tree.body:
        for name in _defined(statement):
            read.definitions.setdefault(name, []).append(statement)
    return read


def _defined(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        yield from (node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
    elif isinstance(statement, ast.If | ast.Try | ast.With):
        for inner in ast.iter_child_nodes(statement):
            if isinstance(inner, ast.stmt):
                yield from _defined(inner)


def _names(node: ast.AST) -> Iterator[str]:
    """Every name in a piece of source, with its attributes as far as they are written out."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute):
            chain, root = [inner.attr], inner.value
            while isinstance(root, ast.Attribute):
                chain.append(root.attr)
                root = root.value
            if isinstance(root, ast.Name):
                yield ".".join([root.id, *reversed(chain)])
        elif isinstance(inner, ast.Name):
            yield inner.id


def real_use(path: Path, name: str) -> str | None:
    """Return the first name of `REAL` that a definition of the tests reaches, or None."""
    waiting, seen = [(path, name)], set[tuple[Path, str]]()
    while waiting:
        place = waiting.pop()
        if place in seen:
            continue
        seen.add(place)
        read = source(place[0])
        for used in _used(read, place[1]):
            root, _, rest = used.partition(".")
            if root in read.definitions:
                waiting.append((place[0], root))
            elif root in read.imports:
                full = f"{read.imports[root]}.{rest}".rstrip(".")
                if (real := _real(full)) is not None:
                    return real
                waiting.extend(_place(full))
    return None


def _used(read: Source, name: str) -> Iterator[str]:
    """Names that a definition uses; of a name that is only imported, itself."""
    if name not in read.definitions:
        yield name
    for node in read.definitions.get(name, ()):
        yield from _names(node)


def _real(full: str) -> str | None:
    parts = full.split(".")
    return next((name for i in range(len(parts)) if (name := ".".join(parts[: i + 1])) in REAL), None)


def _place(full: str) -> Iterator[tuple[Path, str]]:
    """File and definition that a full name may stand for."""
    parts = full.split(".")
    for i in range(len(parts) - 1, 0, -1):
        if (path := _file(".".join(parts[:i]))) is not None:
            yield path, parts[i]
            return


@cache
def _file(module: str) -> Path | None:
    """Return the file of a module of the tests; None for any other."""
    loaded = sys.modules.get(module)
    path = Path(getattr(loaded, "__file__", None) or TESTS.parent / f"{module.replace('.', '/')}.py")
    return path if path.is_relative_to(TESTS) and path.is_file() else None


def reason(item: pytest.Item) -> str | None:
    """Return why a test is one of the integration tier, or None."""
    if not isinstance(item, pytest.Function):
        return None
    name = item.cls.__name__ if item.cls is not None else getattr(item, "originalname", item.name)
    places = [(item.path, name), (item.path, "pytestmark")]
    for found in item._fixtureinfo.name2fixturedefs.values():
        places += [(Path(inspect.unwrap(one.func).__code__.co_filename), one.func.__name__) for one in found]
    for path, name in places:
        if path in PLUGINS or not path.is_relative_to(TESTS):
            continue
        if (real := real_use(path, name)) is not None:
            return real
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
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
    """Return whether all tests are run, and not those of named files."""
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    return worker["whole"] if worker else config.args_source == pytest.Config.ArgsSource.TESTPATHS


class Guard:
    """Refuses processes, sockets, sleep and the wall clock to tests of the default tier."""

    def __init__(self) -> None:
        self._active: list[str] | None = None
        sys.addaudithook(self._hook)
        bind, sleep, wait = zmq.Socket.bind, time.sleep, WallClock.wait

        def audited_sleep(seconds: float) -> None:
            if threading.current_thread() is threading.main_thread():
                self._hook("time.sleep", (seconds,))
            sleep(seconds)

        def audited(socket: zmq.Socket[bytes], address: str) -> Any:
            if not address.startswith("inproc:"):
                self._hook("socket.bind", (address,))
            return bind(socket, address)

        def audited_wait(clock: WallClock, *given: Any) -> Any:
            self._hook("WallClock.wait", (clock.grid.period_ns,))
            return wait(clock, *given)

        # None of these raises an audit event by itself.
        zmq.Socket.bind = audited  # type: ignore[method-assign]
        time.sleep = audited_sleep
        WallClock.wait = audited_wait  # type: ignore[method-assign]

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._active is None or event not in EVENTS or (event == "time.sleep" and arguments[0] <= 0):
            return
        self._active.append(f"{event}{arguments!r:.120}")
        raise RuntimeError(f"{event} in a test of the default tier")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        real = any(item.get_closest_marker(mark) for mark in (INTEGRATION, NIGHTLY))
        self._active = None if real else []
        try:
            return (yield)
        finally:
            self._active = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        result = yield
        if self._active:
            pytest.fail(
                f"A test of the default tier used {', '.join(self._active)}. Mark it integration, or add to REAL."
            )
        return result


class Controller:
    """Tells the workers of pytest-xdist what was asked for."""

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["whole"] = whole(node.config)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Guard())
    config.pluginmanager.register(Controller())
