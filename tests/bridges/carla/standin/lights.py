"""The junction's lights: each arm has its green in turn, as CARLA's own towns have it, so that left turns are safe."""

from __future__ import annotations

from tests.bridges.carla.standin.roads import ARMS
from tests.bridges.carla.standin.wire import GREEN, RED, YELLOW

# CARLA's times.
GREEN_S = 10.0
YELLOW_S = 3.0
CLEAR_S = 2.0
PHASE_S = GREEN_S + YELLOW_S + CLEAR_S
CYCLE_S = PHASE_S * len(ARMS)
NAMES = {RED: "red", YELLOW: "yellow", GREEN: "green"}


def state(arm: str, elapsed_s: float) -> int:
    """The light of an arm at a simulated time."""
    phase, within = divmod(elapsed_s % CYCLE_S, PHASE_S)
    if list(ARMS)[int(phase)] != arm:
        return RED
    if within < GREEN_S:
        return GREEN
    return YELLOW if within < GREEN_S + YELLOW_S else RED


def since_change(arm: str, elapsed_s: float) -> float:
    """Seconds for which the light of an arm has been what it is."""
    within = (elapsed_s - PHASE_S * list(ARMS).index(arm)) % CYCLE_S
    if within < GREEN_S:
        return within
    return within - GREEN_S if within < GREEN_S + YELLOW_S else within - GREEN_S - YELLOW_S
