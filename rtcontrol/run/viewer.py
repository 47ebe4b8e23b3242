"""The page of a run, from the run's side: a process beside it serves the page and draws, this thread feeds it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import IO, Any

from rtcontrol.envs.paced import PacedEnvironment
from rtcontrol.loop.loop import SENT, ControlLoop, slash_tell
from rtcontrol.models.errors import UserError
from rtcontrol.run.options import RunOptions

# A program of a room above this one: nothing of it is imported here, and its threads share nothing with the loop's.
PROGRAM = "rtcontrol.gateway.viewer"
EVERY_S = 0.25
START_S = 30.0
END_S = 3.0
PIPE_BYTES = 1 << 20  # as much as Linux lets anybody have
MOST_DATA = 64  # fields of an observation that are told


class Viewer:
    """Starts the process and tells its address by `say`; `watch` feeds it from then on, as long as it lives. What it
    reads is the account's and the recorder's side; of the loop it asks nothing that the loop waits for. A page that
    does not keep up loses what is told meanwhile. UserError where the address cannot be bound."""

    def __init__(self, options: RunOptions, say: Callable[[str], None]) -> None:
        self._options, self._say = options, say
        self._waiting = b""  # of the last line, that the pipe has not taken yet
        self._number = 0
        self._answer: str | None = None  # to what the page said last
        self._stop = threading.Event()
        self._loop: ControlLoop | None = None
        self._threads: list[threading.Thread] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", PROGRAM, str(options.view_port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is the run's
        )
        assert self._process.stdin is not None and self._process.stdout is not None, "both are pipes"
        self._in, self._out = self._process.stdin, self._process.stdout
        first = (wait([self._out.fileno()], START_S) and _line(self._out)) or {}
        if "url" not in first:
            self.close()
            what = first.get("failed", "The page's process did not start.")
            raise UserError(str(what), "Give another --view-port, or leave --view out.")
        self.url: str = first["url"]
        os.set_blocking(self._in.fileno(), False)
        with contextlib.suppress(OSError, AttributeError):  # a picture goes in one go
            fcntl.fcntl(self._in.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        say(f"watch it at {self.url}")

    def watch(self, loop: ControlLoop) -> None:
        self._loop = loop
        for work in (self._feed, self._hear):
            thread = threading.Thread(target=work, args=(loop,), name=f"viewer-{work.__name__[1:]}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """The last of what there is to see is told; then the page ends."""
        self._stop.set()
        for thread in self._threads[:1]:
            thread.join(END_S)
        with contextlib.suppress(OSError):
            self._in.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._out.close()

    def _feed(self, loop: ControlLoop) -> None:
        while not self._stop.wait(EVERY_S):
            if not self._tell(loop, False):
                return
        self._tell(loop, True)

    def _tell(self, loop: ControlLoop, over: bool) -> bool:
        """False where nobody reads any more."""
        if not self._waiting:
            told = snapshot(loop, self._number) | {"over": over, "said": self._answer}
            self._number = told["number"]
            self._waiting = json.dumps(told, default=str).encode() + b"\n"
        try:
            self._waiting = self._waiting[os.write(self._in.fileno(), self._waiting) :]
        except BlockingIOError:
            pass
        except (OSError, ValueError):
            return False
        return True

    def _hear(self, loop: ControlLoop) -> None:
        while (said := _line(self._out)) is not None:
            try:
                if "instruct" in said:
                    told = slash_tell(loop, said["instruct"], "page", loop.instruct)
                    self._answer = self._answer if told == SENT else told
                elif "say" in said:
                    self._answer = loop.operator.say(said["say"], "page", said.get("k"))
                    self._say(self._answer)
            except Exception as error:  # the next one may be a stop
                self._say(f"the page said what nobody can do ({type(error).__name__}: {error})")


def snapshot(loop: ControlLoop, since: int) -> dict[str, Any]:
    """What is to be seen of a run, as `Recent` tells it, with the run's own settings and state."""
    config = loop.config
    told = loop.recent.snapshot(since)
    asking = loop.operator.asking
    told |= {name: getattr(config, name) for name in ("env", "agent", "model", "hz")}
    told |= {"deadline_ms": config.deadline_ns / 1e6, "phase": loop.phase, "state": loop.operator.state}
    told |= {"proven": loop.instructions.proven, "refusal": loop.instructions.refusal}
    told |= {"instruction": loop.instruction, "safe_calls": [c.text() for c in loop.agent.fallback.safe_calls]}
    told["asking"] = None if asking is None or asking.denied else told["asking"]
    with contextlib.suppress(Exception):  # a world that broke down is the loop's to tell
        # Of a world elsewhere nothing is taken that its loop waits for.
        if loop.launched and isinstance(loop.env, PacedEnvironment) and (seen := loop.env.latest()) is not None:
            plain = {k: v for k, v in list(seen.data.items())[:MOST_DATA] if isinstance(v, int | float)}
            told |= {"data": plain, "seed": config.seed + seen.epoch - 1}
    return told


def _line(out: IO[bytes]) -> dict[str, Any] | None:
    """The next line that is an object; None at the end."""
    with contextlib.suppress(OSError, ValueError):  # closed
        for line in out:
            with contextlib.suppress(ValueError):
                if isinstance(said := json.loads(line), dict):
                    return said
    return None
