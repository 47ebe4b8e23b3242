"""A cluster with Ray Serve, told its applications as KubeRay tells them: by Serve's config, at the dashboard."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.processes import free_port, until
from tests.helpers.ray_cluster import RayCluster

sys.path.insert(0, str(Path(__file__).parent))
from applications import TOKEN, TOKEN_ENV, Applications

PROCESSORS = 8


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Applications]:
    key, out = secrets.token_hex(32), tmp_path_factory.mktemp("records")
    settings = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": key, TOKEN_ENV: TOKEN}
    with RayCluster(1, PROCESSORS, free_port(), **settings) as cluster:
        made = Applications(cluster, key, out)
        until(lambda: made.are_up("open", "guarded"), "the applications did not start", 240.0, 0.2)
        yield made
