"""How many tokens follow one another: of a call written as JSON, and of its longest head.

The paper's compression ratio is a ratio of statistics: the mean (or median, or 90th percentile) of the one column over
that of the other. The mean of the ratios of each call is another number, and is told beside it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rtcontrol.models.call import Call
from rtcontrol.models.schema import ABSENT, MAX_HEADS, Slot

ENDING = 1  # the token that ends what was written
WRAPPED = ("<tool_call>\n", "\n</tool_call>")
PERCENTS = (50, 90)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of one call: as JSON (`bare`), as JSON between the tags of a tool call (`wrapped`), of its longest head
    (`longest`), each with the token that ends it; and whether the function's head is (one of) the longest."""

    bare: int
    wrapped: int
    longest: int
    function_longest: bool


def lengths(call: Call, slots: Sequence[Slot], encode: Callable[[str], Sequence[int]], tags: int) -> Lengths:
    """Of a call of a tool with these slots. `tags`: so many of the tags around JSON are one token each (2 where the
    tokenizer has them, as Qwen's)."""
    body = json.dumps(call.to_dict(), ensure_ascii=False)
    bare = len(encode(body)) + ENDING
    inside = len(encode(WRAPPED[0].removeprefix("<tool_call>") + body + WRAPPED[1].removesuffix("</tool_call>")))
    wrapped = inside + ENDING + tags
    function = len(encode(call.name)) + ENDING
    values = [text for slot in slots[:MAX_HEADS] if (text := _text(slot.value(call.arguments))) is not None]
    longest = max([function, *(len(encode(text)) + ENDING for text in values)])
    return Lengths(bare, wrapped, longest, function == longest)


def _text(value: Any) -> str | None:
    """As a head writes it: strings raw, everything else JSON; None where it is left out."""
    if value is ABSENT:
        return None
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def compression(found: Sequence[Lengths]) -> dict[str, Any]:
    """Statistics of the columns, and the ratios of the statistics; empty of nothing."""
    if not found:
        return {}
    columns = {name: np.array([getattr(one, name) for one in found], float) for name in ("bare", "wrapped", "longest")}
    told = {name: _statistics(column) for name, column in columns.items()}
    ratios: dict[str, Any] = {}
    for name in ("bare", "wrapped"):
        ratios[name] = {k: round(told[name][k] / told["longest"][k], 3) for k in told["longest"]}
        ratios[name]["mean_of_ratios"] = round(float(np.mean(columns[name] / columns["longest"])), 3)
    share = float(np.mean([one.function_longest for one in found]))
    return {"calls": len(found), "tokens": told, "ratio": ratios, "function_is_longest": round(share, 4)}


def _statistics(column: Any) -> Mapping[str, float]:
    named = {f"p{p}": round(float(np.percentile(column, p)), 2) for p in PERCENTS}
    return {"mean": round(float(column.mean()), 3), **named}
