"""`rtcontrol serve --replicas`: run the Ray Serve application on this machine, in a new Ray instance."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.hosts.ray_start import RaySession
from rtcontrol.models.errors import UserError
from rtcontrol.scale.application import build_application
from rtcontrol.scale.replica import TOKEN
from rtcontrol.serve.options import ServeOptions

NAME = "rtcontrol"
HTTP = "127.0.0.1:8080"


@contextlib.contextmanager
def serving(options: ServeOptions, stopped: Callable[[], bool]) -> Iterator[RaySession]:
    """Return a context that runs the replicas behind Serve's proxy at the address --http. Raises UserError."""
    gate = GatewayOptions.from_serve(options, options.http or HTTP, os.environ.get(TOKEN) or None)
    files = {name: getattr(options, name) for name in ("out", "keys", "token_file", "static")}
    options = replace(options, **{name: path.absolute() for name, path in files.items() if path is not None})
    session = RaySession()
    try:
        session.start(stopped)
        servers = build_application(options, cpus=0.0)  # without CPUs, new replicas can start early
        from ray import serve
        from ray.serve.schema import LoggingConfig

        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        http: Any = {"host": gate.host, "port": gate.port}
        serve.start(http_options=http, logging_config=LoggingConfig(log_level="WARNING"))
        try:
            serve.run(servers, name=NAME, route_prefix="/")
        except RuntimeError as error:
            problem = f"The servers did not start: {str(error)[-500:]}"
            raise UserError(problem, "Correct the error and start again.") from None
        yield session
        with contextlib.suppress(Exception):  # fails if Ray and the replicas have already ended
            serve.delete(NAME)
            serve.shutdown()
    finally:
        session.end()
