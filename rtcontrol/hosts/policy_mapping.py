"""What stands between an agent and a policy of arrays (`policy.yaml`): which observed values become which arrays, and
which number of an action is which argument of a call. docs/policies.md has the file's keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rtcontrol.hosts.array_message import KINDS
from rtcontrol.hosts.policy_dims import ActionDim, dims_of, read_dim
from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError, read_text, user_path
from rtcontrol.models.schema.tool_schema import ToolSchema

STATE, PROMPT = "observation/state", "prompt"
MOST_ROWS = 1024
MOST_STEP_MS = 60_000.0
LARGEST = float(np.finfo(np.float32).max)
KEYS = ("observation", "prompt", "tool", "actions", "clip", "step_ms", "horizon", "repeats")
Vector = tuple[str, ...]


class UnmappedObservation(ValueError):
    """An observation that has not what the mapping names."""


@dataclass(frozen=True)
class PolicyMapping:
    """`observation`: by the policy's key the fields that make up a vector, or the one field whose array it is (None:
    all numbers of the first observation, in order, are the vector STATE); `prompt`: the key of the instruction (None:
    it is not told). `dims` are an action's numbers, in order. `repeats`: so many answers in a row may be earlier ones
    again, bit for bit (None: any number)."""

    tool: str
    dims: tuple[ActionDim | None, ...]
    observation: Mapping[str, str | Vector] | None = None
    prompt: str | None = PROMPT
    clip: bool = False
    step_ns: int | None = None
    horizon: int | None = None
    repeats: int | None = None

    @classmethod
    def read(cls, path: str | None, tools: Sequence[ToolSchema]) -> PolicyMapping:
        """From a YAML file; without one, the tool's parameters in order. Raises UserError."""
        if path is None:
            tool = _only(tools, "there is no mapping file")
            return cls(tool.name, dims_of(tool, "no mapping file says how"))
        import yaml

        try:
            found = yaml.safe_load(read_text(user_path(path)))
        except (OSError, ValueError, yaml.YAMLError) as error:
            reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
            remedy = "Give a YAML file of such lines as docs/policies.md has."
            raise UserError(f"The policy's mapping {path} cannot be read ({reason}).", remedy) from None
        return _Reading(path).mapping(found, tools)

    @property
    def keys(self) -> list[str]:
        """What a policy is told by, but for the prompt."""
        return [STATE] if self.observation is None else list(self.observation)

    def fixed(self, data: Mapping[str, Any]) -> PolicyMapping:
        """With the fields of this observation, where none are named. Raises UnmappedObservation."""
        if self.observation is not None:
            return self
        numbers = tuple(name for name, value in data.items() if isinstance(value, int | float | np.number))
        if not numbers:
            raise UnmappedObservation("the observation has no numbers: name its fields in a mapping file")
        return replace(self, observation={STATE: numbers})

    def question(self, data: Mapping[str, Any], instruction: str) -> dict[str, Any]:
        """What the policy is asked. Raises UnmappedObservation."""
        assert self.observation is not None, "it is fixed"
        made: dict[str, Any] = {}
        for key, fields in self.observation.items():
            if isinstance(fields, str):
                made[key] = _array(_field(data, fields), f"{fields!r} of the observation")
            else:
                made[key] = np.array([_number(data, name) for name in fields], np.float32)
        return made if self.prompt is None else {**made, self.prompt: instruction}

    def call(self, row: Sequence[float]) -> Call:
        """The call of an action; of one out of bounds, unless they clip, one that the tool does not allow."""
        arguments = {
            dim.name: dim.value(number, self.clip)
            for dim, number in zip(self.dims, row, strict=True)
            if dim is not None
        }
        return Call(self.tool, arguments)


class _Reading:
    """Of one file; each mistake is told with the file's name."""

    def __init__(self, path: str) -> None:
        self._path = path

    def _wrong(self, what: str, remedy: str) -> UserError:
        return UserError(f"{self._path}: {what}.", remedy)

    def mapping(self, found: Any, tools: Sequence[ToolSchema]) -> PolicyMapping:
        if not isinstance(found, dict):
            raise self._wrong("it is no mapping of keys", "See docs/policies.md for its keys.")
        if unknown := [key for key in found if key not in KEYS]:
            raise self._wrong(f"there is no key {str(unknown[0])[:80]!r}", f"There are {', '.join(KEYS)}.")
        tool = self._tool(found.get("tool"), tools)
        if not isinstance(found.get("clip", False), bool):
            raise self._wrong("clip is neither true nor false", "Give one of them.")
        return PolicyMapping(
            tool.name,
            self._dims(found.get("actions"), tool),
            self._observation(found.get("observation")),
            self._text(found, "prompt", PROMPT),
            found.get("clip", False),
            self._step_ns(found.get("step_ms")),
            self._count(found, "horizon", 1),
            self._count(found, "repeats", 0),
        )

    def _tool(self, name: Any, tools: Sequence[ToolSchema]) -> ToolSchema:
        if name is None:
            return _only(tools, f"{self._path} names none (tool)")
        if (tool := next((tool for tool in tools if tool.name == name), None)) is None:
            known = ", ".join(tool.name for tool in tools)
            raise self._wrong(f"there is no tool {str(name)[:80]!r}", f"The agent has {known}.")
        return tool

    def _dims(self, given: Any, tool: ToolSchema) -> tuple[ActionDim | None, ...]:
        if given is None:
            return dims_of(tool, f"{self._path} has no `actions`")
        remedy = "Give one entry for each number of an action: {parameter: NAME, scale: 1, offset: 0}, or null."
        if not isinstance(given, list) or not 1 <= len(given) <= MOST_ROWS:
            raise self._wrong("actions is no list", remedy)
        dims = tuple(
            None if one is None else read_dim(one, tool, f"{self._path}: actions[{i}]", remedy)
            for i, one in enumerate(given)
        )
        names = [dim.name for dim in dims if dim is not None]
        if not names or len(names) > len(set(names)):
            raise self._wrong("actions names a parameter twice" if names else "actions names no parameter", remedy)
        if missing := [p.name for p in tool.parameters if p.required and p.name not in names]:
            raise self._wrong(f"no action gives {tool.name} its {missing[0]}, which it requires", remedy)
        return dims

    def _observation(self, given: Any) -> Mapping[str, str | Vector] | None:
        if given is None:
            return None
        remedy = (
            "Give the policy's keys: `observation/state: [x, y]` (numbers), `observation/image: camera` (an array)."
        )
        if not isinstance(given, dict) or not given:
            raise self._wrong("observation has no keys", remedy)
        made: dict[str, str | Vector] = {}
        for key, fields in given.items():
            names = [fields] if isinstance(fields, str) else fields
            if not isinstance(key, str) or not isinstance(names, list) or not names:
                raise self._wrong(f"observation: {str(key)[:80]!r} names no fields", remedy)
            if not all(isinstance(name, str) for name in names):
                raise self._wrong(f"observation: {key!r} has a field that is no text (quote `on` and `no`)", remedy)
            made[key] = fields if isinstance(fields, str) else tuple(names)
        return made

    def _text(self, found: Mapping[str, Any], key: str, default: str) -> str | None:
        value = found.get(key, default)
        if value is not None and not isinstance(value, str):
            raise self._wrong(f"{key} is no text", "Give the policy's key, or null.")
        return value

    def _step_ns(self, given: Any) -> int | None:
        if given is None:
            return None
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given <= MOST_STEP_MS:
            raise self._wrong("step_ms is no time", f"Give above 0 to {MOST_STEP_MS:g} milliseconds.")
        return round(given * 1e6)

    def _count(self, found: Mapping[str, Any], key: str, least: int) -> int | None:
        value = found.get(key)
        if value is not None and (type(value) is not int or not least <= value <= MOST_ROWS):
            raise self._wrong(f"{key} is no count", f"Give {least} to {MOST_ROWS}, or leave it out.")
        return value


def _only(tools: Sequence[ToolSchema], why: str) -> ToolSchema:
    if len(tools) == 1:
        return tools[0]
    raise UserError(
        f"The agent has {len(tools)} tools, and {why}: which one is an action?",
        "Name it in a mapping file (`tool: NAME`): --model openpi:ws://HOST:PORT#policy.yaml (docs/policies.md).",
    )


def _field(data: Mapping[str, Any], name: str) -> Any:
    if name not in data:
        raise UnmappedObservation(f"the observation has no {name!r}; it has {', '.join(map(str, data))[:200]}")
    return data[name]


def _array(value: Any, where: str) -> np.ndarray[Any, Any]:
    try:
        made = np.asarray(value)
    except (TypeError, ValueError, OverflowError):  # lists of several lengths
        raise UnmappedObservation(f"{where} is no array") from None
    if made.dtype.kind not in KINDS:
        raise UnmappedObservation(f"{where} is no array of numbers or text, but of {made.dtype}")
    return made


def _number(data: Mapping[str, Any], name: str) -> float:
    value = _field(data, name)
    try:
        number = float(value)
    except OverflowError:
        raise UnmappedObservation(f"{name!r} of the observation is a number beyond all floats") from None
    except (TypeError, ValueError):
        raise UnmappedObservation(f"{name!r} of the observation is a {type(value).__name__}, no number") from None
    if not abs(number) <= LARGEST:
        raise UnmappedObservation(f"{name!r} of the observation is {number}, which no float32 is")
    return number
