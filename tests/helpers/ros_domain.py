"""A ROS 2 domain for one test that differs from the domains of tests in other processes."""

from __future__ import annotations

import os
import random

# From domain 102 on, Linux may have given a domain's ports to other connections.
FIRST, LAST = 51, 100


def own_domain() -> dict[str, str]:
    """Return the environment variables of an unused domain. Each process of the test run has its own range of domains,
    as tests in the same domain would drive each other's robots."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    domains = range(FIRST + worker, LAST + 1, workers)
    return {"ROS_DOMAIN_ID": str(random.choice(domains)), "ROS_LOCALHOST_ONLY": "1"}
