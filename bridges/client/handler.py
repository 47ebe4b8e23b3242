"""Runs a user's `on_call` beside the socket's thread, so that a slow one delays neither heartbeats nor expiry."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from rtcontrol.bridges.client.link import Link
from rtcontrol.bridges.client.standing import Standing

log = logging.getLogger(__name__)


class Handler:
    """One thread; calls that became old while the handler was busy are skipped and acknowledged as expired."""

    def __init__(self, link: Link, invoke: Callable[[Standing], Any]) -> None:
        self._link, self._invoke = link, invoke
        self._event = threading.Event()
        threading.Thread(target=self._run, name="rtcontrol-on-call", daemon=True).start()

    def wake(self) -> None:
        self._event.set()

    def _run(self) -> None:
        while True:
            self._event.wait()
            self._event.clear()
            while (standing := self._next()) is not None:
                self._handle(standing)
            with self._link.lock:
                if self._link.talk.error is not None and not self._link.talk.handled:
                    return

    def _next(self) -> Standing | None:
        talk = self._link.talk
        with self._link.lock:
            if not talk.handled:
                return None
            *skipped, newest = talk.handled
            talk.handled.clear()
            for old in skipped:
                if old.tick is not None:
                    talk.acknowledge(old.tick, "expired", error="superseded while the handler was busy")
            return newest

    def _handle(self, standing: Standing) -> None:
        try:
            result = self._invoke(standing)
        except Exception as error:
            log.exception("on_call failed.")
            self._acknowledge(standing, error=f"{type(error).__name__}: {error}"[:1000])
        else:
            self._acknowledge(standing, result=None if result is None else str(result)[:8192])

    def _acknowledge(self, standing: Standing, result: str | None = None, error: str | None = None) -> None:
        if standing.tick is not None:
            with self._link.lock:
                outcome = "failed" if error is not None else "executed"
                self._link.talk.acknowledge(standing.tick, outcome, result, error)  # type: ignore[arg-type]
            self._link.wake()
