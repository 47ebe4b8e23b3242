"""`rtcontrol mcp`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Coroutine, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from rtcontrol.models.errors import UserError

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer


def mcp(
    connect: Annotated[
        str, typer.Option(help="The page of `rtcontrol run --view`, or the address of `rtcontrol serve --http`.")
    ],
    session: Annotated[str | None, typer.Option(help="Of a server's sessions, this one. (default: the newest)")] = None,
    token_file: Annotated[Path | None, typer.Option(help="The server's access token, where it wants one.")] = None,
    instruct: Annotated[
        bool, typer.Option("--instruct", help="Offer `instruct`, `resume` and `confirm`, too: the agent may act.")
    ] = False,
    run: Annotated[Path | None, typer.Option(help="The run's folder, for the recorded report.")] = None,
    http: Annotated[
        str | None, typer.Option(help="HOST:PORT: streamable HTTP at /mcp, in place of stdin and stdout.")
    ] = None,
    http_token_file: Annotated[
        Path | None, typer.Option(help="--http: the token that agents must show; made where there is none.")
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="--http: a name of this server other than its address, or the site of a page that may come in, such "
            "as http://robot.local:8765; once for each.",
        ),
    ] = None,
) -> None:
    """Let a slow agent supervise a fast loop, by MCP: status, misses with their causes, report; pause, stop, deny.

    It instructs, resumes and confirms only with --instruct. No tick waits for it. It begins also where no run does yet,
    finds the next one, and ends with its stdin. Needs pip install 'rtcontrol[mcp]'.

    Examples:

      rtcontrol run --env lander --view --view-port 8090      (in one terminal)

      rtcontrol mcp --connect http://127.0.0.1:8090 --instruct      (what the agent is told to start)

      rtcontrol mcp --connect http://127.0.0.1:8080 --session session-0001 --token-file token

      rtcontrol mcp --connect http://127.0.0.1:8090 --http 127.0.0.1:8765 --http-token-file agent-token

      rtcontrol mcp --connect http://127.0.0.1:8090 --http 0.0.0.0:8765 --http-token-file agent-token
      --allow-origin http://robot.local:8765
    """
    if find_spec("mcp") is None:
        raise UserError("The package mcp is not installed.", "Run `pip install 'rtcontrol[mcp]'`.")
    try:
        parts = urlsplit(connect)
        fits = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # of the port
        fits = False
    if not fits:
        raise UserError(f"--connect {connect!r} is no address.", "Write such as http://127.0.0.1:8080.")
    if (http is None) != (http_token_file is None):
        raise UserError(
            "--http and --http-token-file go together: whoever reaches the port may stop the run.",
            "Give both, or neither (stdin and stdout).",
        )
    if allow_origin and http is None:
        raise UserError("--allow-origin is for --http: by stdin and stdout no page comes in.", "Give --http, too.")
    from rtcontrol.gateway.mcp_server import server, watch
    from rtcontrol.gateway.options import read_token
    from rtcontrol.gateway.view_client import ViewClient

    # Standard output is the protocol's alone.
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    if token_file is not None and not token_file.is_file():
        raise UserError(f"--token-file {token_file} is no file.", "Give the one that the server was started with.")
    view = ViewClient(connect, session, None if token_file is None else read_token(token_file))
    made = server(view, instruct, run)
    if http is None:
        if sys.stdin is not None and sys.stdin.isatty():
            print("An agent starts this: it speaks MCP on stdin and stdout. Ctrl-C ends it.", file=sys.stderr)
        # The thread that reads stdin waits for it; there is nothing to put in order.
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))
        asyncio.run(watch(view, made.run_stdio_async()))
    else:
        asyncio.run(watch(view, _serve(made, http, http_token_file, allow_origin or ())))


def _serve(made: MCPServer, http: str, token_file: Path | None, origins: Sequence[str]) -> Coroutine[Any, Any, None]:
    import uvicorn
    from mcp.server.transport_security import TransportSecuritySettings

    from rtcontrol.gateway.access import AccessGate
    from rtcontrol.gateway.options import GatewayOptions

    try:
        options = GatewayOptions.parse(http, origins, token_file=token_file, require_token=True)
    except UserError as error:
        raise UserError(
            *(said.replace("--token-file", "--http-token-file") for said in (error.what, error.remedy))
        ) from None
    try:
        family = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((options.host, options.port), family=family)
    except OSError as error:
        what = f"--http {http} cannot be bound ({error.strerror or error})."
        raise UserError(what, "Choose another port or address.") from None
    # Host and Origin are the gate's: the library's own check knows the loopback's names alone.
    unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    app = AccessGate(made.streamable_http_app(transport_security=unchecked), options, lambda code: None)
    print(f"listening on http://{options.host}:{listening.getsockname()[1]}/mcp", file=sys.stderr, flush=True)
    # At its end it logs each stream that somebody still listened to as an error, with a traceback.
    quiet: dict[str, Any] = {"log_level": "critical", "access_log": False, "server_header": False}
    config = uvicorn.Config(app, timeout_graceful_shutdown=1, **quiet)
    return uvicorn.Server(config).serve([listening])
