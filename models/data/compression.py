"""Count the tokens of calls: as JSON, and as heads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import json_text
from rtcontrol.models.schema.tool_schema import ABSENT, ToolSchema

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


def head_texts(call: Call, tool: ToolSchema, gap: str = "") -> list[str]:
    """Return what the function head and the argument heads write, without null heads: strings raw, other values as JSON
    with this `gap` behind its marks."""
    values = [v for slot in tool.slots() if (v := slot.value(call.arguments)) is not ABSENT]
    return [call.name, *(v if isinstance(v, str) else json_text(v, gap) for v in values)]


def compression(calls: Sequence[tuple[Call, ToolSchema]], tokens: Tokens) -> dict[str, Any]:
    """Return the tokens of calls as JSON against those of their longest heads ("Token Compression Details" of the
    paper): statistics of each, and ratios of these."""
    if not calls:
        return {}
    texts = [call_json(call) for call, _ in calls]
    each = [[tokens.of(text) + 1 for text in head_texts(call, tool, " ")] for call, tool in calls]
    bare = _summary([tokens.of(text) for text in texts])
    wrapped = _summary([tokens.of(WRAPPED.format(text)) + tokens.of(END) for text in texts])
    heads = _summary([max(head) for head in each])
    return {
        "json": bare,
        "json_wrapped": wrapped,
        "longest_head": heads,
        "compression": _ratios(bare, heads),
        "compression_wrapped": _ratios(wrapped, heads),
        "function_head_longest": sum(head[0] == max(head) for head in each) / len(each),
    }


def _summary(counts: list[int]) -> dict[str, float]:
    p50, p90 = np.percentile(counts, [50, 90])
    return {"mean": float(np.mean(counts)), "p50": float(p50), "p90": float(p90), "max": float(max(counts))}


def _ratios(above: Mapping[str, float], below: Mapping[str, float]) -> dict[str, float]:
    return {key: above[key] / below[key] for key in ("mean", "p50", "p90")}
