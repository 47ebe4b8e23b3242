"""Seal-Tools, OpenFunctions, ToolAlpaca and xLAM: their counts, and the traps in each."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rtcontrol.models.data.canonical import canonical
from rtcontrol.models.data.sample import Dropped, Sample
from rtcontrol.models.data.sources import openfunctions, seal_tools, toolalpaca, xlam
from rtcontrol.models.errors import UserError


def split(found: Any) -> tuple[list[Sample], Counter[str]]:
    every = list(found)
    samples = [one for one in every if isinstance(one, Sample)]
    for one in samples:
        for tool in one.tools:
            canonical(tool, "merge")
    return samples, Counter(one.reason for one in every if isinstance(one, Dropped))


def largest(samples: list[Sample]) -> tuple[int, int, int]:
    most = [max(len(tool["function"]["parameters"]["properties"]) for tool in one.tools) for one in samples]
    return len(most), sum(count > 6 for count in most), max(most)


def test_seal_tools_have_five_candidates_and_typed_gold(sets: Path) -> None:
    samples, dropped = split(seal_tools.samples("in-domain", str(sets / "seal_tools")))
    assert largest(samples) == (200, 4, 8) and not dropped
    assert {len(one.tools) for one in samples} == {5}
    kinds = Counter(type(v).__name__ for one in samples for v in one.calls[0].arguments.values())
    assert kinds["int"] == 34 and kinds["float"] == 26


def test_seal_tools_later_calls_that_need_an_earlier_ones_result_are_dropped(sets: Path) -> None:
    samples, dropped = split(seal_tools.samples("in-domain-several", str(sets / "seal_tools")))
    assert dropped == {
        "a call that takes the result of an earlier one": 30,
        "a call of a function that is not shown": 2,
    }
    assert len(samples) == 468 and min(len(one.calls) for one in samples) == 2


def test_seal_tools_without_candidates_show_the_same_others_each_time(sets: Path) -> None:
    first, _ = split(seal_tools.samples("dev", str(sets / "seal_tools")))
    again, _ = split(seal_tools.samples("dev", str(sets / "seal_tools")))
    assert first == again and {len(one.tools) for one in first} == {5}
    places = Counter([t["function"]["name"] for t in one.tools].index(one.calls[0].name) for one in first)
    assert len(places) == 5
    with pytest.raises(UserError, match="has no train.jsonl"):
        list(seal_tools.samples("train", str(sets / "seal_tools")))


def test_openfunctions_call_what_api_call_says(sets: Path) -> None:
    samples, dropped = split(openfunctions.samples(str(sets / "openfunctions_v1")))
    assert largest(samples) == (109, 0, 4) and dropped == {"a function without parameters": 3}
    by_query = {one.instruction: one.calls[0] for one in samples}
    coffee = by_query["Find a coffee shop near me with free Wi-Fi in San Francisco."]
    assert coffee.text() == 'coffee_shop.find_nearby(location="San Francisco", amenities=["Wi-Fi"])'
    bare = [one for one in by_query.values() if any(value is True for value in one.arguments.values())]
    assert len(bare) == 2


def test_toolalpacas_single_golden_calls(sets: Path) -> None:
    samples, dropped = split(toolalpaca.samples(str(sets / "toolalpaca")))
    assert largest(samples) == (51, 0, 6)
    assert dropped == {"several calls in a row": 43, "arguments that are no JSON": 6}
    assert not any(tool["function"]["name"] == "components" for one in samples for tool in one.tools)
    axolotl = {t["function"]["name"]: t["function"]["parameters"] for t in samples[0].tools}
    search = axolotl["searchAxolotlImages"]
    assert search["properties"]["color"]["enum"] == ["wild", "leucistic", "albino"] and search["required"] == []
    assert search["properties"]["page"]["type"] == "integer"


def xlam_row(**change: Any) -> dict[str, Any]:
    tools = [
        {
            "name": "live_giveaways_by_type",
            "description": "Live giveaways.",
            "parameters": {
                "type": {"description": "The kind.", "type": "str", "default": "game"},
                "limit": {"description": "At most.", "type": "int, optional"},
                "ids": {"description": "Which.", "type": "List[int]"},
            },
        }
    ]
    answers = [{"name": "live_giveaways_by_type", "arguments": {"type": k, "ids": [1]}} for k in ("beta", "game")]
    return {"id": 3, "query": "Where?", "answers": json.dumps(answers), "tools": json.dumps(tools), **change}


def test_xlams_documented_format_is_read(tmp_path: Path) -> None:
    path = tmp_path / "xlam_function_calling_60k.json"
    path.write_text(json.dumps([xlam_row()]))
    (one,) = split(xlam.samples(str(tmp_path)))[0]
    assert (one.id, one.instruction, len(one.calls)) == ("xlam_3", "Where?", 2)
    parameters = one.tools[0]["function"]["parameters"]
    assert parameters["required"] == ["ids"] and parameters["properties"]["ids"]["items"] == {"type": "integer"}
    assert parameters["properties"]["type"]["default"] == "game"


def test_what_xlams_card_says_of_required_comes_before_type_and_default(tmp_path: Path) -> None:
    parameters = {
        "told": {"type": "int, optional", "default": 3, "required": True},
        "free": {"type": "list", "description": None, "required": False},
        "plain": {"type": None},
        "text": {"type": "str, optional, default is 'x'", "default": "x"},
        "wrong": {"type": "int, optional", "default": 0.7},
    }
    flat = {"name": "f", "description": None, "parameters": parameters}
    schema = {"type": "object", "properties": {"told": {"type": "integer"}}, "required": ["told"]}
    wrapped = {"type": "function", "function": {"name": "g", "parameters": schema}}
    row = {"query": "Go.", "tools": [flat, wrapped], "answers": [{"name": "f", "arguments": {"told": 1, "plain": "a"}}]}
    path = tmp_path / "xlam.json"
    path.write_text(json.dumps([row]))
    (one,), dropped = split(xlam.samples(str(path)))
    assert not dropped and one.id == "xlam_xlam.json#1"
    own, other = (each["function"]["parameters"] for each in one.tools)
    assert own["required"] == ["told", "plain"] and own["properties"]["told"]["default"] == 3
    assert own["properties"]["plain"] == {"type": "string", "description": ""}
    assert own["properties"]["free"]["description"] == "" and "default" not in own["properties"]["wrong"]
    assert other == schema


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"answers": "[]"}, "no call"),
        ({"answers": "[{"}, "answers that are no JSON"),
        ({"answers": '[{"name": "f", "arguments": {"x": NaN}}]'}, "answers that are no JSON"),
        ({"tools": "{}"}, "tools that are no list"),
        ({"query": None, "answers": '[{"name": "f"}]'}, "a sample of another shape than xLAM's"),
        (
            {"tools": '[{"name": "f", "parameters": {"g": {"type": "Callable[[float], float]"}}}]'},
            "a parameter of a type that is not known",
        ),
    ],
)
def test_what_xlam_does_not_say_rightly_is_dropped_with_its_place(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    path = tmp_path / "xlam.json"
    path.write_text(json.dumps([xlam_row(), xlam_row(**change)]))
    good, bad = xlam.samples(str(path))
    assert isinstance(good, Sample) and isinstance(bad, Dropped)
    assert (bad.reason, bad.where) == (reason, f"{path}#2")
