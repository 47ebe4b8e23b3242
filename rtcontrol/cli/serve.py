"""`rtcontrol serve`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from rtcontrol.models.errors import UserError
from rtcontrol.run.options import command, named_by_time
from rtcontrol.serve.options import ServerOptions
from rtcontrol.telemetry.run_folder import Folder
from rtcontrol_client.console import StandardStreams
from rtcontrol_client.shutdown import Interrupted, Shutdown

if TYPE_CHECKING:
    from rtcontrol.gateway import Gateway
    from rtcontrol.hosts.protocol import DecoderPool
    from rtcontrol.serve.session_manager import SessionManager

EXAMPLES = """Serve programs on the other side of a socket: each brings its own tools, or names an agent.

Examples:

  rtcontrol serve

  rtcontrol serve --agent lander --bind tcp://127.0.0.1:5555 --http 127.0.0.1:8080

  rtcontrol serve --model lander --http 127.0.0.1:8080      (answers /v1 requests, decisions too: docs/decisions.md)

  rtcontrol serve --model lander --replicas 2      (two servers; clients: http://127.0.0.1:8080/connect)

  rtcontrol serve --bind tcp://0.0.0.0:5555 --keys keys      (rtcontrol keys new NAME makes the keys)

  rtcontrol serve --agent paddle --http 0.0.0.0:8080 --token-file token      (others show the token: docs/gateway.md)

  rtcontrol serve --model runs/mine --tools robot.py      (of clients and /v1 requests without tools: docs/schemas.md)

docs/protocol.md is what a client must know, docs/security.md who can reach what. Each session leaves its record and
report in --out. Exit status: 0; 1 internal error; 2 mistake in what was given; 129 SIGHUP, 130 Ctrl-C, 143 SIGTERM (the
first one ends all sessions with their safe calls, a second one changes nothing, a third one leaves).
"""
LOOK_S = 0.2
app = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)


def _serve(options: ServerOptions) -> int:
    with Shutdown() as ending, Folder(options.out, named_by_time("serve"), overwrite=True) as folder:
        try:
            run = _run if options.replicas is None else _run_replicas
            return run(replace(options, out=folder.path), ending)
        except Interrupted as interrupted:
            return interrupted.status


def _run(options: ServerOptions, ending: Shutdown) -> int:
    from rtcontrol.serve.server import Server

    gateway = None if options.http is None else _gateway(options, options.http)
    ending.of(lambda name: None)
    with StandardStreams() as output:
        say = output.out.say
        with Server(options, options.bind, keys=options.keys, http=gateway, say=say, stopped=ending.called) as server:
            for endpoint in server.endpoints:
                say(f"listening on {endpoint}")
            if server.gateway is not None:
                say(f"listening on {server.gateway.url}")
            ending.wait()
            say(f"{ending.name}: ending {len(server.admission.all())} sessions")
        say(f"records and reports: {options.out}")
    return ending.status


def _run_replicas(options: ServerOptions, ending: Shutdown) -> int:
    from rtcontrol.scale.local import HTTP, serving

    with StandardStreams() as output, serving(options, ending.called) as ray:
        say = output.out.say
        say(f"{options.replicas} servers; clients connect to http://{options.http or HTTP}/connect")
        say(f"listening on http://{options.http or HTTP}/")
        ending.of(lambda name: None)
        while not ending.called():
            if (died := ray.died()) is not None:
                raise UserError(f"Ray's {died} has ended, and the servers with it.", "Start again.")
            time.sleep(LOOK_S)
        say(f"{ending.name}: ending the servers")
    return ending.status


def _gateway(options: ServerOptions, http: str) -> Callable[[SessionManager, DecoderPool], Gateway]:
    from rtcontrol.gateway import Gateway, GatewayOptions

    told = GatewayOptions.of(options, http)
    return lambda admission, pool: Gateway(admission, pool, told)


app.command(help=EXAMPLES)(command(ServerOptions, "serve", _serve))
