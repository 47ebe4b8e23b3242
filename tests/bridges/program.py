"""A foreign program as a process: JSON lines out."""

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
    """The events of a client, line by line; kept in `events` once requested."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._lines: queue.Queue[str] = queue.Queue()

    def tell(self, event: dict[str, Any]) -> None:
        self._lines.put(json.dumps(event))

    def errors(self) -> str:
        """What it complained about."""
        return ""

    def answer(self, seconds: float = 60.0) -> Any:
        """The next line."""
        try:
            return json.loads(self._lines.get(timeout=seconds))
        except queue.Empty:
            raise AssertionError(f"the program says nothing: {self.errors()[-2000:]}") from None

    def until(self, fits: Callable[[dict[str, Any]], bool], what: str, seconds: float = 30.0) -> dict[str, Any]:
        """The next event that fits; the others are kept in `events` too."""
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
    """Starts it; `options` are those of Popen."""

    begins = ""  # of a line that is told to us; others are the program's own

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
        """Give it a command."""
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
        """What it says last."""
        self.say("close")
        return self.event("closed")

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


P = TypeVar("P", bound=Program)


def starting(make: Callable[..., P]) -> Iterator[Callable[..., P]]:
    """For a fixture: makes programs with arguments of their own, and ends them."""
    started: list[P] = []

    def start(*arguments: str, **options: Any) -> P:
        started.append(make(*arguments, **options))
        return started[-1]

    yield start
    for one in started:
        one.end()


# Peers that are no server.


@contextlib.contextmanager
def garbage(parts: Sequence[bytes | None], reads: bool = True) -> Iterator[tuple[str, list[int]]]:
    """Sends the parts to whoever comes, and hears on, where it reads; None: it closes. Gives its address, `HOST:PORT`,
    and a list with an entry for each that came."""
    met: list[int] = []
    over = threading.Event()

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
            if not reads:
                over.wait()
            while peer.recv(65536):
                pass

    with sockets.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", met
        over.set()
