"""Run a Gymnasium world by its id. Its actions become a tool whose parameters have lists of allowed values, and its
observations become text with numbers of a fixed precision."""

from __future__ import annotations

import importlib
import json
import math
import operator
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs import registration

from rtcontrol.agents import Agent, Fallback, Goals, Tools
from rtcontrol.agents.signatures import location_of
from rtcontrol.envs.base import Episode
from rtcontrol.envs.spaces import (
    action_levels,
    action_names,
    are_integers,
    build_action,
    flatten_observation,
    max_magnitudes,
    observation_names,
)
from rtcontrol.envs.thread import close_world
from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError

PREFIX = "gym:"
MAX_UNBOUNDED = 9_999  # values without bounds are clamped to this number in observation texts
MAX_BOUND = 10**9  # larger declared bounds are ignored (both constants are in units of the precision)
STEP_S = 0.05  # seconds per physics step of a world that declares no frame rate
OPTIONS = ("levels", "precision", "success", "safe", "actions")  # other options are passed to `gymnasium.make`
SUCCESS_RULE = re.compile(r"(return|steps)(>=|<=|>|<)(-?\d+(?:\.\d+)?)")
COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
# By the start of a world's id: (names of observations, names of actions, safe action).
KNOWN_WORLDS: dict[str, tuple[str, str, str]] = {
    "CartPole-": ("x,v,angle,spin", "left,right", "left"),
    "MountainCar-": ("x,v", "left,none,right", "none"),
    "MountainCarContinuous-": ("x,v", "", ""),
    "Pendulum-": ("cos,sin,spin", "", ""),
    "Acrobot-": ("cos1,sin1,cos2,sin2,spin1,spin2", "left,none,right", "none"),
    "LunarLander-": ("x,y,vx,vy,angle,spin,left_leg,right_leg", "none,left,main,right", "none"),
}


@dataclass(frozen=True, slots=True)
class GymOptions:
    """A world's id and the options after it. `levels` is the number of values of each continuous action. `precision` is
    the number of decimals that observations keep: they are multiplied by 10**precision and rounded. `success` is a rule
    such as `return>=475` for successful episodes (None: the world's own threshold, if it has one). `safe` is the action
    of the safe call, `actions` has names of actions, and `make_options` are arguments for `gymnasium.make`."""

    id: str
    levels: int
    precision: int
    success: str | None
    safe: str | None
    actions: tuple[str, ...]
    make_options: Mapping[str, Any]

    @classmethod
    def parse(cls, name: str) -> GymOptions:
        """Parse `gym:ID?key=value&...`. Raises UserError if an option has an invalid value."""
        world_id, _, query = name.removeprefix(PREFIX).partition("?")
        query_options = dict(parse_qsl(query, keep_blank_values=True))
        success = query_options.get("success")
        if success is not None and success not in ("terminated", "truncated") and not SUCCESS_RULE.fullmatch(success):
            raise _option_error(name, "success", success, "return>=475, steps>=500, terminated or truncated")
        return cls(
            world_id,
            _parse_count(name, "levels", query_options.get("levels", "5"), 2, 64),
            _parse_count(name, "precision", query_options.get("precision", "2"), 0, 6),
            success,
            query_options.get("safe") or None,
            _parse_names(name, "actions", query_options.get("actions", "")),
            {key: _parse_value(value) for key, value in query_options.items() if key not in OPTIONS},
        )

    @property
    def known_names(self) -> tuple[tuple[str, ...], ...]:
        """Return this id's entry in KNOWN_WORLDS: names of observations, names of actions, name of the safe action."""
        bare = self.id.rpartition(":")[2]
        texts = next((texts for start, texts in KNOWN_WORLDS.items() if bare.startswith(start)), ("", "", ""))
        return tuple(tuple(filter(None, text.split(","))) for text in texts)


def _parse_names(name: str, key: str, text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if len({*names}) < len(names):
        raise _option_error(name, key, text, "different names")
    return names


def _parse_value(text: str) -> Any:
    """Parse the value of a `gymnasium.make` argument: JSON if possible, None for "none", else the text itself."""
    small = text.lower()
    if small == "none":
        return None
    try:
        return json.loads(small if small in ("true", "false") else text)
    except ValueError:
        return text


def _parse_count(name: str, key: str, text: str, low: int, high: int) -> int:
    if not text.isdecimal() or not low <= int(text) <= high:
        raise _option_error(name, key, text, f"a whole number from {low} to {high}")
    return int(text)


def _option_error(name: str, key: str, value: str, hint: str) -> UserError:
    return UserError(f"{name}: the option {key}={value} is not valid.", f"Use {hint}.")


def load(name: str) -> None:
    """If `name` is `gym:MODULE:ID`, import the module, which registers the world. Raises UserError if this fails."""
    module, colon, _ = GymOptions.parse(name).id.rpartition(":")
    try:
        if colon:
            importlib.import_module(module)
    except Exception as error:
        raise _cannot_make(name, error) from error


def _has_pictures(world_id: str) -> bool:
    with suppress(Exception):  # ignore errors here, which `gymnasium.make` reports as well
        creator = registration.load_env_creator(str(gymnasium.spec(world_id).entry_point))
        return "rgb_array" in getattr(creator, "metadata", {}).get("render_modes", ())
    return False


def _cannot_make(name: str, error: Exception) -> UserError:
    return UserError(
        f"{name} cannot be created ({type(error).__name__}: {' '.join(str(error).split())}).",
        "Correct the id, its options or the world. If a module registers the world, use gym:MODULE:ID.",
    )


@dataclass(frozen=True, slots=True)
class ActTool:
    """The tool `act` of a world. `parameters` maps each parameter's name to a dict from each allowed value to a number
    of the Gymnasium action. `safe_arguments` are the arguments of the safe call."""

    parameters: dict[str, dict[Any, Any]]
    safe_arguments: dict[str, Any]

    @classmethod
    def from_space(cls, name: str, options: GymOptions, space: Any) -> ActTool:
        """Return the tool for an action space. Raises UserError if the space or the names of actions are not valid."""
        levels, (_, known, safe) = action_levels(name, space, options.levels), options.known_names
        if isinstance(space, spaces.Discrete):
            numbers = levels[0]
            names = _names_or_defaults(name, "actions", options.actions or known, numbers)
            wanted = options.safe or ("" if options.actions else "".join(safe))
            parameters = {"action": dict(zip(names, numbers, strict=True))}
            return cls(parameters, {"action": _safe_action(name, names, numbers, wanted)})
        keys = _names_or_defaults(name, "actions", options.actions, action_names(space))
        parameters = {key: dict(zip(values, values, strict=True)) for key, values in zip(keys, levels, strict=True)}
        if options.safe is None:
            return cls(parameters, {key: min(values, key=abs) for key, values in parameters.items()})
        texts = options.safe.split(",")
        pairs = zip(parameters.items(), texts, strict=False)
        safe_arguments = {key: _value_named(values, text) for (key, values), text in pairs}
        if len(texts) != len(keys) or None in safe_arguments.values():
            allowed = "; ".join(f"{key}: {', '.join(map(str, values))}" for key, values in parameters.items())
            raise _option_error(name, "safe", options.safe, f"an allowed value for each parameter ({allowed})")
        return cls(parameters, safe_arguments)


def _value_named(values: Mapping[Any, Any], text: str) -> Any:
    """Return the allowed value that is equal to the number in `text`, or None if no value is."""
    with suppress(ValueError):
        return next((value for value in values if value == float(text)), None)
    return None


def _names_or_defaults(name: str, key: str, names: tuple[str, ...], defaults: list[Any]) -> list[Any]:
    """Return `names`, or `defaults` if `names` is empty. Raises UserError if the two lists differ in length."""
    if names and len(names) != len(defaults):
        raise _option_error(name, key, ",".join(names), f"{len(defaults)} names")
    return list(names or defaults)


def _safe_action(name: str, names: list[Any], numbers: list[Any], safe: str) -> Any:
    """Return the safe action: the one named `safe`, or the one whose number is nearest to 0 if `safe` is empty."""
    if not safe:
        return names[numbers.index(min(numbers, key=abs))]
    chosen = next((choice for choice in names if str(choice) == safe), None)
    if chosen is None:
        raise _option_error(name, "safe", safe, f"one of {', '.join(map(str, names))}")
    return chosen


@dataclass(slots=True)
class GymEpisode:
    """The state of the current episode. `end` is the reason why it ended; `error` is set after an invalid result."""

    seed: int
    observation: Any
    steps: int = 0
    ret: float = 0.0
    end: str | None = None
    error: UserError | None = None


class GymWorld:
    """A Gymnasium world as a `Simulation`. Every step repeats the latest action; episodes start with the safe action.

    The constructor raises UserError if the world cannot be created or its spaces are not supported, after it has closed
    the world. Other methods raise UserError, with class and line, if the world's results do not fit its spaces.
    """

    def __init__(self, name: str, pictures: bool = False) -> None:
        """Create the world; if `pictures` is True and the world has the render mode `rgb_array`, use this mode."""
        self.options, self.name = GymOptions.parse(name), name
        mode = {"render_mode": "rgb_array"} if pictures and _has_pictures(self.options.id) else {}
        try:
            self.env: Any = gymnasium.make(self.options.id, **mode | dict(self.options.make_options))
        except Exception as error:  # a world's own checks may raise any exception
            raise _cannot_make(name, error) from error
        try:
            fps = (self.env.metadata or {}).get("render_fps")
            self.step_s = 1.0 / float(fps) if fps else STEP_S
            defaults = observation_names(name, self.env.observation_space)
            self.names = _names_or_defaults(name, "sees", self.options.known_names[0], defaults)
            self.tool = ActTool.from_space(name, self.options, self.env.action_space)
        except BaseException:
            with suppress(Exception):  # report the first error, not an error of close()
                close_world(self.env)
            raise
        self.bindings = {"act": self.act}
        self._episode = GymEpisode(0, None)

    def agent(self) -> Agent:
        """Return an agent for this world, with the tool `act` and observations as integers and text."""
        options, scale = self.options, 10**self.options.precision
        integers = {name for name, yes in zip(self.names, are_integers(self.env.observation_space), strict=True) if yes}
        limits = {
            name: max(MAX_UNBOUNDED, bound * scale) if bound * scale <= MAX_BOUND else MAX_UNBOUNDED
            for name, bound in zip(self.names, max_magnitudes(self.env.observation_space), strict=True)
        }

        def as_text(key: str, value: Any) -> int | str:
            if isinstance(value, str):
                return " ".join(value.split())
            if isinstance(value, int) and key in integers:
                return value
            if math.isnan(number := float(value)):
                raise UserError(f"{self.name}: {key} in an observation is NaN.", "Return a number instead.")
            if key in integers and math.isfinite(number):
                return round(number)
            return round(max(-limits[key], min(limits[key], number * scale)))

        def observe(data: Mapping[str, Any]) -> str:
            return " ".join(f"{key} {as_text(key, value)}" for key, value in data.items())

        properties = {key: {"enum": [*values]} for key, values in self.tool.parameters.items()}
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        instruction = f"play {options.id}"
        return Agent(
            name=options.id,
            description=f"Plays Gymnasium's {options.id}.",
            tools=Tools([{"name": "act", "description": "What is done from now on.", "parameters": parameters}]),
            observe=observe,
            instruction=instruction,
            fallback=Fallback(Call("act", self.tool.safe_arguments)),
            model="",
            history=0,
            goals=Goals([instruction], source=self.name),
            notices=self._notices(),
        )

    def _notices(self) -> list[str]:
        """Return warnings for a world that is not in KNOWN_WORLDS: a guessed safe call, and values without bounds."""
        options, notices = self.options, list[str]()
        if any(options.known_names):
            return notices
        if options.safe is None:
            call = Call("act", self.tool.safe_arguments).text()
            notices.append(f"The safe call {call} is a guess. Name the safe action: {self.name}?safe=ACTION.")
        unit, space = 10**-options.precision, self.env.observation_space
        values = zip(self.names, max_magnitudes(space), are_integers(space), strict=True)
        if unbounded := [name for name, bound, whole in values if bound / unit > MAX_BOUND and not whole]:
            limit = f"{MAX_UNBOUNDED * unit:.{options.precision}f}"
            problem = f"no declared bounds, so values above {limit} are shown as {MAX_UNBOUNDED}."
            notices.append(f"{', '.join(unbounded)}: {problem} Set a smaller precision= for a larger range.")
        return notices

    def act(self, /, **chosen: Any) -> None:
        """Set the action for all following steps."""
        numbers = [values[chosen[key]] for key, values in self.tool.parameters.items()]
        self._action = build_action(self.env.action_space, numbers)

    def picture(self) -> Any:
        """Return the picture (uint8 [height, width, 3]), or None if the render mode is not `rgb_array`."""
        return self.env.render() if getattr(self.env, "render_mode", None) == "rgb_array" else None

    def instruct(self, text: str) -> None:
        """Do nothing: the rewards do not depend on the instruction."""

    def reset(self, seed: int) -> None:
        observation, _ = self.env.reset(seed=seed)
        self._episode = GymEpisode(seed, observation)
        self.act(**self.tool.safe_arguments)

    def step(self) -> None:
        episode = self._episode
        if episode.end is not None:  # the episode ended at an earlier step of this tick
            return
        result = self.env.step(deepcopy(self._action))  # copy the action, because the world may modify it
        episode.steps += 1
        try:
            episode.observation, reward, terminated, truncated, _ = result
            episode.ret += _finite_number(reward)
            ends = {"terminated": terminated, "truncated": truncated}
            episode.end = next((end for end, over in ends.items() if _finite_number(over)), None)
        except (TypeError, ValueError, OverflowError) as error:  # `outcome` raises it, because the step is complete
            hint = "Return (observation, reward, terminated, truncated, info)."
            episode.error = self._world_error(f"returned an invalid result ({error})", hint)

    def observe(self) -> dict[str, int | float | str]:
        space = self.env.observation_space
        try:
            return dict(zip(self.names, flatten_observation(space, self._episode.observation), strict=True))
        except (LookupError, TypeError, ValueError) as error:
            problem = f"returned an observation that does not fit its space ({error})"
            raise self._world_error(problem, f"Return a value of {space}.") from None

    def outcome(self) -> Episode | None:
        episode = self._episode
        if episode.error is not None:
            raise episode.error
        if episode.end is None:
            return None
        detail = {"end": episode.end, "steps": episode.steps}
        return Episode(episode.seed, episode.ret, self._is_success(), episode.steps * self.step_s, detail)

    def close(self) -> None:
        self.env.close()

    def _world_error(self, problem: str, hint: str) -> UserError:
        kind = type(self.env.unwrapped)
        method = "step" if self._episode.steps else "reset"
        place = location_of(getattr(kind, method))
        return UserError(f"{place}: {kind.__name__}.{method}() {' '.join(problem.split())}.", hint)

    def _is_success(self) -> bool | None:
        rule, threshold = self.options.success, getattr(self.env.spec, "reward_threshold", None)
        if rule is None:
            return None if threshold is None else self._episode.ret >= threshold
        if (match := SUCCESS_RULE.fullmatch(rule)) is None:
            return self._episode.end == rule
        value = self._episode.ret if match[1] == "return" else self._episode.steps
        return COMPARE[match[2]](value, float(match[3]))


def _finite_number(value: Any) -> float:
    """Return a reward or an end flag (a number, or an array with one number) as a finite float. Raises ValueError or
    TypeError for other values."""
    number = float(np.asarray(value, float).item())
    if not math.isfinite(number):
        raise ValueError(f"{number} is not finite")
    return number
