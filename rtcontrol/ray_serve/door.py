"""A replica: a server without addresses of its own, whose HTTP and WebSocket come from Serve."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from rtcontrol.gateway.access import ABORT, App, Receive, Scope, Send
from rtcontrol.gateway.app import GatewayApp
from rtcontrol.ray_serve.options import DoorOptions
from rtcontrol.run.options import named_by_time
from rtcontrol.serve.server import Server
from rtcontrol.telemetry.run_folder import Folder


class BehindServe:
    """ASGI: what comes through Serve, as the gateway's own server would hand it in."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        scope = _at_root(scope)
        if scope["type"] == "http":
            await self._app(scope, receive, send)
            return
        # Nobody else can end a WebSocket whose peer does not answer: its request would stay at this replica.
        task, aborted = asyncio.current_task(), asyncio.Event()

        def abort() -> None:
            aborted.set()
            if task is not None:
                task.cancel()

        scope["extensions"] = {**(scope.get("extensions") or {}), ABORT: abort}
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if not aborted.is_set():
                raise


def _at_root(scope: Scope) -> Scope:
    """Without the prefix that Serve has put the application under: the gate looks at paths as the routes have them."""
    root, path = scope.get("root_path", ""), scope["path"]
    if root and (path == root or path.startswith(f"{root}/")):
        path = path[len(root) :] or "/"
    return {**scope, "root_path": "", "path": path}


class ServeDoor:
    """What Serve makes a replica of. Its server lives in threads of its own, as that of `rtcontrol serve` does; Serve's
    event loop only takes in and sends."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._arguments, self._stack = arguments, ExitStack()

    async def __serve_build_asgi_app__(self) -> App:
        server = await asyncio.to_thread(self._opened, self._arguments)
        return BehindServe(server.gateway.gated)

    async def __del__(self) -> None:
        await asyncio.to_thread(self._stack.close)

    def _opened(self, arguments: Mapping[str, Any]) -> Server:
        import ray
        from ray import serve

        # A door of the cluster that this process is in, for as long as it lives.
        os.environ.setdefault("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
        options = DoorOptions.parse(arguments)
        gate, served = options.gate(), options.served
        if served.out.parts:
            served = replace(served, out=served.out / serve.get_replica_context().replica_id.unique_id)
        with self._stack as stack:
            folder = stack.enter_context(Folder(served.out, named_by_time("serve"), overwrite=True))
            server = Server(
                replace(served, out=folder.path),
                (),
                http=lambda admission, pool: GatewayApp(admission, pool, gate),
                say=lambda line: print(line, flush=True),
            )
            stack.enter_context(server)
            self._stack = stack.pop_all()
        return server
