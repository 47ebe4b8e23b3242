"""`rtcontrol bridge carla`, and the same without the rest of rtcontrol: `python -m rtcontrol_client.carla`."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import logging
import math
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rtcontrol_client import ClientError
from rtcontrol_client.carla import journal
from rtcontrol_client.carla.options import STANDIN, CarlaBridgeError, DriveOptions, ServerLost
from rtcontrol_client.console import Outbox, OutboxLog, printable
from rtcontrol_client.shutdown import Interrupted, Shutdown, outlive_terminal
from rtcontrol_client.wire.endpoint import EndpointError, check_client

EXAMPLES = """Drive a car in the CARLA simulator by an rtcontrol server.

The bridge makes the CARLA server synchronous, spawns an ego vehicle, and undoes both on every exit. A line typed while
it runs is the new instruction; Ctrl-C ends it with the car braked to a halt.

examples:
  ./CarlaUE4.sh -RenderOffScreen &                     (CARLA 0.9.16)
  rtcontrol serve &
  rtcontrol bridge carla --instruct "drive at 50"

`rtcontrol run --env carla-bridge` is server and bridge in one command. What a bridge left behind that was killed:
  python -m rtcontrol_client.carla --clean FILE

Exit status: 0, 2 mistake in what was given or no server, 129 SIGHUP, 130 Ctrl-C, 143 SIGTERM.
"""
log = logging.getLogger("rtcontrol.carla")


def parser(prog: str) -> argparse.ArgumentParser:
    """Of the command line."""
    made = argparse.ArgumentParser(
        prog=prog, description=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add(
        "--connect",
        dest="endpoint",
        default="tcp://127.0.0.1:5555",
        help="the rtcontrol server, or http://HOST:PORT/connect (default: %(default)s)",
    )
    add("--carla-host", dest="host", default="127.0.0.1", help="the CARLA server's machine (default: %(default)s)")
    add("--carla-port", dest="port", type=int, default=2000, help="its port (default: %(default)s)")
    add("--town", help="load this town (default: whatever is loaded)")
    add("--seed", type=int, default=0, help="chooses the spawn points (default: %(default)s)")
    add("--hz", type=float, default=16.0, help="observations and decisions a second (default: %(default)s)")
    add("--clock", choices=("wall", "lockstep"), default="wall", help="the world runs on, or waits (default: wall)")
    add("--agent", default="driver", help="the server's agent (default: %(default)s)")
    add("--instruct", dest="instruction", help="the instruction (default: the agent's)")
    add("--keys", type=Path, help="this client's .key_secret, for a server with keys")
    add("--server-key", type=Path, help="the server's .key (default: server.key beside it)")
    add(
        "--connect-timeout",
        dest="connect_timeout_s",
        type=float,
        default=6.0,
        help="seconds until the first welcome; 0: for ever (default: 6)",
    )
    add("--reconnect-s", type=float, default=30.0, help="how long to wait for a CARLA server that hangs (default: 30)")
    add("--duration", dest="duration_s", type=float, help="end after so many seconds")
    add("--trace", type=Path, help="write a line a step to this file")
    add("--reload", action="store_true", help="begin with the world loaded anew: the same seed gives the same drive")
    add("--clean", type=Path, metavar="FILE", help="only undo what a bridge left that was killed")
    add("--standin", action="store_true", help=f"say in every figure that this is the {STANDIN}")
    add("--supervised", dest="once", action="store_true", help=argparse.SUPPRESS)
    return made


def main(given: Sequence[str] | None = None, prog: str = "python -m rtcontrol_client.carla") -> int:
    """Run; mistakes are one paragraph on stderr and status 2. Supervised, they are an event on stdout."""
    outlive_terminal()
    options = vars(parser(prog).parse_args(sys.argv[1:] if given is None else given))
    supervised = options["once"]
    logging.getLogger().setLevel(logging.INFO)
    try:
        # Only the log: who supervises reads every event on stdout, and none may be lost to a crash.
        form = "%(message)s" if supervised else "%(asctime)s %(levelname)s %(message)s"
        with Outbox(2) as lines, OutboxLog(lines, form):
            return run(**options)
    except (CarlaBridgeError, ClientError) as error:
        if supervised:
            tell("mistake", what=error.what, remedy=error.remedy)
        else:
            print(printable(f"{error.what} {error.remedy}"), file=sys.stderr)
        return 2
    except Interrupted as interrupted:
        return interrupted.status


def tell(event: str, **what: Any) -> None:
    """A line to whoever supervises."""
    with contextlib.suppress(OSError):
        print(json.dumps({"event": event, **what}), flush=True)


def run(clean: Path | None, keys: Path | None, server_key: Path | None, **given: Any) -> int:
    """Do what the options say; return the exit status. Raises CarlaBridgeError, ClientError."""
    client = {"keys": keys, "server_key": server_key} if keys else {}
    options = DriveOptions(**given, client=client)
    check(options)
    if importlib.util.find_spec("carla") is None:
        what = "The CARLA bridge needs CARLA's client."
        raise CarlaBridgeError(what, "Install it: pip install 'rtcontrol-client[carla]'.")
    if clean is not None:
        from rtcontrol_client.carla.server import clean as undo

        print("; ".join(undo(clean)), file=sys.stderr)
        return 0
    options = replace(options, agent=options.agent or None, connect_timeout_s=options.connect_timeout_s or None)
    with Shutdown(lambda name: None) as ending:
        path = journal.place(options.host, options.port)
        if options.once:
            tell("begun", journal=str(path))
        from rtcontrol_client.carla.world import CarlaWorld  # without the client there is no such module

        world = CarlaWorld(options, journal.Journal(path, options.host, options.port))
        try:
            world.open()
            return _drive(world, options.once, ending)
        except ServerLost as lost:
            what = f"The CARLA server at {options.server} was lost ({lost})."
            raise CarlaBridgeError(what, "Start it again.") from None
        finally:
            world.close()


def check(options: DriveOptions) -> None:
    """Raise CarlaBridgeError for options that no drive can have."""
    try:
        check_client(options.endpoint)
    except EndpointError as error:
        raise CarlaBridgeError(f"--connect {error.what}", error.remedy) from None
    if options.instruction is not None and not options.instruction.strip():
        raise CarlaBridgeError(
            "--instruct is empty.", "Say what to do, or leave it out for the agent's own instruction."
        )
    for name, value, least, most, remedy in (
        ("hz", options.hz, 0.5, 100, "Give 0.5 to 100, such as --hz 16."),
        ("carla-port", options.port, 1, 65535, "Give 1 to 65535; CARLA's own is 2000."),
        ("reconnect-s", options.reconnect_s, 0, math.inf, "Give 0 or more seconds."),
        ("connect-timeout", options.connect_timeout_s, 0, math.inf, "Give 0 or more seconds."),
        ("duration", options.duration_s, 0, math.inf, "Give 0 or more seconds, or leave it out."),
    ):
        # Written so that nan is out of range, too.
        if value is not None and not least <= value <= most:
            raise CarlaBridgeError(f"--{name} {value:g} is out of range.", remedy)


def _drive(world: Any, supervised: bool, ending: Shutdown) -> int:
    from rtcontrol_client.carla.bridge import CarlaBridge

    bridge = CarlaBridge(world)
    ending.of(lambda name: bridge.stop(), bridge.suspend)
    if supervised:
        tell("ready", town=world.town)
    where = world.options
    log.info("%s at %s:%d: %s, ego vehicle %s", world.what, where.host, where.port, world.town, world.ego.type_id)
    if supervised or (sys.stdin is not None and sys.stdin.isatty()):
        threading.Thread(target=_read, args=(bridge, supervised), daemon=True).start()
    try:
        bridge.run(ending.retake)
    finally:
        print(bridge.summary(), file=sys.stderr)
    return ending.status


def _read(bridge: Any, leashed: bool) -> None:
    """Each line is an instruction. `leashed`: the end of the input is the end of whoever started us."""
    # Not by way of Python's own file: at the end it would wait for its lock, which a read that waits holds.
    rest = b""
    while read := os.read(0, 4096):
        *lines, rest = (rest + read).split(b"\n")
        for line in lines:
            if text := line.decode("utf-8", "replace").strip():
                bridge.instruct(text)
    if leashed:
        bridge.stop()
