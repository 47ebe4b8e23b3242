"""The tools that rows are made up for: a file of definitions, or those of rows that are there already."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Any

from rtcontrol.models.data.canonical import canonical
from rtcontrol.models.data.row import DataRow, read_rows
from rtcontrol.models.data.sample import Unusable
from rtcontrol.models.data.types import tool
from rtcontrol.models.errors import UserError, read_text
from rtcontrol.models.schema.domain import ClosedDomain, Domain, domain_of
from rtcontrol.models.schema.parameters import Parameter
from rtcontrol.models.schema.tool_schema import ToolSchema
from rtcontrol.models.strict_json import strict_json

ToolSet = tuple[ToolSchema, ...]


def read_tools(path: Path) -> list[ToolSet]:
    """Of a .json file its list of definitions, one set; of a file of rows (.jsonl) each set once. Raises UserError."""
    if path.suffix == ".jsonl":
        return sets_of(read_rows(path))
    try:
        found = strict_json(read_text(path))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).", "Give a file of tools, or of rows.") from None
    except ValueError as error:
        raise UserError(f"{path} is no JSON ({error}).", "Write a list of OpenAI-style definitions.") from None
    if not isinstance(found, list) or not found:
        raise UserError(f"{path} is no list of tools.", "Write a list of OpenAI-style definitions.")
    made = []
    for n, one in enumerate(found, 1):
        try:
            body = one.get("function", one)
            made.append(canonical(tool(body["name"], body.get("description"), body.get("parameters")), "merge"))
        except (LookupError, TypeError, AttributeError):
            raise UserError(f"{path}#{n}: it is no tool.", "Write an OpenAI-style definition.") from None
        except Unusable as error:
            raise UserError(f"{path}#{n}: {error.reason} ({error.detail}).", "Mend it, or leave it out.") from None
    return [tuple(made)]


def sets_of(rows: Iterable[DataRow]) -> list[ToolSet]:
    """The sets of tools of rows, in order, each once. Raises UserError."""
    found: dict[str, ToolSet] = {}
    for row in rows:
        key = json.dumps(row.tools, ensure_ascii=False)
        if key not in found:
            try:
                found[key] = tuple(canonical(one, "merge") for one in row.tools)
            except Unusable as error:
                raise UserError(f"Row {row.id}: {error.detail}", "Convert the rows: rtcontrol data convert.") from None
    sets = [tools for tools in found.values() if tools]
    if not sets:
        raise UserError("The rows have no tools.", "Give rows that have some.")
    return sets


def least(tool: ToolSchema) -> int:
    """The fewest arguments of its calls."""
    return sum(p.required for p in tool.parameters)


def nearest(tools: ToolSet, arguments: int, rng: Random) -> tuple[ToolSchema, int]:
    """A tool whose calls can have so many arguments, or come nearest to it, and how many they then have."""

    def distance(tool: ToolSchema) -> int:
        return max(least(tool) - arguments, arguments - len(tool.parameters), 0)

    tool = rng.choice([one for one in tools if distance(one) == min(map(distance, tools))])
    return tool, min(max(arguments, least(tool)), len(tool.parameters))


WORDS = (
    *(
        "amber",
        "anchor",
        "basil",
        "bridge",
        "canyon",
        "cedar",
        "copper",
        "delta",
        "ember",
        "falcon",
        "garden",
        "harbour",
    ),
    *(
        "island",
        "jasmine",
        "lantern",
        "maple",
        "meadow",
        "nickel",
        "orchid",
        "paper",
        "quartz",
        "raven",
        "river",
        "saffron",
    ),
    *("silver", "summit", "thunder", "valley", "velvet", "willow", "winter", "zephyr"),
    *("Lisbon", "Oslo", "Nairobi", "Kyoto", "Lima", "Quebec", "Ada", "Bruno", "Chen", "Dalia", "Emeka", "Farid"),
)
LARGEST = 100  # of a number without bounds
MOST = 3  # items of a list, words of a string
NOT_DRAWN = "a parameter whose values cannot be drawn"


def draw(parameter: Parameter, rng: Random) -> Any:
    """A value of a parameter, never null. Raises Unusable for what only a model could make up (a pattern)."""
    return _value(parameter.domain, rng, parameter.name)


def _value(domain: Domain, rng: Random, where: str) -> Any:
    if isinstance(domain, ClosedDomain):
        return rng.choice(domain.values)
    schema = domain.schema
    if domain.grid is not None:
        return domain.grid.at(rng.randrange(domain.grid.count))
    kind = schema.get("type")
    if "pattern" in schema or "not" in schema or "format" in schema:
        raise Unusable(NOT_DRAWN, where)
    if kind in ("integer", "number"):
        return _number(schema, kind, rng, where)
    if kind == "string":
        return " ".join(rng.sample(WORDS, rng.randint(1, MOST)))
    if kind == "array" and isinstance(items := schema.get("items", {"type": "string"}), Mapping):
        least = schema.get("minItems", 1)
        count = rng.randint(least, max(least, min(schema.get("maxItems", MOST), MOST)))
        return [_value(domain_of(items or {"type": "string"}, where), rng, where) for _ in range(count)]
    if kind == "object" and (properties := schema.get("properties")):
        required = schema.get("required", ())
        kept = [k for k in properties if k in required or rng.random() < 0.5]
        return {k: _value(domain_of(properties[k], f"{where}.{k}"), rng, f"{where}.{k}") for k in kept}
    raise Unusable(NOT_DRAWN, where)


def _number(schema: Mapping[str, Any], kind: str, rng: Random, where: str) -> Any:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is None:
        low = 0 if high is None or high > 0 else high - LARGEST
    if high is None:
        high = low + LARGEST
    step = 1 if kind == "integer" else 0.5
    count = int((high - low) / step)
    if "multipleOf" in schema or count < 2:
        raise Unusable(NOT_DRAWN, where)
    found = low + step * rng.randrange(1, count)  # inside either kind of bounds
    return int(found) if kind == "integer" else float(found)
