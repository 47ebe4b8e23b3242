"""Run any Gymnasium world by its id. Actions become a tool with discrete levels, observations become text with fixed
precision."""

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

from rtcontrol.agents import Agent, Fallback, Goals, Tools
from rtcontrol.agents.signatures import location_of
from rtcontrol.envs.base import Episode
from rtcontrol.envs.spaces import action_names, action_of, are_whole, flat, levels_of, names_of, reaches
from rtcontrol.envs.thread import shut
from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError

PREFIX = "gym:"
FARTHEST = 9_999  # the largest number shown for a value without bounds, in units of the precision
MOST_SHOWN = 10**9  # a declared bound above this, in units of the precision, does not count as a bound
STEP_S = 0.05  # physics step of a world that declares no frame rate
OWN = ("levels", "precision", "success", "safe", "actions")
RULE = re.compile(r"(return|steps)(>=|<=|>|<)(-?\d+(?:\.\d+)?)")
COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
# By the start of the id: names of observations, names of actions, and the safe action.
KNOWN: dict[str, tuple[str, str, str]] = {
    "CartPole-": ("x,v,angle,spin", "left,right", "left"),
    "MountainCar-": ("x,v", "left,none,right", "none"),
    "MountainCarContinuous-": ("x,v", "", ""),
    "Pendulum-": ("cos,sin,spin", "", ""),
    "Acrobot-": ("cos1,sin1,cos2,sin2,spin1,spin2", "left,none,right", "none"),
    "LunarLander-": ("x,y,vx,vy,angle,spin,left_leg,right_leg", "none,left,main,right", "none"),
}


@dataclass(frozen=True, slots=True)
class GymOptions:
    """The id of a world and the options that follow the id. `levels`: number of values of each continuous action;
    `precision`: decimals of observations, which are written as whole numbers; `success`: a rule on an episode's return
    or steps (None: the threshold that the world declares, else no judgement); `safe`: the action of the safe call;
    `actions`: names. `made` is passed to `gymnasium.make`."""

    id: str
    levels: int
    precision: int
    success: str | None
    safe: str | None
    actions: tuple[str, ...]
    made: Mapping[str, Any]

    @classmethod
    def of(cls, name: str) -> GymOptions:
        """Read `gym:ID?key=value&...`. Raises UserError for an unusable value of these options."""
        place, _, query = name.removeprefix(PREFIX).partition("?")
        query_options = dict(parse_qsl(query, keep_blank_values=True))
        success = query_options.get("success")
        if success is not None and success not in ("terminated", "truncated") and not RULE.fullmatch(success):
            raise _wrong(name, "success", success, "return>=475, steps>=500, terminated or truncated")
        return cls(
            place,
            _count(name, "levels", query_options.get("levels", "5"), 2, 64),
            _count(name, "precision", query_options.get("precision", "2"), 0, 6),
            success,
            query_options.get("safe") or None,
            _list(name, "actions", query_options.get("actions", "")),
            {key: _value(value) for key, value in query_options.items() if key not in OWN},
        )

    @property
    def known(self) -> tuple[tuple[str, ...], ...]:
        """Return the known names for an id: of observations, of discrete actions, and of the safe action."""
        bare = self.id.rpartition(":")[2]
        texts = next((texts for start, texts in KNOWN.items() if bare.startswith(start)), ("", "", ""))
        return tuple(tuple(filter(None, text.split(","))) for text in texts)


def _list(name: str, key: str, text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if len({*names}) < len(names):
        raise _wrong(name, key, text, "each name once")
    return names


def _value(text: str) -> Any:
    """Return the value of a world's option: JSON (a number, true, an object or list), none, or text."""
    small = text.lower()
    if small == "none":
        return None
    try:
        return json.loads(small if small in ("true", "false") else text)
    except ValueError:
        return text


def _count(name: str, key: str, text: str, low: int, high: int) -> int:
    if not text.isdecimal() or not low <= int(text) <= high:
        raise _wrong(name, key, text, f"a whole number from {low} to {high}")
    return int(text)


def _wrong(name: str, key: str, value: str, hint: str) -> UserError:
    return UserError(f"{name}: {key}={value} cannot be used.", f"Give {hint}.")


def load(name: str) -> None:
    """Import the module that registers the world, if the name has one (`gym:MODULE:ID`). Raises UserError."""
    module, named, _ = GymOptions.of(name).id.rpartition(":")
    try:
        if named:
            importlib.import_module(module)
    except Exception as error:
        raise _unmade(name, error) from error


def _unmade(name: str, error: Exception) -> UserError:
    return UserError(
        f"{name} cannot be made ({type(error).__name__}: {' '.join(str(error).split())}).",
        "Correct the id, its options or the world; an id that a module registers when it is imported is gym:MODULE:ID.",
    )


@dataclass(frozen=True, slots=True)
class ActTool:
    """The tool `act` of a world: the values of each parameter with the numbers of their actions, and the values of the
    safe call (`still`)."""

    parameters: dict[str, dict[Any, Any]]
    still: dict[str, Any]

    @classmethod
    def of(cls, name: str, options: GymOptions, space: Any) -> ActTool:
        """Return the tool of an action space. Raises UserError for an unsupported space, and for names that do not
        fit."""
        levels, (_, known, safe) = levels_of(name, space, options.levels), options.known
        if isinstance(space, spaces.Discrete):
            numbers = levels[0]
            names = _named(name, "actions", options.actions or known, numbers)
            still = _safe(name, names, numbers, options.safe or ("" if options.actions else "".join(safe)))
            return cls({"action": dict(zip(names, numbers, strict=True))}, {"action": still})
        keys = _named(name, "actions", options.actions, action_names(space))
        parameters = {key: dict(zip(values, values, strict=True)) for key, values in zip(keys, levels, strict=True)}
        if options.safe is None:
            return cls(parameters, {key: min(values, key=abs) for key, values in parameters.items()})
        texts = options.safe.split(",")
        still = {key: _level(levels, text) for (key, levels), text in zip(parameters.items(), texts, strict=False)}
        if len(texts) != len(keys) or None in still.values():
            legal = "; ".join(f"{key}: {', '.join(map(str, values))}" for key, values in parameters.items())
            raise _wrong(name, "safe", options.safe, f"a legal value of each parameter ({legal})")
        return cls(parameters, still)


def _level(levels: Mapping[Any, Any], text: str) -> Any:
    """Return the level that a text names, or None."""
    with suppress(ValueError):
        return next((level for level in levels if level == float(text)), None)
    return None


def _named(name: str, key: str, names: tuple[str, ...], plain: list[Any]) -> list[Any]:
    """Return the given names, or the default ones in `plain` if none are given. The number of names must be equal."""
    if names and len(names) != len(plain):
        raise _wrong(name, key, ",".join(names), f"{len(plain)} names")
    return list(names or plain)


def _safe(name: str, names: list[Any], numbers: list[Any], safe: str) -> Any:
    """Return the value for the safe call: the named one, else the one nearest to 0."""
    if not safe:
        return names[numbers.index(min(numbers, key=abs))]
    chosen = next((choice for choice in names if str(choice) == safe), None)
    if chosen is None:
        raise _wrong(name, "safe", safe, f"one of {', '.join(map(str, names))}")
    return chosen


@dataclass(slots=True)
class GymEpisode:
    """The state of the current episode: `end` is how it ended, `error` what was wrong with the world's results."""

    seed: int
    observation: Any
    steps: int = 0
    ret: float = 0.0
    end: str | None = None
    error: UserError | None = None


class GymWorld:
    """A Gymnasium world with the interface of `UserWorld`. An action lasts until the next one; the first action is the
    safe one.

    Raises UserError for a world that cannot be made and for unsupported spaces, after closing the world. Results
    outside the declared spaces raise UserError, too, with class and line.
    """

    def __init__(self, name: str) -> None:
        self.options, self.name = GymOptions.of(name), name
        try:
            self.env: Any = gymnasium.make(self.options.id, **self.options.made)
        except Exception as error:  # the checks of a world may raise anything
            raise _unmade(name, error) from error
        try:
            fps = (self.env.metadata or {}).get("render_fps")
            self.step_s = 1.0 / float(fps) if fps else STEP_S
            plain = names_of(name, self.env.observation_space)
            self.shown = _named(name, "sees", self.options.known[0], plain)
            self.tool = ActTool.of(name, self.options, self.env.action_space)
        except BaseException:
            with suppress(Exception):  # the first error is the one to report
                shut(self.env)
            raise
        self.bindings = {"act": self.act}
        self._episode = GymEpisode(0, None)

    def agent(self) -> Agent:
        """Return the agent of this world, with the tool `act` and observations as whole numbers and text."""
        options, scale = self.options, 10**self.options.precision
        whole = {name for name, so in zip(self.shown, are_whole(self.env.observation_space), strict=True) if so}
        most = {
            name: max(FARTHEST, reach * scale) if reach * scale <= MOST_SHOWN else FARTHEST
            for name, reach in zip(self.shown, reaches(self.env.observation_space), strict=True)
        }

        def shown(key: str, value: Any) -> int | str:
            if isinstance(value, str):
                return " ".join(value.split())
            if isinstance(value, int) and key in whole:
                return value
            if math.isnan(number := float(value)):
                raise UserError(
                    f"{self.name}: {key} is NaN, which is not a number.", "Let the observation have a number there."
                )
            if key in whole and math.isfinite(number):
                return round(number)
            return round(max(-most[key], min(most[key], number * scale)))

        def observe(data: Mapping[str, Any]) -> str:
            return " ".join(f"{key} {shown(key, value)}" for key, value in data.items())

        properties = {key: {"enum": [*values]} for key, values in self.tool.parameters.items()}
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        instruction = f"play {options.id}"
        return Agent(
            name=options.id,
            description=f"Plays Gymnasium's {options.id}.",
            tools=Tools([{"name": "act", "description": "What is done from now on.", "parameters": parameters}]),
            observe=observe,
            instruction=instruction,
            fallback=Fallback(Call("act", self.tool.still)),
            model="",
            history=0,
            goals=Goals([instruction], source=self.name),
            notices=self._notices(),
        )

    def _notices(self) -> list[str]:
        """Return what is uncertain about a world that is not among the known ones."""
        options, notices = self.options, list[str]()
        if any(options.known):
            return notices
        if options.safe is None:
            call = Call("act", self.tool.still).text()
            notices.append(f"The safe call {call} is a guess. Name the safe action: {self.name}?safe=ACTION.")
        unit, space = 10**-options.precision, self.env.observation_space
        endless = [
            name
            for name, reach, whole in zip(self.shown, reaches(space), are_whole(space), strict=True)
            if reach / unit > MOST_SHOWN and not whole
        ]
        if endless:
            limit = f"{FARTHEST * unit:.{options.precision}f}"
            notices.append(
                f"{', '.join(endless)}: no bounds are declared, so all values beyond {limit} are read as {FARTHEST}. "
                f"A smaller precision= reaches farther."
            )
        return notices

    def act(self, /, **chosen: Any) -> None:
        """Set the action for the following steps."""
        numbers = [values[chosen[key]] for key, values in self.tool.parameters.items()]
        self._action = action_of(self.env.action_space, numbers)

    def instruct(self, text: str) -> None:
        """Do nothing: the rewards do not depend on the instruction."""

    def reset(self, seed: int) -> None:
        observation, _ = self.env.reset(seed=seed)
        self._episode = GymEpisode(seed, observation)
        self.act(**self.tool.still)

    def step(self) -> None:
        episode = self._episode
        if episode.end is not None:  # further steps of the tick in which the episode ended
            return
        result = self.env.step(deepcopy(self._action))  # a copy, since the world may change the action
        episode.steps += 1
        try:
            episode.observation, reward, terminated, truncated, _ = result
            episode.ret += _number(reward)
            ends = {"terminated": terminated, "truncated": truncated}
            episode.end = next((end for end, over in ends.items() if _number(over)), None)
        except (TypeError, ValueError, OverflowError) as error:  # the step has been made all the same
            hint = "Return (observation, reward, terminated, truncated, info)."
            episode.error = self._blame(f"gave what is not a step ({error})", hint)

    def observe(self) -> dict[str, int | float | str]:
        space = self.env.observation_space
        try:
            return dict(zip(self.shown, flat(space, self._episode.observation), strict=True))
        except (LookupError, TypeError, ValueError) as error:
            raise self._blame(f"gave an observation unlike its space ({error})", f"Give what {space} has.") from None

    def outcome(self) -> Episode | None:
        episode = self._episode
        if episode.error is not None:
            raise episode.error
        if episode.end is None:
            return None
        detail = {"end": episode.end, "steps": episode.steps}
        return Episode(episode.seed, episode.ret, self._succeeded(), episode.steps * self.step_s, detail)

    def close(self) -> None:
        self.env.close()

    def _blame(self, problem: str, hint: str) -> UserError:
        kind = type(self.env.unwrapped)
        method = "step" if self._episode.steps else "reset"
        place = location_of(getattr(kind, method))
        return UserError(f"{place}: {kind.__name__}.{method}() {' '.join(problem.split())}.", hint)

    def _succeeded(self) -> bool | None:
        rule, threshold = self.options.success, getattr(self.env.spec, "reward_threshold", None)
        if rule is None:
            return None if threshold is None else self._episode.ret >= threshold
        if (match := RULE.fullmatch(rule)) is None:
            return self._episode.end == rule
        value = self._episode.ret if match[1] == "return" else self._episode.steps
        return COMPARE[match[2]](value, float(match[3]))


def _number(value: Any) -> float:
    """Return a reward or an end flag as a number, also from an array of one. Raises ValueError, TypeError."""
    number = float(np.asarray(value, float).item())
    if not math.isfinite(number):
        raise ValueError(f"{number} is not finite")
    return number
