"""The driver, compiled once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.bridges.client.worlds import Process, Proxy, free_port
from tests.bridges.unity.mono import HERE, MISSING, REASON, Driver, compile_cs, core_sources

# The system's library has a version in its name, which Unity's plugin has not.
DLLMAP = '<configuration><dllmap dll="libzmq" target="libzmq.so.5"/></configuration>'


@pytest.fixture(scope="session")
def exe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if MISSING:
        pytest.skip(REASON)
    out = tmp_path_factory.mktemp("driver") / "driver.exe"
    said = compile_cs(out, core_sources() + list((HERE / "driver").glob("*.cs")))
    assert out.exists(), said
    out.with_suffix(".exe.config").write_text(DLLMAP)
    return out


@pytest.fixture
def driver(exe: Path) -> Iterator[Callable[..., Driver]]:
    started: list[Driver] = []

    def start(*arguments: str) -> Driver:
        started.append(Driver(exe, *arguments))
        return started[-1]

    yield start
    for one in started:
        one.end()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """One for all tests that leave it as it is."""
    process = Process(tmp_path_factory.mktemp("server"), free_port())
    process.start()
    yield process
    process.stop()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Process]:
    """One to be stopped and killed."""
    process = Process(tmp_path, free_port())
    process.start()
    yield process
    process.stop()


@pytest.fixture
def proxy(server: Process) -> Iterator[Proxy]:
    passing = Proxy(int(server.endpoint.rpartition(":")[2]))
    yield passing
    passing.close()
