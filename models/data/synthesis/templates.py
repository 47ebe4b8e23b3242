"""Rows without a model: a tool, values drawn for it, and a sentence that names them.

The sentences are plain and the same few, and teach that arguments are found in what is asked; they do not replace
language.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.data.canonical import check_call, declared
from rtcontrol.models.data.row import DataRow
from rtcontrol.models.data.sample import Dropped, Unusable
from rtcontrol.models.data.stats import Tally, shares_of
from rtcontrol.models.data.synthesis.tool_sets import ToolSet, draw, least, nearest
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import json_text
from rtcontrol.models.schema.tool_schema import ToolSchema

SOURCE = "templates"
TRIES = 50  # for a row, before there are no more to be had
WITH = ("{What}: {args}.", "{What} with {args}.", "Please {what}. Take {args}.", "Do this: {about} ({args}).")
ALONE = ("{What}.", "Please {what}.", "{What}, please.", "Do this: {about}.")
PAIRS = ("{name} {value}", "{value} as the {name}", "{name}: {value}", "{name} = {value}")
REPEATED = "a row that was there before"


def rows(sets: Sequence[ToolSet], count: int, seed: int, tally: Tally, shares: str | None = None) -> Iterator[DataRow]:
    """So many rows, all different, the same ones for a seed. How many optional arguments are given is drawn, or follows
    those of the `shares` of `balance.shares_of` that some tool can have.

    Raises UserError where the tools give no more.
    """
    rng, seen = Random(seed), set()
    wanted = _possible(sets, shares_of(shares)) if shares else {}
    for n in range(count):
        for _ in range(TRIES):
            tools = rng.choice(sets)
            size = rng.choices(list(wanted), list(wanted.values()))[0] if wanted else None
            tally.samples[SOURCE] += 1
            try:
                row = _row(n, tools, size, rng)
            except Unusable as error:
                tally.drop(Dropped(error.reason, f"row {n}", error.detail, SOURCE))
                continue
            key = (row.instruction, row.call and row.call.text(), tuple(t.name for t in tools))
            if key not in seen:
                break
            tally.drop(Dropped(REPEATED, f"row {n}", "", SOURCE))
        else:
            raise UserError(
                f"The tools give no {count} different rows by templates: {n} were made.",
                f"Ask for {n}, or give more tools.",
            )
        seen.add(key)
        tally.rows[SOURCE] += 1
        yield row


def _possible(sets: Sequence[ToolSet], shares: Mapping[int, float]) -> dict[int, float]:
    """The shares of the numbers of arguments that some tool can have; of none the shares as they are, and what is
    nearest to them is made."""
    tools = {id(tool): tool for own in sets for tool in own}.values()
    most = [(least(tool), len(tool.parameters)) for tool in tools]
    found = {n: share for n, share in shares.items() if share and any(low <= n <= high for low, high in most)}
    return found or dict(shares)


def _row(n: int, tools: ToolSet, size: int | None, rng: Random) -> DataRow:
    if size is None:
        tool = rng.choice(tools)
        size = rng.randint(least(tool), len(tool.parameters))
    else:
        tool, size = nearest(tools, size, rng)
    optional = [p for p in tool.parameters if not p.required]
    given = set(map(id, rng.sample(optional, size - least(tool))))
    values = {p.name: draw(p, rng) for p in tool.parameters if p.required or id(p) in given}
    call = declared(Call(tool.name, values), tool)
    check_call(call, tool)
    name = f"templates_{n}"
    shown = tuple(one.to_openai() for one in tools)
    return DataRow(name, name, SOURCE, _sentence(tool, call, rng), "", shown, (), call)


def _sentence(tool: ToolSchema, call: Call, rng: Random) -> str:
    what = _words(tool.name.rpartition(".")[2])
    about = re.split(r"\.(?:\s|$)", tool.description.strip(), maxsplit=1)[0] or what
    names = {"what": what, "What": what[:1].upper() + what[1:], "about": about}
    if not call.arguments:
        return rng.choice(ALONE).format(**names)
    pair = rng.choice(PAIRS)
    order = list(call.arguments.items())
    rng.shuffle(order)
    args = ", ".join(pair.format(name=_words(name), value=_text(value)) for name, value in order)
    return rng.choice(WITH).format(args=args, **names)


def _words(name: str) -> str:
    """`zMax`, `z_max`, `z.max` as words."""
    return re.sub(r"[_.\-]+|(?<=[a-z0-9])(?=[A-Z])", " ", name).strip().lower()


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " and ".join(map(_text, value)) or "none"
    return value if isinstance(value, str) else json_text(value, " ")
