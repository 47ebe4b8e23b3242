"""Whether a lander did what it was asked: the rules of success, apart from the physics."""

from __future__ import annotations

import math
from typing import Any

from rtcontrol.agents.lander.goals import LanderGoal

LAND_LIMIT_S = 25.0
HOVER_S = 12.0
HOVER_SETTLE_S = 4.0
HOVER_RADIUS = 0.12
PAD_HALF_WIDTH = 0.15
SIDE_NEAR, SIDE_FAR = 0.04, 0.24


class LanderJudge:
    """Follows one episode step by step.

    land: at rest, no crash, |x| < 0.15. left: at rest, no crash, -0.24 <= x <= -0.04; right is its mirror image.
    hover: 12 s without touching down, the mean distance to the asked point from second 4 on under 0.12. Times count
    from the reset or from the latest change of the goal. Without a goal an episode ends all the same, unjudged.
    """

    def __init__(self, goal: LanderGoal | None, step_s: float) -> None:
        self._step_s = step_s
        self.reset(goal)

    def reset(self, goal: LanderGoal | None) -> None:
        self.goal = goal
        self.end: str | None = None
        self._steps = 0
        self._airborne = False
        self._distances = 0.0
        self._counted = 0

    def change(self, goal: LanderGoal | None) -> None:
        """A new goal in flight: its clock starts now."""
        if self.end is None and goal != self.goal:
            self.reset(goal)

    def step(self, x: float, y: float, contact: bool, crashed: bool, outside: bool, asleep: bool) -> None:
        """One physics step later; once `end` is set it stays.

        `end` is one of crash, outside (left the field), rest, touchdown (hover only), time.
        """
        if self.end is not None:
            return
        self._steps += 1
        seconds = self._steps * self._step_s
        hover = self.goal is not None and self.goal.kind == "hover"
        self._airborne |= not contact
        if crashed:
            self.end = "crash"
        elif outside:
            self.end = "outside"
        elif asleep:
            self.end = "rest"
        elif hover and contact and self._airborne:
            self.end = "touchdown"
        elif seconds >= (HOVER_S if hover else LAND_LIMIT_S) - 1e-9:
            self.end = "time"
        if hover and self.goal is not None and seconds > HOVER_SETTLE_S:
            self._distances += math.hypot(x - self.goal.x, y - self.goal.y)
            self._counted += 1

    def success(self, x: float) -> bool | None:
        """The verdict for a lander that ended at `x`; None without a goal."""
        if self.goal is None:
            return None
        if self.goal.kind == "hover":
            return self.end == "time" and self.mean_distance < HOVER_RADIUS
        if self.end != "rest":
            return False
        if self.goal.kind == "land":
            return abs(x) < PAD_HALF_WIDTH
        toward = -x if self.goal.kind == "left" else x
        return SIDE_NEAR <= toward <= SIDE_FAR

    @property
    def mean_distance(self) -> float:
        """Mean distance to the asked point over the judged seconds of a hover; infinite before them."""
        return self._distances / self._counted if self._counted else math.inf

    def detail(self, x: float, y: float) -> dict[str, Any]:
        """What an episode's record keeps: goal, how it ended, where, and how far off a hover was."""
        detail: dict[str, Any] = {
            "goal": None if self.goal is None else self.goal.text(),
            "end": self.end,
            "x": round(x, 4),
            "y": round(y, 4),
        }
        if self._counted:
            detail["mean_distance"] = round(self.mean_distance, 4)
        return detail
