"""Pools and small checkpoints, and this folder's helpers (`pooled`, `cart`) within reach of its tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
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


@pytest.fixture(scope="package")
def _kept() -> list[RayPool]:
    return []


@pytest.fixture(scope="module")
def no_ray(_kept: list[RayPool]) -> None:
    """That of other modules is closed: whoever asks for Ray starts its own."""
    while _kept:
        _kept.pop().close()


@pytest.fixture(scope="package")
def _ray(_kept: list[RayPool]) -> Iterator[Callable[[], RayPool]]:
    kept = _kept

    def pool() -> RayPool:
        if kept and kept[-1].gave_up:
            kept.pop().close()
        if not kept:
            kept.append(RayPool())
            kept[-1].start()
        return kept[-1]

    yield pool
    for last in kept:
        last.close()


@pytest.fixture
def ray_pool(_ray: Callable[[], RayPool]) -> Iterator[RayPool]:
    """One for all tests, until one of them makes it give up."""
    with sessions_closed(_ray()) as pool:
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
