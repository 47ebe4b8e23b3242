"""`/metrics`: the gateway's own counts and the lobby's, in Prometheus' text format."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from rtcontrol.serve.lobby import Lobby

BUCKETS_S = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)


class Metrics:
    """Counts of one gateway, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "rtcontrol_http_requests", "Requests by route and HTTP status.", ["route", "status"], registry=self.registry
        )
        self.refused = Counter(
            "rtcontrol_http_refused", "HTTP and WebSocket requests refused, by code.", ["code"], registry=self.registry
        )
        self.latency = Histogram(
            "rtcontrol_request_decision_seconds",
            "From a /v1 request's body to its decision.",
            buckets=BUCKETS_S,
            registry=self.registry,
        )
        self.websockets = Gauge("rtcontrol_websockets", "Open WebSockets.", registry=self.registry)
        self.slow = Gauge("rtcontrol_websockets_cut_off", "WebSockets cut off as slow readers.", registry=self.registry)
        self.tool_sets = Gauge("rtcontrol_tool_sets", "Tool sets of /v1 requests kept open.", registry=self.registry)

    def text(self, lobby: Lobby) -> bytes:
        return generate_latest(self.registry)
