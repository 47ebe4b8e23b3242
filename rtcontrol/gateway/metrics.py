"""`/metrics`: counts of the gateway and of the server's sessions, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from starlette.requests import Request
from starlette.responses import Response

from rtcontrol.gateway.gate import Refusal
from rtcontrol.serve.runs import COUNTS, TIMES
from rtcontrol.serve.session_manager import SessionManager
from rtcontrol.telemetry.causes import Cause
from rtcontrol.telemetry.histogram import BOUNDS_S
from rtcontrol_client.wire import Code

Endpoint = Callable[[Request], Awaitable[Response]]
BOUNDS = [*(f"{bound:g}" for bound in BOUNDS_S), "+Inf"]


class Metrics:
    """Counts of one gateway, in its own registry."""

    def __init__(self, sessions: SessionManager) -> None:
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
        self.registry.register(SessionCounts(sessions))

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def counted(self, route: str, endpoint: Endpoint) -> Endpoint:
        """Return an endpoint that answers, or refuses in OpenAI's shape; all are counted by this name of the route."""

        async def respond(request: Request) -> Response:
            try:
                response = await endpoint(request)
            except Refusal as refusal:
                self.refused.labels(refusal.code).inc()
                response = refusal.response()
            self.requests.labels(route, response.status_code).inc()
            return response

        return respond


class SessionCounts(Collector):
    """The server's sessions, whatever their transport."""

    def __init__(self, sessions: SessionManager) -> None:
        self._sessions = sessions
        self._highest: dict[tuple[object, ...], float] = {}

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        health = self._sessions.health()
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
        for metric in _sums(self._sessions):
            if metric.type == "counter":
                metric.samples = [self._rising(sample) for sample in metric.samples]
            yield metric

    def _rising(self, sample: Sample) -> Sample:
        """Return a counter's sample, or its highest before. What is known later of a tick may give it another cause,
        and Prometheus takes a counter that falls for one that starts again."""
        key = (sample.name, *sample.labels.items())
        self._highest[key] = value = max(sample.value, self._highest.get(key, 0.0))
        return sample._replace(value=value)


def _sums(sessions: SessionManager) -> Iterator[Metric]:
    """Return sums over all sessions there ever were."""
    totals = sessions.totals()
    for name, text in COUNTS.items():
        yield CounterMetricFamily(f"rtcontrol_{name}", f"{text} All sessions.", value=totals.counts[name])
    for name, counts, text in (
        ("misses", totals.misses, "Missed deadlines by cause. All sessions."),
        ("skipped_releases_by_cause", totals.skipped, "Ticks that were due and not started, by cause. All sessions."),
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
