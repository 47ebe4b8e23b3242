"""The thread that looks after an admission a few times a second."""

from __future__ import annotations

import logging
import threading
from typing import Self

from rtcontrol.loop.realtime import SlackCollector
from rtcontrol.serve.session_manager import SessionManager
from rtcontrol.serve.zmq_server import Router

log = logging.getLogger("rtcontrol.serve")

KEEP_S = 0.1
# What a collection of garbage may take, between ticks that nobody knows of.
SLACK_NS = 20_000_000


class Housekeeping:
    """Heartbeats, sessions that nobody came back to, revoked keys, garbage (if it is given a collector)."""

    def __init__(self, admission: SessionManager, router: Router, collector: SlackCollector | None = None) -> None:
        self._admission, self._router, self._collector = admission, router, collector
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="housekeeping", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join(2.0)

    def _keep(self) -> None:
        while not self._stop.wait(KEEP_S):
            try:
                self._look_after()
            except Exception:  # one fault must not end heartbeats, expiry and revocation
                log.exception("the housekeeping stumbled")

    def _look_after(self) -> None:
        self._admission.keep()
        for connection in self._admission.connections():
            if not self._router.allowed(connection):
                self._admission.say(f"{connection.peer}: its key was revoked")
                self._admission.drop(connection)
        if self._collector is not None:
            self._collector.collect(SLACK_NS)
