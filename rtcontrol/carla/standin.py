"""Starts the CARLA stand-in, which is not CARLA, from a source checkout."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import rtcontrol
from rtcontrol.models.errors import UserError

MODULE = "tests.bridges.carla.standin"
LISTENING = "listening on "
END_S = 5.0


class StandIn:
    """The process while it is entered; `port` is where it listens. UserError where there is no checkout."""

    def __init__(self, state: Path) -> None:
        self.port = 0
        self._root = Path(rtcontrol.__file__).resolve().parents[1]
        if not (self._root / Path(*MODULE.split(".")) / "__main__.py").is_file():
            raise UserError(
                "The CARLA stand-in is not part of the installed package.",
                "Run from a source checkout (pip install -e '.[carla]' in it), or start a CARLA server and leave "
                "--carla-standin out.",
            )
        # It ends with us, however we end.
        self._command = [sys.executable, "-m", MODULE, "--port", "0", "--state", str(state), "--leash"]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        path = os.pathsep.join(p for p in (str(self._root), os.environ.get("PYTHONPATH")) if p)
        pipe = subprocess.PIPE
        self._process = process = subprocess.Popen(
            self._command,
            stdin=pipe,
            stdout=pipe,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith(LISTENING):
            self._end()
            raise UserError("The CARLA stand-in does not start.", "Its own words stand above.")
        self.port = int(line.rpartition(":")[2])
        print(f"driving in the CARLA stand-in, not CARLA (port {self.port})", file=sys.stderr)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        process = self._process
        if process is None:
            return
        for end in (process.terminate, process.kill):
            end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
                break
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
