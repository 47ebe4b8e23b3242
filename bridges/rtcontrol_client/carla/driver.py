"""The driver, which keeps the vehicle in its lane and carries out the last call, step by step.

`look` locates the vehicle and the vehicles around it, `obey` accepts a call, `step` returns pedals and steering.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rtcontrol_client.carla import intent as rules
from rtcontrol_client.carla import observing
from rtcontrol_client.carla.control import WHEELBASE_M, Control, PedalController, SteeringController, look_ahead_m
from rtcontrol_client.carla.intent import KMH, LEFT, TURNS, CallContext, Intent, NearVehicle, Turn
from rtcontrol_client.carla.lanes import LaneLine, Route, TownRoad
from rtcontrol_client.carla.observing import Body, DriverView, LaneOccupancy, Scene

# Something other than driving has moved a vehicle that is farther off its lane, or jumps farther in a single step.
LOST_M, JUMP_M = 6.0, 25.0
# The vehicle is in the next lane when its centre is farther than this beyond the border.
FIRM_M = 0.05
# A change of lanes takes at least this time and this distance.
TAKES_S, LEAST_M = 3.0, 16.0
DONE_M = 0.4
GIVE_UP_S = 4.0  # a lane change that is incomplete this long after its planned end is cancelled
BACK_M = 15.0  # distance in which the vehicle returns to the centre of its lane
CLEAR_M = 0.25  # a vehicle blocks the path if its sideways distance to the path is less
CLOSING = 0.5  # minimum closing speed in m/s that is assumed for other vehicles during a lane change
LARGEST = 200.0  # the largest number that a call may contain
NOWHERE = CallContext(speed_kmh=0.0, lane=1, lanes=1, shift=0, junction_m=None)
STANDSTILL = Control(brake=0.6)
log = logging.getLogger("rtcontrol.carla")


@dataclass(slots=True)
class TrackChanges:
    """The changes of the track in one step. `sideways_m` is the change of the offset when the vehicle crossed into
    another lane, `entered` whether it entered a junction, `lost` whether something moved it elsewhere."""

    sideways_m: float = 0.0
    entered: bool = False
    lost: bool = False


class LaneTrack:
    """The position of a vehicle: its lane, the distance along the lane, and the offset to the right of its centre."""

    def __init__(self, road: TownRoad) -> None:
        self.road = road
        self.s = 0.0
        self.lateral_m = 0.0
        self._lane: LaneLine | None = None

    def route(self, turn: Turn) -> Route:
        """Return the route from the start of the current lane, with this turn at the next junction."""
        lane = self._current()
        return self.road.route(lane, "straight" if lane.junction else turn)

    def follow(self, own: Body, intent: Intent) -> TrackChanges:
        """Update the track to the vehicle's position. At a junction, take the intent's turn, and clear it afterwards.

        Raises ValueError if the map has no road there.
        """
        changes = TrackChanges()
        if self._lane is None:
            self._locate(own)
            return changes
        lane, before = self._lane, self.s
        self.s, self.lateral_m = lane.project(own.x, own.y, self.s)
        if abs(self.lateral_m) > LOST_M or abs(self.s - before) > JUMP_M or self.s < -FIRM_M:
            self._locate(own)
            changes.lost = self._lane is not lane
            return changes
        self._enter_next_lanes(own, intent, changes)
        self._change_lane(own, changes)
        return changes

    def _enter_next_lanes(self, own: Body, intent: Intent, changes: TrackChanges) -> None:
        for _ in range(8):
            lane = self._current()
            if self.s <= lane.length or not lane.after:
                return
            following = self.route(intent.turn).lanes[1]
            changes.entered = changes.entered or (following.junction and not lane.junction)
            if lane.junction and not following.junction:
                intent.passed_junction()
            self._lane = following
            self.s, self.lateral_m = following.project(own.x, own.y, self.s - lane.length)

    def _change_lane(self, own: Body, changes: TrackChanges) -> None:
        lane, before_m = self._current(), self.lateral_m
        other = lane.left if before_m < 0 else lane.right
        if other is None or abs(before_m) <= 0.5 * lane.width + FIRM_M:
            return
        self.s, self.lateral_m = other.project(own.x, own.y, self.s * other.length / lane.length)
        self._lane = other
        changes.sideways_m = self.lateral_m - before_m

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
    """A lateral move from `start` to `end`, both in metres to the right of the centre of the vehicle's lane. `side` is
    -1 for a change to the left, 1 for a change to the right, and 0 for a return to the centre."""

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
        """Shift both offsets by a distance, because the vehicle is now in another lane."""
        self.start += by
        self.end += by

    def lateral(self, ahead_m: float, speed: float) -> float:
        """Return the planned offset from the lane's centre at a distance ahead."""
        progress = min(1.0, self.progress + ahead_m * _progress_rate(speed) / max(speed, 0.1))
        smooth = progress**3 * (10.0 - 15.0 * progress + 6.0 * progress * progress)
        return self.start + (self.end - self.start) * smooth

    def is_complete(self, lateral_m: float) -> bool:
        """Return whether a vehicle with this offset has completed the lane change."""
        return self.progress >= 0.95 and abs(lateral_m - self.end) < DONE_M


def _progress_rate(speed: float) -> float:
    return min(1.0 / TAKES_S, max(speed, 0.0) / LEAST_M)


@dataclass(slots=True)
class DriveCounts:
    """Statistics of a drive; `emergencies` is how often emergency braking started."""

    emergencies: int = 0
    lane_changes: int = 0
    distance_m: float = 0.0
    top_kmh: float = 0.0


@dataclass(slots=True)
class EmergencyBrake:
    """The state of the emergency brake. `could_stop` is whether the vehicle was able to stop at the stop line ahead,
    `for_line` whether it brakes for this line."""

    active: bool = False
    could_stop: bool = False
    for_line: bool = False


class Driver:
    """Drives one vehicle on a town's roads, with a fixed time step."""

    def __init__(self, road: TownRoad, dt_s: float) -> None:
        self.dt_s = dt_s
        self.intent, self.counts = Intent(), DriveCounts()
        self._track, self._occupancy = LaneTrack(road), LaneOccupancy(road)
        self._steer, self._throttle = SteeringController(dt_s), PedalController(dt_s)
        self._active_change: LaneChange | None = None
        self._scene: Scene | None = None
        self.view: DriverView | None = None  # the result of the last `look`
        self._braking, self._last_refusal = EmergencyBrake(), ""  # the last reason for a refusal, without its numbers

    @property
    def shift(self) -> int:
        """Return the direction of the active lane change: -1 (left), 1 (right), or 0 for none."""
        return 0 if self._active_change is None else self._active_change.side

    def look(self, scene: Scene) -> DriverView:
        """Return the vehicle's position and the vehicles around it; the same scene is evaluated only once.

        Raises ValueError if a value of the vehicle is NaN or too large, or if the map has no road there.
        """
        if scene is self._scene and self.view is not None:
            return self.view
        if not scene.own.is_plausible:
            raise ValueError("the vehicle's place is not a number")
        self._occupancy.update(scene.others)
        track = self._track
        changes = track.follow(scene.own, self.intent)
        if self._active_change is not None:
            self._active_change.shift_offsets(changes.sideways_m)
        if changes.lost:
            self._active_change = None
        if changes.sideways_m or changes.lost:
            self._cancel_late_turn(scene.own.speed)
        if changes.entered and not self._target_continues():
            self._return_to_centre(track.lateral_m)
        view = observing.build_view(self._occupancy, scene, track.route(self.intent.turn), track.s, track.lateral_m)
        self._scene, self.view = scene, view
        return view

    def obey(self, name: str, arguments: Mapping[str, Any]) -> str | None:
        """Execute a call. Return the reason if it is refused, else None. A lane change needs an earlier `look`."""
        reason = self._apply_call(name, arguments)
        if reason is not None:
            self._log_refusal(reason)
        return reason

    def _log_refusal(self, reason: str) -> None:
        """Log a refusal, unless the previous refusal had the same reason: a model repeats its calls in each tick."""
        before, self._last_refusal = self._last_refusal, reason.split(":")[0]
        if self._last_refusal != before:
            log.warning("call refused: %s", reason)

    def step(self, scene: Scene) -> Control:
        """Return the pedals and the steering for the next step."""
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
        late = observing.too_short_distance(route, s, speed)
        if late is None:
            return None
        way = "go straight on" if turn == "straight" else f"turn {turn}"
        return f"too late to {way}: {late[0]:.0f} m are needed at {speed * KMH:.0f} km/h, {late[1]:.0f} m are left"

    def _cancel_late_turn(self, speed: float) -> None:
        """Cancel the chosen turn if, in the new lane, the junction is too near to slow down for it."""
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
            # A turn that is already chosen, or that is chosen inside a junction, has no effect.
            if view is not None and not view.lane.junction and turn != self.intent.turn and turn in TURNS:
                reason = self._late_turn_reason(turn, self._track.road.route(view.lane, turn), view.s, view.own.speed)
                if reason is not None:
                    return reason
            place = NOWHERE if view is None else observing.call_context(view, self.shift)
            reason = self.intent.obey(name, arguments, place)
        except (KeyError, ValueError, TypeError):
            return "this is not a driver's call"
        wish = self.intent.pop_requested_change()
        return reason if not wish or view is None else self._start_change(wish, view)

    def _start_change(self, wish: int, view: DriverView) -> str | None:
        side, lane = (view.left, view.lane.left) if wish == LEFT else (view.right, view.lane.right)
        if side is None or lane is None:
            return f"there is no lane to the {'left' if wish == LEFT else 'right'}"
        if not rules.has_room(view.own.speed, side.ahead, side.behind):
            return "another vehicle is next to us"
        across = 0.5 * (view.lane.width + lane.width)
        self._active_change = LaneChange(wish, view.lateral_m, wish * across)
        return None

    # The methods below change lanes.

    def _advance_change(self, view: DriverView, speed: float) -> None:
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
        """Cancel the lane change and return to the centre of the current lane."""
        self._active_change = LaneChange(0, lateral_m, 0.0)

    def _is_cut_off(self, view: DriverView, change: LaneChange) -> bool:
        """Return whether a vehicle in the target lane came next to us before we left our lane."""
        if not change.side or abs(change.end) < 0.5 * view.lane.width:
            return False
        side = view.left if change.end < 0 else view.right
        return side is not None and rules.is_occupied(view.own.speed, side.ahead, side.behind)

    def _target_continues(self) -> bool:
        """Return whether there is still a target lane next to ours."""
        change, lane = self._active_change, self._track.route(self.intent.turn).lanes[0]
        if change is None or abs(change.end) < 0.5 * lane.width:
            return True
        return (lane.left if change.end < 0 else lane.right) is not None

    def _wanted_offset(self, ahead_m: float, speed: float) -> float:
        return 0.0 if self._active_change is None else self._active_change.lateral(ahead_m, speed)

    # The methods below choose the speed.

    def _wanted_acceleration(self, view: DriverView, speed: float) -> float:
        limit = view.limit_kmh / KMH if math.isfinite(view.limit_kmh) else 0.0
        allowed = rules.target_acceleration(self.intent, speed, limit, None)
        brakes, braking = self._braking, False
        for near in self._vehicles_in_path(view, speed):
            limits = rules.target_acceleration(self.intent, speed, limit, near), observing.standstill_limit(near, speed)
            allowed = min(allowed, *limits)
            braking = braking or observing.must_brake_hard(near, speed, brakes.active)
        brakes.could_stop, brakes.for_line = observing.check_stop_line(view, speed, brakes.could_stop, brakes.for_line)
        braking = braking or brakes.for_line
        self.counts.emergencies += braking and not brakes.active
        brakes.active = braking
        return -rules.FULL_BRAKE if braking else min(allowed, observing.bend_limit(view, speed))

    def _vehicles_in_path(self, view: DriverView, speed: float) -> Iterator[NearVehicle]:
        """Yield the vehicles on our path, including those in the target lane during a lane change."""
        own = view.own
        for shift_m, side in ((0.0, view.centre), (-view.lane.width, view.left), (view.lane.width, view.right)):
            for other in () if side is None else side.vehicles:
                front = other.distance + other.half_m
                if front <= own.half_length_m:
                    continue
                gap = max(other.distance - other.half_m - own.half_length_m, 0.0)
                touching = own.half_width_m + other.across_m + CLEAR_M
                # The other vehicle also moves, so it is reached and passed farther along our path.
                ratio = speed / max(speed - other.along, CLOSING)
                offsets = [self._path_offset(view, ahead_m * ratio, speed) for ahead_m in (gap, front)]
                if min(offsets) - touching < other.lateral + shift_m < max(offsets) + touching:
                    yield NearVehicle(gap, other.along)

    def _path_offset(self, view: DriverView, ahead_m: float, speed: float) -> float:
        if self._active_change is not None:
            return self._wanted_offset(ahead_m, speed)
        return view.lateral_m * max(0.0, 1.0 - ahead_m / BACK_M)

    # The method below steers.

    def _steering_value(self, view: DriverView, speed: float) -> float:
        own, half = view.own, 0.5 * WHEELBASE_M
        cos, sin = math.cos(math.radians(own.yaw_deg)), math.sin(math.radians(own.yaw_deg))
        ahead = look_ahead_m(speed)
        x, y, tx, ty = view.route.at(view.s - half + ahead)
        offset_m = self._wanted_offset(ahead - half, speed)
        dx, dy = x - ty * offset_m - (own.x - half * cos), y + tx * offset_m - (own.y - half * sin)
        error_m = view.lateral_m - self._wanted_offset(0.0, speed)
        return self._steer.step(dx * cos + dy * sin, dy * cos - dx * sin, speed, error_m)


def observe(scene: Scene, driver: Driver) -> dict[str, Any]:
    """Return the observation for the agent `driver`, in km/h and metres. Absent vehicles have no fields."""
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
