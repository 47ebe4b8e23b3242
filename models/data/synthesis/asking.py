"""What a model is asked for, and how its answer is read: every row is checked before it is one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.data.canonical import check_call, declared
from rtcontrol.models.data.sample import HALF, Unusable
from rtcontrol.models.data.synthesis.tool_sets import ToolSet, nearest
from rtcontrol.models.schema import MAX_HEADS, ToolSchema
from rtcontrol.models.strict_json import strict_json

SYSTEM = (
    "You write training data for a model that calls functions. You are given functions and the call that is wanted, "
    "and write what users would say for it, in varied wording, length and situation. A request holds everything that "
    "its arguments say, as people say it; it does not name functions or parameters. Answer with one JSON object alone: "
    '{"rows": [{"instruction": "what the user says", "observation": "what is known besides, as a date, or \\"\\"", '
    '"call": {"name": "...", "arguments": {...}}}]}'
)
LONGEST = 4000  # characters of an instruction or an observation


@dataclass(frozen=True)
class RowsAsked:
    """One request: which of the tools is to be called, with how many arguments, and how many rows of it."""

    tools: ToolSet
    tool: ToolSchema
    arguments: int
    count: int

    def messages(self) -> list[dict[str, str]]:
        shown = "\n".join(one.canonical_json() for one in self.tools)
        if self.arguments > MAX_HEADS:
            said = "all of its arguments"
        elif self.arguments == 1:
            said = "exactly 1 argument"
        else:
            said = f"exactly {self.arguments} arguments" if self.arguments else "no arguments"
        told = f"Write {self.count} rows that call {self.tool.name} with {said}. No two may be alike."
        return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Functions:\n{shown}\n\n{told}"}]


def drawn(sets: Sequence[ToolSet], shares: dict[int, float], count: int, seed: int, n: int) -> RowsAsked:
    """The `n`-th request, the same one for a seed whenever it is asked. The number of arguments follows the shares as
    far as the tools have as many."""
    rng = Random(f"{seed}:{n}")
    wanted = rng.choices(list(shares), list(shares.values()))[0]
    tools = rng.choice(sets)
    tool, arguments = nearest(tools, wanted, rng)
    return RowsAsked(tools, tool, arguments, count)


def read_rows(text: str, tools: ToolSet) -> Iterator[tuple[str, str, Call] | Unusable]:
    """Of an answer its rows as (instruction, observation, call), or why one is none."""
    try:
        found = _json_in(text)
        rows = found["rows"] if isinstance(found, dict) else found
        if not isinstance(rows, list):
            raise Unusable("an answer without rows", text[:80])
    except (ValueError, RecursionError):
        yield Unusable("an answer that is no JSON", text[:80])
        return
    except (KeyError, Unusable):
        yield Unusable("an answer without rows", text[:80])
        return
    for row in rows:
        try:
            yield _row(row, {tool.name: tool for tool in tools})
        except Unusable as error:
            yield error


def _row(row: Any, tools: dict[str, ToolSchema]) -> tuple[str, str, Call]:
    shown = json.dumps(row, ensure_ascii=False)[:80]
    try:
        asked, known, call = row["instruction"], row.get("observation") or "", row["call"]
        name, arguments = call["name"], call["arguments"]
    except (LookupError, TypeError, AttributeError):
        raise Unusable("a row of another shape", shown) from None
    if not (
        isinstance(asked, str) and isinstance(known, str) and isinstance(name, str) and isinstance(arguments, dict)
    ):
        raise Unusable("a row of another shape", shown)
    if not asked.strip() or len(asked) > LONGEST or len(known) > LONGEST:
        raise Unusable("an instruction that is empty or too long", shown)
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Unusable(HALF, json.dumps(row)[:80]) from None
    if name not in tools:
        raise Unusable("a call of a function that is not shown", shown)
    made = declared(Call(name, arguments), tools[name])
    check_call(made, tools[name])
    return asked.strip(), known.strip(), made


def _json_in(text: str) -> Any:
    """JSON, or JSON in a fenced block or behind a model's thinking."""
    body = re.sub(r"<think>.*?</think>", "", text, flags=re.DOTALL).strip()
    if fenced := re.search(r"```(?:json)?\s*\n(.*?)```", body, flags=re.DOTALL):
        body = fenced[1].strip()
    return strict_json(body)
