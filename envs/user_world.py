"""Wrap a user's world, an object with reset, step and observe, as a simulation that can be judged."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from copy import deepcopy
from numbers import Real
from typing import Any

import numpy as np

from rtcontrol.agents.goals import Goal, Goals
from rtcontrol.agents.signatures import check_signatures, location_of, run_to_completion
from rtcontrol.envs.base import Episode
from rtcontrol.envs.thread import close_world
from rtcontrol.models.errors import UserError

METHODS = {"reset": ("seed",), "step": (), "observe": (), "outcome": ()}  # required methods, with their arguments
GOAL_METHODS = {"instruct": ("text",), "judge_by": ("goal",)}  # at least one of these is required
CLOSE, PICTURE = "close", "picture"
IMMUTABLE = frozenset({bool, int, float, str, type(None)})


class UserWorld:
    """A `JudgedSimulation` simulation that wraps a user's object.

    The object needs the attribute `step_s` and the methods `reset(seed)`, `step()`, `observe()` (returns a mapping),
    `outcome()` (returns None during the episode, then True, False or an `Episode`), and `instruct(text)` or
    `judge_by(goal)`. Tools call the functions in its `bindings` by name, or its other public methods if it has no
    `bindings`. Unless `tools` contains their names, `close()` closes the object, and `picture()` returns its picture
    for people. An invalid result raises UserError with the line of the method; exceptions of the object are not caught.

    If `goals` is set, the object's `judge_by` gets the `Goal` of each instruction. If an instruction has no goal, the
    episode is not judged, and the object keeps its previous goal (initially the first of `goals`). The goal is passed
    again before each episode, so that the object can reset its counts. After a call of this class's `judge_by`,
    instructions are ignored. An episode longer than `limit_s` raises UserError.
    """

    def __init__(
        self,
        world: Any,
        title: str,
        goals: Goals | None = None,
        limit_s: float | None = None,
        tools: Collection[str] = (),
    ) -> None:
        self._world, self._goals, self._limit_s = world, goals, limit_s
        missing = [name for name in METHODS if not callable(getattr(world, name, None))]
        if not any(callable(getattr(world, name, None)) for name in GOAL_METHODS):
            missing.append("instruct (or judge_by)")
        if not hasattr(world, "step_s"):
            missing.append("step_s")
        if missing:
            raise UserError(f"{title} has no {', '.join(missing)}.", NEEDS)
        signatures = {**METHODS, **GOAL_METHODS, **({} if CLOSE in tools else {CLOSE: ()})}
        methods: dict[str, Any] = {name: getattr(world, name, None) for name in signatures}
        check_signatures({name: (methods[name], args) for name, args in signatures.items() if callable(methods[name])})
        step_s = world.step_s
        if isinstance(step_s, bool) or not isinstance(step_s, Real) or not 1e-6 <= float(step_s) <= 1e3:
            raise UserError(f"{title} has step_s = {step_s!r}.", "Use the seconds of one physics step, such as 0.02.")
        self.step_s = float(step_s)
        bindings = getattr(world, "bindings", None)
        if bindings is None:
            others = {*signatures, *({PICTURE} - {*tools})}
            names = (name for name in dir(world) if not name.startswith("_") and name not in others)
            bindings = {name: value for name in names if callable(value := getattr(world, name))}
        if not isinstance(bindings, Mapping) or not all(callable(f) for f in bindings.values()):
            raise UserError(f"{title}: bindings must map names to functions.", 'Write {"tool": self.method, ...}.')
        self.bindings: Mapping[str, Callable[..., Any]] = bindings
        self._closes_world = not (CLOSE in tools and CLOSE in bindings)
        self._seed = self._steps = 0
        self._goal_is_fixed = False
        self._is_judged = True
        self._goal: Goal | None = None if goals is None else next(iter(goals))
        self._instruction: str | None = None

    def reset(self, seed: int) -> None:
        self._seed, self._steps = seed, 0
        self._pass_goal(self._goal, self._instruction)
        run_to_completion(self._world.reset, seed)

    def step(self) -> None:
        run_to_completion(self._world.step)
        self._steps += 1

    def observe(self) -> Mapping[str, Any]:
        data = self._world.observe()
        if not isinstance(data, Mapping):
            problem = f"returned {type(data).__name__}, not a mapping"
            raise self._result_error("observe", problem, 'Return {"name": value, ...}.')
        # Copy the data, because the next step may change the object's state while other threads read the observation.
        if not IMMUTABLE.issuperset(map(type, data.values())):
            with suppress(Exception):
                return deepcopy(data)
        return dict(data)

    def picture(self) -> Any:
        """Return the object's picture, or None if it has none."""
        paint = getattr(self._world, PICTURE, None)
        return run_to_completion(paint) if callable(paint) and PICTURE not in self.bindings else None

    def outcome(self) -> Episode | None:
        outcome = self._world.outcome()
        seconds = self._steps * self.step_s
        if outcome is None:
            if self._limit_s is not None and seconds >= self._limit_s:
                length = f"{seconds:g} s ({self._steps} steps, seed {self._seed})"
                problem = f"returned None for {length}: the episode does not end"
                raise self._result_error("outcome", problem, f"Return True or False within {self._limit_s:g} s.")
            return None
        if isinstance(outcome, bool | np.bool_):
            end = "success" if outcome else "failure"
            outcome = Episode(self._seed, float(outcome), bool(outcome), seconds, {"end": end})
        if not isinstance(outcome, Episode):
            hint = "Return None during the episode, then True or False (or an rtcontrol.envs.base.Episode)."
            raise self._result_error("outcome", f"returned {outcome!r:.60}", hint)
        return outcome if self._is_judged else Episode(outcome.seed, outcome.ret, None, outcome.seconds, outcome.detail)

    def instruct(self, text: str) -> None:
        """Pass the agent's new instruction, or the goal of the instruction, to the object."""
        if self._goal_is_fixed:
            return
        goal = None if self._goals is None else self._goals.recognise(text)
        self._is_judged = goal is not None or self._goals is None
        self._goal, self._instruction = goal or self._goal, text if goal is None else goal.text()
        self._pass_goal(goal, self._instruction)

    def judge_by(self, goal: Any) -> None:
        """Judge by this goal from now on, and ignore instructions."""
        self._goal_is_fixed = self._is_judged = True
        self._goal, self._instruction = goal, goal.text()
        self._pass_goal(goal, self._instruction)

    def close(self) -> None:
        """Release the object's resources, if it has a `close()`."""
        if self._closes_world:
            close_world(self._world)

    def _pass_goal(self, goal: Goal | None, text: str | None) -> None:
        judge, instruct = (getattr(self._world, name, None) for name in ("judge_by", "instruct"))
        if callable(judge) and goal is not None:
            run_to_completion(judge, goal)
        if callable(instruct) and text is not None:
            run_to_completion(instruct, text)

    def _result_error(self, method: str, problem: str, hint: str) -> UserError:
        place = location_of(getattr(self._world, method))
        return UserError(f"{place}: {type(self._world).__name__}.{method}() {problem}.", hint)


NEEDS = (
    f"Write one class with step_s, {', '.join(METHODS)}, {' or '.join(GOAL_METHODS)}, and a method for each tool "
    "(docs/your-own-game.md)."
)
