"""Which replica a request goes to. Serve's proxies load this module; it loads nothing else of the project.

A client's tools lead to the replica that a consistent hash names, unless that one has much more to do than the others
(consistent hashing with bounded loads). Requests without tools go to the least loaded replica.
"""

from __future__ import annotations

import contextlib
import pickle
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter

LIGHT, ABOVE_MEAN = 0.4, 1.25  # busy shares up to which a replica keeps its tools
SESSION = 0.05  # what a session counts until its replica has measured it
STALE_S = 3.0  # a replica whose figures are older may be frozen


class ReplicaRouter(ConsistentHashRouter):
    """Routes /connect by tools and load, other requests by `x-session-id`, else by load."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._named: Counter[Any] = Counter()  # sessions that a replica does not count yet
        self._reports: dict[Any, tuple[dict[str, Any], float]] = {}  # the newest figures, and when they came

    async def choose_replicas(self, candidate_replicas: Sequence[Any], pending_request: Any = None) -> list[list[Any]]:
        path, headers = request_of(pending_request)
        connects = path.endswith("/connect")
        by_session = pending_request is not None and pending_request.metadata.session_id and not connects
        if pending_request is None or not candidate_replicas or by_session:
            return list(await super().choose_replicas(candidate_replicas, pending_request))
        pending_request.routing_context.should_backoff = True
        self._look(candidate_replicas)
        order = sorted(candidate_replicas, key=self._load)
        if connects:
            order = self._by_tools(headers.get("x-tools", "")[:128], order)
            lost = headers.get("x-lost")
            order.sort(key=lambda replica: lost is not None and replica.routing_stats.get("address") == lost)
            self._named[order[0].replica_id] += 1
        # Each rank is one replica: of several Serve would take the one with the fewest requests.
        return [[replica] for replica in order]

    def _by_tools(self, tools: str, order: list[Any]) -> list[Any]:
        """Return the replicas with the first of the ring that is not too busy in front."""
        most = max(LIGHT, ABOVE_MEAN * sum(self._load(replica)[1] for replica in order) / len(order))
        by_id = {replica.replica_id: replica for replica in order}
        for replica_id in self._lookup_ranked_replicas(tools) if tools else ():
            if replica_id in by_id and self._load(by_id[replica_id]) <= (False, most):
                return [by_id[replica_id], *(other for other in order if other.replica_id != replica_id)]
        return order

    def _look(self, replicas: Sequence[Any]) -> None:
        """Note when each replica's figures changed last; they count what was named before."""
        for replica in replicas:
            if self._reports.get(replica.replica_id, (None,))[0] != replica.routing_stats:
                self._reports[replica.replica_id] = dict(replica.routing_stats), time.monotonic()
                self._named[replica.replica_id] = 0
        for gone in self._reports.keys() - {replica.replica_id for replica in replicas}:
            del self._reports[gone], self._named[gone]

    def _load(self, replica: Any) -> tuple[bool, float]:
        """Return whether it should get no session, and its busy share with the sessions named since."""
        figures, came_s = self._reports[replica.replica_id]
        stale = bool(figures) and time.monotonic() - came_s > STALE_S
        return stale or figures.get("full", False), figures.get("busy", 0.0) + SESSION * self._named[replica.replica_id]


def request_of(pending_request: Any) -> tuple[str, dict[str, str]]:
    """Return the path and headers of an HTTP request that Serve's proxy is about to send, empty for another one."""
    scope: dict[str, Any] = {}
    with contextlib.suppress(Exception):
        # The proxy, in whose process this runs, has packed its own request.
        scope = pickle.loads(pending_request.args[0])._asgi_scope
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope.get("headers", ())}
    return scope.get("path", ""), headers
