"""Choose the replica for a request. Serve's proxies load this module, so it imports no other module of the project.

A consistent hash of the client's tools selects a replica, unless this replica has a much higher load than the others
(consistent hashing with bounded loads). Requests without tools go to the replica with the lowest load.
"""

from __future__ import annotations

import contextlib
import pickle
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter

LIGHT, ABOVE_MEAN = 0.4, 1.25  # the hash chooses replicas up to this busy share, or up to this multiple of the mean
SESSION = 0.05  # assumed busy share of a session that its replica has not yet reported
STALE_S = 3.0  # a replica whose stats are older may be frozen


class ReplicaRouter(ConsistentHashRouter):
    """A router that chooses a replica: for /connect by tools and load, for other requests by `x-session-id` or load."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._assigned: Counter[Any] = Counter()  # by replica: new sessions that its stats do not yet include
        self._reports: dict[Any, tuple[dict[str, Any], float]] = {}  # by replica: (newest stats, time of arrival)

    async def choose_replicas(self, candidate_replicas: Sequence[Any], pending_request: Any = None) -> list[list[Any]]:
        path, headers = path_and_headers(pending_request)
        connects = path.endswith("/connect")
        by_session = pending_request is not None and pending_request.metadata.session_id and not connects
        if pending_request is None or not candidate_replicas or by_session:
            return list(await super().choose_replicas(candidate_replicas, pending_request))
        pending_request.routing_context.should_backoff = True
        self._update_reports(candidate_replicas)
        order = sorted(candidate_replicas, key=self._load_of)
        if connects:
            order = self._prefer_replica_of_tools(headers.get("x-tools", "")[:128], order)
            lost = headers.get("x-lost")
            order.sort(key=lambda replica: lost is not None and replica.routing_stats.get("address") == lost)
            self._assigned[order[0].replica_id] += 1
        # Give each rank one replica, because within a rank Serve would choose by the number of requests.
        return [[replica] for replica in order]

    def _prefer_replica_of_tools(self, tools: str, order: list[Any]) -> list[Any]:
        """Move the replica that the hash of the tools selects to the front of `order`, unless its load is too high."""
        limit = max(LIGHT, ABOVE_MEAN * sum(self._load_of(replica)[1] for replica in order) / len(order))
        by_id = {replica.replica_id: replica for replica in order}
        for replica_id in self._lookup_ranked_replicas(tools) if tools else ():
            if replica_id in by_id and self._load_of(by_id[replica_id]) <= (False, limit):
                return [by_id[replica_id], *(other for other in order if other.replica_id != replica_id)]
        return order

    def _update_reports(self, replicas: Sequence[Any]) -> None:
        """Store replicas' new statistics, and reset the counts of assigned sessions, which the statistics include."""
        for replica in replicas:
            if self._reports.get(replica.replica_id, (None,))[0] != replica.routing_stats:
                self._reports[replica.replica_id] = dict(replica.routing_stats), time.monotonic()
                self._assigned[replica.replica_id] = 0
        for removed_id in self._reports.keys() - {replica.replica_id for replica in replicas}:
            del self._reports[removed_id], self._assigned[removed_id]

    def _load_of(self, replica: Any) -> tuple[bool, float]:
        """Return whether a replica must get no new session, and its decoder load with newly assigned sessions."""
        stats, received_s = self._reports[replica.replica_id]
        stale = bool(stats) and time.monotonic() - received_s > STALE_S
        busy = stats.get("busy", 0.0) + SESSION * self._assigned[replica.replica_id]
        return stale or stats.get("full", False), busy


def path_and_headers(pending_request: Any) -> tuple[str, dict[str, str]]:
    """Return the path and the headers of an HTTP request of Serve's proxy. Both are empty for other requests."""
    scope: dict[str, Any] = {}
    with contextlib.suppress(Exception):
        # Unpickling is safe, because this process (the proxy) has pickled the request.
        scope = pickle.loads(pending_request.args[0])._asgi_scope
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope.get("headers", ())}
    return scope.get("path", ""), headers
