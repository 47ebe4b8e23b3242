"""`/metrics`: the gateway's own counts and the admission's, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rtcontrol.serve.admission import Admission

BUCKETS_S = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)
WHO = ("session", "agent", "model")
COUNTS = {
    "releases": "Ticks that were due.",
    "ticks": "Ticks that were begun.",
    "on_time": "Ticks decided before their deadline.",
    "skipped_releases": "Ticks that were due and not begun.",
    "null": "Ticks that left the call in force.",
    "held": "Ticks held back by a confidence gate.",
}


class Metrics:
    """Counts of one gateway, in a registry of its own. A session's series end with it."""

    def __init__(self, admission: Admission) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "rtcontrol_http_requests",
            "/v1 requests by route and HTTP status.",
            ["route", "status"],
            registry=self.registry,
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
        self.call_age = Histogram(
            "rtcontrol_websocket_call_age_seconds",
            "From an observation's arrival to the departure of its call, over /ws.",
            buckets=BUCKETS_S,
            registry=self.registry,
        )
        self.websockets = Gauge("rtcontrol_websockets", "Open WebSockets.", registry=self.registry)
        self.slow = Counter(
            "rtcontrol_websockets_cut_off", "WebSockets cut off as slow readers.", registry=self.registry
        )
        self.tool_sets = Gauge("rtcontrol_tool_sets", "Tool sets of /v1 requests kept open.", registry=self.registry)
        self.registry.register(_AdmissionCounts(admission))

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _AdmissionCounts(Collector):
    """The server's sessions, whatever their transport."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def describe(self) -> list[Metric]:
        # Nothing is asked of the admission before the first scrape.
        return []

    def collect(self) -> Iterator[Metric]:
        health = self._admission.health()
        states = GaugeMetricFamily("rtcontrol_sessions", "Sessions by state.", labels=["state"])
        for state, n in health["sessions"].items():
            states.add_metric([state], n)
        yield states
        yield CounterMetricFamily("rtcontrol_sessions_opened", "Sessions ever opened.", value=health["sessions_total"])
        yield GaugeMetricFamily("rtcontrol_connections", "Connections, all transports.", value=health["connections"])
        refused = CounterMetricFamily("rtcontrol_refused_messages", "Messages refused, by code.", labels=["code"])
        for code, n in health["refused"].items():
            refused.add_metric([code], n)
        yield refused
        yield from _of_sessions([s for s in self._admission.sessions() if "ticks" in s])


def _of_sessions(sessions: list[dict[str, Any]]) -> Iterator[Metric]:
    who = [[str(s.get(name) or "") for name in ("id", "agent", "model")] for s in sessions]
    for name, text in COUNTS.items():
        family = CounterMetricFamily(f"rtcontrol_session_{name}", text, labels=WHO)
        for labels, session in zip(who, sessions, strict=True):
            family.add_metric(labels, session[name])
        yield family
    misses = CounterMetricFamily("rtcontrol_session_misses", "Missed deadlines by cause.", labels=[*WHO, "cause"])
    latency = GaugeMetricFamily(
        "rtcontrol_session_latency_ms", "Latency of recent ticks, by quantile.", labels=[*WHO, "quantile"]
    )
    for labels, session in zip(who, sessions, strict=True):
        for cause, n in session["misses_by_cause"].items():
            misses.add_metric([*labels, str(cause)], n)
        for quantile, value in (session["latency_ms"] or {}).items():
            if value is not None:
                latency.add_metric([*labels, quantile], value)
    yield misses
    yield latency
