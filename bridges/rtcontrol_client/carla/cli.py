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
from pathlib import Path
from typing import Any

from rtcontrol_client import ClientError
from rtcontrol_client.carla import journal
from rtcontrol_client.carla.options import (
    STANDIN,
    WAIT_S,
    CarlaBridgeError,
    CarlaBridgeOptions,
    ServerLost,
    WorldOptions,
)
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
        default="tcp://127.0.0.1:5555",
        help="the rtcontrol server, or http://HOST:PORT/connect (default: %(default)s)",
    )
    add("--carla-host", default="127.0.0.1", help="the CARLA server's machine (default: %(default)s)")
    add("--carla-port", type=int, default=2000, help="its port (default: %(default)s)")
    add("--town", help="load this town (default: whatever is loaded)")
    add("--seed", type=int, default=0, help="chooses the spawn points (default: %(default)s)")
    add("--hz", type=float, default=16.0, help="observations and decisions a second (default: %(default)s)")
    add("--clock", choices=("wall", "lockstep"), default="wall", help="the world runs on, or waits (default: wall)")
    add("--agent", default="driver", help="the server's agent (default: %(default)s)")
    add("--instruct", help="the instruction (default: the agent's)")
    add("--keys", type=Path, help="this client's .key_secret, for a server with keys")
    add("--server-key", type=Path, help="the server's .key (default: server.key beside it)")
    add("--connect-timeout", type=float, default=6.0, help="seconds until the first welcome; 0: for ever (default: 6)")
    add("--reconnect-s", type=float, default=30.0, help="how long to wait for a CARLA server that hangs (default: 30)")
    add("--duration", type=float, help="end after so many seconds")
    add("--trace", type=Path, help="write a line a step to this file")
    add("--reload", action="store_true", help="begin with the world loaded anew: the same seed gives the same drive")
    add("--clean", type=Path, metavar="FILE", help="only undo what a bridge left that was killed")
    add("--standin", action="store_true", help=f"say in every figure that this is the {STANDIN}")
    add("--supervised", action="store_true", help=argparse.SUPPRESS)
    return made


def main(given: Sequence[str] | None = None, prog: str = "python -m rtcontrol_client.carla") -> int:
    """Run; mistakes are one paragraph on stderr and status 2. Supervised, they are an event on stdout."""
    outlive_terminal()
    supervised = False
    try:
        options = parser(prog).parse_args(sys.argv[1:] if given is None else given)
        supervised = options.supervised
        return run(options)
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


def run(options: argparse.Namespace) -> int:
    """What the options ask for; the exit status. Raises CarlaBridgeError, ClientError."""
    form = "%(message)s" if options.supervised else "%(asctime)s %(levelname)s %(message)s"
    logging.getLogger().setLevel(logging.INFO)
    # Only the log: who supervises reads every event on stdout, and none may be lost to a crash.
    with Outbox(2) as said, OutboxLog(said, form):
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    if options.clean is not None:
        _check_wheel()
        from rtcontrol_client.carla.server import clean

        print("; ".join(clean(options.clean)), file=sys.stderr)
        return 0
    try:
        check_client(options.connect)
    except EndpointError as error:
        raise CarlaBridgeError(f"--connect {error.what}", error.remedy) from None
    if options.instruct is not None and not options.instruct.strip():
        raise CarlaBridgeError(
            "--instruct is empty.", "Say what to do, or leave it out for the agent's own instruction."
        )
    for name, value, least, most, remedy in (
        ("hz", options.hz, 0.5, 100, "Give 0.5 to 100, such as --hz 16."),
        ("carla-port", options.carla_port, 1, 65535, "Give 1 to 65535; CARLA's own is 2000."),
        ("reconnect-s", options.reconnect_s, 0, math.inf, "Give 0 or more seconds."),
        ("connect-timeout", options.connect_timeout, 0, math.inf, "Give 0 or more seconds."),
        ("duration", options.duration, 0, math.inf, "Give 0 or more seconds, or leave it out."),
    ):
        # Written so that nan is out of range, too.
        if value is not None and not least <= value <= most:
            raise CarlaBridgeError(f"--{name} {value:g} is out of range.", remedy)
    return _bridge(options)


def _check_wheel() -> None:
    if importlib.util.find_spec("carla") is None:
        what = "The CARLA bridge needs CARLA's client."
        raise CarlaBridgeError(what, "Install it: pip install 'rtcontrol-client[carla]'.")


def _bridge(options: argparse.Namespace) -> int:
    def same(*names: str) -> dict[str, Any]:
        return {name: getattr(options, name) for name in names}

    bridge_options = CarlaBridgeOptions(
        **same("hz", "clock", "reconnect_s", "trace"),
        endpoint=options.connect,
        agent=options.agent or None,
        instruction=options.instruct,
        connect_timeout_s=options.connect_timeout or None,
        duration_s=options.duration,
        once=options.supervised,
        client=same("keys", "server_key") if options.keys else {},
    )
    world_options = WorldOptions(
        **same("town", "seed", "reload", "standin"),
        host=options.carla_host,
        port=options.carla_port,
        step_s=bridge_options.step_s,
        wait_s=WAIT_S[options.clock],
    )
    _check_wheel()
    with Shutdown(lambda name: None) as ending:
        path = journal.place(options.carla_host, options.carla_port)
        if options.supervised:
            tell("begun", journal=str(path))
        from rtcontrol_client.carla.world import CarlaWorld  # without the client there is no such module

        world = CarlaWorld(world_options, journal.Journal(path, options.carla_host, options.carla_port))
        try:
            world.open()
            return _drive(world, bridge_options, options.supervised, ending)
        except ServerLost as lost:
            raise CarlaBridgeError(
                f"The CARLA server at {world_options.server} was lost ({lost}).", "Start it again."
            ) from None
        finally:
            world.close()


def _drive(world: Any, options: CarlaBridgeOptions, supervised: bool, ending: Shutdown) -> int:
    from rtcontrol_client.carla.bridge import CarlaBridge

    bridge = CarlaBridge(world, options)
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
