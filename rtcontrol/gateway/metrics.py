"""`/metrics`: the gateway's own counts and the admission's, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from rtcontrol.serve.session_manager import SessionManager
from rtcontrol.serve.stats import COUNTS, TIMES
from rtcontrol.telemetry.causes import Cause
from rtcontrol.telemetry.histogram import BOUNDS_S
from rtcontrol_client.wire import Code

WHO = ("session", "agent", "model")
ROUTES, STATUSES = (
    ("function_call", "chat", "models", "decisions", "systemone"),
    (200, 400, 401, 403, 404, 408, 413, 422, 503),
)
REFUSALS = (
    *("context_length_exceeded", "host", "incomplete", "invalid", "invalid_request", "malformed", "model_not_found"),
    *("origin", "timeout", "token", "too_large", "unsupported"),
    *("code", "content_type", "full", "locked", "public", "wrong_code"),
)
BOUNDS = [*(f"{bound:g}" for bound in BOUNDS_S), "+Inf"]


class Metrics:
    """Counts of one gateway, in a registry of its own. A session's series end with it."""

    def __init__(self, admission: SessionManager) -> None:
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
            buckets=BOUNDS_S,
            registry=self.registry,
        )
        self.call_age = Histogram(
            "rtcontrol_websocket_call_age_seconds",
            "From an observation's arrival to the departure of its call, over /ws.",
            buckets=BOUNDS_S,
            registry=self.registry,
        )
        self.websockets = Gauge("rtcontrol_websockets", "Open WebSockets.", registry=self.registry)
        self.slow = Counter(
            "rtcontrol_websockets_cut_off", "WebSockets cut off as slow readers.", registry=self.registry
        )
        self.tool_sets = Gauge("rtcontrol_tool_sets", "Tool sets of /v1 requests kept open.", registry=self.registry)
        self.registry.register(_AdmissionCounts(admission))
        for route in ROUTES:
            for status in STATUSES:
                self.requests.labels(route, status)
        for code in REFUSALS:
            self.refused.labels(code)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _AdmissionCounts(Collector):
    """The server's sessions, whatever their transport."""

    def __init__(self, admission: SessionManager) -> None:
        self._admission = admission
        self._told: dict[tuple[object, ...], float] = {}

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
        for code in Code:
            refused.add_metric([code.value], health["refused"].get(code.value, 0))
        yield refused
        sessions = [s for s in self._admission.sessions() if "ticks" in s]
        told, self._told = self._told, {}
        for metric in (*_of_all(self._admission), *_of_sessions(sessions)):
            if metric.type == "counter":
                metric.samples = [self._rising(sample, told) for sample in metric.samples]
            yield metric

    def _rising(self, sample: Sample, told: dict[tuple[object, ...], float]) -> Sample:
        """What is known later of a tick may give it another cause, or take it from those on time. A counter that falls
        would count as begun anew: this one stays until it is passed again."""
        key = (sample.name, *sample.labels.items())
        self._told[key] = value = max(sample.value, told.get(key, 0.0))
        return sample._replace(value=value)


def _of_all(admission: SessionManager) -> Iterator[Metric]:
    """Over all sessions there ever were: these never fall, whoever leaves."""
    totals = admission.totals()
    for name, text in COUNTS.items():
        yield CounterMetricFamily(f"rtcontrol_{name}", f"{text} All sessions.", value=totals.counts[name])
    for name, counts, text in (
        ("misses", totals.misses, "Missed deadlines by cause. All sessions."),
        ("skipped_releases_by_cause", totals.skipped, "Ticks that were due and not begun, by cause. All sessions."),
    ):
        family = CounterMetricFamily(f"rtcontrol_{name}", text, labels=["cause"])
        for cause in sorted({*(c.value for c in Cause), *counts}):
            family.add_metric([cause], counts[cause])
        yield family
    for name, text in TIMES.items():
        bins, total = totals.bins[name], totals.seconds[name]
        summed = list(zip(BOUNDS, accumulate(bins), strict=True))
        seconds = HistogramMetricFamily(f"rtcontrol_{name.removesuffix('_ms')}_seconds", f"{text} All sessions.")
        seconds.add_metric([], summed, total)
        yield seconds


def _of_sessions(sessions: list[dict[str, Any]]) -> Iterator[Metric]:
    who = [[str(s.get(name) or "") for name in ("id", "agent", "model")] for s in sessions]
    for name, text in COUNTS.items():
        family = CounterMetricFamily(f"rtcontrol_session_{name}", text, labels=WHO)
        for labels, session in zip(who, sessions, strict=True):
            family.add_metric(labels, session[name])
        yield family
    causes = sorted({*(c.value for c in Cause), *(c for s in sessions for c in s["misses_by_cause"])})
    misses = CounterMetricFamily("rtcontrol_session_misses", "Missed deadlines by cause.", labels=[*WHO, "cause"])
    latency = GaugeMetricFamily(
        "rtcontrol_session_latency_ms", "Latency of recent ticks, by quantile.", labels=[*WHO, "quantile"]
    )
    for labels, session in zip(who, sessions, strict=True):
        for cause in causes:
            misses.add_metric([*labels, cause], session["misses_by_cause"].get(cause, 0))
        for quantile, value in (session["latency_ms"] or {}).items():
            if value is not None:
                latency.add_metric([*labels, quantile], value)
    yield misses
    yield latency
