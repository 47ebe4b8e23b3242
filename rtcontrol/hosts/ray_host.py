"""Decides in a Ray actor: Ray places and restarts it, the tick's bytes take its ZeroMQ sockets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import zmq

from rtcontrol.hosts.base import DeciderSource
from rtcontrol.hosts.ray_actor import DecoderActor
from rtcontrol.hosts.ray_link import Link, LinkedHost
from rtcontrol.hosts.ray_process import RayProcess
from rtcontrol.hosts.ray_start import REMEDY, Stopped
from rtcontrol.models.errors import UserError

WARM_TIMEOUT_MS = 10_000


class RayHost(LinkedHost):
    """The client of one `DecoderActor`."""

    def __init__(self, source: DeciderSource, lanes: int = 1, gpus: float | None = None) -> None:
        super().__init__()
        self._source, self._lanes, self._gpus = source, lanes, gpus
        self._process = RayProcess(self.lose, self._back, zmq.Context())

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        process = self._process
        try:
            answer = process.start(DecoderActor, self._source, self._lanes, gpus=self._gpus, stopped=stopped)
        except Stopped:
            return {}
        link = Link(process.context, answer, self._wake)
        if not link.ready(WARM_TIMEOUT_MS):
            link.close()
            raise UserError("The decoder's process runs, but its socket does not answer.", REMEDY)
        self.take(link)
        process.watch(answer)
        return {**answer["info"], "pid": answer["pid"], "endpoint": answer["lanes"][0]}

    def close(self) -> None:
        """Ends the actor, and Ray if it was started here; nothing is left behind."""
        self._process.unwatch()
        self.drop()
        self._process.context.destroy(linger=0)
        self._process.end()

    def _back(self, answer: dict[str, Any], lost_ns: int) -> bool:
        link = Link(self._process.context, answer, self._wake)
        if not link.ready(WARM_TIMEOUT_MS, self.last):
            link.close()
            return False
        self.offer(link, lost_ns)
        return True
