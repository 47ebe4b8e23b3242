"""The shipped C# files, compiled by mcs beside a driver, and that driver as a process under mono."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bridges.program import Program

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "bridges" / "unity" / "com.rtcontrol.client"
CORE = PACKAGE / "Runtime" / "Core"
HERE = Path(__file__).resolve().parent
MISSING = [name for name in ("mono", "mcs") if shutil.which(name) is None]
REASON = f"{' and '.join(MISSING)} missing: apt-get install mono-mcs mono-runtime libmono-system-core4.0-cil"


def compile_cs(out: Path, sources: list[Path], *options: str) -> str:
    """mcs at Unity's language level, warnings as errors; what it printed. It has failed where `out` is absent."""
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
    """`mono driver.exe MODE ...`: commands in, JSON lines out."""

    def __init__(self, exe: Path, *arguments: str, **environment: str) -> None:
        super().__init__(
            ["mono", str(exe), *arguments],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment},
        )

    def failure(self) -> str:
        """What it said on stderr, once it has ended."""
        self.process.wait(20)
        return self.errors()

    def say(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def ask(self, command: str) -> Any:
        self.say(command)
        return self.answer()

    def stats(self) -> dict[str, Any]:
        self.say("stats")
        stats: dict[str, Any] = self.event("stats")["stats"]
        return stats

    def close(self) -> dict[str, Any]:
        """Disposes of the client; what the driver said last."""
        self.say("close")
        return self.event("closed")

    def errors(self) -> str:
        if self.process.poll() is None:
            return "it runs"
        assert self.process.stderr is not None
        return f"exit status {self.process.returncode}: {self.process.stderr.read()}"


Start = Callable[..., Driver]
