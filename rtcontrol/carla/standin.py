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

ROOT = Path(rtcontrol.__file__).resolve().parents[1]
MODULE = "tests.bridges.carla.standin"
LISTENING = "listening on "
END_S = 5.0


class StandIn:
    """The process: it listens at `port` once this is made, and ends with the block, or with whoever made it. UserError
    where there is no checkout, or it does not start."""

    def __init__(self, *options: str, state: Path | None = None) -> None:
        """`state`: where it writes what it knows of the world (JSON), every second and at its end."""
        if not (ROOT / Path(*MODULE.split(".")) / "__main__.py").is_file():
            raise UserError(
                "The CARLA stand-in is not part of the installed package.",
                "Run from a source checkout (pip install -e '.[carla]' in it), or start a CARLA server and leave "
                "--carla-standin out.",
            )
        # It ends with us, however we end.
        command = [sys.executable, "-m", MODULE, "--port", "0", "--leash", *options]
        path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH")) if p)
        self.process = subprocess.Popen(
            [*command, *(("--state", str(state)) if state else ())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith(LISTENING):
            self.end()
            raise UserError("The CARLA stand-in does not start.", "Its own words stand above.")
        self.port = int(line.rpartition(":")[2])

    def end(self) -> int:
        """Its exit status; it writes its state as it ends."""
        for end in (self.process.terminate, self.process.kill):
            end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_S)
                break
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        return self.process.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()
