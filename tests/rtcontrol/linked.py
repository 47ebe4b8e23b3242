"""A decoder in its own process, like the Ray actor but without Ray, for tests that stop or kill the decoder."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rtcontrol.hosts.decoder_link import DecoderLink
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest, HostEvent
from rtcontrol.hosts.ray_actor import DecoderActor
from rtcontrol.hosts.sockets import WakeFile
from rtcontrol.models.call import Call, Decision

KEY = b"7"


class Steady:
    """Pushes."""

    def build(self) -> Steady:
        return self

    def decide(self, request: DecisionRequest) -> Decision:
        return Decision(Call("push", {"force": 1}), {"function": 0.9}, 1, 20, 5)


def _serve(pipe: Connection, folder: str) -> None:
    actor = DecoderActor(1, False, folder)
    answer = actor.start()
    actor.build(KEY, Steady(), None)
    pipe.send(answer)
    signal.pause()


class LinkedHost:
    """A `Host` with the real socket, which does not restart its decoder."""

    name = "linked"
    incarnation = 0
    gave_up: str | None = None

    def __init__(self, folder: Path) -> None:
        self.events: list[HostEvent] = []
        self._folder, self._woken = folder, WakeFile()
        self.pid = 0

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        ours, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(
            target=_serve, args=(theirs, str(self._folder)), daemon=True
        )
        self._process.start()
        answer = ours.recv()
        self.pid = answer["pid"]
        self._link = DecoderLink(answer, KEY, self._woken)
        assert self._link.ready(5000)
        return {}

    @property
    def threads(self) -> Sequence[tuple[int, int]]:
        return self._link.threads

    def submit(self, request: DecisionRequest) -> None:
        self._link.send(request)

    def wait(self, timeout_ns: int) -> DecisionReply | None:
        return self._link.receive(timeout_ns)

    def wake(self) -> None:
        self._woken.set()

    def alive(self) -> bool:
        return True

    def cancel(self, tick: int) -> None:
        self._link.send(tick)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def close(self) -> None:
        self._link.close()
        self._process.kill()
        self._process.join()
