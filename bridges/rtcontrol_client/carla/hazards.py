"""What holds whatever was called: who is in the way, bends, the road's end, stop lines."""

from __future__ import annotations

import math

from rtcontrol_client.carla import pace
from rtcontrol_client.carla.observing import View
from rtcontrol_client.carla.pace import Near
from rtcontrol_client.carla.route import BEND_STEP_M, NO_BEND, Route

BEND_DOWN = 3.0  # m/s2, slowing for a bend or a line
MOST_DOWN = 6.0
ROAD_END_M = 5.0
SHORT_M = 0.3  # before a stop line
YELLOW = 4.0  # m/s2: who would have to brake harder goes on at yellow
EASED = 2.0  # m/s2: an emergency is over where so little braking would do
CLOSE_M, CREEP = 2.0, 0.5


def danger(near: Near, speed: float, braking: bool) -> bool:
    """Whether the emergency brake acts; `braking`: it did a step ago, and goes on until there is room again."""
    if pace.emergency(speed, near):
        return True
    closing = speed - near.speed
    left = max(near.gap_m - pace.STANDING_GAP_M, 0.1)
    return braking and closing > 0.0 and closing * closing > 2.0 * EASED * left


def close(near: Near, speed: float) -> float:
    """The acceleration that is allowed behind somebody who stands: from a stand none, so as not to creep up."""
    return 0.0 if near.gap_m < CLOSE_M and near.speed < CREEP and speed < CREEP else math.inf


def bend(view: View, speed: float) -> float:
    """The acceleration (m/s2) that bends and the end of the road still allow."""
    most = math.inf
    reach = speed * speed / (2.0 * BEND_DOWN) + 8.0
    for ahead, slow in view.route.bends(view.s, reach):
        if slow < NO_BEND:
            most = min(most, _slowing(ahead, slow, speed))
    if view.route.ends:
        left = view.route.length - view.s - view.own.half_length_m - ROAD_END_M
        most = min(most, _slowing(max(left, 0.0), 0.0, speed))
    return max(most, -MOST_DOWN)


def late(route: Route, s: float, speed: float) -> tuple[float, float] | None:
    """Whether a way over the next junction comes too soon, s metres after the route's start: (metres that slowing for
    its bend needs, metres that are left); None: there is time, or nothing to slow down for."""
    entry = route.junction_at
    if entry is None:
        return None
    for ahead, slow in route.bends(s, pace.slowing_m(speed, 0.0)):
        # The bend that we are in leads to all ways.
        if s + ahead > entry - BEND_STEP_M and ahead < (needed := pace.slowing_m(speed, slow)):
            return needed, ahead
    return None


def line(view: View, speed: float, could: bool, braking: bool) -> tuple[bool, bool]:
    """The last net before a stop line, whatever is called: (whether we could have stopped, whether to brake fully now).

    `could`, `braking`: what this gave a step ago. Who is too near to stop as the light changes goes on."""
    ahead = view.route.line_ahead(view.s)
    if view.light not in ("red", "yellow") or ahead is None:
        return False, False
    left = ahead[0] - view.s - view.own.half_length_m - SHORT_M
    needed = speed * speed / (2.0 * left) if left > 0.0 else math.inf
    # Who stands can stay, also with the bumper over the line.
    could = could or speed < CREEP or needed <= (pace.FULL_BRAKE if view.light == "red" else YELLOW)
    return could, could and needed > (EASED if braking else pace.EMERGENCY)


def _slowing(ahead: float, to: float, speed: float) -> float:
    """The acceleration that keeps to the speeds from which there is still time to slow down."""
    allowed = math.sqrt(to * to + 2.0 * BEND_DOWN * ahead)
    return 2.0 * (allowed - speed) - (BEND_DOWN if ahead > 0 else 0.0)
