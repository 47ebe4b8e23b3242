"""Engines, and servers with a WebSocket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bridges.godot.engine import MISSING, REASON, Engine, Served, Start
from tests.bridges.program import starting


@pytest.fixture
def godot(tmp_path: Path) -> Iterator[Start]:
    """Starts the shipped scene under the driver: `godot(url, option...)`."""
    if MISSING:
        pytest.skip(REASON)
    yield from starting(lambda url, *options: Engine(tmp_path, "driver.gd", f"--url={url}", *options))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One for all tests that leave it as it is."""
    one = Served(tmp_path_factory.mktemp("served"))
    one.start()
    yield one
    one.stop()


@pytest.fixture
def own_served(tmp_path: Path) -> Iterator[Served]:
    """One to be stopped and killed."""
    one = Served(tmp_path)
    one.start()
    yield one
    one.stop()
