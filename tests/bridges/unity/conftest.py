"""The driver, compiled once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.bridges.program import starting
from tests.bridges.unity.mono import HERE, MISSING, REASON, Driver, Start, compile_cs, core_sources


@pytest.fixture(scope="session")
def exe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if MISSING:
        pytest.skip(REASON)
    out = tmp_path_factory.mktemp("driver") / "driver.exe"
    said = compile_cs(out, core_sources() + list((HERE / "driver").glob("*.cs")))
    assert out.exists(), said
    return out


@pytest.fixture
def driver(exe: Path) -> Iterator[Start]:
    yield from starting(partial(Driver, exe))


@pytest.fixture(scope="module")
def core(exe: Path) -> Iterator[Driver]:
    """The client's pure part."""
    for start in starting(partial(Driver, exe)):
        yield start("filter")
