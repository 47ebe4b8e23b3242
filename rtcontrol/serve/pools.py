"""Where a server's sessions decide: scripted deciders on their own threads, models in one shared place."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rtcontrol.hosts.deciders import FREE_VALUE, PLAIN, QuestionSource, STSource
from rtcontrol.hosts.inprocess import InProcessHost, InProcessPool
from rtcontrol.hosts.protocol import DeciderSource, DecoderPool, DecoderUnavailable, Host
from rtcontrol.hosts.remote_api import EndpointSource, is_endpoint
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.errors import UserError
from rtcontrol.run import assembly
from rtcontrol.serve.negotiate import Terms
from rtcontrol.serve.options import ServeOptions

# Beside the sessions: those that are just ending, the gateway's sets of tools, and the model.
SPARE = 32


class Pools:
    """A `DecoderPool` of two. The models' place is made ready at the start unless `options.model` needs none: then
    with the first session that does; made anew with the first one after it gave up. A model that is named there is
    loaded with it: in the midst of sessions that would hold up their decisions."""

    gave_up: str | None = None

    def __init__(self, options: ServeOptions) -> None:
        limit = options.max_sessions + SPARE
        self.name, self._options = options.host, options
        self._inline = InProcessPool(limit, lanes=0)
        self._models, self._limit = _models(options, limit), limit
        self._eager = options.model not in PLAIN and not is_endpoint(options.model)
        self._lock = threading.Lock()
        self._started = False
        self._model: Host | None = None
        self._stopped: Callable[[], bool] = lambda: False

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        self._stopped = stopped
        return self._start() if self._eager else {}

    def _start(self) -> dict[str, Any]:
        with self._lock:
            if self._started and self._models.gave_up is None:
                return {}
            if self._started:
                self._models.close()
                self._started = False
                self._models = _models(self._options, self._limit)
            info = self._models.start(self._stopped)
            try:
                if self._options.loads is not None and not self._stopped():
                    how = {name: getattr(self._options, name) for name in ("engine", "dtype", "threads")}
                    spec = DeciderSpec(self._options.loads, (FREE_VALUE,), **how)
                    self._model = self._models.open("the model", STSource(spec))
                    if tools := self._options.default_tools:  # what every session would be refused ends the start
                        self._models.open("the tools", STSource(replace(spec, tools=tools))).close()
            except BaseException:
                self._models.close()
                self._models = _models(self._options, self._limit)  # the next one may find it mended
                raise
            self._started = True
            return info

    def open(self, session: str, source: DeciderSource) -> Host:
        if isinstance(source, EndpointSource) or assembly.makes_plans(source):
            return _waiting(source)
        if not isinstance(source, STSource | QuestionSource):
            return self._inline.open(session, source)
        try:
            self._start()
        except UserError as error:
            raise DecoderUnavailable(error.what, error.remedy) from error
        return self._models.open(session, source)

    def alive(self) -> bool:
        """Whether the models' place answers; true where none was needed yet."""
        return not self._started or self._models.alive()

    def close(self) -> None:
        self._inline.close()
        if self._started:
            self._models.close()


def open_host(pool: DecoderPool, session: str, terms: Terms) -> Host:
    """A session's host; where there is a backup, that is the pool's."""
    config = terms.config
    if config.backup is None:
        return assembly.planned(config, terms.source, pool.open(session, terms.source), terms.agent)
    spare = assembly.decider(config, terms.agent, config.backup)
    return assembly.backed(config, terms.source, pool.open(session, spare), terms.agent)


def _waiting(source: DeciderSource) -> Host:
    """On threads of its own: it waits for another machine, or is a user's code, and others must not wait with it."""
    host = InProcessHost(source)
    try:
        host.start()
    except BaseException:
        host.close()
        raise
    return host


def _models(options: ServeOptions, limit: int) -> DecoderPool:
    if options.host == "inprocess":
        return InProcessPool(limit)
    if options.standby:
        from rtcontrol.hosts.standby import StandbyPool

        return StandbyPool(limit)
    from rtcontrol.hosts.ray_pool import RayPool

    return RayPool(limit)
