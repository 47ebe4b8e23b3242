"""Compile the shipped C# files and a driver once with mcs, and run the driver under mono."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.bridges.program import Program, starting

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "bridges" / "unity" / "com.rtcontrol.client"
CORE = PACKAGE / "Runtime" / "Core"
HERE = Path(__file__).resolve().parent
MISSING = [name for name in ("mono", "mcs") if shutil.which(name) is None]
REASON = f"{' and '.join(MISSING)} missing: apt-get install mono-mcs mono-runtime libmono-system-core4.0-cil"


def compile_cs(out: Path, sources: list[Path], *options: str) -> str:
    """Run mcs at Unity's language level with warnings as errors; return its output. If it failed, `out` does not
    exist."""
    done = subprocess.run(
        ["mcs", "-langversion:7", "-warn:4", "-warnaserror", f"-out:{out}", *options, *map(str, sorted(sources))],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def core_sources() -> list[Path]:
    return list(CORE.rglob("*.cs"))


class Driver(Program):
    """The process `mono driver.exe MODE ...`, which reads commands and prints JSON lines."""

    def __init__(self, exe: Path, *arguments: str) -> None:
        super().__init__(["mono", str(exe), *arguments])


Start = Callable[..., Driver]


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
    """A driver of the client's core, without sockets."""
    for start in starting(partial(Driver, exe)):
        yield start("filter")
