"""A Ray Serve replica, which is a complete server. HTTP and WebSocket go through Serve's proxy, but ZeroMQ does not."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from rtcontrol.gateway.app import GatewayApp
from rtcontrol.gateway.http_server import ABORT
from rtcontrol.gateway.options import GatewayOptions
from rtcontrol.models.errors import UserError
from rtcontrol.run.options import timestamped_folder
from rtcontrol.serve.options import ServeOptions
from rtcontrol.serve.server import Server
from rtcontrol.telemetry.run_folder import RunFolder
from rtcontrol_client.wire.curve import SERVER, load_public
from rtcontrol_client.wire.endpoint import Endpoint

TOKEN, LOCAL, ANYWHERE = "RTCONTROL_TOKEN", "127.0.0.1:0", "0.0.0.0:0"
RETRY_AFTER_S = 1
BUSY = {"error": {"message": "All servers are full, draining or starting.", "type": "busy"}}
GRACE_S = 1.0  # sessions change to other servers this many seconds after draining starts
HEARTBEAT_S = 0.5  # seconds; after 3 missed heartbeats, clients connect to another server
LOOK_S = 0.05


class Replica:
    """The deployment class of Ray Serve. The server has separate threads; Serve's event loop only passes requests."""

    def __init__(self, options: ServeOptions) -> None:
        self._options = replace(options, host="inprocess", heartbeat_s=HEARTBEAT_S)
        self._stack = ExitStack()
        self._key = None if options.keys is None else load_public(options.keys / f"{SERVER}.key")
        self._server: Server | None = None

    async def __serve_build_asgi_app__(self) -> ASGIApp:
        self._server = server = await asyncio.to_thread(self._start)
        threading.Thread(target=self._watch, name="drain", daemon=True).start()
        return ReplicaApp(self, server.gateway.gated)

    async def __del__(self) -> None:
        await asyncio.to_thread(self._close)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the decoder load, from which `application.replicas_for` computes the number of replicas."""
        return {"busy": 0.0 if self._server is None else self._server.sessions.decoder_load()}

    def record_routing_stats(self) -> dict[str, Any]:
        """Return the statistics by which `ReplicaRouter` chooses a replica. A frozen replica's `t_s` stays the same."""
        address = None if self._server is None else self._server.router.endpoints[0]
        full = self.connect_info() is None
        return {"address": address, "full": full, "t_s": time.time(), **self.record_autoscaling_stats()}

    def connect_info(self) -> dict[str, Any] | None:
        """Return the server's ZeroMQ address and public key for /connect, or None if it refuses new sessions."""
        if self._server is None or not self._server.sessions.has_room():
            return None
        return {"address": self._server.router.endpoints[0], "server_key": self._key}

    def _start(self) -> Server:
        from ray import serve

        options = self._options
        if options.out.parts:
            options = replace(options, out=options.out / serve.get_replica_context().replica_id.unique_id)
        gate = gateway_options(options)
        with self._stack as stack:
            folder = stack.enter_context(RunFolder(options.out, timestamped_folder("serve"), overwrite=True))
            http = lambda sessions, pool: GatewayApp(sessions, pool, gate)  # noqa: E731
            server = Server(replace(options, out=folder.path), [zmq_address(options)], keys=options.keys, http=http)
            stack.enter_context(server)
            self._stack = stack.pop_all()
        return server

    def _watch(self) -> None:
        """Wait until Serve stops this replica, and drain at once. Serve calls `__del__` only after open WebSockets."""
        from ray._private.worker import global_worker

        actor = global_worker.actors.get(global_worker.actor_id)
        while not getattr(getattr(actor, "_replica_impl", None), "_shutting_down", False):
            time.sleep(LOOK_S)
        self._drain()

    def _drain(self) -> None:
        if self._server is not None:
            self._server.sessions.drain(GRACE_S)

    def _close(self) -> None:
        self._drain()
        self._stack.close()


class ReplicaApp:
    """An ASGI application that answers /connect, and passes other requests to the gateway."""

    def __init__(self, replica: Replica, app: ASGIApp) -> None:
        self._replica, self._app = replica, app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            scope = without_route_prefix(scope)
        if scope["type"] == "http" and (scope["method"], scope["path"]) == ("GET", "/connect"):
            await connect_response(self._replica.connect_info())(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Cancel a WebSocket whose client does not answer. Otherwise its request would never end.
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


def connect_response(info: dict[str, Any] | None) -> JSONResponse:
    """Return the response to /connect: the server's address, or status 503 if `info` is None."""
    headers = {"cache-control": "no-store"}
    if info is None:
        return JSONResponse(BUSY, 503, {**headers, "retry-after": str(RETRY_AFTER_S)})
    return JSONResponse(info, headers=headers)


def without_route_prefix(scope: Scope) -> Scope:
    """Return the ASGI scope without Serve's route prefix, because `AccessGate` compares paths without a prefix."""
    root, path = scope.get("root_path", ""), scope["path"]
    if root and (path == root or path.startswith(f"{root}/")):
        path = path[len(root) :] or "/"
    return {**scope, "root_path": "", "path": path}


def gateway_options(options: ServeOptions) -> GatewayOptions:
    """Return the gateway's options. With a token, all requests need it, because those of Serve's proxy look local."""
    if options.token_file is not None and not options.token_file.exists():  # each replica would create another token
        raise UserError(f"token_file {options.token_file} is missing on a replica's machine.", "Copy the file there.")
    token = os.environ.get(TOKEN, "").strip() or None
    guarded = token is not None or options.token_file is not None
    if not guarded and os.environ.get("RAY_SERVE_ENABLE_HA_PROXY", "0") == "1":
        problem = "Serve's HAProxy (RAY_SERVE_ENABLE_HA_PROXY) hides the origin of requests, and there is no token."
        raise UserError(problem, f"Set {TOKEN}, or give token_file.")
    return GatewayOptions.from_serve(replace(options, require_token=guarded), ANYWHERE if guarded else LOCAL, token)


def zmq_address(options: ServeOptions) -> str:
    """Return the ZeroMQ address to bind. Replace 0.0.0.0, to which clients cannot connect, by this node's address."""
    import ray

    where = Endpoint.parse(options.bind[0])
    host = ray.util.get_node_ip_address() if where.host in ("*", "0.0.0.0", "::") else where.host
    return f"tcp://[{host}]:{where.port}" if ":" in host else f"tcp://{host}:{where.port}"
