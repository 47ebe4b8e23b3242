"""`/metrics`: the gateway's own counts and the admission's, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from rtcontrol.serve.runs import COUNTS, TIMES
from rtcontrol.serve.session_manager import SessionManager
from rtcontrol.telemetry.causes import Cause
from rtcontrol.telemetry.histogram import BOUNDS_S
from rtcontrol_client.wire import Code

BOUNDS = [*(f"{bound:g}" for bound in BOUNDS_S), "+Inf"]


class Metrics:
    """Counts of one gateway, in its own registry."""

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
        told, self._told = self._told, {}
        for metric in _of_all(self._admission):
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
