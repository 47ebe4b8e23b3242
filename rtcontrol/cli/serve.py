"""The commands `rtcontrol serve`, `bridge`, `mcp` and `keys`, by which other programs connect to rtcontrol."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from rtcontrol.cli.command import command
from rtcontrol.cli.figures import group, group_options
from rtcontrol.models.errors import UserError
from rtcontrol.run.options import timestamped_folder
from rtcontrol.serve import key_files
from rtcontrol.serve.options import ServeOptions
from rtcontrol.settings import MISSING, setting
from rtcontrol.telemetry.run_folder import RunFolder
from rtcontrol_client.carla import cli as carla_cli
from rtcontrol_client.console import StandardStreams
from rtcontrol_client.ros2 import cli as ros2_cli
from rtcontrol_client.shutdown import Interrupted, Shutdown

EXAMPLES = """Serve clients over the network; each client sends its own tools, or names an agent.

Examples:

    rtcontrol serve
    rtcontrol serve --agent lander --bind tcp://127.0.0.1:5555 --http 127.0.0.1:8080
    rtcontrol serve --model lander --http 127.0.0.1:8080   # /v1 requests, decisions too: docs/deciders.md
    rtcontrol serve --model lander --replicas 2   # two servers; clients: http://127.0.0.1:8080/connect
    rtcontrol serve --bind tcp://0.0.0.0:5555 --keys keys   # `rtcontrol keys new NAME` makes the keys
    rtcontrol serve --agent paddle --http 0.0.0.0:8080 --set serve.token_file=token   # others show the token

docs/protocol.md describes the protocol for clients, docs/security.md the access rules. Each session has a record and a
report in --out. Exit status: 0; 1 internal error; 2 error in the options; 129 SIGHUP, 130 Ctrl-C, 143 SIGTERM (the
first signal ends all sessions with their safe calls; a second signal has no effect; a third signal exits at once).
"""
LOOK_S = 0.2
FLAGS = ("agent", "model", "tools", "host", "bind", "keys", "http", "replicas", "out")
app = group()


def _serve(options: ServeOptions) -> int:
    run = _run_server if options.replicas is None else _run_replicas
    with Shutdown() as ending:
        try:
            with RunFolder(options.out, timestamped_folder("serve"), overwrite=True) as folder:
                return run(replace(options, out=folder.path), ending)
        except Interrupted as interrupted:
            return interrupted.status


def _run_server(options: ServeOptions, ending: Shutdown) -> int:
    from rtcontrol.serve.server import Server

    http = None
    if options.http is not None:
        from rtcontrol.gateway.app import Gateway
        from rtcontrol.gateway.options import GatewayOptions

        settings = GatewayOptions.from_serve(options, options.http)
        http = lambda sessions, pool: Gateway(sessions, pool, settings)  # noqa: E731
    ending.of(lambda name: None)
    with StandardStreams() as output:
        say = output.out.say
        with Server(options, options.bind, keys=options.keys, http=http, log_line=say, stopped=ending.called) as server:
            for endpoint in server.router.endpoints:
                say(f"listening on {endpoint}")
            if server.gateway is not None:
                say(f"listening on {server.gateway.url}")
            ending.of(lambda name: None, server.sessions.suspend)
            ending.wait()
            say(f"{ending.name}: ending {len(server.sessions.threads())} sessions")
        say(f"records and reports: {options.out}")
    return ending.status


def _run_replicas(options: ServeOptions, ending: Shutdown) -> int:
    from rtcontrol.scale.local import HTTP, serving

    with StandardStreams() as output, serving(options, ending.called) as ray:
        say = output.out.say
        say(f"{options.replicas} servers; clients connect to http://{options.http or HTTP}/connect")
        say(f"listening on http://{options.http or HTTP}/")
        ending.of(lambda name: None)
        while not ending.called():
            if (died := ray.failed_part()) is not None:
                raise UserError(f"Ray's {died} has ended, so the servers have ended, too.", "Start the command again.")
            time.sleep(LOOK_S)
        say(f"{ending.name}: ending the servers")
    return ending.status


command(app, FLAGS, options=ServeOptions, name="serve", help=EXAMPLES)(_serve)


bridges = group()


@group_options(bridges)
def bridge() -> None:
    """Connect a robot or a simulator to a server.

    Unity and Godot games have their own clients: docs/clients.md, bridges/unity, bridges/godot.

    Examples:

        rtcontrol bridge ros2 --example > robot.yaml
        rtcontrol bridge ros2 --config robot.yaml
        rtcontrol bridge carla --instruct "drive at 50"
    """


# `python -m rtcontrol_client.ros2` (or carla), which also runs without rtcontrol, gets all options unchanged.
PASSED_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def _add_bridge_command(main: Callable[..., int], name: str, help: str) -> None:
    def run_bridge(context: typer.Context) -> None:
        sys.stdout.flush()
        try:
            status = main(context.args, f"rtcontrol bridge {name}")
        except SystemExit as ended:  # argparse has printed help or an error
            status = int(ended.code or 0)
        raise typer.Exit(status)

    bridges.command(name, context_settings=PASSED_ON, help=help, add_help_option=False)(run_bridge)


_add_bridge_command(ros2_cli.main, "ros2", "Connect a ROS 2 robot (needs rclpy). See `rtcontrol bridge ros2 --help`.")
_add_bridge_command(carla_cli.main, "carla", "Connect a car in CARLA. See `rtcontrol bridge carla --help`.")


app_mcp = group()


@command(app_mcp, ("connect", "instruct"))
def mcp(
    connect: str = setting("mcp", MISSING, "The page of `run --view`, or the address of `serve --http`."),
    instruct: bool = setting("mcp", False, "Also offer `instruct`, `resume` and `confirm` to the agent."),
    session: str | None = setting("mcp", None, "Session of the server. (default: the newest)"),
    token_file: Path | None = setting("mcp", None, "File with the server's access token, if it needs a token."),
) -> None:
    """Let a slow agent supervise a control loop over MCP. It can read status and misses, pause, stop and deny calls.

    With --instruct, the agent can also instruct, resume and confirm. No tick waits for the agent. The command can start
    before a run: it connects to the next run. It ends when its stdin closes. Needs pip install 'rtcontrol[mcp]'.

    Examples:

        rtcontrol run --env lander --view --set view.port=8090   # in one terminal
        rtcontrol mcp --connect http://127.0.0.1:8090 --instruct   # what the agent is configured to start
    """
    if find_spec("mcp") is None:
        raise UserError("The package mcp is not installed.", "Run `pip install 'rtcontrol[mcp]'`.")
    if not connect.startswith(("http://", "https://")):
        raise UserError(f"--connect {connect!r} is not an address.", "Give an address such as http://127.0.0.1:8080.")
    from rtcontrol.gateway.mcp_server import ViewClient, create_server, serve_connected
    from rtcontrol.gateway.options import read_token

    # Log to standard error, because the protocol uses standard output.
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    if token_file is not None and not token_file.is_file():
        raise UserError(f"mcp.token_file {token_file} is not a file.", "Give the token file of the server.")
    view = ViewClient(connect, session, None if token_file is None else read_token(token_file))
    offered = create_server(view, instruct)
    if sys.stdin is not None and sys.stdin.isatty():
        print("This command speaks MCP with an agent over stdin and stdout. Press Ctrl-C to end it.", file=sys.stderr)
    # Exit at once on Ctrl-C: the thread that reads stdin cannot be interrupted, and no cleanup is needed.
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))
    asyncio.run(serve_connected(view, offered.run_stdio_async()))


key_app = group(help="Create, list and revoke the keys of clients on other machines.")
KEYS: Any = setting("serve", None, "Key folder. (default: ~/.config/rtcontrol/keys)")


@command(key_app, name="new")
def create_key(
    name: Annotated[str, typer.Argument(help="The client's name.")],
    keys: Path | None = KEYS,
) -> None:
    """Create a key pair for a client, and add the public key to the allow-list, also of a running server.

    The first use also creates the server's key pair. --set serve.keys=FOLDER uses another folder.

    Example: `rtcontrol keys new left-arm`
    """
    with _open_key_folder(keys) as folder:
        if name == key_files.SERVER:
            raise UserError(f"The name {name!r} is reserved for the server's key.", "Choose another name.")
        missing = [name] if (folder / f"{key_files.SERVER}.key_secret").exists() else [name, key_files.SERVER]
        for each in missing:
            print(f"Key {each} {key_files.fingerprint(key_files.create_key_pair(folder, each).public)} in {folder}")
    print(f"Move {name}.key_secret to the client's machine, and copy {key_files.SERVER}.key there (docs/security.md).")


@command(key_app, name="list")
def list_keys(keys: Path | None = KEYS) -> None:
    """List the server's key and the allow-list: names and fingerprints, never secrets.

    Example: `rtcontrol keys list`
    """
    with _open_key_folder(keys) as folder:
        if not (path := folder / f"{key_files.SERVER}.key").exists():
            raise UserError(f"There are no keys in {folder}.", "Create one: rtcontrol keys new NAME")
        each = {f"{key_files.SERVER} (this server)": key_files.load_public(path), **key_files.client_keys(folder)}
        for name, public in each.items():
            print(f"{key_files.fingerprint(public)}  {name}")


@command(key_app)
def revoke(
    name: Annotated[str, typer.Argument(help="The client's name.")],
    keys: Path | None = KEYS,
) -> None:
    """Remove a client from the allow-list. A running server closes the client's session within a second.

    Example: `rtcontrol keys revoke left-arm`
    """
    with _open_key_folder(keys) as folder:
        if name not in key_files.client_keys(folder):
            raise UserError(f"There is no key {name!r} in {folder}.", "See `rtcontrol keys list`.")
        (folder / f"{name}.key").unlink()  # without the public key, the server rejects the client
        (folder / f"{name}.key_secret").unlink(missing_ok=True)
    print(f"Revoked {name}")


@contextmanager
def _open_key_folder(keys: Path | None) -> Iterator[Path]:
    """Yield the key folder `keys`, or else the user's default folder. Errors with keys become UserErrors."""
    if (folder := keys or key_files.default_folder()) is None:
        raise UserError("The keys have no folder, since the user has no home folder.", "Give --set serve.keys=FOLDER.")
    try:
        yield folder
    except key_files.KeyFileError as error:
        raise UserError(error.what, error.remedy) from None
