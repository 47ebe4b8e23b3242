"""Tool schemas: OpenAI-style JSON in, head order and canonical JSON out (design, section 3).

Positions are all that `<argK>` knows, so a tool's `properties` are rewritten into head order: required parameters in
their own order, then optional ones alphabetically (paper, appendix "Parameter Normalization").
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rtcontrol.models.domain import ClosedDomain, Domain, Free, closed, domain_of, objects
from rtcontrol.models.errors import UserError
from rtcontrol.models.normal import ABOUT, DEFINITIONS, normalise, read, without_null
from rtcontrol.models.rules import kept_values

MAX_HEADS = 6
ABSENT = object()
PARAMETERS = ("parameters", "inputSchema", "input_schema")  # as OpenAI, MCP and Anthropic call them
COMPOSED = {"$ref", "allOf", "anyOf", "oneOf"}  # in place of properties
Overflow = Literal["merge", "cut"]


@dataclass(frozen=True)
class Parameter:
    """One parameter of a tool: its own normalised JSON schema (with description), and what follows from it: the domain
    of its values but null, and whether null is one (`nullable`)."""

    name: str
    schema: Mapping[str, Any]
    required: bool
    domain: Domain
    nullable: bool
    group: str | None


@dataclass(frozen=True)
class Slot:
    """What one argument head carries: a parameter, or several merged into one JSON object (group or overflow).

    `null` is what the head's null token stands for, where it is legal: (ABSENT,), or of a required parameter that may
    be null (None,); else ()."""

    parameters: tuple[Parameter, ...]
    domain: Domain
    null: tuple[Any, ...]
    merged: bool

    def arguments(self, value: Any) -> dict[str, Any]:
        """The slot's decoded value as named arguments."""
        return dict(value) if self.merged else {self.parameters[0].name: value}

    def value(self, arguments: Mapping[str, Any]) -> Any:
        """The slot's value in a call's arguments, `ABSENT` when every parameter of it is left out."""
        present = {p.name: arguments[p.name] for p in self.parameters if p.name in arguments}
        if self.merged:
            return present or (ABSENT if self.null else {})
        value = present.get(self.parameters[0].name, ABSENT)
        return self.null[0] if value is None and self.null else value


@dataclass(frozen=True)
class ToolSchema:
    """One tool in head order."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]

    @classmethod
    def from_openai(cls, tool: Mapping[str, Any]) -> ToolSchema:
        """Read one OpenAI-style definition (with or without the `{"type": "function"}` wrapper), MCP's or Anthropic's.

        Raises UserError naming tool and parameter, and what to write instead.
        """
        if not isinstance(tool, Mapping):
            raise UserError(f"{str(tool)[:120]!r} is no tool.", "Write an OpenAI-style function definition.")
        body = tool.get("function", tool)
        name = body.get("name") if isinstance(body, Mapping) else None
        if not isinstance(name, str) or not name:
            raise UserError(f"A tool without a name: {json.dumps(tool)[:120]}.", "Give it a 'name'.")
        where = f"Tool {name[:64]}"
        _check_spelled(name, f"Tool {name[:64]!r}")
        if not isinstance(body.get("description", ""), str):
            raise UserError(f"{where}: its description is no string.", "Say in words what it does, or leave it out.")
        schema: Any = next((body[key] for key in PARAMETERS if body.get(key)), {"type": "object", "properties": {}})
        if isinstance(schema, Mapping) and "properties" not in schema and COMPOSED & set(schema):
            schema = {"type": "anyOf", **normalise(schema, where)}
        if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
            given = schema.get("type") if isinstance(schema, Mapping) else type(schema).__name__
            shape = '{"type": "object", "properties": {...}, "required": [...]}'
            raise UserError(f"{where}: its parameters are of type {given!r}, no object.", f"Write {shape}.")
        properties: Mapping[str, Any] = schema.get("properties", {})
        if not isinstance(properties, Mapping):
            raise UserError(f"{where}: its properties are no JSON object.", "Map each parameter to its schema.")
        required = schema.get("required", [])
        if not isinstance(required, list | tuple) or not all(isinstance(r, str) for r in required):
            raise UserError(f"{where}: `required` is {required!r}.", "Write a list of parameters' names.")
        if missing := [r for r in required if r not in properties]:
            raise UserError(f"{where}: {missing} are required but not among its properties.", "Define them.")
        order = [p for p in properties if p in required] + sorted(p for p in properties if p not in required)
        for key in DEFINITIONS:
            if not isinstance(schema.get(key, {}), Mapping):
                raise UserError(f"{where}: {key} is {repr(schema[key])[:80]}.", "Map each name to its schema.")
        definitions = {**schema.get("definitions", {}), **schema.get("$defs", {})}
        parameters = tuple(_parameter(name, p, properties[p], p in required, definitions) for p in order)
        return cls(name, body.get("description", ""), parameters)

    def to_openai(self) -> dict[str, Any]:
        """The definition in head order, as the model reads it."""
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {p.name: dict(p.schema) for p in self.parameters},
            "required": [p.name for p in self.parameters if p.required],
        }
        body = {"name": self.name, "description": self.description, "parameters": schema}
        return {"type": "function", "function": body}

    def canonical_json(self) -> str:
        """One line of JSON, the same bytes for the same tool."""
        return json.dumps(self.to_openai(), ensure_ascii=False)

    def slots(self, overflow: Overflow = "merge") -> tuple[Slot, ...]:
        """The argument heads of this tool, at most six: groups merged, then the overflow merged into head 6 or cut."""
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


def _parameter(tool: str, name: str, given: Any, required: bool, definitions: Mapping[str, Any]) -> Parameter:
    where = f"Tool {tool}, parameter {name}"
    document, schema = read(given, where, definitions)
    if not isinstance(schema.get("x-group", ""), str):
        raise UserError(f"{where}: x-group is {str(schema['x-group'])[:80]}.", "Write a name: a string.")
    plain, nullable = without_null(schema)
    domain = domain_of(plain, where)
    if isinstance(domain, ClosedDomain):
        values = [*domain.values, *[None] * nullable]
        if len(kept := kept_values(values, document, where)) < len(values):
            if not kept:
                raise UserError(f"{where}: no value satisfies all of its rules.", "Loosen them.")
            kind = {"type": t} if isinstance(t := plain.get("type"), str) and None not in kept else {}
            schema = {**{k: v for k, v in schema.items() if k in ABOUT}, **kind, "enum": kept}
            plain, nullable = without_null(schema)
            domain = domain_of(plain, where)
    _check_spelled({name: schema}, where)
    default = schema.get("default")
    if default is not None and isinstance(domain, ClosedDomain) and not domain.holds(default):
        shown = ", ".join(domain.texts[:12]) + (", ..." if len(domain.texts) > 12 else "")
        raise UserError(f"{where}: the default {default!r} is outside its domain ({shown}).", "Choose one of these.")
    return Parameter(name, schema, required, domain, nullable, schema.get("x-group"))


def _check_spelled(value: Any, where: str) -> None:
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:  # of which an encoding error is one
        what = "half a character (a lone surrogate)" if isinstance(error, UnicodeError) else "what JSON cannot write"
        raise UserError(
            f"{where}: it holds {what}.", "Use whole characters, finite numbers, lists and objects."
        ) from None


def _slot(tool: str, unit: Sequence[Parameter]) -> Slot:
    optional = not any(p.required for p in unit)
    null = (ABSENT,) if optional else ()
    if len(unit) == 1:
        return Slot((unit[0],), unit[0].domain, null or ((None,) if unit[0].nullable else ()), merged=False)
    where = f"Tool {tool}, parameters {', '.join(p.name for p in unit)} in one head"
    required = [p.name for p in unit if p.required]
    own = {p.name: None if isinstance(p.domain, Free) else [*p.domain.values, *[None] * p.nullable] for p in unit}
    if (values := objects(own, required)) is not None:
        return Slot(tuple(unit), closed(tuple(v for v in values if v), where), null, merged=True)
    properties = {p.name: dict(p.schema) for p in unit}
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return Slot(tuple(unit), Free(schema), null, merged=True)


def tool_schemas(tools: Sequence[Mapping[str, Any]]) -> tuple[ToolSchema, ...]:
    """All tools of an agent; duplicate names and an empty list are refused."""
    schemas = tuple(ToolSchema.from_openai(t) for t in tools)
    if not schemas:
        raise UserError("No tools.", "Give the agent at least one tool.")
    names = [s.name for s in schemas]
    if twice := sorted({n for n in names if names.count(n) > 1}):
        raise UserError(f"Two tools are called {twice[0]!r}.", "Rename one of them.")
    return schemas
