"""Which replica a request goes to. Serve's proxies load this module; it loads nothing else of the project."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter


class StickyRouter(ConsistentHashRouter):
    """Requests with one `x-session-id` go to one replica, as long as it takes them. The others go to the less busy one
    of two that are drawn, as Serve does it by itself: hashed, they would be spread without a look at who is busy."""

    async def choose_replicas(self, candidate_replicas: Sequence[Any], pending_request: Any = None) -> list[list[Any]]:
        if pending_request is None or pending_request.metadata.session_id or not candidate_replicas:
            chosen: list[list[Any]] = await super().choose_replicas(candidate_replicas, pending_request)
            return chosen
        pending_request.routing_context.should_backoff = True
        return [random.sample(list(candidate_replicas), min(2, len(candidate_replicas)))]
