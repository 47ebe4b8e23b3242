"""The command `rtcontrol bridge carla`, also run without the rest of rtcontrol: `python -m rtcontrol_client.carla`."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import logging
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rtcontrol_client import ClientError
from rtcontrol_client.carla import journal
from rtcontrol_client.carla.options import CarlaBridgeError, DriveOptions, ServerLost
from rtcontrol_client.console import Outbox, OutboxLog, printable
from rtcontrol_client.shutdown import Interrupted, Shutdown, ignore_closed_terminal, read_lines
from rtcontrol_client.wire.errors import RemedyError

EXAMPLES = """Let an rtcontrol server drive a car in the CARLA simulator.

The bridge makes the CARLA server synchronous, spawns an ego vehicle, and undoes both on every exit. A line typed while
it runs is the new instruction; Ctrl-C ends it with the car braked to a halt.

examples:
  ./CarlaUE4.sh -RenderOffScreen &                     (CARLA 0.9.16)
  rtcontrol serve &
  rtcontrol bridge carla --instruct "drive at 50" --set town=Town03 --set seed=7

`rtcontrol run --env carla-bridge` is server and bridge in one command. To undo what a killed bridge left on CARLA:
  python -m rtcontrol_client.carla --clean FILE

Exit status: 0, 2 an error in the arguments or no server, 129 SIGHUP, 130 Ctrl-C, 143 SIGTERM.
"""
# By flag: (name of the drive's option, help text). `--set` accepts all options.
FLAGS = {
    "connect": ("endpoint", "the rtcontrol server, or http://HOST:PORT/connect (default: this machine's)"),
    "carla-host": ("host", "the CARLA server's machine (default: this one)"),
    "carla-port": ("port", "its port (default: 2000)"),
    "instruct": ("instruction", "the instruction (default: the agent's)"),
    "clock": ("clock", "wall: the world runs on (default); lockstep: it waits"),
    "duration": ("duration_s", "end after this many seconds"),
}
log = logging.getLogger("rtcontrol.carla")


def parse_arguments(given: Sequence[str], prog: str) -> tuple[dict[str, Any], Path | None]:
    """Parse the command line; return the options of the drive by name, and the file of `--clean`."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    for flag, (name, text) in FLAGS.items():
        parser.add_argument(f"--{flag}", dest=name, help=text)
    names = ", ".join(DriveOptions.model_fields)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=f"one of {names}")
    help_text = "only undo the changes that a killed bridge left on CARLA"
    parser.add_argument("--clean", type=Path, default=None, metavar="FILE", help=help_text)
    values = vars(parser.parse_args(given))
    settings, clean = values.pop("set"), values.pop("clean")
    values |= {name: value for name, _, value in (setting.partition("=") for setting in settings)}
    return values, clean


def main(given: Sequence[str] | None = None, prog: str = "python -m rtcontrol_client.carla") -> int:
    """Run the command; return its exit status. Print an error, or send it to a supervising `rtcontrol run`."""
    ignore_closed_terminal()
    values, clean = parse_arguments(sys.argv[1:] if given is None else given, prog)
    supervised = bool(values.get("once"))
    logging.getLogger().setLevel(logging.INFO)
    try:
        # Only the log uses the non-blocking Outbox. Events for the supervisor are printed, so that a crash loses none.
        form = "%(message)s" if supervised else "%(asctime)s %(levelname)s %(message)s"
        with Outbox(2) as lines, OutboxLog(lines, form):
            return run(DriveOptions.of(values), clean)
    except RemedyError as error:
        if not isinstance(error, CarlaBridgeError | ClientError):
            error = CarlaBridgeError(f"--connect {error.what}", error.remedy)
        if supervised:
            send_event("mistake", what=error.what, remedy=error.remedy)
        else:
            print(printable(f"{error.what} {error.remedy}"), file=sys.stderr)
        return 2
    except Interrupted as interrupted:
        return interrupted.status


def send_event(event: str, **fields: Any) -> None:
    """Send an event to the supervising process as a JSON line on stdout."""
    with contextlib.suppress(OSError):
        print(json.dumps({"event": event, **fields}), flush=True)


def run(options: DriveOptions, clean: Path | None) -> int:
    """Run a drive, or only undo the changes in the journal `clean`. Raises CarlaBridgeError, ClientError."""
    if importlib.util.find_spec("carla") is None:
        text = "The CARLA bridge needs CARLA's client."
        raise CarlaBridgeError(text, "Install it: pip install 'rtcontrol-client[carla]'.")
    if clean is not None:
        from rtcontrol_client.carla.world import undo_journal

        print("; ".join(undo_journal(clean)), file=sys.stderr)
        return 0
    with Shutdown(lambda name: None) as ending:
        path = journal.journal_path(options.host, options.port)
        if options.once:
            send_event("begun", journal=str(path))
        from rtcontrol_client.carla.world import CarlaWorld  # this import fails without CARLA's client

        world = CarlaWorld(options, journal.Journal(path, options.host, options.port))
        try:
            world.open()
            return _run_drive(world, ending)
        except ServerLost as lost:
            text = f"The CARLA server at {options.server} was lost ({lost})."
            raise CarlaBridgeError(text, "Restart the CARLA server.") from None
        finally:
            world.close()


def _run_drive(world: Any, ending: Shutdown) -> int:
    from rtcontrol_client.carla.bridge import CarlaBridge

    bridge = CarlaBridge(world)
    ending.of(lambda name: bridge.stop(), bridge.suspend)
    options: DriveOptions = world.options
    if options.once:
        send_event("ready", town=world.town)
    log.info("%s at %s:%d: %s, ego vehicle %s", world.what, options.host, options.port, world.town, world.ego.type_id)
    if options.once or (sys.stdin is not None and sys.stdin.isatty()):
        threading.Thread(target=_read_instructions, args=(bridge, options.once), daemon=True).start()
    try:
        bridge.run(ending.retake)
    finally:
        print(bridge.summary(), file=sys.stderr)
    return ending.status


def _read_instructions(bridge: Any, supervised: bool) -> None:
    """Send each input line to the server as an instruction. If supervised, stop the bridge at the end of input."""
    for text in read_lines():
        bridge.instruct(text)
    if supervised:
        bridge.stop()
