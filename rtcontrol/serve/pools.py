"""Decoder pools of a server: a session is decided in its loop, on a thread, or in the models' pool."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rtcontrol.hosts.deciders import FREE_VALUE, SCRIPTED, QuestionSource, STSource
from rtcontrol.hosts.inprocess import InProcessHost, InProcessPool
from rtcontrol.hosts.pool import start_host
from rtcontrol.hosts.protocol import DeciderSource, DecoderPool, DecoderUnavailable, Host
from rtcontrol.hosts.remote_api import EndpointSource, is_endpoint
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.errors import UserError
from rtcontrol.run import assembly
from rtcontrol.serve.negotiate import Terms
from rtcontrol.serve.options import ServeOptions

SPARE = 32  # places for sessions that are ending, the gateway's tool sets, and the model


class Pools:
    """A `DecoderPool` that combines an inline pool and a pool of models. The models' pool starts with the server if
    `options.model` needs it, else with the first session that does, and restarts after it gave up. The pool loads
    `options.model` when it starts: loading later would delay the decisions of running sessions."""

    gave_up: str | None = None

    def __init__(self, options: ServeOptions) -> None:
        self.name, self._options = options.host, options
        self._needed = options.model not in SCRIPTED and not is_endpoint(options.model)
        self._inline = InProcessPool(options.max_sessions + SPARE, workers=0)
        self._lock = threading.Lock()
        self._models: DecoderPool | None = None
        self._model: Host | None = None  # keeps the model loaded
        self._stopped: Callable[[], bool] = lambda: False

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        self._stopped = stopped
        if self._needed:
            self._ready()
        return {}

    def _ready(self) -> DecoderPool:
        """Start the models' pool if necessary, and return it. Raises UserError; a later call may succeed."""
        with self._lock:
            if self._models is not None and self._models.gave_up is None:
                return self._models
            if self._models is not None:
                self._models.close()
            self._models = None
            models = model_pool(self._options)
            try:
                models.start(self._stopped)
                self._load(models)
            except BaseException:
                models.close()
                raise
            self._models = models
            return models

    def _load(self, models: DecoderPool) -> None:
        """Load the server's model and default tools. Raises UserError for an error that would affect every session."""
        options = self._options
        if options.model is None or not self._needed or self._stopped():
            return
        engine, dtype, threads = options.engine, options.dtype, options.threads
        spec = DeciderSpec(options.model, (FREE_VALUE,), engine=engine, dtype=dtype, threads=threads)
        self._model = models.open("the model", STSource(spec))
        if options.default_tools:
            models.open("the tools", STSource(replace(spec, tools=options.default_tools))).close()

    def open(self, session: str, source: DeciderSource) -> Host:
        if isinstance(source, EndpointSource) or assembly.reads_data(source):
            # On separate threads: the decider waits for another machine, or runs a user's code.
            return start_host(InProcessHost(source))
        if not isinstance(source, STSource | QuestionSource):
            return self._inline.open(session, source)
        try:
            models = self._ready()
        except UserError as error:
            raise DecoderUnavailable(error.what, error.remedy) from error
        return models.open(session, source)

    def alive(self) -> bool:
        """Return whether the models' pool answers; True if no session has needed that pool yet."""
        return self._models is None or self._models.alive()

    def close(self) -> None:
        self._inline.close()
        if self._models is not None:
            self._models.close()


def model_pool(options: ServeOptions) -> DecoderPool:
    """Return a new pool for models, which is not started yet."""
    limit = options.max_sessions + SPARE
    if options.host == "inprocess":
        return InProcessPool(limit)
    if options.standby:
        from rtcontrol.hosts.standby import StandbyPool

        return StandbyPool(limit)
    from rtcontrol.hosts.ray_pool import RayPool

    return RayPool(limit)


def host_for(pool: DecoderPool, session: str, terms: Terms) -> Host:
    """Return a session's host. If there is a backup, the pool decides for the backup."""
    config = terms.config
    if config.backup is None:
        return assembly.planned(config, terms.source, pool.open(session, terms.source), terms.agent)
    spare = assembly.decider(config, terms.agent, config.backup)
    return assembly.backed(config, terms.source, pool.open(session, spare), terms.agent)
