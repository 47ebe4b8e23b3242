"""Tool schemas: read OpenAI-style JSON, write head order and canonical JSON (design, section 3).

`<argK>` knows positions only, so a tool's `properties` are sorted into head order: required parameters in their own
order, then optional ones alphabetically (paper, appendix "Parameter Normalization").
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.definition import definition
from rtcontrol.models.schema.domain import Domain, Free, closed, objects, written
from rtcontrol.models.schema.limits import Room, check_count, check_size
from rtcontrol.models.schema.parameters import Parameter, Reading, RootRules, check_spelled

MAX_HEADS = 6
ABSENT = object()
Overflow = Literal["merge", "cut"]


@dataclass(frozen=True)
class Slot:
    """The content of one argument head: a parameter, or several merged into one JSON object (a group, or overflow).

    `null` is the meaning of the head's null token where it is legal: (ABSENT,), or (None,) for a required parameter
    that may be null; otherwise ().
    """

    parameters: tuple[Parameter, ...]
    domain: Domain
    null: tuple[Any, ...]
    merged: bool

    def arguments(self, value: Any) -> dict[str, Any]:
        """Return the slot's decoded value as named arguments."""
        return dict(value) if self.merged else {self.parameters[0].name: value}

    def value(self, arguments: Mapping[str, Any]) -> Any:
        """Return the slot's value in a call's arguments, `ABSENT` where all its parameters are left out."""
        present = {p.name: arguments[p.name] for p in self.parameters if p.name in arguments}
        if self.merged:
            return present or (ABSENT if self.null else {})
        value = present.get(self.parameters[0].name, ABSENT)
        return self.null[0] if value is None and self.null else value


@dataclass(frozen=True)
class ToolSchema:
    """One tool in head order. `rules` restrict combinations of its arguments (None: any)."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    rules: RootRules | None = None

    @classmethod
    def from_openai(cls, tool: Mapping[str, Any], room: Room | None = None) -> ToolSchema:
        """Read one definition in any of the forms of `definition.PARAMETERS`; `room` is the allowance of its set of
        tools.

        Raises UserError with tool, parameter and what to write instead.
        """
        given = definition(tool)
        check_spelled([given.name, given.description], f"Tool {given.name[:64]!r}")
        try:
            parameters, rules = Reading(given.name, room or Room()).read(given.schema)
        except RecursionError:
            raise UserError(
                f"Tool {given.name[:64]!r}: its schema is nested too deeply to be read.", "Describe flatter values."
            ) from None
        return cls(given.name, given.description, parameters, rules)

    def to_openai(self) -> dict[str, Any]:
        """Return the definition in head order, as the model reads it."""
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {p.name: copy.deepcopy(dict(p.schema)) for p in self.parameters},
            "required": [p.name for p in self.parameters if p.required],
            **(copy.deepcopy(dict(self.rules.written)) if self.rules else {}),
        }
        body = {"name": self.name, "description": self.description, "parameters": schema}
        return {"type": "function", "function": body}

    def exact(self) -> dict[str, Any]:
        """Return `to_openai` with the original rules too, so that reading it again gives this tool."""
        whole = self.to_openai()
        exact_schemas = {p.name: copy.deepcopy(dict(p.rules)) for p in self.parameters if p.rules != p.schema}
        whole["function"]["parameters"]["properties"] |= exact_schemas
        return whole

    def canonical_json(self) -> str:
        """Return one line of JSON, the same bytes for the same tool."""
        return self._canonical

    @cached_property
    def _canonical(self) -> str:
        return json.dumps(self.to_openai(), ensure_ascii=False)

    def slots(self, overflow: Overflow = "merge") -> tuple[Slot, ...]:
        """Return the argument heads, at most six: groups are merged, and the overflow is merged into head 6 or cut."""
        units: list[list[Parameter]] = []
        groups: dict[str, list[Parameter]] = {}
        for p in self.parameters:
            if p.group is not None and p.group in groups:
                groups[p.group].append(p)
                continue
            units.append([p])
            if p.group is not None:
                groups[p.group] = units[-1]
        if len(units) > MAX_HEADS:
            rest = [p for unit in units[MAX_HEADS - 1 :] for p in unit]
            units = units[:MAX_HEADS] if overflow == "cut" else [*units[: MAX_HEADS - 1], rest]
        return tuple(_slot(self.name, unit) for unit in units)


def _slot(tool: str, unit: Sequence[Parameter]) -> Slot:
    where = f"Tool {tool}, parameters {', '.join(p.name for p in unit)} in one head"
    required = [p.name for p in unit if p.required]
    null = () if required else (ABSENT,)
    if len(unit) == 1:
        return Slot((unit[0],), unit[0].domain, null or ((None,) if unit[0].nullable else ()), merged=False)
    listed = objects({p.name: p.values for p in unit}, required)
    if listed is not None:
        once = {written(v): v for v in listed if v}
        return Slot(tuple(unit), closed(tuple(once.values()), where), null, merged=True)
    schema, judged = _object(unit, lambda p: p.schema), _object(unit, lambda p: p.rules)
    return Slot(tuple(unit), Free(schema, rules=judged), null, merged=True)


def _object(parameters: Sequence[Parameter], of: Callable[[Parameter], Mapping[str, Any]]) -> dict[str, Any]:
    """Return the schema of an object with a head's parameters, each by `of`."""
    return {
        "type": "object",
        "properties": {p.name: dict(of(p)) for p in parameters},
        "required": [p.name for p in parameters if p.required],
        "additionalProperties": False,
    }


def tool_schemas(tools: Sequence[Mapping[str, Any]]) -> tuple[ToolSchema, ...]:
    """Read all tools of an agent, cached. Raises UserError for duplicate names, an empty list, and a set that is too
    large to read."""
    check_size(tools)
    text = _text(tools)
    return _of_text(text) if text else _read(tools)


@lru_cache(maxsize=16)
def _of_text(text: bytes) -> tuple[ToolSchema, ...]:
    return _read(json.loads(text))


def _read(tools: Sequence[Mapping[str, Any]]) -> tuple[ToolSchema, ...]:
    room = Room()
    return checked([ToolSchema.from_openai(t, room) for t in tools])


def _text(tools: Any) -> bytes:
    """Return definitions of plain JSON as text, else an empty one."""
    try:
        return json.dumps(list(tools)).encode()
    except (TypeError, ValueError, RecursionError):
        return b""


def checked(schemas: Sequence[ToolSchema]) -> tuple[ToolSchema, ...]:
    """Return tools that may belong to one agent. Raises UserError."""
    if not schemas:
        raise UserError("No tools.", "Give the agent at least one tool.")
    check_count(len(schemas))
    names = Counter(s.name for s in schemas)
    if twice := sorted(n for n, count in names.items() if count > 1):
        raise UserError(f"Two tools are called {twice[0]!r}.", "Rename one of them.")
    return tuple(schemas)
