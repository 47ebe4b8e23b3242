"""What rows hold, beside the paper's tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rtcontrol.models.call import Call
from rtcontrol.models.data import convert
from rtcontrol.models.data.row import DataRow
from rtcontrol.models.data.sources import registry
from rtcontrol.models.data.stats import StatsOptions, Tally, Tokens, head_texts, stats
from rtcontrol.models.data.types import tool
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.tool_schema import ToolSchema

NAMES = ["a", "b", "c", "d", "e", "f", "g"]
TOOL = tool("go", "", {"type": "object", "properties": {n: {"type": "array"} for n in NAMES}})


def test_heads_write_values_raw_or_as_json() -> None:
    call = Call("go", {"a": [1, "x"], "b": [], "f": [True], "g": [0.5]})
    schema = ToolSchema.from_openai(TOOL)
    assert head_texts(call, schema) == ["go", '[1, "x"]', "[]", '{"f": [true], "g": [0.5]}']
    assert head_texts(call, schema, "cut", compact=True) == ["go", '[1,"x"]', "[]", "[true]", "[0.5]"]


def test_a_samples_rows_count_once_where_samples_are_counted() -> None:
    made = [
        DataRow(f"s/{n}", "s", "set", "Go.", "", (TOOL,), (), Call("go", {name: [] for name in NAMES[:n]}))
        for n in range(4)
    ]
    each, together = stats([*made, DataRow("t", "t", "other", "Stay.", "", (TOOL,), (), None)])
    assert each["set"].to_dict() == {
        "samples": 1,
        "rows": 4,
        "without_call": 0,
        "parameters": {"over_six": 1, "max": 7},
        "argument_shares": {"0": 0.25, "1": 0.25, "2": 0.25, "3": 0.25},
    }
    assert (together.to_dict()["samples"], together.without_call) == (2, 1)


def test_what_is_no_tokenizer_is_told(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="is no tokenizer"):
        Tokens(tmp_path)


def found(sources: list[str], tokens: Tokens) -> Any:
    rows = [row for one in sources for row in convert.rows(registry.read(one), convert.ConvertOptions("eval"), Tally())]
    return stats(rows, StatsOptions(tokens, "cut"))[1].to_dict()


# The facts' figures: samples, mean of the bare JSON and of the longest head, ratios of means, medians and P90.
@pytest.mark.parametrize(
    ("source", "samples", "json", "longest", "ratios"),
    [
        ("bfcl:simple_python,multiple", 600, 33.4, 7.2, (4.64, 5.33, 4.00)),
        ("bfcl:exec_simple,exec_multiple", 150, 36.3, 12.4, (2.93, 4.43, 2.90)),
        ("seal-tools={}/seal_tools", 200, 29.6, 7.3, (4.05, 4.00, 4.19)),
        ("toolalpaca={}/toolalpaca", 51, 32.5, 8.2, (3.96, 4.57, 4.45)),
    ],
)
def test_compression_from_ground_truth(
    sets: Path, package: Path, source: str, samples: int, json: float, longest: float, ratios: tuple[float, ...]
) -> None:
    table = found([source.format(sets)], Tokens(sets / "qwen2_tokenizer"))
    tokens = table["tokens"]
    assert table["samples"] == samples
    assert tokens["json"]["mean"] == pytest.approx(json, rel=0.01)
    assert tokens["longest_head"]["mean"] == pytest.approx(longest, rel=0.01)
    assert tuple(tokens["compression"].values()) == pytest.approx(ratios, rel=0.03)


def test_compression_of_openfunctions(sets: Path) -> None:
    tokens = found([f"openfunctions={sets}/openfunctions_v1"], Tokens(sets / "qwen2_tokenizer"))["tokens"]
    # The median is one token longer than the facts' 28: one answer's string is the list that its parameter takes.
    assert (tokens["compression"]["mean"], tokens["compression"]["p90"]) == pytest.approx((4.57, 4.47), rel=0.01)
    assert tokens["json"]["p50"] == 29
