"""Any Gymnasium world by its id: actions become tools with declared levels, observations text of declared precision."""

from __future__ import annotations

import math
import operator
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rtcontrol.agents import Agent, Fallback, Goals, Tools
from rtcontrol.agents.signatures import defined
from rtcontrol.envs.base import Episode
from rtcontrol.envs.gym_making import RULE, GymOptions, make, wrong_option
from rtcontrol.envs.spaces import UnlikeSpace, action_names, action_of, are_whole, flat, levels_of, names_of, numbers_of
from rtcontrol.envs.thread import shut
from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError

FARTHEST = 9_999  # a number is shown up to here, in units of the precision
STEP_S = 0.05  # of a world that names no frame rate
HOME = Path(gymnasium.__file__).parent
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
GIVES = {
    "reset": "Return (observation, info), and take seed and options.",
    "step": "Return (observation, reward, terminated, truncated, info).",
}


class GymWorld:
    """A simulation as `OwnWorld` takes it. An action is in force until the next one; at first it is the safe one.

    Raises UserError for a world that cannot be made, and for spaces that are no tools or no text, with what was begun
    closed; and for what it gives that its spaces, or Gymnasium, do not allow, with its class and line."""

    def __init__(self, name: str) -> None:
        self.options, self.name = GymOptions.of(name), name
        self.env: Any = make(name, self.options)
        try:
            self._map()
        except BaseException:
            with suppress(Exception):  # why it cannot be used is told
                shut(self.env)
            raise
        self.bindings = {"act": self.act}
        self._over: str | None = None
        self._wrong: UserError | None = None
        self._seed = self._steps = 0
        self._return = 0.0

    def _map(self) -> None:
        """Its spaces as tools and names."""
        name, options = self.name, self.options
        for key in ("observation_space", "action_space"):
            if not isinstance(getattr(self.env, key, None), spaces.Space):
                kind = type(self.env.unwrapped).__name__
                raise UserError(f"{name}: {kind} has no {key}.", "Set it in __init__, to one of gymnasium.spaces.")
        space = self.env.action_space
        choice = isinstance(space, spaces.Discrete)
        if not choice and options.known:
            options = replace(options, actions=(), safe=None)
        if not choice and options.safe is not None:
            raise wrong_option(name, "safe", options.safe, "none: of numbers those nearest to 0 are safe")
        for key in ("sees", "actions"):
            if len({*(named := getattr(options, key))}) < len(named):
                raise wrong_option(name, key, ",".join(named), "each name once")
        self.options = options
        self.step_s = options.step_s or self._step_s()
        self.shown = names_of(name, self.env.observation_space)
        if options.sees and len(options.sees) != len(self.shown):
            raise wrong_option(name, "sees", ",".join(options.sees), f"{len(self.shown)} names")
        self.shown = list(options.sees or self.shown)
        self.levels = levels_of(name, space, options.levels)
        self.parameters = _parameters(name, self.levels, space, options)
        self.still = self._still()

    def _step_s(self) -> float:
        if not (fps := (self.env.metadata or {}).get("render_fps")):
            return STEP_S
        if not isinstance(fps, Real) or not 1e-3 <= float(fps) <= 1e6:
            raise UserError(
                f"{self.name}: its metadata say render_fps = {fps!r:.40}.",
                f"Give the steps of one second there, such as 30, or write {self.name.partition('?')[0]}?step_s=0.05",
            )
        return 1.0 / float(fps)

    def agent(self) -> Agent:
        """Its agent: one tool `act`, and what is seen as whole numbers and text."""
        options, scale = self.options, 10**self.options.precision
        whole = {name for name, so in zip(self.shown, are_whole(self.env.observation_space), strict=True) if so}

        def shown(key: str, value: Any) -> int | str:
            if isinstance(value, str):
                return " ".join(value.split())
            if math.isnan(number := float(value)):
                raise UserError(
                    f"{self.name}: {key} is NaN, which is no number.", "Let its observation have a number there."
                )
            if key in whole and math.isfinite(number):
                return round(number)
            return round(max(-FARTHEST, min(FARTHEST, number * scale)))

        def observe(data: Mapping[str, Any]) -> str:
            return " ".join(f"{key} {shown(key, value)}" for key, value in data.items())

        properties = {key: {"enum": values} for key, values in self.parameters.items()}
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        return Agent(
            name=options.id,
            description=f"Plays Gymnasium's {options.id}.",
            tools=Tools([{"name": "act", "description": "What is done from now on.", "parameters": parameters}]),
            observe=observe,
            instruction=options.told,
            fallback=Fallback(Call("act", self.still)),
            model="",
            history=0,
            goals=Goals([options.told], source=self.name),
        )

    def act(self, /, **chosen: Any) -> None:
        """What is done from now on."""
        each = zip(self.levels, self.parameters.items(), strict=True)
        picked = [levels[values.index(chosen[name])] for levels, (name, values) in each]
        self._action = action_of(self.env.action_space, picked)

    def instruct(self, text: str) -> None:
        """Whatever is told, the rewards are the same."""

    def reset(self, seed: int) -> None:
        self._seen, _ = self._parts("reset", self._ask("reset", seed=seed), 2)
        self._seed, self._steps, self._return, self._by = seed, 0, 0.0, "reset"
        self._over = self._wrong = None
        self.act(**self.still)

    def step(self) -> None:
        if self._over is not None:  # more steps of the tick in which it ended
            return
        told = self._ask("step", deepcopy(self._action))  # it may work in what it is given
        self._steps += 1
        try:
            self._read(told)
        except UserError as error:  # it was stepped all the same
            self._wrong = error

    def _read(self, told: Any) -> None:
        self._seen, reward, terminated, truncated, _ = self._parts("step", told, 5)
        self._by = "step"
        self._return += self._number("reward", reward)
        self._over = (
            "terminated" if self._number("terminated", terminated)
            else "truncated" if self._number("truncated", truncated) else None
        )  # fmt: skip

    def observe(self) -> dict[str, float | str]:
        try:
            return dict(zip(self.shown, flat(self.env.observation_space, self._seen), strict=True))
        except UnlikeSpace as error:
            space = self.env.observation_space
            raise self._blame(self._by, f"gave an observation that {error}", f"Give what {space} contains.") from None

    def outcome(self) -> Episode | None:
        if self._wrong is not None:
            raise self._wrong
        if self._over is None:
            return None
        seconds = self._steps * self.step_s
        return Episode(self._seed, self._return, self._succeeded(), seconds, {"end": self._over, "steps": self._steps})

    def close(self) -> None:
        self.env.close()

    def _ask(self, method: str, *given: Any, **named: Any) -> Any:
        try:
            return getattr(self.env, method)(*given, **named)
        except Exception as error:
            if not _of_gymnasium(error):
                raise
            what = f"is none that Gymnasium can use ({type(error).__name__}: {' '.join(str(error).split())})"
            raise self._blame(method, what, GIVES[method]) from error

    def _parts(self, method: str, told: Any, parts: int) -> tuple[Any, ...]:
        if not isinstance(told, tuple) or len(told) != parts:
            kind = f"{len(told)} values" if isinstance(told, tuple) else f"a {type(told).__name__}"
            raise self._blame(method, f"gave {kind}, not {parts}", GIVES[method])
        return told

    def _number(self, part: str, told: Any) -> float:
        """A reward, or whether it ended: one number, also where it stands in an array."""
        found = numbers_of(told)
        if found is None or found.size != 1 or not np.isfinite(found).all():
            what = repr(told) if found is None or found.size == 1 else f"{found.size} numbers, {told!r:.60},"
            kind = "one finite number" if part == "reward" else "True or False"
            raise self._blame("step", f"gave {what:.80} as its {part}", f"Give {kind}.")
        return float(found.item())

    def _blame(self, method: str, what: str, remedy: str) -> UserError:
        kind = type(self.env.unwrapped)
        return UserError(
            f"{defined(getattr(kind, method))}: {kind.__name__}.{method}() {' '.join(what.split())}.", remedy
        )

    def _succeeded(self) -> bool | None:
        rule, threshold = self.options.success, getattr(self.env.spec, "reward_threshold", None)
        if rule is None:
            return None if threshold is None else self._return >= threshold
        if (asked := RULE.fullmatch(rule)) is None:
            return self._over == rule
        return _COMPARE[asked[2]](self._return if asked[1] == "return" else self._steps, float(asked[3]))

    def _still(self) -> dict[str, Any]:
        safe, names = self.options.safe, list(self.parameters)
        if safe is not None and isinstance(self.env.action_space, spaces.Discrete):
            values = self.parameters[names[0]]
            chosen = next((value for value in values if str(value) == safe), None)
            if chosen is None:
                raise wrong_option(self.name, "safe", safe, f"one of {', '.join(map(str, values))}")
            return {names[0]: chosen}
        nearest = [min(range(len(each)), key=lambda i, each=each: abs(each[i])) for each in self.levels]  # type: ignore[misc]
        return {name: self.parameters[name][i] for name, i in zip(names, nearest, strict=True)}


def _of_gymnasium(error: Exception) -> bool:
    """Whether Gymnasium itself raised it, over what a world gave, or Python, over a call that the world does not take:
    no world did."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    file = Path(frame.f_code.co_filename)
    return file == Path(__file__) or (file.is_relative_to(HOME) and not file.is_relative_to(HOME / "envs"))


def _parameters(name: str, levels: Sequence[Sequence[Any]], space: Any, options: GymOptions) -> dict[str, list[Any]]:
    """The tool's parameters, each with its values in the order of its levels."""
    if isinstance(space, spaces.Discrete) and options.actions:
        if len(options.actions) != len(levels[0]):
            raise wrong_option(name, "actions", ",".join(options.actions), f"{len(levels[0])} names")
        return {"action": list(options.actions)}
    names = options.actions or action_names(space)
    if len(names) != len(levels):
        raise wrong_option(name, "actions", ",".join(names), f"{len(levels)} names")
    return {key: list(values) for key, values in zip(names, levels, strict=True)}
