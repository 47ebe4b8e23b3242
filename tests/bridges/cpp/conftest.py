"""The driver of each kind, built once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.bridges.cpp.build import ABSENT, KINDS, REASON, Driver, Start, built
from tests.bridges.program import starting


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this session, for all of its workers."""
    if ABSENT:
        pytest.skip(REASON)
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session", params=KINDS)
def every_exe(request: pytest.FixtureRequest, shared: Path) -> Path:
    return built(shared, request.param)


@pytest.fixture(scope="session")
def exe(shared: Path) -> Path:
    """The one that looks for races."""
    return built(shared, "clang++ thread")


@pytest.fixture(scope="session")
def strict_exe(shared: Path) -> Path:
    """The one that looks for bytes out of bounds, and for what C++ leaves undefined."""
    return built(shared, "g++ address")


@pytest.fixture
def driver(exe: Path) -> Iterator[Start]:
    yield from starting(partial(Driver, exe))


@pytest.fixture
def strict(strict_exe: Path) -> Iterator[Start]:
    yield from starting(partial(Driver, strict_exe))


@pytest.fixture(scope="session")
def pure(every_exe: Path) -> Iterator[Driver]:
    """The client's pure part, of each kind."""
    for start in starting(partial(Driver, every_exe)):
        yield start("filter")


@pytest.fixture(scope="session")
def core(strict_exe: Path) -> Iterator[Driver]:
    for start in starting(partial(Driver, strict_exe)):
        yield start("filter")
