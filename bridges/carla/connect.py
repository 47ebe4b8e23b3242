"""Reaching a CARLA server, and saying what is wrong where it cannot be reached."""

from __future__ import annotations

import re
import socket
from typing import Any

import carla
import msgpack

from rtcontrol.bridges.carla.options import CarlaBridgeError, WorldOptions

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


def connect(options: WorldOptions) -> Any:
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


def probe(options: WorldOptions) -> None:
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
