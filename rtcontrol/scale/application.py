"""The Ray Serve application: one deployment, with settings for placement, health checks, draining and scaling."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

from rtcontrol.gateway.http_server import MAX_CONNECTIONS
from rtcontrol.hosts.deciders import SCRIPTED
from rtcontrol.hosts.remote_api import is_endpoint
from rtcontrol.models.errors import UserError
from rtcontrol.serve.options import ANY_PORT, ServeOptions, parse_replicas
from rtcontrol.settings import find_setting, settings_of

NAME = "Server"
MAX_WAITING = 64  # maximum queued requests while all replicas are full (an open WebSocket is a request)
END_S, LOOK_S = 9.0, 0.2  # seconds: maximum shutdown after the grace (with reports), interval of checks
HEALTH_S, SICK_S, STATS_S = 1.0, 5.0, 0.5
UP_S, DOWN_S = 3.0, 60.0
TARGET = 0.6  # a decoder should be busy for this share of its time (3/4 of the default `max_decoder_load`)


def parse_options(args: dict[str, Any]) -> ServeOptions:
    """Parse arguments, which may be text or typed values, and return server options. Raises UserError."""
    words = {name.replace("-", "_"): value for name, value in {"replicas": "1", **args}.items() if value is not None}
    if "http" in words:
        raise UserError("http is not an argument of rtcontrol.scale.", "Set the address in Serve's `http_options`.")
    settings, values = settings_of(ServeOptions), {}
    for word, value in words.items():
        origin = f"rtcontrol.scale: {word}"
        entry = settings.get(word) or find_setting(ServeOptions, word, origin, "serve")
        text = value if isinstance(value, str) else json.dumps(value)
        values[entry.name] = entry.typed_value(text, f"{origin} = {text}")
    return ServeOptions(**values)


def build_application(options: ServeOptions, cpus: float = 1.0) -> Any:
    """Return the Ray Serve application. Each replica reserves `cpus` and a part of the GPUs. Raises UserError."""
    options.check()
    try:
        import ray
        from ray import serve
        from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

        from rtcontrol.scale.replica import GRACE_S, Replica
    except ImportError as error:
        problem = f"Ray Serve is not installed ({error.name} is missing)."
        raise UserError(problem, "Run `pip install 'rtcontrol[ray-serve]'` on each machine.") from None
    minimum, maximum = parse_replicas(options.replicas)
    count: dict[str, Any] = {"num_replicas": minimum}
    if maximum > minimum:
        policy = AutoscalingPolicy(policy_function="rtcontrol.scale.application:replicas_for")
        bounds = {"min_replicas": minimum, "max_replicas": maximum, "policy": policy}
        count = {"autoscaling_config": AutoscalingConfig(upscale_delay_s=UP_S, downscale_delay_s=DOWN_S, **bounds)}
    decides_here = not (options.model in SCRIPTED or is_endpoint(options.model))
    gpus = ray.cluster_resources().get("GPU", 0) / maximum if decides_here and ray.is_initialized() else 0
    deployment = serve.deployment(
        name=NAME,
        max_ongoing_requests=MAX_CONNECTIONS,
        max_queued_requests=MAX_WAITING,
        graceful_shutdown_timeout_s=GRACE_S + END_S,
        graceful_shutdown_wait_loop_s=LOOK_S,
        health_check_period_s=HEALTH_S,
        health_check_timeout_s=SICK_S,
        max_constructor_retry_count=3,
        max_surge_percent=100,  # new replicas load a new model before old replicas end
        request_router_config=RequestRouterConfig(
            request_router_class="rtcontrol.scale.router.ReplicaRouter",
            request_routing_stats_period_s=STATS_S,
            request_routing_stats_timeout_s=SICK_S,
        ),
        ray_actor_options={"num_cpus": cpus, "num_gpus": min(1, gpus)},
        **count,
    )
    bind = (ANY_PORT,) if options.bind == ServeOptions().bind else options.bind
    return deployment(serve.ingress()(Replica)).bind(replace(options, bind=bind))


def replicas_for(context: Any) -> tuple[int, dict[str, Any]]:
    """Return how many replicas are needed so that decoders are busy for the fraction TARGET of the time."""
    loads = (context.aggregated_metrics or {}).get("busy", {})
    return max(1, math.ceil(sum(loads.values()) / TARGET - 1e-9)), {}
