"""A car that a server drives, with only the light package: the instruction is first a speed, then to stop.

rtcontrol serve
pip install ./bridges                               # on the car, which needs nothing else of this project
python examples/robot.py tcp://127.0.0.1:5555       # if the server has --keys: add the car's key file
"""

import sys
import time

from rtcontrol_client import Client, ClientError

PERIOD_S = 0.05
LIMIT_KMH = 50
INSTRUCTIONS = {"drive at 30": 5.0, "stop": 3.0}  # each with its seconds


class Car:
    """A car alone on a road with one lane, which approaches the last requested speed at 12 km/h per second."""

    speed = wanted = 0.0

    def act(self, name: str, arguments: dict) -> None:
        if name == "set_speed":
            self.wanted = arguments["kmh"]
        elif name == "follow":
            self.wanted = LIMIT_KMH  # no car is ahead
        elif name in ("stop", "brake"):
            self.wanted = 0  # change_lane and turn leave the speed as it is

    def step(self) -> None:
        self.speed += max(-12 * PERIOD_S, min(12 * PERIOD_S, self.wanted - self.speed))

    def seen(self) -> dict:
        road = {"limit_kmh": LIMIT_KMH, "lane": 1, "lanes": 1, "shift": 0}
        return {"speed_kmh": self.speed, **road, "light": "none", "junction_m": None, "turn": "straight"}


def main(endpoint: str = "tcp://127.0.0.1:5555", keys: str | None = None) -> None:
    car, begins = Car(), next(iter(INSTRUCTIONS))
    given = {"agent": "driver", "hz": 16, "safe_call": "stop", "keys": keys, "connect_timeout_s": 10.0}
    with Client.connect(endpoint, instruction=begins, **given) as client:
        for words, seconds in INSTRUCTIONS.items():
            client.instruct(words)
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                client.observe(data=car.seen())
                standing = client.call()  # never blocks; a call that is too old is replaced by the safe call
                for call in standing.calls:
                    car.act(call.name, call.arguments)
                car.step()
                time.sleep(PERIOD_S)
            calls = ", ".join(call.name for call in standing.calls)
            after = f"{car.speed:.0f} km/h after {seconds:g} s"
            print(f"instructed {words!r}: {after}, by {calls}, {standing.status}", flush=True)
        print(f"{client.statistics['fresh']} fresh calls, {client.statistics['expired']} came too late")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:3])
    except ClientError as error:  # no server, or refused: print the problem and the hint
        sys.exit(f"{error}")
