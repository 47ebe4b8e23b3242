"""The complete server: decoder pool, sessions, ZeroMQ router and HTTP gateway, with an orderly start and shutdown."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from rtcontrol.hosts.protocol import DecoderPool
from rtcontrol.loop.realtime import SlackCollector
from rtcontrol.loop.sampling import PauseWatch
from rtcontrol.run import assembly
from rtcontrol.serve.options import ServeOptions
from rtcontrol.serve.pools import ServerPool
from rtcontrol.serve.session_manager import SessionManager
from rtcontrol.serve.zmq_server import Router

log = logging.getLogger("rtcontrol.serve")
PAUSE_SCALE_NS = 62_500_000  # one period at 16 Hz; `PauseWatch` uses it to decide which pauses are long
CHECK_INTERVAL_S = 0.1
SLACK_NS = 20_000_000  # time that a garbage collection may take between two ticks


class Server:
    """A context manager that runs the complete server. `endpoints`: the ZeroMQ addresses; `http`: a function that
    creates the HTTP gateway, or None. Raises UserError if the server cannot start."""

    router: Router
    gateway: Any = None

    def __init__(
        self,
        options: ServeOptions,
        endpoints: Sequence[str],
        *,
        keys: Path | None = None,
        http: Callable[[SessionManager, DecoderPool], Any] | None = None,
        log_line: Callable[[str], None] = lambda line: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.options = options.prepare()
        self.sessions = SessionManager(self.options, ServerPool(self.options), PauseWatch(PAUSE_SCALE_NS), log_line)
        self._endpoints, self._keys, self._http, self._stopped = endpoints, keys, http, stopped
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        sessions, agent = self.sessions, self.options.agent
        with self._stack as stack:
            sessions.pool.start(self._stopped)
            stack.callback(sessions.pool.close)
            self.router = Router(sessions, self._endpoints, self._keys)
            stack.callback(self.router.close)
            if self._http is not None:
                self.gateway = self._http(sessions, sessions.pool)
                self.gateway.start()
                stack.callback(self.gateway.close)
            stack.callback(sessions.close)
            interpreter = None if agent is None else sessions.interpreters.for_agent(assembly.load_agent(agent))
            if interpreter is not None:  # load it now, so that the first session need not wait
                interpreter.start()
            stack.enter_context(sessions.watch)
            collector = stack.enter_context(SlackCollector())
            self.router.start()
            stack.enter_context(Housekeeping(sessions, self.router, collector))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()


class Housekeeping:
    """A thread that checks heartbeats, expired sessions and revoked keys, and collects garbage with `collector`."""

    def __init__(self, sessions: SessionManager, router: Router, collector: SlackCollector | None = None) -> None:
        self._sessions, self._router, self._collector = sessions, router, collector
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._check_periodically, name="housekeeping", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join(2.0)

    def _check_periodically(self) -> None:
        while not self._stop.wait(CHECK_INTERVAL_S):
            try:
                self._sessions.check()
                self._router.drop_revoked()
                if self._collector is not None:
                    self._collector.collect(SLACK_NS)
            except Exception:  # no error may end this thread
                log.exception("a check of the sessions and keys failed")
