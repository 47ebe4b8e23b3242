"""`python -m tests.bridges.carla.standin.bench [TICKS [VEHICLES]]`: what a tick costs a client, and what memory."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import carla

from tests.bridges.carla.standin.process import StandIn


def resident_mb(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024


def main(ticks: int, vehicles: int) -> None:
    with StandIn("--traffic", str(vehicles - 1), "--seed", "1") as standin:
        client = carla.Client("127.0.0.1", standin.port)
        client.set_timeout(10.0)
        world = client.get_world()
        settings = world.get_settings()
        settings.synchronous_mode, settings.fixed_delta_seconds = True, 0.0625
        world.apply_settings(settings)
        points = world.get_map().get_spawn_points()
        model = world.get_blueprint_library().find("vehicle.tesla.model3")
        ego = next(found for point in points if (found := world.try_spawn_actor(model, point)))
        took_ms = []
        memory_mb = []
        for tick in range(ticks):
            ego.apply_control(carla.VehicleControl(throttle=0.3, steer=0.0))
            before = time.perf_counter()
            world.tick(10.0)
            took_ms.append((time.perf_counter() - before) * 1e3)
            if tick % max(ticks // 10, 1) == 100:
                memory_mb.append(round(resident_mb(standin.process.pid), 1))
    took_ms.sort()
    found = {
        "what": "the CARLA stand-in, not CARLA",
        "ticks": ticks,
        "vehicles": vehicles,
        "tick_ms": {p: round(took_ms[int(ticks * p / 100)], 3) for p in (50, 90, 99)} | {100: round(took_ms[-1], 3)},
        "memory_mb": memory_mb,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    asked = [int(text) for text in sys.argv[1:]]
    main(*(asked + [10_000, 20][len(asked) :]))
