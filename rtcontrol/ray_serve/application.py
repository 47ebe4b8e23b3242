"""The application: its deployment, and the bounds that Serve gives a replica."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rtcontrol.gateway.http_server import MAX_CONNECTIONS
from rtcontrol.models.errors import UserError

NAME = "Door"
# Of requests that find all replicas full; a WebSocket counts as a request for as long as it is open.
MAX_WAITING = 64
# An open WebSocket does not end by itself when its replica is taken away: then its client goes on at another one.
END_S, LOOK_S = 5.0, 0.5


def application(arguments: Mapping[str, Any]) -> Any:
    """Raises UserError."""
    try:
        from ray import serve
    except ImportError as error:
        missing = f" ({error.name} is missing)" if error.name else ""
        raise UserError(
            f"Ray Serve is not installed{missing}.", "Run `pip install 'rtcontrol[ray-serve]'` on each machine."
        ) from None
    from ray.serve.config import RequestRouterConfig

    from rtcontrol.ray_serve.door import ServeDoor
    from rtcontrol.ray_serve.options import DoorOptions

    options = DoorOptions.parse(arguments)
    deployment = serve.deployment(
        name=NAME,
        num_replicas=options.doors,
        max_ongoing_requests=MAX_CONNECTIONS,
        max_queued_requests=MAX_WAITING,
        graceful_shutdown_timeout_s=END_S,
        graceful_shutdown_wait_loop_s=LOOK_S,
        request_router_config=RequestRouterConfig(request_router_class="rtcontrol.ray_serve.router.StickyRouter"),
    )
    return deployment(serve.ingress()(ServeDoor)).bind(dict(options.arguments))
