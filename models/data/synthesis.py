"""Synthesise training rows from templates: a random call of a tool, and a plain sentence that names its values.

From such rows a model learns to take arguments from the instruction. They do not replace real sentences.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.data.convert import DUPLICATE, canonical_tool, check_call, with_declared_types
from rtcontrol.models.data.row import Row, Tools, read_rows
from rtcontrol.models.data.sample import DroppedSample, Tally, UnusableSample
from rtcontrol.models.data.types import tool_definition
from rtcontrol.models.errors import UserError, read_text, strict_json
from rtcontrol.models.schema.domain import ClosedDomain, json_text
from rtcontrol.models.schema.parameters import Parameter
from rtcontrol.models.schema.tool_schema import ToolSchema

SOURCE = "templates"
TRIES = 50  # after this number of attempts without a new row, the tools count as exhausted
SENTENCES = ("{What}: {args}.", "{What} with {args}.", "Please {what}. Take {args}.", "Do this: {about} ({args}).")
BARE_SENTENCES = ("{What}.", "Please {what}.", "{What}, please.", "Do this: {about}.")
PAIR_FORMS = ("{name} {value}", "{value} as the {name}", "{name}: {value}", "{name} = {value}")
_WORDS = """
amber anchor basil bridge canyon cedar copper delta ember falcon garden harbour island jasmine lantern maple meadow
nickel orchid paper quartz raven river saffron silver summit thunder valley velvet willow winter zephyr
Lisbon Oslo Nairobi Kyoto Lima Quebec Ada Bruno Chen Dalia Emeka Farid
"""
WORDS = _WORDS.split()
DEFAULT_RANGE = 100  # values of a number without bounds are sampled from a range of this size
NOT_SAMPLED = "a parameter whose values cannot be sampled"
LIST_HINT = "Write a list of OpenAI-style definitions."


def read_tools(path: Path) -> list[Tools]:
    """Read one set of tools from a .json list, or all different sets from a file of rows (.jsonl). Raises UserError."""
    try:
        if path.suffix == ".jsonl":
            sets = list({tuple(t.canonical_json() for t in row.tools): row.tools for row in read_rows(path)}.values())
        else:
            sets = [tuple(_read_definition(each) for each in strict_json(read_text(path)))]
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).", "Give a file of tools, or of rows.") from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not a list of tools ({error}).", LIST_HINT) from None
    except UnusableSample as error:
        raise UserError(f"{path}: {error.reason} ({error.detail}).", "Correct the tool, or remove it.") from None
    if not any(sets):
        raise UserError(f"{path} has no tools.", "Give a file with tools.")
    return sets


def _read_definition(definition: Mapping[str, Any]) -> ToolSchema:
    body = definition.get("function", definition)
    return canonical_tool(tool_definition(body["name"], body.get("description"), body.get("parameters")))


def random_rows(
    sets: Sequence[Tools], count: int, seed: int, tally: Tally, shares: Mapping[int, float]
) -> Iterator[Row]:
    """Yield `count` different random rows; the same `seed` gives the same rows. `shares` are the probabilities of each
    number of arguments, if the tools allow that number. Raises UserError if the tools do not have enough rows."""
    rng, keys = Random(seed), set()
    bounds = [(_min_arguments(each), len(each.parameters)) for tools in sets for each in tools]
    possible = {n: share for n, share in shares.items() if share and any(low <= n <= high for low, high in bounds)}
    sizes = possible or shares
    for n in range(count):
        for _ in range(TRIES):
            tools, size = rng.choice(sets), rng.choices(list(sizes), list(sizes.values()))[0]
            tally.samples[SOURCE] += 1
            try:
                row = _random_row(n, tools, size, rng)
            except UnusableSample as error:
                tally.count_dropped(DroppedSample(error.reason, f"row {n}", error.detail, SOURCE))
                continue
            key = (row.instruction, row.call and row.call.text(), tuple(each.name for each in tools))
            if key not in keys:
                break
            tally.count_dropped(DroppedSample(DUPLICATE, f"row {n}", "", SOURCE))
        else:
            message = f"From these tools the templates give only {n} different rows, not {count}."
            raise UserError(message, f"Request {n} rows, or give more tools.")
        keys.add(key)
        tally.rows[SOURCE] += 1
        yield row


def _min_arguments(schema: ToolSchema) -> int:
    """Return the number of required arguments."""
    return sum(p.required for p in schema.parameters)


def _random_row(n: int, tools: Tools, size: int, rng: Random) -> Row:
    distances = [max(_min_arguments(each) - size, size - len(each.parameters), 0) for each in tools]
    chosen = rng.choice([each for each, distance in zip(tools, distances, strict=True) if distance == min(distances)])
    size = min(max(size, _min_arguments(chosen)), len(chosen.parameters))
    optional = [p.name for p in chosen.parameters if not p.required]
    sampled = set(rng.sample(optional, size - _min_arguments(chosen)))
    values = {p.name: sample_value(p, rng) for p in chosen.parameters if p.required or p.name in sampled}
    call = with_declared_types(Call(chosen.name, values), chosen)
    check_call(call, chosen)
    name = f"templates_{n}"
    return Row(_random_sentence(chosen, call, rng), "", call, (), tools, id=name, sample=name, source=SOURCE)


def _random_sentence(schema: ToolSchema, call: Call, rng: Random) -> str:
    name = _as_words(schema.name.rpartition(".")[2])
    about = re.split(r"\.(?:\s|$)", schema.description.strip(), maxsplit=1)[0] or name
    pair, arguments = rng.choice(PAIR_FORMS), list(call.arguments.items())
    rng.shuffle(arguments)
    args = ", ".join(pair.format(name=_as_words(key), value=_value_text(value)) for key, value in arguments)
    form = rng.choice(SENTENCES if arguments else BARE_SENTENCES)
    return form.format(args=args, what=name, What=name[:1].upper() + name[1:], about=about)


def _as_words(name: str) -> str:
    """Return an identifier as words: `z max` for `zMax`, `z_max` or `z.max`."""
    return re.sub(r"[_.\-]+|(?<=[a-z0-9])(?=[A-Z])", " ", name).strip().lower()


def _value_text(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value, " ")


def sample_value(parameter: Parameter, rng: Random) -> Any:
    """Return a random value of a parameter, never null. Raises UnusableSample if values cannot be sampled."""
    domain = parameter.domain
    if isinstance(domain, ClosedDomain):
        return rng.choice(domain.values)
    if domain.grid is not None:
        return domain.grid.number_at(rng.randrange(domain.grid.count))
    schema = domain.schema
    if {"pattern", "not", "format", "multipleOf", "minLength", "maxLength"} & schema.keys():
        raise UnusableSample(NOT_SAMPLED, parameter.name)
    if schema.get("type") == "string":
        return " ".join(rng.sample(WORDS, rng.randint(1, 3)))
    if schema.get("type") not in ("integer", "number"):
        raise UnusableSample(NOT_SAMPLED, parameter.name)
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    low = schema.get("minimum", schema.get("exclusiveMinimum", 0 if high is None or high > 0 else high - DEFAULT_RANGE))
    high = low + DEFAULT_RANGE if high is None else high
    if high - low < 2:
        raise UnusableSample(NOT_SAMPLED, parameter.name)
    return rng.randint(int(low) + 1, int(high) - 1)
