"""Real servers in processes of their own, for all bridges."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.bridges.client.worlds import Process, free_port
from tests.conformance.check.stand import Stand


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """One for all tests that leave it as it is."""
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
    """A server of which each word is the test's."""
    one = Stand("tcp://127.0.0.1:*")
    yield one
    one.close()


@pytest.fixture
def own_server(mortal: Process) -> Process:
    """One to be stopped and killed; it runs when a test begins."""
    if mortal.process is None or mortal.process.poll() is not None:
        mortal.start()
    mortal.signal(signal.SIGCONT)
    return mortal
