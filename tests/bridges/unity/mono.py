"""The shipped C# files, compiled by mcs beside a driver, and that driver as a process under mono."""

from __future__ import annotations

import json
import queue
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "bridges" / "unity" / "com.rtcontrol.client"
CORE = PACKAGE / "Runtime" / "Core"
HERE = Path(__file__).resolve().parent
MISSING = [name for name in ("mono", "mcs") if shutil.which(name) is None]
REASON = f"{' and '.join(MISSING)} missing: apt-get install mono-mcs mono-runtime libmono-system-core4.0-cil libzmq5"


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


class Driver:
    """`mono driver.exe MODE ...`: commands in, JSON lines out."""

    def __init__(self, exe: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            ["mono", str(exe), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self.events: list[dict[str, Any]] = []
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def say(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def answer(self, seconds: float = 60.0) -> Any:
        """The next line."""
        try:
            return json.loads(self._lines.get(timeout=seconds))
        except queue.Empty:
            raise AssertionError(f"the driver says nothing: {self._failure()}") from None

    def ask(self, command: str) -> Any:
        self.say(command)
        return self.answer()

    def until(self, fits: Callable[[dict[str, Any]], bool], what: str, seconds: float = 30.0) -> dict[str, Any]:
        """The next event that fits; the others are kept in `events` too."""
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            event: dict[str, Any] = self.answer(left_s)
            self.events.append(event)
            if fits(event):
                return event
        raise AssertionError(f"never {what}: {self._failure()} {self.events[-5:]}")

    def event(self, kind: str, **fields: Any) -> dict[str, Any]:
        return self.until(
            lambda e: e["event"] == kind and all(e.get(k) == v for k, v in fields.items()), f"{kind} {fields or ''}"
        )

    def stats(self) -> dict[str, Any]:
        self.say("stats")
        stats: dict[str, Any] = self.event("stats")["stats"]
        return stats

    def close(self) -> dict[str, Any]:
        """Disposes of the client; what the driver said last."""
        self.say("close")
        return self.event("closed")

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def _failure(self) -> str:
        if self.process.poll() is None:
            return "it runs"
        assert self.process.stderr is not None
        return f"exit status {self.process.returncode}: {self.process.stderr.read()[-2000:]}"
