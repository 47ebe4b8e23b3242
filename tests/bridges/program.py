"""A program in another language as a process that prints JSON lines."""

from __future__ import annotations

import contextlib
import json
import queue
import socket as sockets
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar


class Events:
    """The events that a client prints, one per line; `events` keeps those that were read."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._lines: queue.Queue[str] = queue.Queue()

    def tell(self, event: dict[str, Any]) -> None:
        self._lines.put(json.dumps(event))

    def errors(self) -> str:
        """Return the program's error output."""
        return ""

    def answer(self, seconds: float = 60.0) -> Any:
        """Return the next line."""
        try:
            return json.loads(self._lines.get(timeout=seconds))
        except queue.Empty:
            raise AssertionError(f"the program prints nothing: {self.errors()[-2000:]}") from None

    def until(self, fits: Callable[[dict[str, Any]], bool], what: str, seconds: float = 30.0) -> dict[str, Any]:
        """Wait for an event that fits and return it; all events read are kept in `events`."""
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            try:
                event: dict[str, Any] = json.loads(self._lines.get(timeout=left_s))
            except queue.Empty:
                break
            self.events.append(event)
            if fits(event):
                return event
        raise AssertionError(f"never {what}: {self.errors()[-2000:]} {self.events[-5:]}")

    def event(self, kind: str, **fields: Any) -> dict[str, Any]:
        return self.until(
            lambda e: e["event"] == kind and all(e.get(k) == v for k, v in fields.items()), f"{kind} {fields or ''}"
        )


class Program(Events):
    """A running program; `options` are those of Popen."""

    begins = ""  # the prefix of lines for the test; other lines are ignored

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        super().__init__()
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        given: dict[str, Any] = {**pipes, "text": True, "encoding": "utf-8", **options}
        self.process: subprocess.Popen[str] = subprocess.Popen(command, **given)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(self.begins):
                self._lines.put(line)

    def say(self, command: str) -> None:
        """Send a command to the program."""
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def errors(self) -> str:
        if self.process.poll() is None:
            return "it runs"
        assert self.process.stderr is not None
        return f"exit status {self.process.returncode}: {self.process.stderr.read()}"

    def ask(self, command: str) -> Any:
        self.say(command)
        return self.answer()

    def stats(self) -> dict[str, Any]:
        self.say("stats")
        stats: dict[str, Any] = self.event("stats")["stats"]
        return stats

    def close(self) -> dict[str, Any]:
        """Close the program and return its last line."""
        self.say("close")
        return self.event("closed")

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


P = TypeVar("P", bound=Program)


def starting(make: Callable[..., P]) -> Iterator[Callable[..., P]]:
    """Yield a function that starts programs, for a fixture; end them all afterwards."""
    started: list[P] = []

    def start(*arguments: str, **options: Any) -> P:
        started.append(make(*arguments, **options))
        return started[-1]

    yield start
    for one in started:
        one.end()


# Peers that are not servers.


@contextlib.contextmanager
def garbage(parts: Sequence[bytes | None]) -> Iterator[tuple[str, list[int]]]:
    """Run a peer that sends the parts to every client, closes at None, and then reads on. Yield its address
    (`HOST:PORT`) and a list with an entry for each client."""
    met: list[int] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = listener.accept()
                met.append(1)
                threading.Thread(target=talk, args=(peer,), daemon=True).start()

    def talk(peer: sockets.socket) -> None:
        with contextlib.suppress(OSError):
            for part in parts:
                if part is None:
                    peer.close()
                    return
                peer.sendall(part)
            while peer.recv(65536):
                pass

    with sockets.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", met
