"""What stands between an agent and a policy of arrays (`policy.yaml`): which observed values become which arrays, and
which number of an action is which argument of a call. docs/policies.md has the file's keys."""

from __future__ import annotations

import contextlib
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from rtcontrol.hosts.array_message import KINDS
from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError, read_text, user_path
from rtcontrol.models.schema.domain import ClosedDomain
from rtcontrol.models.schema.numbers import range_of
from rtcontrol.models.schema.parameters import Parameter
from rtcontrol.models.schema.tool_schema import ToolSchema

STATE, PROMPT = "observation/state", "prompt"
MOST_ROWS = 1024
LARGEST = float(np.finfo(np.float32).max)
LEVELS = "levels: {-1: left, 0: stay, 1: right}"
PAGE = "See docs/policies.md for its keys."
NAME_FIELDS = "Name the fields that this world has, in the mapping file: openpi:ws://HOST:PORT#FILE (docs/policies.md)."


Finite = Annotated[float, Field(allow_inf_nan=False)]
Fields = str | Annotated[list[str], Field(min_length=1)]


class Entry(BaseModel, extra="forbid", strict=True):
    """An entry of `actions`."""

    parameter: str
    scale: Finite = 1.0
    offset: Finite = 0.0
    levels: Annotated[dict[Finite, Any], Field(min_length=1)] | None = None


class MappingFile(BaseModel, extra="forbid", strict=True):
    """The keys of a mapping file."""

    observation: Annotated[dict[str, Fields], Field(min_length=1)] | None = None
    prompt: str | None = PROMPT
    tool: str | None = None
    actions: Annotated[list[Entry | None], Field(min_length=1, max_length=MOST_ROWS)] | None = None
    clip: bool = False
    step_ms: Annotated[float, Field(gt=0, le=60_000)] | None = None
    horizon: Annotated[int, Field(ge=1, le=MOST_ROWS)] | None = None


@dataclass(frozen=True)
class ActionDim:
    """The argument `name` is `scale` times the number plus `offset`. Where its values are listed, it is the nearest
    one: `points` are these as numbers, ascending, and `values` what stands for each. Else `step` from zero rounds it,
    and it lies between `least` and `most`, which are counted in steps where there is one."""

    name: str
    scale: float = 1.0
    offset: float = 0.0
    points: tuple[float, ...] = ()
    values: tuple[Any, ...] = field(default=(), compare=False)
    integer: bool = False
    least: float = -math.inf
    most: float = math.inf
    step: Fraction | None = None

    def value(self, number: float, clip: bool) -> Any:
        """Return the argument; of a number out of bounds by more than half a step that number, unless it is to `clip`.
        Raises OverflowError for one that is not finite when it is scaled."""
        scaled = self.scale * number + self.offset
        if not math.isfinite(scaled):
            raise OverflowError(f"{number:g} of {self.name}")
        if self.points:
            return self._nearest(scaled, clip)
        if self.step is None:
            return min(max(scaled, self.least), self.most) if clip else scaled
        count: float = round(Fraction(scaled) / self.step)
        if clip:
            count = min(max(count, self.least), self.most)
        exact = int(count) * self.step
        return int(exact) if self.integer else float(exact)

    def _nearest(self, scaled: float, clip: bool) -> Any:
        points = self.points
        i = bisect_left(points, scaled)
        near = [j for j in (i - 1, i) if 0 <= j < len(points)]
        best = min(near, key=lambda j: abs(points[j] - scaled))
        ends = points[:2] if scaled < points[0] else points[-2:]
        reach = (ends[-1] - ends[0]) / 2 * (1 + 1e-9)
        beyond = max(points[0] - scaled, scaled - points[-1])
        return scaled if beyond > reach and not clip else self.values[best]


@dataclass(frozen=True)
class PolicyMapping:
    """`observation`: by the policy's key the fields that make up a vector, or the one field whose array it is (None:
    all numbers of the first observation, in order, are the vector STATE); `prompt`: the key of the instruction (None:
    it is not sent). `dims` are an action's numbers, in order."""

    tool: str
    dims: tuple[ActionDim | None, ...]
    observation: Mapping[str, str | Sequence[str]] | None = None
    prompt: str | None = PROMPT
    clip: bool = False
    step_ns: int | None = None
    horizon: int | None = None

    @classmethod
    def read(cls, path: str | None, tools: Sequence[ToolSchema]) -> PolicyMapping:
        """From a YAML file; without one, the tool's parameters in order. Raises UserError."""
        file = MappingFile() if path is None else _contents(path)
        where = path or "No mapping file"
        tool = _tool(file.tool, tools, where)
        entries = file.actions or [Entry(parameter=parameter.name) for parameter in tool.parameters]
        return cls(
            tool.name,
            _dims(entries, tool, where),
            file.observation,
            file.prompt,
            file.clip,
            None if file.step_ms is None else round(file.step_ms * 1e6),
            file.horizon,
        )

    def fixed(self, data: Mapping[str, Any]) -> PolicyMapping:
        """With the fields of this observation, where none are named. Raises UserError."""
        if self.observation is not None:
            return self
        numbers = tuple(name for name, value in data.items() if isinstance(value, int | float | np.number))
        if not numbers:
            raise UserError("The observation has no numbers.", NAME_FIELDS)
        return replace(self, observation={STATE: numbers})

    def question(self, data: Mapping[str, Any], instruction: str) -> dict[str, Any]:
        """Return what the policy is asked. Raises UserError."""
        assert self.observation is not None, "it is fixed"
        made: dict[str, Any] = {}
        for key, fields in self.observation.items():
            if isinstance(fields, str):
                made[key] = _array(data, fields)
            else:
                made[key] = np.array([_number(data, name) for name in fields], np.float32)
        return made if self.prompt is None else {**made, self.prompt: instruction}

    def call(self, row: Sequence[float]) -> Call:
        """Return the call of an action; of one out of bounds, unless they clip, one that the tool does not allow."""
        arguments = {
            dim.name: dim.value(number, self.clip)
            for dim, number in zip(self.dims, row, strict=True)
            if dim is not None
        }
        return Call(self.tool, arguments)


def _contents(path: str) -> MappingFile:
    """Return the contents of a mapping file. Raises UserError."""
    import yaml

    try:
        found = yaml.safe_load(read_text(user_path(path)))
        return MappingFile.model_validate(found)
    except ValidationError as wrong:
        error = max(wrong.errors(include_url=False), key=lambda one: len(one["loc"]))
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"])
        raise UserError(f"{path}: {place.removeprefix('.')[:200]}: {error['msg']}.", PAGE) from None
    except (OSError, ValueError, OverflowError, yaml.YAMLError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
        raise UserError(f"The policy's mapping {path} cannot be read ({reason}).", PAGE) from None


def _tool(name: str | None, tools: Sequence[ToolSchema], where: str) -> ToolSchema:
    """Return the tool of this name, or the only one. Raises UserError."""
    known = [tool for tool in tools if name in (None, tool.name)]
    if len(known) == 1:
        return known[0]
    what = f"names none of the agent's {len(tools)} tools" if name is None else f"there is no tool {name[:80]!r}"
    names = ", ".join(tool.name for tool in tools)
    raise UserError(
        f"{where}: {what}.",
        f"Write `tool: NAME` into --model openpi:ws://HOST:PORT#policy.yaml (docs/policies.md): {names}.",
    )


def _dims(given: Sequence[Entry | None], tool: ToolSchema, path: str) -> tuple[ActionDim | None, ...]:
    """Read the entries of `actions`. Raises UserError."""
    dims = tuple(None if one is None else _dim(one, tool, f"{path}: actions[{i}]") for i, one in enumerate(given))
    names = [dim.name for dim in dims if dim is not None]
    if not names or len(names) > len(set(names)):
        what = "actions names a parameter twice" if names else "actions names no parameter"
        raise UserError(f"{path}: {what}.", "Give one entry for each number of an action, or null.")
    if missing := [p.name for p in tool.parameters if p.required and p.name not in names]:
        raise UserError(f"{path}: no action gives {tool.name} its {missing[0]}, which it requires.", "Add an entry.")
    return dims


def _dim(entry: Entry, tool: ToolSchema, where: str) -> ActionDim:
    """Read an entry of `actions`, by its parameter's values, or its bounds and step. Raises UserError."""
    parameter = next((p for p in tool.parameters if p.name == entry.parameter), None)
    if parameter is None or not entry.scale:
        known = ", ".join(p.name for p in tool.parameters)
        what = "its scale is 0" if parameter else f"{tool.name} has no parameter {entry.parameter[:80]!r}"
        raise UserError(f"{where}: {what}.", f"It has {known}. {PAGE}")
    dim = ActionDim(parameter.name, entry.scale, entry.offset)
    domain, schema = parameter.domain, parameter.schema
    if entry.levels is not None:
        return _listed(dim, _legal(entry.levels, parameter, where))
    if isinstance(domain, ClosedDomain) and all(type(value) in (int, float) for value in domain.values):
        return _listed(dim, {value: value for value in domain.values})
    if isinstance(domain, ClosedDomain) or schema.get("type") not in ("integer", "number"):
        what = f"the values of {parameter.name} of the tool {tool.name} are no numbers"
        raise UserError(f"{where}: {what}.", f"Say which they are: {{parameter: {parameter.name}, {LEVELS}}}. {PAGE}")
    numbers, integer = range_of(schema), schema.get("type") == "integer"
    step = Fraction(numbers.step.numerator if numbers.step else 1) if integer else numbers.step
    if step is not None:
        least, most = numbers.multiples(step)
        return replace(dim, integer=integer, least=least, most=most, step=step)
    low, high = float(numbers.low), float(numbers.high)
    return replace(
        dim,
        least=math.nextafter(low, math.inf) if numbers.above else low,
        most=math.nextafter(high, -math.inf) if numbers.below else high,
    )


def _legal(levels: dict[float, Any], parameter: Parameter, where: str) -> dict[float, Any]:
    """Return the levels, where the tool allows them all. Raises UserError."""
    domain = parameter.domain
    for value in levels.values():
        legal = domain.holds(value) if isinstance(domain, ClosedDomain) else domain.judge.fault(value) is None
        if not legal:
            remedy = f"Give such as {LEVELS}, of values that the tool allows."
            raise UserError(f"{where}: {parameter.name} may not be {str(value)[:80]!r}.", remedy)
    return levels


def _listed(dim: ActionDim, values: dict[float, Any]) -> ActionDim:
    points = sorted(values)
    return replace(dim, points=tuple(map(float, points)), values=tuple(values[point] for point in points))


def _field(data: Mapping[str, Any], name: str) -> Any:
    if name not in data:
        raise UserError(f"The observation has no {name!r}; it has {', '.join(map(str, data))[:200]}.", NAME_FIELDS)
    return data[name]


def _array(data: Mapping[str, Any], name: str) -> np.ndarray[Any, Any]:
    value = _field(data, name)
    with contextlib.suppress(TypeError, ValueError, OverflowError):  # lists of several lengths
        if (made := np.asarray(value)).dtype.kind in KINDS:
            return made
    raise UserError(f"{name!r} of the observation is no array of numbers or text.", NAME_FIELDS)


def _number(data: Mapping[str, Any], name: str) -> float:
    value = _field(data, name)
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        if abs(number := float(value)) <= LARGEST:
            return number
    raise UserError(f"{name!r} of the observation is {str(value)[:40]!r}, which no float32 is.", NAME_FIELDS)
