"""Build the C++ client's driver once per session with each compiler and sanitizer, and run it as a process."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.bridges.program import Program, starting

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "bridges" / "cpp"
INCLUDE = FOLDER / "include"
DRIVER = Path(__file__).resolve().parent / "driver"
SANITIZERS = {"address": "address,undefined", "thread": "thread"}
KINDS = ("g++ address", "clang++ address", "g++ thread", "clang++ thread")
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wpedantic", "-Wshadow")
NEEDS = {"g++": "g++", "clang++": "clang", "/usr/include/zmq.h": "libzmq3-dev"}
ABSENT = [package for file, package in NEEDS.items() if shutil.which(file) is None and not Path(file).exists()]
REASON = f"{', '.join(ABSENT)} missing: apt-get install g++ clang libzmq3-dev"
# libzmq is built without the sanitizer, which therefore reports its atomics as races.
SUPPRESSED = "called_from_lib:libzmq.so\nrace:libzmq.so\n"


def run(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command, such as a compiler, to its end."""
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False, **options)


def built(session: Path, kind: str) -> Path:
    """Return the driver of a kind, in a folder that all workers of a session share; the first worker builds it."""
    text = b"".join(p.read_bytes() for folder in (INCLUDE, DRIVER) for p in sorted(folder.rglob("*")) if p.is_file())
    folder = session / f"cpp-{kind.replace(' ', '-')}-{hashlib.sha256(text).hexdigest()[:16]}"
    folder.mkdir(exist_ok=True)
    out = folder / "driver"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not out.exists():
            compiler, sanitizer = kind.split()
            flags = ("-std=c++17", *WARNINGS, "-g1", "-O0", f"-fsanitize={SANITIZERS[sanitizer]}")
            flags += ("-fno-sanitize-recover=all", f"-I{INCLUDE}", "-pthread")

            def compiled(name: str) -> Path:
                made = folder / f"{name}.o"
                done = run(compiler, *flags, "-c", DRIVER / f"{name}.cpp", "-o", made)
                assert done.returncode == 0, done.stderr
                return made

            with ThreadPoolExecutor() as pool:
                objects = list(pool.map(compiled, ("main", "filter")))
            (folder / "suppressed").write_text(SUPPRESSED)
            done = run(compiler, *flags, *objects, "-lzmq", "-o", folder / "unfinished")
            assert done.returncode == 0, done.stderr
            (folder / "unfinished").rename(out)
    if kind.endswith("thread") and "FATAL: ThreadSanitizer" in (said := run(out).stderr):
        pytest.skip(f"{kind}: this kernel's addresses are none of the sanitizer's ({said.splitlines()[0][:200]})")
    return out


class Driver(Program):
    """The process `driver MODE ...`, which reads commands and prints JSON lines. A sanitizer's finding ends it with a
    report on stderr."""

    def __init__(self, exe: Path, *arguments: str) -> None:
        env = {
            **os.environ,
            "ASAN_OPTIONS": "detect_stack_use_after_return=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "TSAN_OPTIONS": f"suppressions={exe.parent / 'suppressed'} halt_on_error=1 exitcode=66",
        }
        super().__init__([str(exe), *arguments], env=env)

    def close(self) -> dict[str, Any]:
        """Close the driver and return its last line; fail if it ended badly or a sanitizer reported anything."""
        self.say("close")
        return self.closed()

    def closed(self) -> dict[str, Any]:
        last = self.event("closed")
        assert self.process.wait(30) == 0, self.errors()
        return last


Start = Callable[..., Driver]


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of this session share."""
    if ABSENT:
        pytest.skip(REASON)
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session", params=KINDS)
def every_exe(request: pytest.FixtureRequest, shared: Path) -> Path:
    return built(shared, request.param)


@pytest.fixture(scope="session")
def exe(shared: Path) -> Path:
    """The driver with the sanitizer that detects races."""
    return built(shared, "clang++ thread")


@pytest.fixture(scope="session")
def strict_exe(shared: Path) -> Path:
    """The driver with the sanitizers for memory errors and undefined behaviour."""
    return built(shared, "g++ address")


@pytest.fixture
def driver(exe: Path) -> Iterator[Start]:
    yield from starting(partial(Driver, exe))


@pytest.fixture
def strict(strict_exe: Path) -> Iterator[Start]:
    yield from starting(partial(Driver, strict_exe))


@pytest.fixture(scope="session")
def pure(every_exe: Path) -> Iterator[Driver]:
    """A driver of the client's core, built in each way."""
    for start in starting(partial(Driver, every_exe)):
        yield start("filter")


@pytest.fixture(scope="session")
def core(strict_exe: Path) -> Iterator[Driver]:
    for start in starting(partial(Driver, strict_exe)):
        yield start("filter")
