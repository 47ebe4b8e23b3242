"""Reaching a CARLA server, and saying what is wrong where it cannot be reached."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import carla
import msgpack

from rtcontrol_client.carla import journal
from rtcontrol_client.carla.journal import UndoRecord
from rtcontrol_client.carla.options import CarlaBridgeError, DriveOptions

# A server that is there answers in milliseconds, so one that is not is told within this, twice.
PROBE_S, ANSWER_S = 1.5, 3.0
# What CARLA's own client asks first (MessagePack-RPC), and how every answer to it begins: an array of four.
QUESTION, ANSWER = msgpack.packb([0, 0, "version", [[False]]]), b"\x94"
# For what may take a busy server longer.
SLOW_S = 10.0
START = (
    "Start one (0.9.16, it needs a GPU): ./CarlaUE4.sh -RenderOffScreen -quality-level=Low, or docker run --rm "
    "--gpus all --net=host carlasim/carla:0.9.16 ./CarlaUE4.sh -RenderOffScreen -quality-level=Low; or try "
    "`rtcontrol run --env carla-bridge --carla-standin`, which needs a source checkout only and is not CARLA."
)


def connect(options: DriveOptions) -> Any:
    """A `carla.Client` whose server answers and is of its version. CarlaBridgeError within 5 s where there is none."""
    probe(options)
    client = carla.Client(options.host, options.port)
    client.set_timeout(ANSWER_S)
    try:
        server = client.get_server_version()
    except RuntimeError as error:
        raise CarlaBridgeError(
            f"What listens at {options.host}:{options.port} does not answer as a CARLA server ({_short(error)}).",
            "Is it still loading, or frozen, or is the port another program's? Give --carla-port, or restart it.",
        ) from None
    mine = client.get_client_version()
    if _release(server) != _release(mine):
        raise CarlaBridgeError(
            f"The CARLA server at {options.host}:{options.port} is {server}, the client here {mine}: they must be of "
            "the same release.",
            f"Start CARLA {_release(mine)}, or install the other client: pip install carla=={_release(server)} (this "
            "bridge was made for 0.9.16).",
        )
    client.set_timeout(SLOW_S)
    return client


def probe(options: DriveOptions) -> None:
    """CarlaBridgeError where nobody listens, or another program: its bytes would make CARLA's library abort."""
    try:
        with socket.create_connection((options.host, options.port), PROBE_S) as peer:
            said = _ask(peer)
    except UnicodeError:
        raise CarlaBridgeError(
            f"{options.host!r} is no host's name.", "Give --carla-host a name or an address."
        ) from None
    except OSError as error:
        reason = "no answer" if isinstance(error, TimeoutError) else (error.strerror or str(error)).lower()
        raise CarlaBridgeError(f"No CARLA server at {options.host}:{options.port} ({reason}).", START) from None
    if said not in (b"", ANSWER):
        raise CarlaBridgeError(
            f"What listens at {options.host}:{options.port} is no CARLA server.",
            "Give --carla-port the port of one; CARLA's own is 2000.",
        )


def _ask(peer: socket.socket) -> bytes:
    """The first byte of the answer; none where there is none in time."""
    try:
        peer.sendall(QUESTION)
        return peer.recv(1)
    except OSError:
        return b""


def _release(version: str) -> str:
    """`0.9.16` of `0.9.16-dirty`."""
    found = re.match(r"\d+(\.\d+)*", version)
    return found.group() if found else version


def _short(error: Exception) -> str:
    return str(error).split(",")[0].strip()


# How long a synchronous server that somebody else may tick is watched.
WATCH_S = 1.0
FIELDS = tuple(name for name in dir(carla.WorldSettings) if not name.startswith("_"))


def settings_of(world: Any) -> dict[str, Any]:
    """The server's settings as plain values."""
    found = world.get_settings()
    return {name: getattr(found, name) for name in FIELDS}


def apply_settings(world: Any, values: Mapping[str, Any]) -> None:
    """Raises RuntimeError where the server does not answer."""
    settings = world.get_settings()
    for name, value in values.items():
        # Of an unset step carla gives None, and takes it.
        setattr(settings, name, value)
    world.apply_settings(settings)


def ticked(world: Any) -> bool:
    """Whether somebody lets a synchronous server go on: it is watched for WATCH_S."""
    frame, end = 0, time.monotonic() + WATCH_S
    while time.monotonic() < end:
        before, frame = frame, world.get_snapshot().frame
        # 0: no snapshot so far. The first one tells nothing.
        if before not in (0, frame):
            return True
        time.sleep(0.05)
    return False


def undo(client: Any, world: Any, left: UndoRecord) -> list[str]:
    """Destroy what is ours, and put the settings back; gives what was done. Raises RuntimeError where the server does
    not answer: then the rest was tried all the same."""
    done: list[str] = []
    if left.episode is not None and left.episode != world.id:
        done.append("the server has another world by now: no vehicle of ours is in it")
        if left.settings is not None and world.get_settings().synchronous_mode:
            if ticked(world):
                return [*done, "another client ticks it: its settings are left alone"]
            apply_settings(world, left.settings)
            done.append(f"settings restored ({_mode(left.settings)})")
        return done
    try:
        # By their numbers: whether they are there, only the server knows for sure.
        if count := destroy(client, left.actors):
            done.append(_destroyed(count))
    finally:
        if left.settings is not None:
            apply_settings(world, left.settings)
            done.append(f"settings restored ({_mode(left.settings)})")
    return done


def destroy(client: Any, actors: Iterable[int]) -> int:
    """Destroy actors by id, and count them; those that are gone already are none the less."""
    answers = client.apply_batch_sync([carla.command.DestroyActor(i) for i in actors], False)
    return sum(not answer.error for answer in answers)


def _destroyed(count: int) -> str:
    return f"{count} vehicle{'s' if count > 1 else ''} destroyed"


def _mode(settings: Mapping[str, Any]) -> str:
    return "synchronous" if settings["synchronous_mode"] else "asynchronous"


def clean(path: Path) -> list[str]:
    """Undo what the bridge of this file left, and remove the file; gives what was done. Raises CarlaBridgeError where
    the file is none or the server cannot be reached (the file is kept then)."""
    left = journal.read(path)
    client = connect(DriveOptions(host=left.host, port=left.port))
    try:
        done = [] if left.nothing else undo(client, client.get_world(), left)
    except RuntimeError as error:
        raise CarlaBridgeError(
            f"Not undone: the CARLA server at {left.host}:{left.port} broke off ({error}).",
            f"Restart it, or try again: python -m rtcontrol_client.carla --clean {path}",
        ) from None
    path.unlink(missing_ok=True)
    return done or ["nothing was left to undo"]
