"""Serve `/metrics`: the counts of the gateway and of the server's sessions in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
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
    """The metrics of a gateway, in a separate Prometheus registry."""

    def __init__(self, sessions: SessionManager) -> None:
        self._registry = CollectorRegistry()
        text = "/v1 requests by route and HTTP status."
        self._requests = Counter("rtcontrol_http_requests", text, ["route", "status"], registry=self._registry)
        text = "Time from the arrival of a /v1 request to its decision."
        self.latency = Histogram("rtcontrol_request_decision_seconds", text, buckets=BOUNDS_S, registry=self._registry)
        self._registry.register(SessionCounts(sessions))

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def count_responses(self, route: str, endpoint: Endpoint) -> Endpoint:
        """Return an endpoint that calls `endpoint`, and counts the responses under the name `route`. It turns a Refusal
        into an error response in OpenAI's format."""

        async def respond(request: Request) -> Response:
            try:
                response = await endpoint(request)
            except Refusal as refusal:
                response = refusal.response()
            self._requests.labels(route, response.status_code).inc()
            return response

        return respond


class SessionCounts(Collector):
    """A Prometheus collector of the counts of the server's sessions."""

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
        yield _labelled_counter(
            "refused_messages", "code", (code.value for code in Code), health["refused"], "Messages refused."
        )
        for metric in _total_metrics(self._sessions):
            if metric.type == "counter":
                metric.samples = [self._keep_highest(sample) for sample in metric.samples]
            yield metric

    def _keep_highest(self, sample: Sample) -> Sample:
        """Return the sample with the highest value of its counter so far. A counter may decrease, because the cause of
        a miss may change later; Prometheus would interpret this as a restart."""
        key = (sample.name, *sample.labels.items())
        self._highest[key] = value = max(sample.value, self._highest.get(key, 0.0))
        return sample._replace(value=value)


def _total_metrics(sessions: SessionManager) -> Iterator[Metric]:
    """Yield the metrics that are sums over all sessions since the server started."""
    totals, causes = sessions.stats.current(), [cause.value for cause in Cause]
    for name, text in COUNTS.items():
        yield CounterMetricFamily(f"rtcontrol_{name}", f"{text} All sessions.", value=totals.counts[name])
    yield _labelled_counter("misses", "cause", causes, totals.misses, "Missed deadlines. All sessions.")
    text = "Ticks that were due and not started. All sessions."
    yield _labelled_counter("skipped_releases_by_cause", "cause", causes, totals.skipped, text)
    for name, text in TIMES.items():
        summed = list(zip(BOUNDS, accumulate(totals.bins[name]), strict=True))
        seconds = HistogramMetricFamily(f"rtcontrol_{name.removesuffix('_ms')}_seconds", f"{text} All sessions.")
        seconds.add_metric([], summed, totals.seconds[name])
        yield seconds


def _labelled_counter(name: str, label: str, values: Iterable[str], counts: Mapping[str, int], text: str) -> Metric:
    """Return a counter with a label. `values`: all values of the label, which also get a sample if their count is 0."""
    family = CounterMetricFamily(f"rtcontrol_{name}", text, labels=[label])
    for value in sorted({*values, *counts}):
        family.add_metric([value], counts.get(value, 0))
    return family
