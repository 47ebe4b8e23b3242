"""Decides in a process of its own, without Ray: for what nobody waits for in a tick, such as an interpreter.

Whatever it does there (loading a model, Python's one lock, a crash) holds up nothing here. It runs behind everybody
else where processors are short, and ends with this process.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from queue import Empty, Queue
from typing import IO, Any

from rtcontrol.hosts.protocol import SHARES, DeciderSource, DecisionReply, DecisionRequest, HostEvent
from rtcontrol.models.errors import UserError

POLL_S, END_S = 0.1, 2.0
_SIZE = struct.Struct("<I")


def send(pipe: IO[bytes], what: Any) -> None:
    """One message; OSError and ValueError where nobody reads any more."""
    body = pickle.dumps(what)
    pipe.write(_SIZE.pack(len(body)) + body)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """The next message. EOFError at the end."""
    head = pipe.read(_SIZE.size)
    if len(head) < _SIZE.size:
        raise EOFError
    return pickle.loads(pipe.read(_SIZE.unpack(head)[0]))


class ProcessHost:
    """A `Host` of one lane whose decider is built, and asked, in a child process. One that is lost is started again by
    the next `start`."""

    name = "process"
    gave_up: str | None = None

    def __init__(self, source: DeciderSource) -> None:
        self._source = source
        self.incarnation = 0
        self.events: list[HostEvent] = []
        self.shares: deque[float] = deque(maxlen=SHARES)
        self.threads: list[tuple[int, int]] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._replies: Queue[DecisionReply | None] = Queue()
        self._built: Queue[dict[str, Any] | tuple[str, str]] = Queue()
        self._sending = threading.Lock()

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        if self.alive():
            return {}
        self.close()
        root = Path(__file__).resolve().parents[2]
        path = [str(root)] if (root / "pyproject.toml").is_file() else []
        path += [p for p in (os.environ.get("PYTHONPATH"),) if p]
        environment = {**os.environ, **({"PYTHONPATH": os.pathsep.join(path)} if path else {})}
        command = [sys.executable, "-m", "rtcontrol.hosts.process_child"]
        self._process = process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
        )
        self._built = Queue()
        self.incarnation += 1
        threading.Thread(target=self._listen, args=(process, self._built), name="process host", daemon=True).start()
        with contextlib.suppress(OSError, ValueError):
            send(process.stdin, self._source)  # type: ignore[arg-type]
        while not stopped():
            with contextlib.suppress(Empty):
                told = self._built.get(timeout=POLL_S)
                if isinstance(told, dict):
                    return told
                self.close()
                raise UserError(*told)
        return {}

    def submit(self, request: DecisionRequest) -> None:
        process = self._process
        if process is not None:
            with self._sending, contextlib.suppress(OSError, ValueError):
                send(process.stdin, ("ask", request))  # type: ignore[arg-type]

    def wait(self, timeout_ns: int) -> DecisionReply | None:
        try:
            reply = self._replies.get(timeout=timeout_ns / 1e9) if timeout_ns > 0 else self._replies.get_nowait()
        except Empty:
            return None
        if reply is not None:
            self.shares.append(reply.decide_ns)
        return reply

    def wake(self) -> None:
        self._replies.put(None)

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def cancel(self, tick: int) -> None:
        process = self._process
        if process is not None:
            with self._sending, contextlib.suppress(OSError, ValueError):
                send(process.stdin, ("cancel", tick))  # type: ignore[arg-type]

    def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError, ValueError):
            process.stdin.close()  # type: ignore[union-attr]
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _listen(self, process: subprocess.Popen[bytes], built: Queue[Any]) -> None:
        try:
            while True:
                told = receive(process.stdout)  # type: ignore[arg-type]
                (self._replies if isinstance(told, DecisionReply) else built).put(told)
        except (EOFError, OSError, ValueError, pickle.UnpicklingError):
            if self._process is process:
                self.events.append(HostEvent(time.monotonic_ns(), "lost", 0.0))
            built.put(("The decider's process ended while it was built.", "It may need more memory than there is."))
            self._replies.put(None)
        finally:
            with contextlib.suppress(OSError, ValueError):
                process.stdout.close()  # type: ignore[union-attr]
