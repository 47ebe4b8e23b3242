"""A ROS 2 domain for one test: those that run beside it, in other processes, have others."""

from __future__ import annotations

import os
import random

# The ports of domains from 102 on are those that Linux gives to connections: now and then one is taken.
FIRST, LAST = 51, 100


def own_domain() -> dict[str, str]:
    """As environment variables. Each process of the test run draws from domains of its own; two that share one would
    drive each other's robots."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    domains = range(FIRST + worker, LAST + 1, workers)
    return {"ROS_DOMAIN_ID": str(random.choice(domains)), "ROS_LOCALHOST_ONLY": "1"}
