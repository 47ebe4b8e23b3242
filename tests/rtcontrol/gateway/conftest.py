"""A gateway on a real port, with sessions and a decoder pool in this process."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rtcontrol.gateway.app import Gateway
from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.hosts.inprocess import InProcessPool
from rtcontrol.loop.sampling import PauseWatch
from rtcontrol.models.checkpoint.checkpoint import ZOO
from rtcontrol.serve.options import ServeOptions
from rtcontrol.serve.session_manager import SessionManager
from tests.helpers.checkpoints import unnamed

sys.path.insert(0, str(Path(__file__).parent))
from gateway_peer import Serve, Served


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Return a function that starts gateways. `sessions` is the model of sessions, `separate` the server's tools; the
    default for /v1 requests is the bundled model."""
    with contextlib.ExitStack() as stack:

        def start(
            sessions: str = "noop",
            pool: InProcessPool | None = None,
            separate: Any = (),
            **options: Any,
        ) -> Served:
            pool = pool or InProcessPool()
            pool.start()
            stack.callback(pool.close)
            watch = stack.enter_context(PauseWatch(10_000_000))
            out: Path = tmp_path_factory.mktemp("serve")
            # Under a path of its own: what it was trained on is not known, so it decides for any tools.
            model = unnamed(ZOO / "lander", out / "lander")
            manager = SessionManager(
                ServeOptions(out=out, model=sessions, host="inprocess", default_tools=separate), pool, watch
            )
            over = threading.Event()

            def keep() -> None:
                while not over.wait(0.1):
                    manager.keep()

            keeper = threading.Thread(target=keep, daemon=True)
            keeper.start()
            gateway = Gateway(manager, pool, GatewayOptions(**{"port": 0, "model": str(model), **options}))
            gateway.start()
            stack.callback(gateway.close)
            stack.callback(manager.close)
            stack.callback(keeper.join)
            stack.callback(over.set)
            return Served(manager, pool, gateway)

        yield start


@pytest.fixture(scope="module")
def served(serve: Serve) -> Served:
    """Return a gateway on loopback without a token."""
    return serve()
