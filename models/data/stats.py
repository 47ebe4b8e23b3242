"""What rows hold: parameters, arguments, and the tokens of a call as JSON against those of its longest head.

The tables are the paper's: "Parameter Count Statistics" (of each sample the most parameters of any tool shown) and
"Token Compression Details", from the gold calls instead of a model's.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rtcontrol.models.call import Call
from rtcontrol.models.data.canonical import canonical
from rtcontrol.models.data.row import DataRow
from rtcontrol.models.data.sample import Unusable
from rtcontrol.models.domain import json_text
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema import ABSENT, MAX_HEADS, Overflow, ToolSchema

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
