"""Real server processes, for the tests of all bridges."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.bridges.client.worlds import Process, free_port
from tests.conformance.check.stand import Stand


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A server shared by all tests that do not change it."""
    process = Process(tmp_path_factory.mktemp("server"), free_port())
    process.start()
    yield process
    process.stop()


@pytest.fixture(scope="session")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    process = Process(tmp_path_factory.mktemp("mortal"), free_port())
    yield process
    process.stop()


@pytest.fixture
def stand() -> Iterator[Stand]:
    """A scripted server that sends only the test's messages."""
    one = Stand("tcp://127.0.0.1:*")
    yield one
    one.close()


@pytest.fixture
def own_server(mortal: Process) -> Process:
    """A server that the test may stop or kill; it runs when the test starts."""
    if mortal.process is None or mortal.process.poll() is not None:
        mortal.start()
    mortal.signal(signal.SIGCONT)
    return mortal
