"""A policy server as openpi's are, of a policy in ten lines: it plays the paddle game, and knows nothing of rtcontrol.

pip install --no-deps openpi-client                 # its messages, where they are to be openpi's own
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
except ImportError:  # the same messages, by this project
    from rtcontrol.hosts.policy_link import pack_message as packb
    from rtcontrol.hosts.policy_link import unpack_message as unpackb

HORIZON, STEP_S, UNIT = 8, 1 / 16, 20.0  # actions of a chunk; each is so long; one is so many units a second


def infer(observation: dict) -> np.ndarray:
    """Velocities that bring the paddle to where the ball will be, as far as it can move."""
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
        pass  # the client cut it


def main(port: str = "8000") -> None:
    try:
        server = serve(answer, "127.0.0.1", int(port), compression=None, max_size=None)
    except (OSError, ValueError, OverflowError) as error:
        sys.exit(f"No server at port {port} ({error}). Give another one.")
    with server:
        print(f"a policy at ws://127.0.0.1:{port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
