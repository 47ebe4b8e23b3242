"""The servers of a drilled fleet: processes whose lines and pages are read."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from http import HTTPStatus
from pathlib import Path
from typing import Any

from rtcontrol.hosts.processes import MARK
from rtcontrol.models.errors import UserError
from rtcontrol.models.web import WebClient, WebError

START_S, END_S = 180.0, 30.0
LOOK_S = 5.0
PAGE_S = 120.0  # a change of the model takes as long as its decoders need to start


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class FleetServer:
    """`rtcontrol serve` with these options. `lines` has what it says, with the instant (CLOCK_MONOTONIC)."""

    def __init__(self, out: Path, name: str, env: dict[str, str], folder: str, options: Sequence[str]) -> None:
        self.name, port, web = name, free_port(), free_port()
        self.endpoint, self.url = f"tcp://127.0.0.1:{port}", f"http://127.0.0.1:{web}"
        self._token, self._log = out / f"{name}.token", out / f"{name}.log"
        command = [sys.executable, "-m", "rtcontrol", "serve", "--bind", self.endpoint, "--host", "ray"]
        command += ["--http", f"127.0.0.1:{web}", "--token-file", str(self._token), "--out", str(out / name), *options]
        self.lines: list[tuple[int, str]] = []
        self._process = subprocess.Popen(
            command,
            env={**env, MARK: folder, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name=f"{name}-lines", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None, "stdout=PIPE"
        with self._log.open("a") as log, self._process.stdout as lines:
            for line in lines:
                self.lines.append((time.monotonic_ns(), line.strip()))
                log.write(line)
                log.flush()

    def wait(self, over: Callable[[], bool]) -> None:
        """Until it listens. UserError where it ends, or does not in time."""
        give_up = time.monotonic() + START_S
        while not any(line.startswith("listening on http") for _, line in list(self.lines)) and not over():
            if self._process.poll() is not None or time.monotonic() > give_up:
                self._reader.join(1.0)
                last = self.lines[-1][1] if self.lines else "it said nothing"
                raise UserError(f"A server of the drill does not start: {last}", f"See {self._log}.")
            time.sleep(0.02)

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def decoders(self) -> list[dict[str, Any]]:
        """As the page shows them; none where it does not answer."""
        client = WebClient(f"{self.url}/v1/fleet", {}, proxies=False)
        try:
            shown: list[dict[str, Any]] = client.get(LOOK_S).result().json()["decoders"]
        except (WebError, ValueError):
            return []
        finally:
            client.close()
        return shown

    def change(self, model: str) -> None:
        """Of the model, as an operator does it. UserError where it is refused."""
        headers = {"authorization": f"Bearer {self._token.read_text().strip()}"}
        client = WebClient(f"{self.url}/v1/fleet", headers, proxies=False)
        try:
            answer = client.post({"model": model}, PAGE_S).result()
        except WebError as error:
            raise UserError(f"The model was not changed ({error}).", f"See {self._log}.") from None
        finally:
            client.close()
        if answer.status != HTTPStatus.OK:
            raise UserError(f"The model was not changed: {answer.text[:300]}", f"See {self._log}.")

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.kill()
        self._reader.join(1.0)
