"""The decoder pools of a server: for scripted deciders, for models, and a thread for each remote decider."""

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
from rtcontrol.serve.negotiate import SessionTerms
from rtcontrol.serve.options import ServeOptions

SPARE_SESSIONS = 32  # hosts beyond the session limit: for ending sessions, tool sets, and the server's model


class ServerPool:
    """A `DecoderPool` that combines a pool for scripted deciders and a pool for models.

    The models' pool starts with the server if `options.model` is a model, else with the first session that needs a
    model. At its start it loads `options.model`, because loading later would delay running sessions. If the models'
    pool gave up, the next session starts another pool."""

    gave_up: str | None = None

    def __init__(self, options: ServeOptions) -> None:
        self.name, self._options = options.host, options
        self._needed = options.model not in SCRIPTED and not is_endpoint(options.model)
        self._inline = InProcessPool(options.max_sessions + SPARE_SESSIONS, workers=0)
        self._lock = threading.Lock()
        self._models: DecoderPool | None = None
        self._model: Host | None = None  # this host keeps `options.model` loaded
        self._stopped: Callable[[], bool] = lambda: False

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        self._stopped = stopped
        if self._needed:
            self._start_models()
        return {}

    def _start_models(self) -> DecoderPool:
        """Return the models' pool, and start it if necessary. After a UserError, a later call may succeed."""
        with self._lock:
            if self._models is not None and self._models.gave_up is None:
                return self._models
            if self._models is not None:
                self._models.close()
            self._models = None
            models = model_pool(self._options)
            try:
                models.start(self._stopped)
                self._load_model(models)
            except BaseException:
                models.close()
                raise
            self._models = models
            return models

    def _load_model(self, models: DecoderPool) -> None:
        """Load the server's model and compile its default tools. Raises UserError if one of them fails."""
        options = self._options
        if options.model is None or not self._needed or self._stopped():
            return
        engine, dtype, threads = options.engine, options.dtype, options.threads
        spec = DeciderSpec(options.model, (FREE_VALUE,), engine=engine, dtype=dtype, threads=threads)
        self._model = models.open("the model", STSource(spec))
        if options.default_tools:
            models.open("the tools", STSource(replace(spec, tools=options.default_tools))).close()

    def open(self, session: str, source: DeciderSource) -> Host:
        if isinstance(source, EndpointSource) or assembly.reads_raw_data(source):
            # This decider waits for another machine or runs a user's code, so it needs a separate thread.
            return start_host(InProcessHost(source))
        if not isinstance(source, STSource | QuestionSource):
            return self._inline.open(session, source)
        try:
            models = self._start_models()
        except UserError as error:
            raise DecoderUnavailable(error.what, error.remedy) from error
        return models.open(session, source)

    def alive(self) -> bool:
        """Return whether the models' pool is alive, or True if no session has needed a model yet."""
        return self._models is None or self._models.alive()

    def close(self) -> None:
        self._inline.close()
        if self._models is not None:
            self._models.close()


def model_pool(options: ServeOptions) -> DecoderPool:
    """Create a decoder pool for models, without starting it."""
    limit = options.max_sessions + SPARE_SESSIONS
    if options.host == "inprocess":
        return InProcessPool(limit)
    if options.standby:
        from rtcontrol.hosts.standby import StandbyPool

        return StandbyPool(limit)
    from rtcontrol.hosts.ray_pool import RayPool

    return RayPool(limit)


def host_for(pool: DecoderPool, session: str, terms: SessionTerms) -> Host:
    """Return a session's decoder host. If the session has a backup model, only the backup is in the pool."""
    config = terms.config
    if config.backup is None:
        return assembly.with_plans(config, terms.source, pool.open(session, terms.source), terms.agent)
    backup = assembly.decider_source(config, terms.agent, config.backup)
    return assembly.with_backup(config, terms.source, pool.open(session, backup), terms.agent)
