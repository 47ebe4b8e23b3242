"""Whether tools of strangers can be read within a time and a memory: tried in a process apart, before they come near
the sessions. A thread of this process would hold the interpreter meanwhile, and could not be ended."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rtcontrol.hosts.protocol import DecoderUnavailable
from rtcontrol.models.errors import UserError

# Of a processor's time, and at all where others take it, once the process is ready; of memory, with what it has then.
READ_S, GIVE_UP_S, READY_S, MEMORY_BYTES = 2.0, 20.0, 60.0, 1 << 30
# How a set ends the process: its time is over, or a library got no memory.
OWN_ENDS = (-signal.SIGPROF, -signal.SIGABRT, -signal.SIGSEGV)
READY, DONE, TOO_MUCH = b"r", b".", b"!"  # what the process says
# Larger sets wait in a line of their own, and nobody else behind them.
LARGE_BYTES = 8192
MAX_WAITING, MAX_KNOWN, NICE, LOOK_S = 16, 1024, 10, 0.1


class ToolReading:
    """`check` is for any thread. What was found out about a set is known from then on; that its process ended otherwise
    says nothing of it. With `model`, a checkpoint, it is compiled for that as well, as its decider would."""

    def __init__(self, model: str | None = None) -> None:
        self._lines = _Line(model), _Line(model)
        self._known: OrderedDict[bytes, bool] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, tools: Sequence[Mapping[str, Any]], given_up: Callable[[], bool] = lambda: False) -> bool:
        """Whether it was found out; not where it was `given_up`. Raises UserError for tools that take too long or too
        much, and DecoderUnavailable where too many wait, or where it was not found out."""
        text = json.dumps(list(tools)).encode() + b"\n"
        key = hashlib.sha256(text).digest()
        readable = self.known(key)
        if readable is None:
            readable = self._lines[len(text) > LARGE_BYTES].reads(text, given_up)
            if readable is None:
                return False
            with self._lock:
                self._known[key] = readable
                while len(self._known) > MAX_KNOWN:
                    self._known.popitem(last=False)
        if not readable:
            what = f"Reading these tools takes more than {READ_S:g} s of a processor's time, or too much memory."
            raise UserError(what, "Bring fewer tools, or simpler schemas: fewer alternatives (oneOf, anyOf).")
        return True

    def known(self, key: bytes) -> bool | None:
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
            return self._known.get(key)

    def close(self) -> None:
        for line in self._lines:
            line.close()


class _Line:
    """One process, started when it is first needed, and those who wait for it."""

    def __init__(self, model: str | None) -> None:
        self._model = [model] if model else []
        self._turn = threading.Lock()
        self._waiting = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def reads(self, text: bytes, given_up: Callable[[], bool]) -> bool | None:
        """Whether they are read in time; None where it was given up."""
        if self._waiting >= MAX_WAITING:
            raise DecoderUnavailable(
                f"{MAX_WAITING} sets of tools wait to be read.", "Come again, with pauses.", full=True
            )
        self._waiting += 1
        try:
            while not self._turn.acquire(timeout=LOOK_S):
                if given_up() or self._closed:
                    return None
        finally:
            self._waiting -= 1
        try:
            return None if given_up() or self._closed else self._ask(text, given_up)
        finally:
            self._turn.release()

    def _ask(self, text: bytes, given_up: Callable[[], bool]) -> bool | None:
        process, within_s = self._process, GIVE_UP_S
        if process is None or process.poll() is not None:
            process, within_s = self._started(), READY_S
        until = time.monotonic() + within_s
        assert process.stdin is not None and process.stdout is not None, "both are pipes"
        told, asked, left = process.stdout.fileno(), process.stdin.fileno(), memoryview(text)
        poll = select.poll()
        poll.register(told, select.POLLIN)
        poll.register(asked, select.POLLOUT)
        while time.monotonic() < until and not given_up() and not self._closed:
            for pipe, _ in poll.poll(LOOK_S * 1000):
                if pipe == told:
                    said = os.read(told, 1)
                    if said == DONE:
                        return True
                    if said != READY:
                        return self._ended(process, said)
                    within_s, until = GIVE_UP_S, time.monotonic() + GIVE_UP_S
                    continue
                try:
                    left = left[os.write(asked, left) :]
                except BrokenPipeError:  # it ends: what it says, or its end, tells
                    left = left[:0]
                if not left:
                    poll.unregister(asked)
        self._end(process)
        if given_up() or self._closed:
            return None
        late = f"These tools were not read within {within_s:g} s: others take the machine's time."
        raise DecoderUnavailable(late, "Come again, with pauses.")

    def _started(self) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, str(READ_S), str(MEMORY_BYTES), *self._model],
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )
        assert self._process.stdin is not None, "a pipe"
        os.set_blocking(self._process.stdin.fileno(), False)
        return self._process

    def _ended(self, process: subprocess.Popen[bytes], said: bytes) -> bool:
        """False where that was for the set's own sake; else raises DecoderUnavailable."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
        self._end(process)
        status = process.returncode
        if said == TOO_MUCH or status in OWN_ENDS:
            return False
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        told = f"The process that reads tools ended meanwhile ({how})."
        raise DecoderUnavailable(told, "Come again; if it ends again, bring fewer tools, or simpler schemas.")

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        self._process = None
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None, "both are pipes"
                pipe.close()

    def close(self) -> None:
        self._closed = True
        with self._turn:
            if self._process is not None:
                self._end(self._process)


def main() -> None:
    """Reads a line's tools; a byte says what came of it. The time's end is this process's."""
    from rtcontrol.agents import Tools, remote_tool
    from rtcontrol.models.checkpoint.checkpoint import Checkpoint
    from rtcontrol.models.decider import DeciderSpec, core_of

    with contextlib.suppress(OSError):
        os.nice(NICE)
    found = None
    with contextlib.suppress(Exception):  # told where it is opened in earnest
        found = Checkpoint.open(sys.argv[3]) if len(sys.argv) > 3 else None
    most = int(sys.argv[2])
    with contextlib.suppress(OSError):  # libraries and a tokenizer may have as much
        most += int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    os.write(1, READY)
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, float(sys.argv[1]))
        try:
            tools = Tools([remote_tool(definition) for definition in json.loads(line)])
            if found is not None:
                core_of(DeciderSpec(sys.argv[3], ()), found, found.config["vocab_size"], tools.schemas)
        except MemoryError:
            os.write(1, TOO_MUCH)
            return
        except Exception:  # told where they are read in earnest, with what is wrong
            pass
        signal.setitimer(signal.ITIMER_PROF, 0)
        os.write(1, DONE)


if __name__ == "__main__":
    main()
