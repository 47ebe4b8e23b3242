"""Control a village of landers over one connection: each has its own goal and its own calls, and the server decides for
all together. The example only needs the light package.

rtcontrol serve --agent lander
python examples/crowd.py tcp://127.0.0.1:5555 20       # number of landers
"""

import random
import sys
import time

from rtcontrol_client import ClientError, Crowd

PERIOD_S = 0.1
SECONDS = 5.0
GOALS = ("land on the pad", "hover at 0.7", "land on the left side of the pad")


class Drone:
    """A drone that falls unless its main engine pushes."""

    def __init__(self) -> None:
        self.height, self.speed, self.thrust = random.uniform(40, 90), 0.0, 0

    def act(self, name: str, arguments: dict) -> None:
        self.thrust = arguments.get("main", 0) if name == "engines" else 0

    def step(self) -> None:
        self.speed = max(-20.0, min(20.0, self.speed + (self.thrust / 100 * 16 - 8) * PERIOD_S))
        self.height = max(0.0, self.height + self.speed * PERIOD_S)

    def seen(self) -> str:
        return f"x 0 y {self.height:.0f} vx 0 vy {self.speed:.0f} angle 0 spin 0 legs {int(self.height == 0)} 0"


def main(endpoint: str = "tcp://127.0.0.1:5555", members: str = "20") -> None:
    village = {f"drone-{i}": Drone() for i in range(int(members))}
    safe = {"name": "engines", "arguments": {"main": 50, "side": 0}}
    with Crowd.connect(endpoint, agent="lander", hz=5, safe_call=safe, connect_timeout_s=10.0) as crowd:
        for i, name in enumerate(village):
            # If there is no time for all, the first drone has priority.
            crowd.join(name, instruction=GOALS[i % len(GOALS)], priority=9 if i == 0 else 0)
        end, heard = time.monotonic() + SECONDS, set()
        while time.monotonic() < end:
            crowd.observe({name: drone.seen() for name, drone in village.items()})
            for name, standing in crowd.wait(PERIOD_S).items():
                heard |= {name} if standing.status == "fresh" else set()
            for name, drone in village.items():
                for call in crowd.call(name).calls:  # calls that are too old are replaced by the safe call
                    drone.act(call.name, call.arguments)
                drone.step()
            time.sleep(max(0.0, PERIOD_S - time.monotonic() % PERIOD_S))
        crowd.instruct("land on the pad")  # for all drones
        counts = crowd.statistics
    print(f"{len(heard)} of {len(village)} had calls; {counts['fresh']} fresh, {counts['held']} held")
    for refusal in crowd.refusals[:3]:
        print(f"{refusal.id}: {refusal.message} {refusal.remedy}")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:3])
    except ClientError as error:  # no server, or refused: print the problem and the hint
        sys.exit(f"{error}")
