"""`rtcontrol mcp`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from rtcontrol.models.errors import UserError


def mcp(
    connect: Annotated[
        str, typer.Option(help="The page of `rtcontrol run --view`, or the address of `rtcontrol serve --http`.")
    ],
    session: Annotated[str | None, typer.Option(help="Of a server's sessions, this one. (default: the newest)")] = None,
    token_file: Annotated[Path | None, typer.Option(help="The server's access token, where it wants one.")] = None,
    instruct: Annotated[
        bool, typer.Option("--instruct", help="Offer `instruct`, `resume` and `confirm`, too: the agent may act.")
    ] = False,
) -> None:
    """Let a slow agent supervise a fast loop, by MCP: status, misses with their causes, report; pause, stop, deny.

    It instructs, resumes and confirms only with --instruct. No tick waits for it. It begins also where no run does yet,
    finds the next one, and ends with its stdin. Needs pip install 'rtcontrol[mcp]'.

    Examples:

      rtcontrol run --env lander --view --view-port 8090      (in one terminal)

      rtcontrol mcp --connect http://127.0.0.1:8090 --instruct      (what the agent is told to start)

      rtcontrol mcp --connect http://127.0.0.1:8080 --session session-0001 --token-file token
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
    from rtcontrol.gateway.mcp_server import server, watch
    from rtcontrol.gateway.options import read_token
    from rtcontrol.gateway.view_client import ViewClient

    # Standard output is the protocol's alone.
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    if token_file is not None and not token_file.is_file():
        raise UserError(f"--token-file {token_file} is no file.", "Give the one that the server was started with.")
    view = ViewClient(connect, session, None if token_file is None else read_token(token_file))
    made = server(view, instruct)
    if sys.stdin is not None and sys.stdin.isatty():
        print("An agent starts this: it speaks MCP on stdin and stdout. Ctrl-C ends it.", file=sys.stderr)
    # The thread that reads stdin waits for it; there is nothing to put in order.
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))
    asyncio.run(watch(view, made.run_stdio_async()))
