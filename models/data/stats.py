"""What rows hold: parameters, arguments, and the tokens of a call as JSON against those of its longest head.

The tables are the paper's: "Parameter Count Statistics" (of each sample the most parameters of any tool shown) and
"Token Compression Details", from the gold calls instead of a model's.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rtcontrol.models.call import Call
from rtcontrol.models.data.canonical import canonical
from rtcontrol.models.data.row import DataRow
from rtcontrol.models.data.sample import Dropped, Unusable
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import json_text
from rtcontrol.models.schema.tool_schema import ABSENT, MAX_HEADS, Overflow, ToolSchema

EXAMPLES = 3


@dataclass
class Tally:
    """Counts by source; of each reason the first places."""

    samples: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    dropped: Counter[tuple[str, str]] = field(default_factory=Counter)
    noted: Counter[tuple[str, str]] = field(default_factory=Counter)
    places: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def drop(self, one: Dropped, count: int = 1) -> None:
        """A sample, or a row of one, that is left out."""
        self._place(one)
        self.dropped[one.source, one.reason] += count

    def note(self, one: Dropped) -> None:
        """One that is kept all the same: its answer is not wholly among those that its tools, as shown, allow."""
        self._place(one)
        self.noted[one.source, one.reason] += 1

    def _place(self, one: Dropped) -> None:
        places = self.places.setdefault((one.source, one.reason), [])
        if len(places) < EXAMPLES:
            place = f"{one.where}{f' ({one.detail})' if one.detail else ''}"
            places.append(place.encode(errors="backslashreplace").decode())  # a terminal takes no half character

    def to_dict(self) -> dict[str, Any]:
        def listed(counts: Counter[tuple[str, str]]) -> list[dict[str, Any]]:
            return [
                {"source": source, "reason": reason, "count": count, "examples": self.places[source, reason]}
                for (source, reason), count in counts.most_common()
            ]

        return {
            "samples": dict(self.samples),
            "rows": dict(self.rows),
            "dropped": listed(self.dropped),
            "noted": listed(self.noted),
        }


PAPER = "18,20,18,17,15,12"
OVER = "over its share of rows with as many arguments"
By = Literal["drop", "weight"]


def shares_of(text: str) -> dict[int, float]:
    """`18,20,18,17,15,12`: shares of 1 to 6 arguments; with a seventh number in front, of 0 to 6. Raises UserError."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    whole = len(numbers) in (MAX_HEADS, MAX_HEADS + 1) and all(0 <= n < math.inf for n in numbers)
    if not whole or sum(numbers) <= 0:
        raise UserError(f"{text!r} are no shares.", f"Write six numbers (1 to 6 arguments) or seven (0 to 6): {PAPER}.")
    first = MAX_HEADS + 1 - len(numbers)
    return {first + n: number / sum(numbers) for n, number in enumerate(numbers)}


def balanced(rows: Sequence[DataRow], shares: dict[int, float], by: By, seed: int, tally: Tally) -> list[DataRow]:
    """The rows, in their order, so that calls of each number of arguments have their share: others are dropped ("drop",
    drawn by `seed`, as few as can be), or weighed ("weight": the sum of all weights stays). More than six arguments
    count as six; rows without a call, and those of counts that have no share, stay as they are.

    Raises UserError where there is no row of a count that is to have some.
    """
    classes: dict[int, list[int]] = {count: [] for count, share in shares.items() if share}
    outside = set(range(len(rows)))
    for at, row in enumerate(rows):
        if row.call is not None and (count := min(len(row.call.arguments), MAX_HEADS)) in shares:
            classes.setdefault(count, []).append(at)
            outside.discard(at)
    if empty := [count for count, found in classes.items() if not found]:
        raise UserError(
            f"No row has a call of {empty[0]} arguments, which shall have {shares[empty[0]]:.0%}.",
            "Add rows that do (rtcontrol data synthesise), or give other shares.",
        )
    if by == "weight":
        total = sum(rows[at].weight for found in classes.values() for at in found)
        factor = {
            at: share * total / (sum(rows[i].weight for i in classes[count]) or 1.0)
            for count, share in shares.items()
            for at in classes.get(count, ())
        }
        return [replace(row, weight=row.weight * factor.get(at, 1.0)) for at, row in enumerate(rows)]
    together = min(len(found) / shares[count] for count, found in classes.items() if shares[count])
    drawn, kept = random.Random(seed), set(outside)
    for count, found in sorted(classes.items()):
        # Of a share that is no whole number of rows the floor, short of what rounding takes away.
        kept |= set(drawn.sample(found, min(len(found), math.floor(together * shares[count] + 1e-9))))
    for at in sorted({*range(len(rows))} - kept):
        tally.drop(Dropped(OVER, rows[at].id, "", rows[at].source))
        tally.rows[rows[at].source] -= 1
    return [row for at, row in enumerate(rows) if at in kept]


WRAPPED = "<tool_call>\n{}\n</tool_call>"
END = "<|im_end|>"


class Tokens:
    """Counts tokens by a tokenizer's file."""

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer

        path = path / "tokenizer.json" if path.is_dir() else path
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises this class itself
            raise UserError(f"{path} is no tokenizer ({error}).", "Give a tokenizer.json, or its folder.") from None
        self._known: dict[str, int] = {}

    def of(self, text: str) -> int:
        if text not in self._known:
            self._known[text] = len(self._tokenizer.encode(text, add_special_tokens=False).ids)
        return self._known[text]


def call_json(call: Call) -> str:
    """The call as a model that writes JSON has it."""
    return json.dumps(call.to_dict(), ensure_ascii=False)


def head_texts(call: Call, tool: ToolSchema, overflow: Overflow = "merge", compact: bool = False) -> list[str]:
    """What the function head and the argument heads write, null heads left out: strings raw, other values as JSON (as
    the whole call has them, or `compact`, as our heads write them). With "cut" they are the call's first six arguments,
    as the paper's tables have it, its tool's or not."""
    if overflow == "cut":
        values = list(call.arguments.values())[:MAX_HEADS]
    else:
        values = [v for slot in tool.slots() if (v := slot.value(call.arguments)) is not ABSENT]
    return [call.name, *(v if isinstance(v, str) else json_text(v, "" if compact else " ") for v in values)]


@dataclass(frozen=True)
class StatsOptions:
    """How tokens are counted: not at all without `tokens`; `overflow` and `compact` as `head_texts` has them."""

    tokens: Tokens | None = None
    overflow: Overflow = "merge"
    compact: bool = False


@dataclass
class Stats:
    """Of one source, or of several together; lists hold one number a sample (`parameters`) or a row with a call."""

    samples: set[str] = field(default_factory=set)
    rows: int = 0
    without_call: int = 0
    parameters: dict[str, int] = field(default_factory=dict)
    arguments: Counter[int] = field(default_factory=Counter)
    bare: list[int] = field(default_factory=list)
    wrapped: list[int] = field(default_factory=list)
    heads: list[int] = field(default_factory=list)
    function_longest: int = 0
    tools: list[int] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)

    def add(self, row: DataRow, options: StatsOptions) -> None:
        """One row more. Raises UserError where a tool cannot be read."""
        self.samples.add(row.sample)
        self.rows += 1
        try:
            tools = [canonical(tool, "merge") for tool in row.tools]
        except Unusable as error:
            raise UserError(
                f"Row {row.id}: {error.detail}", "Convert the rows first: rtcontrol data convert."
            ) from None
        most = max((len(tool.parameters) for tool in tools), default=0)
        self.parameters[row.sample] = max(most, self.parameters.get(row.sample, 0))
        tokens = options.tokens
        if tokens is not None:
            self.tools.append(sum(tokens.of(tool.canonical_json()) for tool in tools))
            asked = (row.instruction, row.observation, *row.history)
            self.prompt.append(sum(tokens.of(text) for text in asked))
        if row.call is None:
            self.without_call += 1
            return
        self.arguments[len(row.call.arguments)] += 1
        if tokens is not None:
            text = call_json(row.call)
            self.bare.append(tokens.of(text))
            self.wrapped.append(tokens.of(WRAPPED.format(text)) + tokens.of(END))
            called = next(tool for tool in tools if tool.name == row.call.name)
            longest = [tokens.of(text) + 1 for text in head_texts(row.call, called, options.overflow, options.compact)]
            self.heads.append(max(longest))
            self.function_longest += longest[0] == max(longest)

    def to_dict(self) -> dict[str, Any]:
        """As a table has it. Shares are of the rows with a call; ratios are those of the statistics, not the statistic
        of the rows' ratios."""
        counts = list(self.parameters.values())
        found: dict[str, Any] = {
            "samples": len(self.samples),
            "rows": self.rows,
            "without_call": self.without_call,
            "parameters": {
                "over_six": sum(count > MAX_HEADS for count in counts),
                "max": max(counts, default=0),
            },
            "argument_shares": {str(n): self.arguments[n] / self.arguments.total() for n in sorted(self.arguments)},
        }
        if self.heads:
            bare, wrapped, heads = (_summary(x) for x in (self.bare, self.wrapped, self.heads))
            found["tokens"] = {
                "json": bare,
                "json_wrapped": wrapped,
                "longest_head": heads,
                "compression": _ratios(bare, heads),
                "compression_wrapped": _ratios(wrapped, heads),
                "function_head_longest": self.function_longest / len(self.heads),
                "tools": _summary(self.tools),
                "instruction_observation_history": _summary(self.prompt),
            }
        return found


def stats(rows: Iterable[DataRow], options: StatsOptions | None = None) -> tuple[dict[str, Stats], Stats]:
    """By source, and all together."""
    each: dict[str, Stats] = {}
    together = Stats()
    for row in rows:
        for one in (each.setdefault(row.source, Stats()), together):
            one.add(row, options or StatsOptions())
    return each, together


def _summary(counts: list[int]) -> dict[str, float]:
    p50, p90 = np.percentile(counts, [50, 90])
    return {"mean": float(np.mean(counts)), "p50": float(p50), "p90": float(p90), "max": float(max(counts))}


def _ratios(above: Mapping[str, float], below: Mapping[str, float]) -> dict[str, float]:
    return {key: above[key] / below[key] for key in ("mean", "p50", "p90")}
