"""A policy server in openpi's format, whose policy of ten lines plays the paddle game and needs no rtcontrol.

pip install --no-deps openpi-client                 # optional: openpi's own message format
python examples/policy_server.py 8000
rtcontrol run --env paddle --model openpi:ws://127.0.0.1:8000 --duration 10 --no-live
"""

import sys
import time

import numpy as np
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

try:
    from openpi_client.msgpack_numpy import packb, unpackb
except ImportError:  # the same format from this project
    from rtcontrol.hosts.policy_link import pack_message as packb
    from rtcontrol.hosts.policy_link import unpack_message as unpackb

HORIZON, STEP_S, UNIT = 8, 1 / 16, 20.0  # actions per chunk, seconds per action, units per second of action 1


def infer(observation: dict) -> np.ndarray:
    """Return velocities that move the paddle towards the ball's future position."""
    _, ball_y, _, ball_vy, own_y, _ = observation["observation/state"]
    actions = np.zeros((HORIZON, 1), np.float32)
    for row in actions:
        ball_y += STEP_S * ball_vy
        row[0] = np.clip((ball_y - own_y) / (UNIT * STEP_S), -3, 3)
        own_y += STEP_S * UNIT * row[0]
    return actions


def answer(connection: ServerConnection) -> None:
    try:
        connection.send(packb({"policy": "paddle", "action_dim": 1, "action_horizon": HORIZON}))
        for message in connection:
            began = time.monotonic()
            actions = infer(unpackb(message))
            timing = {"infer_ms": (time.monotonic() - began) * 1e3}
            connection.send(packb({"actions": actions, "server_timing": timing}))
    except ConnectionClosed:
        pass  # the client closed the connection


def main(port: str = "8000") -> None:
    try:
        server = serve(answer, "127.0.0.1", int(port), compression=None, max_size=None)
    except (OSError, ValueError, OverflowError) as error:
        sys.exit(f"The server cannot use port {port} ({error}). Give another port.")
    with server:
        print(f"a policy at ws://127.0.0.1:{port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
