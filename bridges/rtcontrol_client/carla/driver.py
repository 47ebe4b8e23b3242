"""The driver, which keeps its lane and executes the last call, step by step.

`look` locates the vehicle and its surroundings, `obey` accepts a call, `step` returns pedals and steering.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rtcontrol_client.carla import intent as rules
from rtcontrol_client.carla import observing
from rtcontrol_client.carla.control import WHEELBASE_M, Control, Steer, Throttle, look_ahead_m
from rtcontrol_client.carla.intent import KMH, LEFT, TURNS, Intent, Near, Place, Turn
from rtcontrol_client.carla.lanes import LaneLine, Route, TownRoad
from rtcontrol_client.carla.observing import Body, LaneOccupancy, Scene, View

# If the vehicle is farther off its lane, or moved farther in one step, something else moved it.
LOST_M, JUMP_M = 6.0, 25.0
# The vehicle counts as in the other lane from this distance beyond the border.
FIRM_M = 0.05
# A change of lanes takes at least this time and this distance.
TAKES_S, LEAST_M = 3.0, 16.0
DONE_M = 0.4
GIVE_UP_S = 4.0  # the time after the planned end at which a change of lanes is given up
BACK_M = 15.0  # the distance in which the vehicle returns to the centre of its lane
CLEAR_M = 0.25  # vehicles with less sideways distance to our path block the path
CLOSING = 0.5  # m/s, the smallest closing speed that is assumed while changing lanes
LARGEST = 200.0  # the largest number in calls
NOWHERE = Place(speed_kmh=0.0, lane=1, lanes=1, shift=0, junction_m=None)
STANDSTILL = Control(brake=0.6)
log = logging.getLogger("rtcontrol.carla")


@dataclass(slots=True)
class Passed:
    """The changes in one step. `sideways_m` is the change of the offset when the vehicle came into another lane. The
    vehicle `entered` a junction, or was `lost` because something moved it elsewhere."""

    sideways_m: float = 0.0
    entered: bool = False
    lost: bool = False


class Track:
    """The lane of a vehicle, the distance along the lane, and the offset to the right of the centre line."""

    def __init__(self, road: TownRoad) -> None:
        self.road = road
        self.s = 0.0
        self.lateral_m = 0.0
        self._lane: LaneLine | None = None

    def route(self, turn: Turn) -> Route:
        """Return the route from the start of the current lane, with the chosen turn at the next junction."""
        lane = self._current()
        return self.road.route(lane, "straight" if lane.junction else turn)

    def follow(self, own: Body, intent: Intent) -> Passed:
        """Update the track to the vehicle's position; use the intent's turn at a junction and clear the turn after it.

        Raises ValueError if there is no road.
        """
        passed = Passed()
        if self._lane is None:
            self._locate(own)
            return passed
        lane, before = self._lane, self.s
        self.s, self.lateral_m = lane.project(own.x, own.y, self.s)
        if abs(self.lateral_m) > LOST_M or abs(self.s - before) > JUMP_M or self.s < -FIRM_M:
            self._locate(own)
            passed.lost = self._lane is not lane
            return passed
        self._enter_next_lanes(own, intent, passed)
        self._change_lane(own, passed)
        return passed

    def _enter_next_lanes(self, own: Body, intent: Intent, passed: Passed) -> None:
        for _ in range(8):
            lane = self._current()
            if self.s <= lane.length or not lane.after:
                return
            following = self.route(intent.turn).lanes[1]
            passed.entered = passed.entered or (following.junction and not lane.junction)
            if lane.junction and not following.junction:
                intent.passed_junction()
            self._lane = following
            self.s, self.lateral_m = following.project(own.x, own.y, self.s - lane.length)

    def _change_lane(self, own: Body, passed: Passed) -> None:
        lane, before_m = self._current(), self.lateral_m
        other = lane.left if before_m < 0 else lane.right
        if other is None or abs(before_m) <= 0.5 * lane.width + FIRM_M:
            return
        self.s, self.lateral_m = other.project(own.x, own.y, self.s * other.length / lane.length)
        self._lane = other
        passed.sideways_m = self.lateral_m - before_m

    def _locate(self, own: Body) -> None:
        position = self.road.place(own.x, own.y, own.z, own.yaw_deg)
        if position is None:
            raise ValueError("there is no road")
        self._lane, self.s, self.lateral_m = position

    def _current(self) -> LaneLine:
        if self._lane is None:
            raise ValueError("the vehicle was not located yet")
        return self._lane


@dataclass(slots=True)
class LaneChange:
    """A lateral move from `start` to `end`, in metres to the right of the reference lane's centre. `side` is -1 for a
    change to the left, 1 for a change to the right, and 0 for a return to the centre."""

    side: int
    start: float
    end: float
    progress: float = 0.0
    over_s: float = 0.0  # time since the change should have ended

    def advance(self, dt_s: float, speed: float) -> None:
        if self.progress >= 1.0:
            self.over_s += dt_s
        self.progress = min(1.0, self.progress + dt_s * _progress_rate(speed))

    def shift_offsets(self, by: float) -> None:
        """Shift all offsets by a distance, because the reference lane changed."""
        self.start += by
        self.end += by

    def lateral(self, ahead_m: float, speed: float) -> float:
        """Return the planned offset from the reference lane's centre at a distance ahead."""
        progress = min(1.0, self.progress + ahead_m * _progress_rate(speed) / max(speed, 0.1))
        smooth = progress**3 * (10.0 - 15.0 * progress + 6.0 * progress * progress)
        return self.start + (self.end - self.start) * smooth

    def is_complete(self, lateral_m: float) -> bool:
        """Return whether the change of lanes is complete for a vehicle with this offset."""
        return self.progress >= 0.95 and abs(lateral_m - self.end) < DONE_M


def _progress_rate(speed: float) -> float:
    return min(1.0 / TAKES_S, max(speed, 0.0) / LEAST_M)


@dataclass(slots=True)
class Counts:
    """The counters of a drive; `emergencies` counts how often emergency braking started, not its steps."""

    emergencies: int = 0
    lane_changes: int = 0
    distance_m: float = 0.0
    top_kmh: float = 0.0


@dataclass(slots=True)
class Braking:
    """The state of the emergency brake. `could_stop`: the vehicle could stop at the stop line ahead. `for_line`: the
    vehicle brakes for that line."""

    active: bool = False
    could_stop: bool = False
    for_line: bool = False


class Driver:
    """Drives one vehicle on a town's roads, with a fixed time step."""

    def __init__(self, road: TownRoad, dt_s: float) -> None:
        self.dt_s = dt_s
        self.intent, self.counts = Intent(), Counts()
        self._track, self._occupancy = Track(road), LaneOccupancy(road)
        self._steer, self._throttle = Steer(dt_s), Throttle(dt_s)
        self._active_change: LaneChange | None = None
        self._scene: Scene | None = None
        self.view: View | None = None  # result of the last look
        self._braking, self._last_refusal = Braking(), ""  # the kind of the last refusal

    @property
    def shift(self) -> int:
        """Return the direction of the change of lanes: -1 left, 0 none, 1 right."""
        return 0 if self._active_change is None else self._active_change.side

    def look(self, scene: Scene) -> View:
        """Return the vehicle's place and surroundings; the same scene is evaluated only once.

        Raises ValueError if the vehicle's figures are not numbers, or if there is no road.
        """
        if scene is self._scene and self.view is not None:
            return self.view
        if not scene.own.is_plausible:
            raise ValueError("the vehicle's place is not a number")
        self._occupancy.update(scene.others)
        track = self._track
        passed = track.follow(scene.own, self.intent)
        if self._active_change is not None:
            self._active_change.shift_offsets(passed.sideways_m)
        if passed.lost:
            self._active_change = None
        if passed.sideways_m or passed.lost:
            self._cancel_late_turn(scene.own.speed)
        if passed.entered and not self._target_continues():
            self._return_to_centre(track.lateral_m)
        view = observing.look(self._occupancy, scene, track.route(self.intent.turn), track.s, track.lateral_m)
        self._scene, self.view = scene, view
        return view

    def obey(self, name: str, arguments: Mapping[str, Any]) -> str | None:
        """Execute a call; return why it was refused, or None. A lane change needs an earlier `look`."""
        reason = self._apply_call(name, arguments)
        if reason is not None:
            self._log_refusal(reason)
        return reason

    def _log_refusal(self, reason: str) -> None:
        """Log a refusal, unless the last refusal was of the same kind, since a model repeats its calls at each tick."""
        before, self._last_refusal = self._last_refusal, reason.split(":")[0]
        if self._last_refusal != before:
            log.warning("call refused: %s", reason)

    def step(self, scene: Scene) -> Control:
        """Return the pedals and the steering until the next step."""
        try:
            view = self.look(scene)
        except ValueError:
            return STANDSTILL
        speed = view.own.speed
        self.counts.distance_m += speed * self.dt_s
        self.counts.top_kmh = max(self.counts.top_kmh, speed * KMH)
        self._advance_change(view, speed)
        pedals = self._throttle.step(self._wanted_acceleration(view, speed), speed)
        return replace(pedals, steer=self._steering_value(view, speed))

    # The methods below execute calls.

    def _late_turn_reason(self, turn: Turn, route: Route, s: float, speed: float) -> str | None:
        late = observing.late(route, s, speed)
        if late is None:
            return None
        way = "go straight on" if turn == "straight" else f"turn {turn}"
        return f"too late to {way}: {late[0]:.0f} m are needed at {speed * KMH:.0f} km/h, {late[1]:.0f} m are left"

    def _cancel_late_turn(self, speed: float) -> None:
        """Cancel the chosen turn if, after changing lanes, there is too little road left for it."""
        turn = self.intent.turn
        reason = self._late_turn_reason(turn, self._track.route(turn), self._track.s, speed)
        if turn != "straight" and reason is not None:
            self.intent.turn = "straight"
            self._log_refusal(reason)

    def _apply_call(self, name: str, arguments: Mapping[str, Any]) -> str | None:
        numbers = [value for value in arguments.values() if isinstance(value, (int, float))]
        if not all(0 <= value <= LARGEST for value in numbers):
            return "a value out of range"
        view = self.view
        try:
            turn = arguments["at_next_junction"] if name == "turn" else self.intent.turn
            # Repeating the chosen turn, or choosing one inside a junction, has no effect.
            if view is not None and not view.lane.junction and turn != self.intent.turn and turn in TURNS:
                reason = self._late_turn_reason(turn, self._track.road.route(view.lane, turn), view.s, view.own.speed)
                if reason is not None:
                    return reason
            place = NOWHERE if view is None else observing.place(view, self.shift)
            reason = self.intent.obey(name, arguments, place)
        except (KeyError, ValueError, TypeError):
            return "this is not a driver's call"
        wish = self.intent.take_wish()
        return reason if not wish or view is None else self._start_change(wish, view)

    def _start_change(self, wish: int, view: View) -> str | None:
        side, lane = (view.left, view.lane.left) if wish == LEFT else (view.right, view.lane.right)
        if side is None or lane is None:
            return f"there is no lane to the {'left' if wish == LEFT else 'right'}"
        if not rules.room(view.own.speed, side.ahead, side.behind):
            return "another vehicle is next to us"
        across = 0.5 * (view.lane.width + lane.width)
        self._active_change = LaneChange(wish, view.lateral_m, wish * across)
        return None

    # The methods below change lanes.

    def _advance_change(self, view: View, speed: float) -> None:
        change = self._active_change
        if change is None:
            return
        change.advance(self.dt_s, speed)
        if change.is_complete(view.lateral_m) and abs(change.end) < 0.5 * view.lane.width:
            self.counts.lane_changes += change.side != 0
            self._active_change = None
        elif change.over_s > GIVE_UP_S or self._is_cut_off(view, change):
            self._return_to_centre(view.lateral_m)

    def _return_to_centre(self, lateral_m: float) -> None:
        """Stop changing lanes and return to the centre of the current lane."""
        self._active_change = LaneChange(0, lateral_m, 0.0)

    def _is_cut_off(self, view: View, change: LaneChange) -> bool:
        """Return whether a vehicle in the other lane came next to us before we left our lane."""
        if not change.side or abs(change.end) < 0.5 * view.lane.width:
            return False
        side = view.left if change.end < 0 else view.right
        return side is not None and rules.beside(view.own.speed, side.ahead, side.behind)

    def _target_continues(self) -> bool:
        """Return whether the target lane still runs next to ours."""
        change, lane = self._active_change, self._track.route(self.intent.turn).lanes[0]
        if change is None or abs(change.end) < 0.5 * lane.width:
            return True
        return (lane.left if change.end < 0 else lane.right) is not None

    def _wanted_offset(self, ahead_m: float, speed: float) -> float:
        """Return the wanted offset from the centre line at a distance ahead."""
        return 0.0 if self._active_change is None else self._active_change.lateral(ahead_m, speed)

    # The methods below choose the speed.

    def _wanted_acceleration(self, view: View, speed: float) -> float:
        limit = view.limit_kmh / KMH if math.isfinite(view.limit_kmh) else 0.0
        allowed = rules.wanted(self.intent, speed, limit, None)
        brakes, braking = self._braking, False
        for near in self._vehicles_in_path(view, speed):
            allowed = min(allowed, rules.wanted(self.intent, speed, limit, near), observing.close(near, speed))
            braking = braking or observing.danger(near, speed, brakes.active)
        brakes.could_stop, brakes.for_line = observing.line(view, speed, brakes.could_stop, brakes.for_line)
        braking = braking or brakes.for_line
        self.counts.emergencies += braking and not brakes.active
        brakes.active = braking
        return -rules.FULL_BRAKE if braking else min(allowed, observing.bend(view, speed))

    def _vehicles_in_path(self, view: View, speed: float) -> Iterator[Near]:
        """Yield the vehicles that our vehicle would hit on its path, including the other lane while changing lanes."""
        own = view.own
        for shift_m, side in ((0.0, view.centre), (-view.lane.width, view.left), (view.lane.width, view.right)):
            for other in () if side is None else side.seen:
                front = other.distance + other.half_m
                if front <= own.half_length_m:
                    continue
                gap = max(other.distance - other.half_m - own.half_length_m, 0.0)
                touching = own.half_width_m + other.across_m + CLEAR_M
                # We are farther along our path when we reach the other vehicle, and until we have passed it.
                ratio = speed / max(speed - other.along, CLOSING)
                offsets = [self._path_offset(view, ahead_m * ratio, speed) for ahead_m in (gap, front)]
                if min(offsets) - touching < other.lateral + shift_m < max(offsets) + touching:
                    yield Near(gap, other.along)

    def _path_offset(self, view: View, ahead_m: float, speed: float) -> float:
        if self._active_change is not None:
            return self._wanted_offset(ahead_m, speed)
        return view.lateral_m * max(0.0, 1.0 - ahead_m / BACK_M)

    # The method below steers.

    def _steering_value(self, view: View, speed: float) -> float:
        own, half = view.own, 0.5 * WHEELBASE_M
        cos, sin = math.cos(math.radians(own.yaw_deg)), math.sin(math.radians(own.yaw_deg))
        ahead = look_ahead_m(speed)
        x, y, tx, ty = view.route.at(view.s - half + ahead)
        offset_m = self._wanted_offset(ahead - half, speed)
        dx, dy = x - ty * offset_m - (own.x - half * cos), y + tx * offset_m - (own.y - half * sin)
        error_m = view.lateral_m - self._wanted_offset(0.0, speed)
        return self._steer.step(dx * cos + dy * sin, dy * cos - dx * sin, speed, error_m)


def observe(scene: Scene, driver: Driver) -> dict[str, Any]:
    """Return the observation for the agent `driver`, in km/h and metres, without fields for absent things."""
    view = driver.look(scene)
    data: dict[str, Any] = {
        "speed_kmh": view.own.speed * KMH,
        "limit_kmh": view.limit_kmh,
        "lane": view.lane.index,
        "lanes": view.lane.count,
        "shift": driver.shift,
        "light": view.light,
        "junction_m": view.junction_m,
        "turn": driver.intent.turn,
    }
    for name, side in (("", view.centre), ("left_", view.left), ("right_", view.right)):
        for way, near in () if side is None else (("ahead", side.ahead), ("behind", side.behind)):
            if near is not None:
                data[f"{name}{way}_m"] = near.gap_m
                data[f"{name}{way}_kmh"] = near.speed * KMH
    return data
