"""Puts the server together: pool, admission, ZeroMQ router, HTTP gateway; and takes it apart in order."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from rtcontrol.hosts.deciders import FREE_VALUE, PLAIN, QuestionSource, STSource
from rtcontrol.hosts.inprocess import InProcessHost, InProcessPool
from rtcontrol.hosts.pool import started
from rtcontrol.hosts.protocol import DeciderSource, DecoderPool, DecoderUnavailable, Host
from rtcontrol.hosts.remote_api import EndpointSource, is_endpoint
from rtcontrol.loop.realtime import SlackCollector
from rtcontrol.loop.sampling import PauseWatch
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.errors import UserError
from rtcontrol.run import assembly
from rtcontrol.serve.options import ServeOptions
from rtcontrol.serve.session_manager import SessionManager
from rtcontrol.serve.zmq_server import Router

log = logging.getLogger("rtcontrol.serve")

# Beside the sessions: those that are just ending, the gateway's sets of tools, and the model.
SPARE = 32


class Pools:
    """A `DecoderPool` of two. The models' place is made ready at the start unless `options.model` needs none: then
    with the first session that does; made anew with the first one after it gave up. A model that is named there is
    loaded with it: in the midst of sessions that would hold up their decisions."""

    gave_up: str | None = None

    def __init__(self, options: ServeOptions) -> None:
        self.name, self._options, self._limit = options.host, options, options.max_sessions + SPARE
        self._inline = InProcessPool(self._limit, lanes=0)
        self._lock = threading.Lock()
        self._models: DecoderPool | None = None
        self._model: Host | None = None  # keeps what is loaded
        self._stopped: Callable[[], bool] = lambda: False

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        self._stopped = stopped
        if self._options.model not in PLAIN and not is_endpoint(self._options.model):
            self._ready()
        return {}

    def _ready(self) -> DecoderPool:
        """Return the models' place, started. Raises UserError; the next one may find it mended."""
        with self._lock:
            if self._models is not None and self._models.gave_up is None:
                return self._models
            if self._models is not None:
                self._models.close()
            self._models = None
            models = _models(self._options, self._limit)
            try:
                models.start(self._stopped)
                self._load(models)
            except BaseException:
                models.close()
                raise
            self._models = models
            return models

    def _load(self, models: DecoderPool) -> None:
        """Load the model that is named. What every session would be refused is raised here."""
        options = self._options
        if options.loads is None or self._stopped():
            return
        spec = DeciderSpec(
            options.loads, (FREE_VALUE,), engine=options.engine, dtype=options.dtype, threads=options.threads
        )
        self._model = models.open("the model", STSource(spec))
        if options.default_tools:
            models.open("the tools", STSource(replace(spec, tools=options.default_tools))).close()

    def open(self, session: str, source: DeciderSource) -> Host:
        if isinstance(source, EndpointSource) or assembly.makes_plans(source):
            return _waiting(source)
        if not isinstance(source, STSource | QuestionSource):
            return self._inline.open(session, source)
        try:
            models = self._ready()
        except UserError as error:
            raise DecoderUnavailable(error.what, error.remedy) from error
        return models.open(session, source)

    def alive(self) -> bool:
        """Whether the models' place answers; true where none was needed yet."""
        models = self._models
        return models is None or models.alive()

    def close(self) -> None:
        self._inline.close()
        if self._models is not None:
            self._models.close()


def _waiting(source: DeciderSource) -> Host:
    """On threads of its own: it waits for another machine, or is a user's code, and others must not wait with it."""
    return started(InProcessHost(source))


def _models(options: ServeOptions, limit: int) -> DecoderPool:
    if options.host == "inprocess":
        return InProcessPool(limit)
    if options.standby:
        from rtcontrol.hosts.standby import StandbyPool

        return StandbyPool(limit)
    from rtcontrol.hosts.ray_pool import RayPool

    return RayPool(limit)


class Server:
    """`endpoints` are bound for ZeroMQ; `http` makes the gateway. `with` starts and ends it all. Raises
    UserError."""

    def __init__(
        self,
        options: ServeOptions,
        endpoints: Sequence[str],
        *,
        keys: Path | None = None,
        http: Callable[[SessionManager, DecoderPool], Any] | None = None,
        say: Callable[[str], None] = lambda line: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.options = options = options.ready()
        self._say, self._stopped = say, stopped
        self._pool = Pools(options)
        # 16 Hz: the scale of what counts as a pause.
        self._watch = PauseWatch(62_500_000)
        self.admission = SessionManager(options, self._pool, self._watch, say)
        self._endpoints, self._keys, self._http = endpoints, keys, http
        self._collector = SlackCollector()
        self._stack = ExitStack()
        self.router: Router | None = None
        self.gateway: Any = None
        self._began = False

    def __enter__(self) -> Self:
        with self._stack as stack:
            stack.callback(self._write)
            self._pool.start(self._stopped)
            stack.callback(self._pool.close)
            options = self.options
            self.router = Router(self.admission, self._endpoints, self._keys)
            stack.callback(self.router.close)
            if self._http is not None:
                self.gateway = self._http(self.admission, self._pool)
                self.gateway.start()
                stack.callback(self.gateway.close)
            stack.callback(self.admission.close)
            own = None if options.agent is None else self.admission.interpreters.of(assembly.agent(options.agent))
            if own is not None:  # no session waits for it
                own.start()
            stack.enter_context(self._watch)
            stack.enter_context(self._collector)
            self.router.start()
            stack.enter_context(Housekeeping(self.admission, self.router, self._collector))
            self._began = True
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @property
    def endpoints(self) -> list[str]:
        return [] if self.router is None else self.router.endpoints

    def _write(self) -> None:
        """The server's own figures, beside its sessions' reports; of one that did not begin there are none."""
        if not self._began:
            return
        told = {**self.admission.health(), "dropped": dict(self.router.dropped) if self.router is not None else {}}
        del told["decoder"]  # it is closed by now
        try:
            self.options.out.mkdir(parents=True, exist_ok=True)
            (self.options.out / "server.json").write_text(json.dumps(told, indent=2) + "\n")
        except OSError as error:
            self._say(f"server.json could not be written ({error.strerror})")


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
                self._admission.drop(connection)
        if self._collector is not None:
            self._collector.collect(SLACK_NS)
