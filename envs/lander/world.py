"""Gymnasium's continuous LunarLander as a world for `engines(main, side)`, at its own 50 physics steps a second."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.box2d.lunar_lander import FPS, LEG_DOWN, SCALE, VIEWPORT_H, VIEWPORT_W

from rtcontrol.agents.lander.goals import PHRASINGS, LanderGoal
from rtcontrol.envs.judge import GoalWorld, Judge

LAND_LIMIT_S = 25.0
HOVER_S = 12.0
HOVER_SETTLE_S = 4.0
HOVER_RADIUS = 0.12
PAD_HALF_WIDTH = 0.15
SIDE_NEAR, SIDE_FAR = 0.04, 0.24


class LanderJudge(Judge[LanderGoal]):
    """The judge of a landing or a hover.

    land: at rest, no crash, |x| < 0.15. left: at rest, no crash, -0.24 <= x <= -0.04; right is its mirror image.
    hover: 12 s without touching down, the mean distance to the requested point from second 4 on under 0.12.
    """

    steps_a_second = FPS

    def reset(self, goal: LanderGoal | None) -> None:
        super().reset(goal)
        self._airborne = False
        self._x = self._y = 0.0

    def step(self, x: float, y: float, contact: bool, crashed: bool, outside: bool, asleep: bool) -> None:
        """Judge one physics step: it may end by crash, outside (left the field), rest, touchdown (hover), or time."""
        if self.end is not None:
            return
        self._steps += 1
        self._x, self._y = x, y
        hover = self.goal is not None and self.goal.kind == "hover"
        self._airborne |= not contact
        limit_s = HOVER_S if hover else LAND_LIMIT_S
        ends = {
            "crash": crashed,
            "outside": outside,
            "rest": asleep,
            "touchdown": hover and contact and self._airborne,
            "time": self.seconds >= limit_s - 1e-9,
        }
        self.end = next((end for end, reached in ends.items() if reached), None)
        if hover and self.goal is not None and self.seconds > HOVER_SETTLE_S:
            self.measure(math.hypot(x - self.goal.x, y - self.goal.y))
        self._succeeded = self._is_success()

    def _is_success(self) -> bool:
        kind = None if self.goal is None else self.goal.kind
        if kind == "hover":
            return self.end == "time" and self.mean_distance < HOVER_RADIUS
        if self.end != "rest":
            return False
        if kind == "land":
            return abs(self._x) < PAD_HALF_WIDTH
        return SIDE_NEAR <= (-self._x if kind == "left" else self._x) <= SIDE_FAR

    def detail(self) -> dict[str, Any]:
        hovered = {"mean_distance": round(self.mean_distance, 4)} if self._measured else {}
        return {**super().detail(), "x": round(self._x, 4), "y": round(self._y, 4), **hovered}


# The engines are off at exactly the lower end of their range and fire only above it, so 50 % needs a small addition.
_NUDGE = 1e-6


def engine_action(main: float, side: float) -> tuple[float, float]:
    """Return LunarLander's continuous action for percentages of thrust.

    `main` 50..100 % is action[0] in (0, 1], 0 is off. `side` -100..-50 and 50..100 % is action[1] of that share; a
    positive one pushes the lander to the right and tips it to the right (clockwise: `angle` falls). Raises ValueError
    for a percentage that the engines do not have.
    """
    if not (main == 0 or 50 <= main <= 100):
        raise ValueError(f"main={main}: the main engine runs at 0 or 50..100 %")
    if not (side == 0 or 50 <= abs(side) <= 100):
        raise ValueError(f"side={side}: a side engine runs at 0 or 50..100 %, the sign is the direction")
    throttle = -1.0 if main == 0 else max(main / 50.0 - 1.0, _NUDGE)
    lateral = 0.0 if side == 0 else max(abs(side) / 100.0, 0.5 + _NUDGE)
    return throttle, -lateral if side < 0 else lateral


class Lander(GoalWorld[LanderGoal]):
    """A `Simulation` of one lander.

    Observation: `x`, `y` (the pad's centre is 0, 0; the field ends at |x| = 1, the start is at about 0, 1.4), `vx`,
    `vy` (dx/dt = 0.5 vx, dy/dt = 1.125 vy, a second), `angle` (radians, counterclockwise), `spin` (0.4 rad/s),
    `left_leg`, `right_leg` (0.0 or 1.0).
    """

    step_s = 1 / FPS
    judge: LanderJudge

    def __init__(self, goal: LanderGoal | str | None = None, pictures: bool = False) -> None:
        hint = "Write land, left, right or a hover with its height, such as 'hover at 0.7 and x -0.2'."
        super().__init__(LanderJudge(), goal, PHRASINGS.goal_of, "lander", hint)
        # The bare environment, since the TimeLimit wrapper would end it after 1000 steps, and the judge limits the
        # time. No render mode without pictures, since Gymnasium would add slow exhaust particles.
        mode = "rgb_array" if pictures else None
        self._env: Any = gymnasium.make("LunarLander-v3", continuous=True, render_mode=mode).unwrapped
        self._action = np.zeros(2, dtype=np.float32)
        self._state: list[float] = [0.0] * 8
        self._return = 0.0
        self.bindings: Mapping[str, Callable[..., Any]] = {"engines": self.engines}

    def engines(self, main: float, side: float) -> None:
        """Set both engines, in percent, until the next call. Raises ValueError outside the ranges of the engines."""
        self._action[:] = engine_action(main, side)

    def _start(self, seed: int) -> None:
        """Reset terrain, first push and engine noise; the engines are off."""
        state, _ = self._env.reset(seed=seed)
        self._state = state.tolist()
        self._return = 0.0
        self._action[:] = engine_action(0, 0)

    def place(self, x: float, y: float, vx: float, vy: float, angle: float, spin: float) -> None:
        """Move the lander with its legs to a state in observation units, as a start for training well above the
        ground."""
        lander = self._env.lander
        rise = (y - self._state[1]) * (VIEWPORT_H / SCALE / 2)
        shift = ((x - self._state[0]) * (VIEWPORT_W / SCALE / 2), rise)
        moved = self._move(shift, angle - lander.angle)
        velocity = (vx * FPS / (VIEWPORT_W / SCALE / 2), vy * FPS / (VIEWPORT_H / SCALE / 2))
        omega = spin * FPS / 20.0
        for body, arm in moved:
            body.linearVelocity = (velocity[0] - omega * arm[1], velocity[1] + omega * arm[0])
            body.angularVelocity = omega
        self.step()

    def show(self, data: Mapping[str, float]) -> None:
        """Move the lander to the place of an observation, for a picture, without a step."""
        lander = self._env.lander
        x = (data["x"] + 1) * (VIEWPORT_W / SCALE / 2)
        y = data["y"] * (VIEWPORT_H / SCALE / 2) + self._env.helipad_y + LEG_DOWN / SCALE
        self._move((x - lander.position.x, y - lander.position.y), data["angle"] - lander.angle)

    def _move(self, shift: tuple[float, float], turn: float) -> list[tuple[Any, tuple[float, float]]]:
        """Yield the lander and its legs with their offsets from the centre, and move these bodies by `shift` (m) and
        `turn` (rad) of the physics engine."""
        lander = self._env.lander
        centre, moved = lander.position.copy(), []
        cos, sin = math.cos(turn), math.sin(turn)
        for body in (lander, *self._env.legs):
            arm = body.position - centre
            arm = (cos * arm.x - sin * arm.y, sin * arm.x + cos * arm.y)
            body.transform = ((centre.x + shift[0] + arm[0], centre.y + shift[1] + arm[1]), body.angle + turn)
            moved.append((body, arm))
        return moved

    def _advance(self) -> None:
        state, reward, _, _, _ = self._env.step(self._action)
        self._state = s = state.tolist()
        self._return += float(reward)
        self.judge.step(
            s[0],
            s[1],
            contact=bool(s[6] or s[7]),
            crashed=self._env.game_over,
            outside=abs(s[0]) >= 1.0,
            asleep=not self._env.lander.awake,
        )

    def observe(self) -> dict[str, float]:
        # Gymnasium's first leg is on the lander's right, although other places call it the left one.
        x, y, vx, vy, angle, spin, right_leg, left_leg = self._state
        return {
            "x": x,
            "y": y,
            "vx": vx,
            "vy": vy,
            "angle": angle,
            "spin": spin,
            "left_leg": left_leg,
            "right_leg": right_leg,
        }

    def close(self) -> None:
        self._env.close()

    def picture(self) -> np.ndarray:
        """Return a picture of the scene, uint8 [height, width, 3], if the lander was made with `pictures`. Takes about
        2 ms."""
        frame: np.ndarray = self._env.render()
        return frame

    def _score(self) -> float:
        return self._return
