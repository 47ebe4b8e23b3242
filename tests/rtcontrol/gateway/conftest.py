"""A server with a gateway on a real port in this process."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rtcontrol.gateway.app import Gateway
from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.hosts.inprocess import InProcessPool
from rtcontrol.hosts.protocol import DecoderPool
from rtcontrol.models.checkpoint.checkpoint import ZOO
from rtcontrol.serve.session_manager import SessionManager
from tests.helpers.checkpoints import unnamed
from tests.rtcontrol.serve.conftest import serving

sys.path.insert(0, str(Path(__file__).parent))
from gateway_peer import Flying, Serve, Served


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Return a function that starts gateways. `sessions` is the model of sessions; the default for /v1 requests is a
    copy of the bundled model that decides for any tools."""
    with contextlib.ExitStack() as stack:

        def start(sessions: str = "noop", **options: Any) -> Served:
            pool, out = InProcessPool(), tmp_path_factory.mktemp("serve")
            pool.start()
            stack.callback(pool.close)
            given = GatewayOptions(**{"port": 0, "model": str(unnamed(ZOO / "lander", out / "lander")), **options})

            def http(manager: SessionManager, _: DecoderPool) -> Gateway:
                manager.pool = pool
                return Gateway(manager, pool, given)

            running = stack.enter_context(serving(out, http, model=sessions))
            return Served(running.sessions, pool, running.server.gateway)

        yield start


@pytest.fixture(scope="module")
def served(serve: Serve) -> Served:
    """Return a gateway on loopback without a token."""
    return serve()


@contextlib.contextmanager
def flown(folder: Path) -> Iterator[Flying]:
    program = Flying(folder)
    try:
        yield program
    finally:
        program.kill()


@pytest.fixture(scope="module")
def flying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flying]:
    """Start a run with a live view that the tests of a file share."""
    with flown(tmp_path_factory.mktemp("flying")) as program:
        yield program


@pytest.fixture
def separate(tmp_path: Path) -> Iterator[Flying]:
    """Start a run that a test may pause and stop."""
    with flown(tmp_path) as program:
        yield program
