"""Make rows up without a model: a tool, random values, and a plain sentence that names them.

Calls have as many arguments as the shares say. The sentences teach that arguments stand in the instruction; they do not
replace language.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.data.convert import canonical, check_call, declared
from rtcontrol.models.data.row import DataRow, read_rows
from rtcontrol.models.data.sample import Dropped, Tally, Unusable
from rtcontrol.models.data.written import tool
from rtcontrol.models.errors import UserError, read_text, strict_json
from rtcontrol.models.schema.domain import ClosedDomain, json_text
from rtcontrol.models.schema.parameters import Parameter
from rtcontrol.models.schema.tool_schema import ToolSchema

ToolSet = tuple[ToolSchema, ...]
SOURCE = "templates"
TRIES = 50  # for a row, before there are no more
WITH = ("{What}: {args}.", "{What} with {args}.", "Please {what}. Take {args}.", "Do this: {about} ({args}).")
ALONE = ("{What}.", "Please {what}.", "{What}, please.", "Do this: {about}.")
PAIRS = ("{name} {value}", "{value} as the {name}", "{name}: {value}", "{name} = {value}")
_WORDS = """
amber anchor basil bridge canyon cedar copper delta ember falcon garden harbour island jasmine lantern maple meadow
nickel orchid paper quartz raven river saffron silver summit thunder valley velvet willow winter zephyr
Lisbon Oslo Nairobi Kyoto Lima Quebec Ada Bruno Chen Dalia Emeka Farid
"""
WORDS = _WORDS.split()
LARGEST = 100  # of a number without bounds
NOT_DRAWN = "a parameter whose values cannot be drawn"


def read_tools(path: Path) -> list[ToolSet]:
    """Return the definitions of a .json file as one set, or each set of a file of rows (.jsonl). Raises UserError."""
    try:
        if path.suffix == ".jsonl":
            listed = list({json.dumps(row.tools): row.tools for row in read_rows(path) if row.tools}.values())
        else:
            listed = [strict_json(read_text(path))]
        made = [tuple(_canonical(one) for one in definitions) for definitions in listed]
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).", "Give a file of tools, or of rows.") from None
    except ValueError as error:
        raise UserError(f"{path} is no JSON ({error}).", "Write a list of OpenAI-style definitions.") from None
    except (LookupError, TypeError, AttributeError):
        raise UserError(f"{path} is no list of tools.", "Write a list of OpenAI-style definitions.") from None
    except Unusable as error:
        raise UserError(f"{path}: {error.reason} ({error.detail}).", "Correct it, or leave it out.") from None
    if not any(made):
        raise UserError(f"{path} has no tools.", "Give a file with some.")
    return made


def _canonical(one: Mapping[str, Any]) -> ToolSchema:
    body = one.get("function", one)
    return canonical(tool(body["name"], body.get("description"), body.get("parameters")))


def rows(
    sets: Sequence[ToolSet], count: int, seed: int, tally: Tally, shares: Mapping[int, float]
) -> Iterator[DataRow]:
    """Yield `count` different rows, the same ones for a seed, whose numbers of arguments follow those `shares` that a
    tool can have. Raises UserError if the tools give no more."""
    rng, seen = Random(seed), set()
    every = {id(one): one for own in sets for one in own}.values()
    bounds = [(least(one), len(one.parameters)) for one in every]
    possible = {n: share for n, share in shares.items() if share and any(low <= n <= most for low, most in bounds)}
    wanted = possible or shares
    for n in range(count):
        for _ in range(TRIES):
            tools, size = rng.choice(sets), rng.choices(list(wanted), list(wanted.values()))[0]
            tally.samples[SOURCE] += 1
            try:
                row = _row(n, tools, size, rng)
            except Unusable as error:
                tally.drop(Dropped(error.reason, f"row {n}", error.detail, SOURCE))
                continue
            key = (row.instruction, row.call and row.call.text(), tuple(t.name for t in tools))
            if key not in seen:
                break
            tally.drop(Dropped("a row that was there before", f"row {n}", "", SOURCE))
        else:
            what = f"The tools give no {count} different rows by templates: {n} were made."
            raise UserError(what, f"Ask for {n}, or give more tools.")
        seen.add(key)
        tally.rows[SOURCE] += 1
        yield row


def least(one: ToolSchema) -> int:
    """Return the fewest arguments of its calls."""
    return sum(p.required for p in one.parameters)


def _row(n: int, tools: ToolSet, size: int, rng: Random) -> DataRow:
    away = [max(least(one) - size, size - len(one.parameters), 0) for one in tools]
    chosen = rng.choice([one for one, by in zip(tools, away, strict=True) if by == min(away)])
    size = min(max(size, least(chosen)), len(chosen.parameters))
    optional = [p for p in chosen.parameters if not p.required]
    given = set(map(id, rng.sample(optional, size - least(chosen))))
    values = {p.name: draw(p, rng) for p in chosen.parameters if p.required or id(p) in given}
    call = declared(Call(chosen.name, values), chosen)
    check_call(call, chosen)
    shown = tuple(one.to_openai() for one in tools)
    name = f"templates_{n}"
    return DataRow(name, name, SOURCE, _sentence(chosen, call, rng), "", shown, (), call)


def _sentence(one: ToolSchema, call: Call, rng: Random) -> str:
    what = _spaced(one.name.rpartition(".")[2])
    about = re.split(r"\.(?:\s|$)", one.description.strip(), maxsplit=1)[0] or what
    names = {"what": what, "What": what[:1].upper() + what[1:], "about": about}
    pair, order = rng.choice(PAIRS), list(call.arguments.items())
    rng.shuffle(order)
    args = ", ".join(pair.format(name=_spaced(name), value=_text(value)) for name, value in order)
    return rng.choice(WITH if order else ALONE).format(args=args, **names)


def _spaced(name: str) -> str:
    """Return `zMax`, `z_max` or `z.max` as words."""
    return re.sub(r"[_.\-]+|(?<=[a-z0-9])(?=[A-Z])", " ", name).strip().lower()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value, " ")


def draw(parameter: Parameter, rng: Random) -> Any:
    """Return a value of a parameter, never null. Raises Unusable for other values than words and numbers."""
    domain = parameter.domain
    if isinstance(domain, ClosedDomain):
        return rng.choice(domain.values)
    if domain.grid is not None:
        return domain.grid.at(rng.randrange(domain.grid.count))
    schema = domain.schema
    if {"pattern", "not", "format", "multipleOf", "minLength", "maxLength"} & schema.keys():
        raise Unusable(NOT_DRAWN, parameter.name)
    if schema.get("type") == "string":
        return " ".join(rng.sample(WORDS, rng.randint(1, 3)))
    if schema.get("type") not in ("integer", "number"):
        raise Unusable(NOT_DRAWN, parameter.name)
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    below = 0 if high is None or high > 0 else high - LARGEST
    low = schema.get("minimum", schema.get("exclusiveMinimum", below))
    high = low + LARGEST if high is None else high
    if high - low < 2:
        raise Unusable(NOT_DRAWN, parameter.name)
    return rng.randint(int(low) + 1, int(high) - 1)
