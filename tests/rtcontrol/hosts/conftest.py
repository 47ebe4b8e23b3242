"""Fixtures for decoder pools and small checkpoints; makes the helpers of this folder (`pooled`, `cart`) importable."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from pooled import TOOLS, sessions_closed, tools

from rtcontrol.hosts.deciders import STSource
from rtcontrol.hosts.inprocess import InProcessPool
from rtcontrol.hosts.protocol import DecoderPool
from rtcontrol.hosts.ray_pool import RayPool
from rtcontrol.models.decider import DeciderSpec
from tests.models.small import build_checkpoint

KEPT: list[RayPool] = []


def close_kept() -> None:
    while KEPT:
        KEPT.pop().close()


@pytest.fixture(scope="module")
def no_ray() -> None:
    """Close the Ray pool that other test modules share, so that the test starts its own Ray."""
    close_kept()


@pytest.fixture(scope="package")
def _ended() -> Iterator[None]:
    yield
    close_kept()


@pytest.fixture
def ray_pool(_ended: None) -> Iterator[RayPool]:
    """Return one Ray pool for all tests; a new one if a test made it give up."""
    if KEPT and KEPT[-1].gave_up:
        close_kept()
    if not KEPT:
        KEPT.append(RayPool())
        KEPT[-1].start()
    with sessions_closed(KEPT[-1]) as pool:
        yield pool


@pytest.fixture(params=["inprocess", "ray"])
def pool(request: pytest.FixtureRequest) -> Iterator[DecoderPool]:
    if request.param == "ray":
        yield request.getfixturevalue("ray_pool")
    else:
        inprocess = InProcessPool()
        inprocess.start()
        with sessions_closed(inprocess):
            yield inprocess
        inprocess.close()


@pytest.fixture(scope="package")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[STSource]:
    folder = build_checkpoint(tmp_path_factory.mktemp("pool") / "model")
    return [STSource(DeciderSpec(model=str(folder), tools=tools(named))) for named in TOOLS]
