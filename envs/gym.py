"""Any Gymnasium world by its id: actions become tools with declared levels, observations text of declared precision."""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl

import gymnasium
import numpy as np
from gymnasium import spaces

from rtcontrol.agents import Agent, Fallback, Goals, Tools
from rtcontrol.envs.base import Episode
from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema import MAX_HEADS

PREFIX = "gym:"
OWN = ("levels", "precision", "success", "step_s", "safe", "sees", "actions", "told")
MOST_NUMBERS = 64  # of an observation
FARTHEST = 9_999  # a number is shown up to here, in units of the precision
STEP_S = 0.05  # of a world that names no frame rate
FILE = "Write it as a world of your own, a FILE.py that makes and steps it (docs/your-own-game.md)"
_RULE = re.compile(r"(return|steps)(>=|<=|>|<)(-?\d+(?:\.\d+)?)")
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
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
    `actions`: names; `told`: the instruction. `made` is for `gymnasium.make`. `known`: nobody named actions or what is
    safe, and those of the id are for its single choice alone."""

    id: str
    levels: int
    precision: int
    success: str | None
    step_s: float | None
    safe: str | None
    sees: tuple[str, ...]
    actions: tuple[str, ...]
    told: str
    made: Mapping[str, Any]
    known: bool

    @classmethod
    def of(cls, name: str) -> GymOptions:
        """Of `gym:ID?key=value&...`. UserError for a key of ours whose value cannot be used."""
        place, _, query = name.removeprefix(PREFIX).partition("?")
        given = dict(parse_qsl(query, keep_blank_values=True))
        sees, actions, safe = next((told for start, told in KNOWN.items() if place.startswith(start)), ("", "", ""))
        if "actions" in given:  # other names
            safe = ""
        success = given.get("success")
        if success is not None and success not in ("terminated", "truncated") and not _RULE.fullmatch(success):
            raise _wrong(name, "success", success, "return>=475, steps>=500, terminated or truncated")
        step_s = _number(name, "step_s", given["step_s"], 1e-4, 100.0) if "step_s" in given else None
        return cls(
            place,
            int(_number(name, "levels", given.get("levels", "5"), 2, 64)),
            int(_number(name, "precision", given.get("precision", "2"), 0, 6)),
            success,
            step_s,
            given.get("safe", safe) or None,
            _list(given.get("sees", sees)),
            _list(given.get("actions", actions)),
            given.get("told", f"play {place}"),
            {key: _value(value) for key, value in given.items() if key not in OWN},
            not given.keys() & {"actions", "safe"},
        )


class GymWorld:
    """A simulation as `OwnWorld` takes it. An action is in force until the next one; at first it is the safe one.

    Raises UserError for a world that cannot be made, and for spaces that are no tools or no text."""

    def __init__(self, name: str) -> None:
        options = GymOptions.of(name)
        try:
            self.env: Any = gymnasium.make(options.id, **options.made)
        except Exception as error:  # a world's own checks raise whatever they like
            told = " ".join(str(error).replace("`", "").split()) or type(error).__name__
            raise UserError(
                f"{name} cannot be made ({told}).", "Correct the id or its options, or install it."
            ) from None
        choice = isinstance(self.env.action_space, spaces.Discrete)
        if not choice and options.known:
            options = replace(options, actions=(), safe=None)
        if not choice and options.safe is not None:
            raise _wrong(name, "safe", options.safe, "none: of numbers those nearest to 0 are safe")
        for key in ("sees", "actions"):
            if len({*(named := getattr(options, key))}) < len(named):
                raise _wrong(name, key, ",".join(named), "each name once")
        self.options, self.name = options, name
        fps = (self.env.metadata or {}).get("render_fps")
        self.step_s = options.step_s or (1.0 / fps if fps else STEP_S)
        self.shown = _shown(name, self.env.observation_space, options.sees)
        self.levels = _levels(name, self.env.action_space, options)
        self.parameters = _parameters(name, self.levels, self.env.action_space, options)
        self.bindings = {"act": self.act}
        self.still = self._still()
        self._over: str | None = None
        self._seed = self._steps = 0
        self._return = 0.0

    def act(self, **chosen: Any) -> None:
        """What is done from now on."""
        each = zip(self.levels, self.parameters.items(), strict=True)
        picked = [levels[values.index(chosen[name])] for levels, (name, values) in each]
        space = self.env.action_space
        if isinstance(space, spaces.Discrete):
            self._action: Any = picked[0]
        else:
            self._action = np.array(picked, dtype=space.dtype).reshape(space.shape)

    def instruct(self, text: str) -> None:
        """Whatever is told, the rewards are the same."""

    def reset(self, seed: int) -> None:
        self._seen, _ = self.env.reset(seed=seed)
        self._seed, self._steps, self._return, self._over = seed, 0, 0.0, None
        self.act(**self.still)

    def step(self) -> None:
        if self._over is not None:  # more steps of the tick in which it ended
            return
        self._seen, reward, terminated, truncated, _ = self.env.step(self._action)
        self._return += float(reward)
        self._steps += 1
        self._over = "terminated" if terminated else "truncated" if truncated else None

    def observe(self) -> dict[str, float]:
        return dict(zip(self.shown, _flat(self.env.observation_space, self._seen), strict=True))

    def outcome(self) -> Episode | None:
        if self._over is None:
            return None
        seconds = self._steps * self.step_s
        return Episode(self._seed, self._return, self._succeeded(), seconds, {"end": self._over, "steps": self._steps})

    def _succeeded(self) -> bool | None:
        rule, threshold = self.options.success, getattr(self.env.spec, "reward_threshold", None)
        if rule is None:
            return None if threshold is None else self._return >= threshold
        if (asked := _RULE.fullmatch(rule)) is None:
            return self._over == rule
        return _COMPARE[asked[2]](self._return if asked[1] == "return" else self._steps, float(asked[3]))

    def _still(self) -> dict[str, Any]:
        safe, names = self.options.safe, list(self.parameters)
        if safe is not None and isinstance(self.env.action_space, spaces.Discrete):
            values = self.parameters[names[0]]
            chosen = next((value for value in values if str(value) == safe), None)
            if chosen is None:
                raise _wrong(self.name, "safe", safe, f"one of {', '.join(map(str, values))}")
            return {names[0]: chosen}
        nearest = [min(range(len(each)), key=lambda i, each=each: abs(each[i])) for each in self.levels]  # type: ignore[misc]
        return {name: self.parameters[name][i] for name, i in zip(names, nearest, strict=True)}


def gym_agent(name: str) -> Agent:
    """The agent of a Gymnasium world: one tool `act`, and what is seen as whole numbers. UserError as of `GymWorld`."""
    world = GymWorld(name)
    options = world.options
    scale = 10**options.precision

    def observe(data: Mapping[str, Any]) -> str:
        whole = ((key, max(-FARTHEST, min(FARTHEST, round(float(value) * scale)))) for key, value in data.items())
        return " ".join(f"{key} {value}" for key, value in whole)

    properties = {key: {"enum": values} for key, values in world.parameters.items()}
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return Agent(
        name=options.id,
        description=f"Plays Gymnasium's {options.id}.",
        tools=Tools([{"name": "act", "description": "What is done from now on.", "parameters": parameters}]),
        observe=observe,
        instruction=options.told,
        fallback=Fallback(Call("act", world.still)),
        model="",
        history=0,
        goals=Goals([options.told], source=name),
    )


def _levels(name: str, space: Any, options: GymOptions) -> list[list[Any]]:
    """Of each number of an action, what it can be."""
    if isinstance(space, spaces.Discrete):
        return [[int(space.start) + i for i in range(int(space.n))]]
    if isinstance(space, spaces.MultiDiscrete):
        starts = np.broadcast_to(space.start, space.nvec.shape).ravel()
        return [[int(s) + i for i in range(int(n))] for s, n in zip(starts, space.nvec.ravel(), strict=True)]
    if isinstance(space, spaces.MultiBinary):
        return [[0, 1] for _ in range(math.prod(space.shape))]
    if not isinstance(space, spaces.Box):
        raise UserError(
            f"{name}: its actions are a {type(space).__name__}, no tool.", f"{FILE}, with tools of its own."
        )
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise UserError(
            f"{name}: its actions have no bounds ({space}), so no levels.", f"{FILE}, and bounds what it does."
        )
    return [
        [round(float(low + (high - low) * i / (options.levels - 1)), 6) for i in range(options.levels)]
        for low, high in zip(space.low.ravel(), space.high.ravel(), strict=True)
    ]


def _parameters(name: str, levels: Sequence[Sequence[Any]], space: Any, options: GymOptions) -> dict[str, list[Any]]:
    """The tool's parameters, each with its values in the order of its levels."""
    if len(levels) > MAX_HEADS:
        raise UserError(
            f"{name}: its actions have {len(levels)} numbers, and a call has {MAX_HEADS} at the most.",
            f"{FILE}, with tools that set several of them at once.",
        )
    if isinstance(space, spaces.Discrete):
        if options.actions and len(options.actions) != len(levels[0]):
            raise _wrong(name, "actions", ",".join(options.actions), f"{len(levels[0])} names")
        return {"action": list(options.actions or levels[0])}
    names = options.actions or tuple(f"a{i + 1}" for i in range(len(levels)))
    if len(names) != len(levels):
        raise _wrong(name, "actions", ",".join(names), f"{len(levels)} names")
    return {key: list(values) for key, values in zip(names, levels, strict=True)}


def _shown(name: str, space: Any, given: Sequence[str]) -> list[str]:
    """The names of what is seen, in order."""
    found = list(itertools.islice(_names(name, space, ""), MOST_NUMBERS + 1))
    if len(found) > MOST_NUMBERS:
        raise UserError(
            f"{name}: an observation ({space}) has more than {MOST_NUMBERS} numbers, too many for text.",
            f"{FILE}, and shows what matters.",
        )
    if given and len(given) != len(found):
        raise _wrong(name, "sees", ",".join(given), f"{len(found)} names")
    return list(given or found)


def _names(name: str, space: Any, path: str) -> Iterator[str]:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces, 1)
        for key, part in parts:
            yield from _names(name, part, f"{path}{key}_")
    elif isinstance(space, spaces.Discrete):
        yield f"{path}o".removesuffix("_o")
    elif isinstance(space, spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete):
        if len(space.shape) > 2:
            raise UserError(
                f"{name}: an observation is an image ({space}), and a controller reads text.",
                f"Choose a world that gives its state, or: {FILE[0].lower()}{FILE[1:]}, and words what is seen.",
            )
        count = math.prod(space.shape)
        yield from (f"{path}{i + 1}" if path else f"o{i + 1}" for i in range(count))
    else:
        raise UserError(
            f"{name}: an observation holds a {type(space).__name__}, which is no numbers.", f"{FILE}, and words it."
        )


def _flat(space: Any, seen: Any) -> Iterator[float]:
    if isinstance(space, spaces.Dict):
        yield from (value for key, part in space.spaces.items() for value in _flat(part, seen[key]))
    elif isinstance(space, spaces.Tuple):
        yield from (value for part, one in zip(space.spaces, seen, strict=True) for value in _flat(part, one))
    else:
        yield from (float(value) for value in np.asarray(seen).ravel())


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _value(text: str) -> Any:
    """An option of the world's own: a number, true, false, none, or text."""
    plain: dict[str, Any] = {"true": True, "false": False, "none": None}
    if text.lower() in plain:
        return plain[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _number(name: str, key: str, text: str, low: float, high: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not low <= number <= high:
        raise _wrong(name, key, text, f"a number from {low:g} to {high:g}")
    return number


def _wrong(name: str, key: str, value: str, remedy: str) -> UserError:
    return UserError(f"{name}: {key}={value} cannot be used.", f"Give {remedy}.")
