"""Gymnasium's continuous LunarLander as a world with the tool `engines(main, side)` and 50 physics steps a second."""

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
    """Judges whether a landing or a hover succeeds.

    `land` succeeds if the lander comes to rest without a crash at |x| < 0.15, `left` at -0.24 <= x <= -0.04, `right` at
    0.04 <= x <= 0.24. `hover` succeeds after 12 s without touching down, if the mean distance to the requested point is
    below 0.12 from second 4 on.
    """

    steps_a_second = FPS

    def reset(self, goal: LanderGoal | None) -> None:
        super().reset(goal)
        self._airborne = False
        self._x = self._y = 0.0

    def step(self, x: float, y: float, contact: bool, crashed: bool, outside: bool, asleep: bool) -> None:
        """Judge one physics step. May set `end` to crash, outside (of the field), rest, touchdown (hover) or time."""
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
            self.add_distance(math.hypot(x - self.goal.x, y - self.goal.y))
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
        hovered = {"mean_distance": round(self.mean_distance, 4)} if self._measured_count else {}
        return {**super().detail(), "x": round(self._x, 4), "y": round(self._y, 4), **hovered}


# LunarLander fires an engine only above the lower end of its range (50 %), so this small number is added to 50 %.
_EPSILON = 1e-6


def engine_action(main: float, side: float) -> tuple[float, float]:
    """Convert percentages of thrust to LunarLander's continuous action.

    `main` is 0 (off) or 50..100, and becomes action[0] of -1 or in (0, 1]. `side` is 0 or 50..100 to the right or
    -50..-100 to the left, and becomes action[1] of 0 or +-0.5..1; it also tips the lander to that side (to the right is
    clockwise, so that `angle` falls). Raises ValueError for other percentages.
    """
    if not (main == 0 or 50 <= main <= 100):
        raise ValueError(f"main={main} is not valid: the main engine runs at 0 or 50..100 %")
    if not (side == 0 or 50 <= abs(side) <= 100):
        raise ValueError(f"side={side} is not valid: a side engine runs at 0 or 50..100 %; the sign is the direction")
    throttle = -1.0 if main == 0 else max(main / 50.0 - 1.0, _EPSILON)
    lateral = 0.0 if side == 0 else max(abs(side) / 100.0, 0.5 + _EPSILON)
    return throttle, -lateral if side < 0 else lateral


class Lander(GoalWorld[LanderGoal]):
    """A `Simulation` of LunarLander.

    Observations have `x` and `y` (the pad's centre is 0, 0; the field ends at |x| = 1; the lander starts near 0, 1.4),
    `vx` and `vy` (per second, x changes by 0.5 vx and y by 1.125 vy), `angle` (radians, counterclockwise), `spin` (in
    units of 0.4 rad/s), `left_leg` and `right_leg` (1.0 on the ground, else 0.0).
    """

    step_s = 1 / FPS
    judge: LanderJudge

    def __init__(self, goal: LanderGoal | str | None = None, pictures: bool = False) -> None:
        hint = "Write land, left, right or a hover with its height, such as 'hover at 0.7 and x -0.2'."
        super().__init__(LanderJudge(), goal, PHRASINGS.goal_of, "lander", hint)
        # `unwrapped` removes the TimeLimit wrapper, because the judge limits time. In a render mode, Gymnasium would
        # simulate exhaust particles, which is slow, so set a render mode only for pictures.
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
        """Start an episode with the terrain, the initial push and the engine noise of this seed, and engines off."""
        state, _ = self._env.reset(seed=seed)
        self._state = state.tolist()
        self._return = 0.0
        self._action[:] = engine_action(0, 0)

    def place(self, x: float, y: float, vx: float, vy: float, angle: float, spin: float) -> None:
        """Move lander and legs to a state, in the units of observations; training uses this for random starts."""
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
        """Move the lander to the position and angle of an observation, to draw a picture; makes no physics step."""
        lander = self._env.lander
        x = (data["x"] + 1) * (VIEWPORT_W / SCALE / 2)
        y = data["y"] * (VIEWPORT_H / SCALE / 2) + self._env.helipad_y + LEG_DOWN / SCALE
        self._move((x - lander.position.x, y - lander.position.y), data["angle"] - lander.angle)

    def _move(self, shift: tuple[float, float], turn: float) -> list[tuple[Any, tuple[float, float]]]:
        """Move the lander and its legs by `shift` (m) and `turn` (rad) in the physics engine. Return each of these
        bodies with its offset from the lander's centre."""
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
        # Gymnasium's first leg value belongs to the right leg, although its documentation says the left leg.
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
        """Return a picture of the scene, uint8 [height, width, 3]; requires `pictures=True`. Takes about 2 ms."""
        frame: np.ndarray = self._env.render()
        return frame

    def _sum_rewards(self) -> float:
        return self._return
