"""Read tool definitions, with parameters in head order, and write them as canonical JSON.

Argument heads (`<argK>`) have no names, so parameters need a fixed order: required ones in declared order, then
optional ones alphabetically (SimpleTool paper, appendix "Parameter Normalization").
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

from rtcontrol.models.errors import UserError, quoted_name
from rtcontrol.models.schema.combinations import Combinations, legal_combinations
from rtcontrol.models.schema.definition import read_definition
from rtcontrol.models.schema.domain import Domain, FreeDomain, closed_domain, list_objects, sorted_json
from rtcontrol.models.schema.limits import SchemaBudget, check_count, check_size
from rtcontrol.models.schema.parameters import Parameter, ParameterReader, RootRules, check_encodable

MAX_HEADS = 6
ABSENT = object()
Overflow = Literal["merge", "cut"]


@dataclass(frozen=True)
class Slot:
    """The content of one argument head: one parameter, or a JSON object of several parameters (`merged`).

    Parameters of one group share a head; if there are more than six heads, the last head has all remaining parameters.
    `null` has the value of the null token: (ABSENT,) for optional parameters, (None,) for a required parameter that may
    be null, () if the null token is illegal."""

    parameters: tuple[Parameter, ...]
    domain: Domain
    null: tuple[Any, ...]
    merged: bool

    def arguments(self, value: Any) -> dict[str, Any]:
        """Return the slot's decoded value as named arguments."""
        return dict(value) if self.merged else {self.parameters[0].name: value}

    def value(self, arguments: Mapping[str, Any]) -> Any:
        """Return the slot's value for a call's arguments; `ABSENT` if all its parameters are missing."""
        present = {p.name: arguments[p.name] for p in self.parameters if p.name in arguments}
        if self.merged:
            return present or (ABSENT if self.null else {})
        value = present.get(self.parameters[0].name, ABSENT)
        return self.null[0] if value is None and self.null else value


@dataclass(frozen=True)
class ToolSchema:
    """One tool, with parameters in head order. `rules` restrict combinations of arguments (None: no rules)."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    rules: RootRules | None = None

    @classmethod
    def from_openai(cls, tool: Mapping[str, Any], room: SchemaBudget | None = None) -> ToolSchema:
        """Read a definition in the format of OpenAI, Anthropic or MCP. `room` limits the total size of all tools.
        Raises UserError, which names tool and parameter."""
        definition = read_definition(tool)
        check_encodable([definition.name, definition.description], f"Tool {quoted_name(definition.name)}")
        try:
            parameters, rules = ParameterReader(definition.name, room or SchemaBudget()).read(definition.schema)
        except RecursionError:
            raise UserError(
                f"Tool {quoted_name(definition.name)}: its schema is nested too deeply to be read.", "Use fewer levels."
            ) from None
        schema = cls(definition.name, definition.description, parameters, rules)
        if rules is not None and schema.combinations is not None and not schema.combinations.rows:
            problem = f"Tool {quoted_name(definition.name)}: no call satisfies {rules.keywords} of its parameters."
            raise UserError(problem, "Relax these rules.")
        return schema

    def to_openai(self) -> dict[str, Any]:
        """Return the normalised definition in head order, as it is in the prompt."""
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {p.name: copy.deepcopy(dict(p.schema)) for p in self.parameters},
            "required": [p.name for p in self.parameters if p.required],
            **(copy.deepcopy(dict(self.rules.written)) if self.rules else {}),
        }
        body = {"name": self.name, "description": self.description, "parameters": schema}
        return {"type": "function", "function": body}

    def exact(self) -> dict[str, Any]:
        """Return the definition like `to_openai`, but with the original schemas, so that it can be read again."""
        whole = self.to_openai()
        exact_schemas = {p.name: copy.deepcopy(dict(p.rules)) for p in self.parameters if p.rules != p.schema}
        whole["function"]["parameters"]["properties"] |= exact_schemas
        return whole

    def canonical_json(self) -> str:
        """Return the result of `to_openai` as one line of JSON, which is the same for equal tools."""
        return self._canonical

    @cached_property
    def combinations(self) -> Combinations | None:
        """Return the combinations of arguments that satisfy `rules`; None without rules, or if there are too many."""
        return legal_combinations(self.parameters, self.rules)

    @cached_property
    def _canonical(self) -> str:
        return json.dumps(self.to_openai(), ensure_ascii=False)

    def slots(self, overflow: Overflow = "merge") -> tuple[Slot, ...]:
        """Return the contents of at most six heads. The `overflow` "merge" puts all further parameters in the last
        head; "cut" leaves them out."""
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
        return tuple(_build_slot(self.name, unit) for unit in units)


def _build_slot(tool: str, unit: Sequence[Parameter]) -> Slot:
    where = f"Tool {quoted_name(tool)}, parameters {', '.join(quoted_name(p.name) for p in unit)} in one head"
    required = [p.name for p in unit if p.required]
    null = () if required else (ABSENT,)
    if len(unit) == 1:
        return Slot((unit[0],), unit[0].domain, null or ((None,) if unit[0].nullable else ()), merged=False)
    listed = list_objects({p.name: p.values for p in unit}, required)
    if listed is not None:
        unique = {sorted_json(v): v for v in listed if v}
        return Slot(tuple(unit), closed_domain(tuple(unique.values()), where), null, merged=True)
    schema, rules = _object_schema(unit, lambda p: p.schema), _object_schema(unit, lambda p: p.rules)
    return Slot(tuple(unit), FreeDomain(schema, rules=rules), null, merged=True)


def _object_schema(
    parameters: Sequence[Parameter], schema_of: Callable[[Parameter], Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the schema of an object with these parameters; `schema_of` returns a parameter's schema."""
    return {
        "type": "object",
        "properties": {p.name: dict(schema_of(p)) for p in parameters},
        "required": [p.name for p in parameters if p.required],
        "additionalProperties": False,
    }


def tool_schemas(tools: Sequence[Mapping[str, Any]]) -> tuple[ToolSchema, ...]:
    """Read all tools of an agent (cached). Raises UserError for an invalid tool, duplicate names, an empty list, or
    definitions that are too large."""
    check_size(tools)
    text = _json_text(tools)
    return _read_json(text) if 0 < len(text) <= MAX_CACHED_BYTES else _read(tools)


MAX_CACHED_BYTES = 1 << 16  # maximum bytes of definitions (as JSON text) whose parsed form is cached


@lru_cache(maxsize=16)
def _read_json(text: bytes) -> tuple[ToolSchema, ...]:
    return _read(json.loads(text))


def _read(tools: Sequence[Mapping[str, Any]]) -> tuple[ToolSchema, ...]:
    room = SchemaBudget()
    return check_tools([ToolSchema.from_openai(t, room) for t in tools])


def _json_text(tools: Any) -> bytes:
    """Return definitions as JSON text; empty if they are not plain JSON."""
    try:
        return json.dumps(list(tools)).encode()
    except (TypeError, ValueError, RecursionError):
        return b""


def check_tools(schemas: Sequence[ToolSchema]) -> tuple[ToolSchema, ...]:
    """Return the tools of one agent. Raises UserError if there are none or too many, or two have the same name."""
    if not schemas:
        raise UserError("There are no tools.", "Give the agent at least one tool.")
    check_count(len(schemas))
    names = Counter(s.name for s in schemas)
    if repeated := sorted(n for n, count in names.items() if count > 1):
        raise UserError(f"Two tools have the name {repeated[0]!r}.", "Rename one of them.")
    return tuple(schemas)
