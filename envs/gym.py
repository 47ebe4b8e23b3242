"""Any Gymnasium world by its id: actions become tools with declared levels, observations text of declared precision."""

from __future__ import annotations

import importlib
import json
import math
import operator
import re
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import gymnasium
import numpy as np
from gymnasium import spaces

from rtcontrol.agents import Agent, Fallback, Goals, Tools
from rtcontrol.agents.signatures import defined
from rtcontrol.envs.base import Episode
from rtcontrol.envs.spaces import UnlikeSpace, action_names, action_of, are_whole, flat, levels_of, names_of, numbers_of
from rtcontrol.envs.thread import half_made, shut
from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError

PREFIX = "gym:"
FARTHEST = 9_999  # a number is shown up to here, in units of the precision
STEP_S = 0.05  # of a world that names no frame rate
HOME = Path(gymnasium.__file__).parent
OWN = ("levels", "precision", "success", "step_s", "safe", "sees", "actions")
RULE = re.compile(r"(return|steps)(>=|<=|>|<)(-?\d+(?:\.\d+)?)")
COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
GIVES = {
    "reset": "Return (observation, info), and take seed and options.",
    "step": "Return (observation, reward, terminated, truncated, info).",
}
# By the beginning of the id: what is seen, what can be done, and which of it is safe.
KNOWN: dict[str, tuple[str, str, str]] = {
    "CartPole-": ("x,v,angle,spin", "left,right", "left"),
    "MountainCar-": ("x,v", "left,none,right", "none"),
    "MountainCarContinuous-": ("x,v", "", ""),
    "Pendulum-": ("cos,sin,spin", "", ""),
    "Acrobot-": ("cos1,sin1,cos2,sin2,spin1,spin2", "left,none,right", "none"),
    "LunarLander-": ("x,y,vx,vy,angle,spin,left_leg,right_leg", "none,left,main,right", "none"),
}


@dataclass(frozen=True)
class GymOptions:
    """A world's id with what its name asks for. `levels`: so many values of each continuous action; `precision`: so
    many decimals of what is seen, shown as a whole number; `success`: a rule on an episode's return or steps (None: by
    the threshold that the world declares, else nothing is judged); `safe`: the action of the safe call; `sees`,
    `actions`: names. `made` is for `gymnasium.make`. `known`: nobody named actions or what is safe, and those of the id
    are for its single choice alone."""

    id: str
    levels: int
    precision: int
    success: str | None
    step_s: float | None
    safe: str | None
    sees: tuple[str, ...]
    actions: tuple[str, ...]
    made: Mapping[str, Any]
    known: bool

    @classmethod
    def of(cls, name: str) -> GymOptions:
        """Read `gym:ID?key=value&...`. Raises UserError for a key of ours whose value cannot be used."""
        place, _, query = name.removeprefix(PREFIX).partition("?")
        given = dict(parse_qsl(query, keep_blank_values=True))
        bare = place.rpartition(":")[2]
        sees, actions, safe = next((told for start, told in KNOWN.items() if bare.startswith(start)), ("", "", ""))
        if "actions" in given:  # other names
            safe = ""
        success = given.get("success")
        if success is not None and success not in ("terminated", "truncated") and not RULE.fullmatch(success):
            raise _wrong(name, "success", success, "return>=475, steps>=500, terminated or truncated")
        return cls(
            place,
            int(_number(name, "levels", given.get("levels", "5"), 2, 64)),
            int(_number(name, "precision", given.get("precision", "2"), 0, 6)),
            success,
            _number(name, "step_s", given["step_s"], 1e-4, 100.0) if "step_s" in given else None,
            given.get("safe", safe) or None,
            _list(name, "sees", given.get("sees", sees)),
            _list(name, "actions", given.get("actions", actions)),
            {key: _value(value) for key, value in given.items() if key not in OWN},
            not given.keys() & {"actions", "safe"},
        )


def _list(name: str, key: str, text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if len({*found}) < len(found):
        raise _wrong(name, key, text, "each name once")
    return found


def _value(text: str) -> Any:
    """Read an option of the world's own: JSON (a number, true, an object or list), none, or text."""
    try:
        return (
            None if text.lower() == "none" else json.loads(text.lower() if text.lower() in ("true", "false") else text)
        )
    except ValueError:
        return text


def _number(name: str, key: str, text: str, low: float, high: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not low <= number <= high:
        raise _wrong(name, key, text, f"a number from {low:g} to {high:g}")
    return number


def _wrong(name: str, key: str, value: str, hint: str) -> UserError:
    return UserError(f"{name}: {key}={value} cannot be used.", f"Give {hint}.")


def load(name: str) -> None:
    """Import the module that registers it, where the name says one (`gym:MODULE:ID`). Raises UserError."""
    module, named, _ = GymOptions.of(name).id.rpartition(":")
    try:
        if named:
            importlib.import_module(module)
    except Exception as error:
        raise _unmade(name, error) from error


def make(name: str, options: GymOptions) -> Any:
    """Make it. Raises UserError where it cannot be made; what was begun is closed."""
    try:
        return gymnasium.make(options.id, **options.made)
    except Exception as error:  # a world's own checks raise whatever they like
        begun = half_made(error, lambda one: isinstance(one, gymnasium.Env) and not isinstance(one, gymnasium.Wrapper))
        with suppress(Exception):  # why it cannot be made is told
            shut(begun)
        raise _unmade(name, error) from None


def _unmade(name: str, error: Exception) -> UserError:
    """Say what failed, and in which line where that is not Gymnasium's own."""
    told = f"{type(error).__name__}: {' '.join(str(error).split())}"
    *_, frame = traceback.extract_tb(error.__traceback__)
    where = "" if _of_gymnasium(error) else f", {Path(frame.filename).name}:{frame.lineno}"
    return UserError(
        f"{name} cannot be made ({told}{where}).",
        "Correct the id, its options or the world; an id that a module registers when it is imported is gym:MODULE:ID.",
    )


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
        self._error: UserError | None = None
        self._seed = self._steps = 0
        self._return = 0.0

    def _map(self) -> None:
        """Map its spaces to tools and names."""
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
            raise _wrong(name, "safe", options.safe, "none: of numbers those nearest to 0 are safe")
        self.options = options
        self.step_s = options.step_s or self._step_s()
        self.shown = self._named("sees", names_of(name, self.env.observation_space))
        self.levels = levels_of(name, space, options.levels)
        if choice and options.actions:
            self.parameters = {"action": self._named("actions", self.levels[0])}
        else:
            names = self._named("actions", action_names(space))
            self.parameters = {key: list(values) for key, values in zip(names, self.levels, strict=True)}
        self.still = self._still()

    def _named(self, key: str, plain: list[Any]) -> list[Any]:
        """Return the names of an option, as many as the plain ones; these where it gives none."""
        given = getattr(self.options, key)
        if given and len(given) != len(plain):
            raise _wrong(self.name, key, ",".join(given), f"{len(plain)} names")
        return list(given or plain)

    def _step_s(self) -> float:
        if not (fps := (self.env.metadata or {}).get("render_fps")):
            return STEP_S
        if not isinstance(fps, Real) or not 1e-3 <= float(fps) <= 1e6:
            raise UserError(
                f"{self.name}: its metadata say render_fps = {fps!r:.40}.", "Give ?step_s=0.05 in the name."
            )
        return 1.0 / float(fps)

    def _still(self) -> dict[str, Any]:
        """Return the arguments of the safe call."""
        safe, (first, *_) = self.options.safe, self.parameters
        if safe is not None:
            values = self.parameters[first]
            chosen = next((value for value in values if str(value) == safe), None)
            if chosen is None:
                raise _wrong(self.name, "safe", safe, f"one of {', '.join(map(str, values))}")
            return {first: chosen}
        each = zip(self.parameters.items(), self.levels, strict=True)
        return {name: values[levels.index(min(levels, key=abs))] for (name, values), levels in each}

    def agent(self) -> Agent:
        """Return its agent: one tool `act`, and what is seen as whole numbers and text."""
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
        instruction = f"play {options.id}"
        return Agent(
            name=options.id,
            description=f"Plays Gymnasium's {options.id}.",
            tools=Tools([{"name": "act", "description": "What is done from now on.", "parameters": parameters}]),
            observe=observe,
            instruction=instruction,
            fallback=Fallback(Call("act", self.still)),
            model="",
            history=0,
            goals=Goals([instruction], source=self.name),
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
        self._over = self._error = None
        self.act(**self.still)

    def step(self) -> None:
        if self._over is not None:  # more steps of the tick in which it ended
            return
        told = self._ask("step", deepcopy(self._action))  # it may work in what it is given
        try:
            self._seen, reward, terminated, truncated, _ = self._parts("step", told, 5)
            self._return += self._number("reward", reward)
            ends = {"terminated": terminated, "truncated": truncated}
            self._over = next((end for end, told in ends.items() if self._number(end, told)), None)
        except UserError as error:  # it was stepped all the same
            self._error = error
        self._by = "step"
        self._steps += 1

    def observe(self) -> dict[str, float | str]:
        space = self.env.observation_space
        try:
            return dict(zip(self.shown, flat(space, self._seen), strict=True))
        except UnlikeSpace as error:
            raise self._blame(self._by, f"gave an observation that {error}", f"Give what {space} contains.") from None

    def outcome(self) -> Episode | None:
        if self._error is not None:
            raise self._error
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
            what = f"is none that Gymnasium can use ({type(error).__name__}: {error})"
            raise self._blame(method, what, GIVES[method]) from error

    def _parts(self, method: str, told: Any, parts: int) -> tuple[Any, ...]:
        if not isinstance(told, tuple) or len(told) != parts:
            kind = f"{len(told)} values" if isinstance(told, tuple) else f"a {type(told).__name__}"
            raise self._blame(method, f"gave {kind}, not {parts}", GIVES[method])
        return told

    def _number(self, part: str, told: Any) -> float:
        """Return a reward, or whether it ended: one number, also where it stands in an array."""
        found = numbers_of(told)
        if found is None or found.size != 1 or not np.isfinite(found).all():
            raise self._blame("step", f"gave {told!r:.60} as its {part}, no finite number", "Give one number.")
        return float(found.item())

    def _blame(self, method: str, what: str, hint: str) -> UserError:
        kind = type(self.env.unwrapped)
        return UserError(
            f"{defined(getattr(kind, method))}: {kind.__name__}.{method}() {' '.join(what.split())}.", hint
        )

    def _succeeded(self) -> bool | None:
        rule, threshold = self.options.success, getattr(self.env.spec, "reward_threshold", None)
        if rule is None:
            return None if threshold is None else self._return >= threshold
        if (asked := RULE.fullmatch(rule)) is None:
            return self._over == rule
        return COMPARE[asked[2]](self._return if asked[1] == "return" else self._steps, float(asked[3]))


def _of_gymnasium(error: Exception) -> bool:
    """Whether Gymnasium itself raised it, over what a world gave, or Python, over a call that the world does not take:
    no world did."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    file = Path(frame.f_code.co_filename)
    return file == Path(__file__) or (file.is_relative_to(HOME) and not file.is_relative_to(HOME / "envs"))
