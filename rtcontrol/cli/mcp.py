"""`rtcontrol mcp`."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Coroutine
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
) -> None:
    """Let a slow agent supervise a fast loop, by MCP: status, misses with their causes, report; pause, stop, deny.

    It instructs, resumes and confirms only with --instruct. No tick waits for it. It begins also where no run does yet,
    finds the next one, and ends with its stdin. Needs pip install 'rtcontrol[mcp]'.

    Examples:

      rtcontrol run --env lander --view --view-port 8090      (in one terminal)

      rtcontrol mcp --connect http://127.0.0.1:8090 --instruct      (what the agent is told to start)

      rtcontrol mcp --connect http://127.0.0.1:8080 --session session-0001 --token-file token

      rtcontrol mcp --connect http://127.0.0.1:8090 --http 127.0.0.1:8765 --http-token-file agent-token
    """
    if find_spec("mcp") is None:
        raise UserError("The package mcp is not installed.", "Run `pip install 'rtcontrol[mcp]'`.")
    parts = urlsplit(connect)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(f"--connect {connect!r} is no address.", "Write such as http://127.0.0.1:8080.")
    if (http is None) != (http_token_file is None):
        raise UserError(
            "--http and --http-token-file go together: whoever reaches the port may stop the run.",
            "Give both, or neither (stdin and stdout).",
        )
    from rtcontrol.gateway.mcp_server import server, watch
    from rtcontrol.gateway.options import read_token
    from rtcontrol.gateway.view_client import ViewClient

    # Standard output is the protocol's alone.
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    if token_file is not None and not token_file.is_file():
        raise UserError(f"--token-file {token_file} is no file.", "Give the one that the server was started with.")
    view = ViewClient(connect, session, None if token_file is None else read_token(token_file))
    made = server(view, instruct, run)
    serving = made.run_stdio_async() if http is None else _serve(made, http, http_token_file)
    asyncio.run(watch(view, serving))


def _serve(made: MCPServer, http: str, token_file: Path | None) -> Coroutine[Any, Any, None]:
    import uvicorn

    from rtcontrol.gateway.access import AccessGate
    from rtcontrol.gateway.options import GatewayOptions

    options = GatewayOptions.parse(http, token_file=token_file, require_token=True)
    app = AccessGate(made.streamable_http_app(host=options.host), options, lambda code: None)
    print(f"listening on http://{http}/mcp", file=sys.stderr)
    quiet: dict[str, Any] = {"log_level": "warning", "access_log": False, "server_header": False}
    return uvicorn.Server(uvicorn.Config(app, host=options.host, port=options.port, **quiet)).serve()
