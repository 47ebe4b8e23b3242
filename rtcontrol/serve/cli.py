"""`rtcontrol serve`."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from rtcontrol.models.decider import ENGINES
from rtcontrol.models.errors import UserError

EXAMPLES = """Serve programs on the other side of a socket: each brings its own tools, or names an agent.

Examples:

  rtcontrol serve

  rtcontrol serve --agent lander --bind tcp://127.0.0.1:5555 --http 127.0.0.1:8080

  rtcontrol serve --bind tcp://0.0.0.0:5555 --keys keys      (rtcontrol keys new NAME makes the keys)

  rtcontrol serve --supervise --memory-limit-mb 4000

  rtcontrol serve --model noop --bind ipc:///tmp/rtcontrol.sock      (tries out a client without a model)

docs/protocol.md is what a client must know, docs/security.md who can reach what. Each session leaves its record and
report in --out. Exit status: 0, 1 internal error, 2 mistake in what was given, 130 Ctrl-C, 143 SIGTERM.
"""
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(help=EXAMPLES)
def serve(
    bind: Annotated[
        list[str] | None,
        typer.Option(help="ZeroMQ endpoint; may be repeated. (default: tcp://127.0.0.1:5555)", show_default=False),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(help="Serve this one only. (default: clients bring tools, or name a bundled one)"),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Checkpoint, or noop, random, expert, of clients that name none. (default: the agent's)"),
    ] = None,
    engine: Annotated[str, typer.Option(help=f"What runs the model: {', '.join(ENGINES)}.")] = "torch",
    host: Annotated[str, typer.Option(help="Where it decides: ray or inprocess.")] = "ray",
    hz: Annotated[float, typer.Option(help="Ticks a second of clients that ask for no rate.")] = 16.0,
    hz_max: Annotated[float, typer.Option(help="The highest rate of a server-paced session.")] = 100.0,
    max_sessions: Annotated[int, typer.Option(help="Sessions at once.")] = 64,
    session_grace: Annotated[float, typer.Option(help="Seconds that a session waits for its lost client.")] = 30.0,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of records and reports. (default: runs/serve-TIME)", show_default=False),
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(help="Folder of CURVE keys (`rtcontrol keys`): only listed clients come in.")
    ] = None,
    http: Annotated[
        str | None, typer.Option(help="Address of WebSocket, HTTP and the page: 127.0.0.1:8080.", show_default=False)
    ] = None,
    allow_origin: Annotated[
        list[str] | None, typer.Option(help="Let pages of this origin in; may be repeated.", show_default=False)
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="Access token of other origins and machines.", show_default=False)
    ] = None,
    static: Annotated[
        Path | None, typer.Option(help="Serve the pages of this folder, too.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of --model random.")] = 0,
    supervise: Annotated[bool, typer.Option("--supervise", help="Start the server again when it dies.")] = False,
    memory_limit_mb: Annotated[
        float | None,
        typer.Option(help="Kill and restart the server above it; means --supervise.", show_default=False, min=1.0),
    ] = None,
) -> None:
    if http is None:
        given = {"--allow-origin": allow_origin, "--token-file": token_file, "--static": static}
        if idle := [name for name, value in given.items() if value]:
            raise UserError(f"{idle[0]} is for --http, which is not given.", "Add --http 127.0.0.1:8080.")
    made = Path("runs") / f"serve-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    if supervise or memory_limit_mb is not None:
        from rtcontrol.serve.supervise import command_line

        # This process becomes the small parent: what is imported here would stay in its memory. The folder is chosen
        # once, for all restarts.
        command = command_line(sys.argv[1:], memory_limit_mb, [] if out else ["--out", str(made)])
        os.execv(command[0], command)

    from rtcontrol.serve.options import ServeOptions
    from rtcontrol.serve.outbox import Outbox, OutboxLog
    from rtcontrol.serve.server import Server
    from rtcontrol.serve.signals import until_signal

    options = ServeOptions(
        out=out or made,
        agent=agent,
        model=model,
        engine=engine,
        host=host,
        hz=hz,
        hz_max=hz_max,
        seed=seed,
        max_sessions=max_sessions,
        session_grace_s=session_grace,
    )
    endpoints = bind or ["tcp://127.0.0.1:5555"]
    gateway = None if http is None else _gateway(http, allow_origin or [], token_file, static, options)
    with until_signal() as ended, Outbox(1) as out_loud, Outbox(2) as errors, OutboxLog(errors):
        say = out_loud.say
        with Server(options, endpoints, keys=keys, http=gateway, say=say, stopped=ended.called) as server:
            for endpoint in server.endpoints:
                say(f"listening on {endpoint}")
            if server.gateway is not None:
                say(f"listening on {server.gateway.url}")
            ended.wait()
            say(f"{ended.name}: ending {len(server.admission.sessions())} sessions")
        say(f"records and reports: {options.out}")
    raise typer.Exit(ended.status)


def _gateway(http: str, origins: list[str], token_file: Path | None, static: Path | None, options: Any) -> Any:
    try:
        from rtcontrol.gateway.options import GatewayOptions
    except ImportError as error:
        raise UserError(f"--http needs the gateway ({error}).", 'Install "rtcontrol[gateway]".') from error
    return GatewayOptions.parse(http, origins, token_file, static, options.model, options.engine)
