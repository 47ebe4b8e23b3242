"""Pools and small checkpoints, and this folder's helpers (`pooled`) within reach of its tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from pooled import TOOLS, tools

from rtcontrol.hosts.base import DecoderPool
from rtcontrol.hosts.deciders import STSource
from rtcontrol.hosts.inprocess import InProcessPool
from rtcontrol.hosts.ray_pool import RayPool
from rtcontrol.models.decider import DeciderSpec
from tests.models.small import build_checkpoint


@pytest.fixture(scope="package")
def ray_pool() -> Iterator[RayPool]:
    pool = RayPool()
    assert pool.start()["pid"] != os.getpid()
    yield pool
    pool.close()


@pytest.fixture(params=["inprocess", "ray"])
def pool(request: pytest.FixtureRequest) -> Iterator[DecoderPool]:
    if request.param == "ray":
        yield request.getfixturevalue("ray_pool")
    else:
        made = InProcessPool()
        made.start()
        yield made
        made.close()


@pytest.fixture(scope="package")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[STSource]:
    folder = build_checkpoint(tmp_path_factory.mktemp("pool") / "model")
    return [STSource(DeciderSpec(model=str(folder), tools=tools(named))) for named in TOOLS]
