"""Drive a cart on a line by random calls of a server: `rtcontrol serve`, then `python examples/own_loop.py`."""

import sys
import time

from rtcontrol_client import Client, ClientError

PUSH = {
    "name": "push",
    "description": "Push the cart.",
    "parameters": {
        "type": "object",
        "properties": {"force": {"type": "integer", "minimum": -2, "maximum": 2}},
        "required": ["force"],
    },
}


def main(endpoint: str = "tcp://127.0.0.1:5555", seconds: float = 5.0) -> None:
    position, speed, period_s = 0.0, 0.0, 0.05
    stop = {"name": "push", "arguments": {"force": 0}}
    given = {"instruction": "Stay near 0.", "model": "random", "hz": 20, "safe_call": stop, "connect_timeout_s": 10.0}
    with Client.connect(endpoint, tools=[PUSH], **given) as client:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            client.observe(text=f"position {position:.2f} speed {speed:.2f}")
            for call in client.call().calls:  # never blocks; an expired call is replaced by the safe calls
                speed += call.arguments["force"] * period_s
            position += speed * period_s
            time.sleep(period_s)
        print(f"at {position:.2f}, now {client.call().status}, {client.statistics['fresh']} fresh calls")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:2])
    except ClientError as error:  # no server, or refused: print the problem and the hint
        print(error, file=sys.stderr)
        sys.exit(2)
