"""Synthesise rows without a model: a tool, random values, and a plain sentence that names them.

The number of arguments follows the shares. The sentences teach that arguments come from the instruction; they do not
replace real language.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.data.convert import REPEATED, canonical, check_call, declared
from rtcontrol.models.data.row import Row, Tools, read_rows
from rtcontrol.models.data.sample import Dropped, Tally, Unusable
from rtcontrol.models.data.types import tool
from rtcontrol.models.errors import UserError, read_text, strict_json
from rtcontrol.models.schema.domain import ClosedDomain, json_text
from rtcontrol.models.schema.parameters import Parameter
from rtcontrol.models.schema.tool_schema import ToolSchema

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
RANGE = 100  # of a number without bounds
NOT_SAMPLED = "a parameter whose values cannot be made up"
LIST = "Write a list of OpenAI-style definitions."


def read_tools(path: Path) -> list[Tools]:
    """Return the definitions of a .json file as one set, or each set of a file of rows (.jsonl). Raises UserError."""
    try:
        if path.suffix == ".jsonl":
            sets = list({tuple(t.canonical_json() for t in row.tools): row.tools for row in read_rows(path)}.values())
        else:
            sets = [tuple(_canonical(each) for each in strict_json(read_text(path)))]
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).", "Give a file of tools, or of rows.") from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not a list of tools ({error}).", LIST) from None
    except Unusable as error:
        raise UserError(f"{path}: {error.reason} ({error.detail}).", "Correct it, or leave it out.") from None
    if not any(sets):
        raise UserError(f"{path} has no tools.", "Give a file with some.")
    return sets


def _canonical(definition: Mapping[str, Any]) -> ToolSchema:
    body = definition.get("function", definition)
    return canonical(tool(body["name"], body.get("description"), body.get("parameters")))


def rows(sets: Sequence[Tools], count: int, seed: int, tally: Tally, shares: Mapping[int, float]) -> Iterator[Row]:
    """Yield `count` different rows, the same for a seed, whose numbers of arguments follow those `shares` that a tool
    can have. Raises UserError if the tools give no more."""
    rng, keys = Random(seed), set()
    bounds = [(_required(each), len(each.parameters)) for tools in sets for each in tools]
    possible = {n: share for n, share in shares.items() if share and any(low <= n <= most for low, most in bounds)}
    sizes = possible or shares
    for n in range(count):
        for _ in range(TRIES):
            tools, size = rng.choice(sets), rng.choices(list(sizes), list(sizes.values()))[0]
            tally.samples[SOURCE] += 1
            try:
                row = _row(n, tools, size, rng)
            except Unusable as error:
                tally.drop(Dropped(error.reason, f"row {n}", error.detail, SOURCE))
                continue
            key = (row.instruction, row.call and row.call.text(), tuple(each.name for each in tools))
            if key not in keys:
                break
            tally.drop(Dropped(REPEATED, f"row {n}", "", SOURCE))
        else:
            message = f"The tools give fewer than {count} different rows by templates: {n}."
            raise UserError(message, f"Request {n}, or give more tools.")
        keys.add(key)
        tally.rows[SOURCE] += 1
        yield row


def _required(schema: ToolSchema) -> int:
    """Return the fewest arguments of its calls."""
    return sum(p.required for p in schema.parameters)


def _row(n: int, tools: Tools, size: int, rng: Random) -> Row:
    away = [max(_required(each) - size, size - len(each.parameters), 0) for each in tools]
    chosen = rng.choice([each for each, distance in zip(tools, away, strict=True) if distance == min(away)])
    size = min(max(size, _required(chosen)), len(chosen.parameters))
    optional = [p.name for p in chosen.parameters if not p.required]
    sampled = set(rng.sample(optional, size - _required(chosen)))
    values = {p.name: sample_value(p, rng) for p in chosen.parameters if p.required or p.name in sampled}
    call = declared(Call(chosen.name, values), chosen)
    check_call(call, chosen)
    name = f"templates_{n}"
    return Row(_sentence(chosen, call, rng), "", call, (), tools, id=name, sample=name, source=SOURCE)


def _sentence(schema: ToolSchema, call: Call, rng: Random) -> str:
    name = _words(schema.name.rpartition(".")[2])
    about = re.split(r"\.(?:\s|$)", schema.description.strip(), maxsplit=1)[0] or name
    pair, arguments = rng.choice(PAIRS), list(call.arguments.items())
    rng.shuffle(arguments)
    args = ", ".join(pair.format(name=_words(key), value=_text(value)) for key, value in arguments)
    form = rng.choice(WITH if arguments else ALONE)
    return form.format(args=args, what=name, What=name[:1].upper() + name[1:], about=about)


def _words(name: str) -> str:
    """Return `zMax`, `z_max` or `z.max` as words."""
    return re.sub(r"[_.\-]+|(?<=[a-z0-9])(?=[A-Z])", " ", name).strip().lower()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value, " ")


def sample_value(parameter: Parameter, rng: Random) -> Any:
    """Return a random value of a parameter, never null. Raises Unusable for other values than words and numbers."""
    domain = parameter.domain
    if isinstance(domain, ClosedDomain):
        return rng.choice(domain.values)
    if domain.grid is not None:
        return domain.grid.at(rng.randrange(domain.grid.count))
    schema = domain.schema
    if {"pattern", "not", "format", "multipleOf", "minLength", "maxLength"} & schema.keys():
        raise Unusable(NOT_SAMPLED, parameter.name)
    if schema.get("type") == "string":
        return " ".join(rng.sample(WORDS, rng.randint(1, 3)))
    if schema.get("type") not in ("integer", "number"):
        raise Unusable(NOT_SAMPLED, parameter.name)
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    low = schema.get("minimum", schema.get("exclusiveMinimum", 0 if high is None or high > 0 else high - RANGE))
    high = low + RANGE if high is None else high
    if high - low < 2:
        raise Unusable(NOT_SAMPLED, parameter.name)
    return rng.randint(int(low) + 1, int(high) - 1)
