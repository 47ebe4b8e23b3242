"""BFCL from the package's data files: found, read, and judged by its own checker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rtcontrol.models.call import Call
from rtcontrol.models.data import convert
from rtcontrol.models.data.sample import Dropped, Sample
from rtcontrol.models.data.sources import bfcl
from rtcontrol.models.data.stats import Tally
from rtcontrol.models.errors import UserError
from rtcontrol.models.metrics.bfcl import check

FUNCTION = {
    "name": "shop.find",
    "description": "Finds.",
    "parameters": {
        "type": "dict",
        "properties": {
            "what": {"type": "string"},
            "price": {"type": "float"},
            "near": {"type": "dict", "properties": {"city": {"type": "string"}, "km": {"type": "integer"}}},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["what"],
    },
}
OLD_MESSAGES = [[{"role": "system", "content": "It is Monday."}, {"role": "user", "content": "Tea."}]]


def old_package(root: Path, questions: list[dict[str, Any]], answers: list[dict[str, Any]], name: str) -> Path:
    """Of version 3: no dist-info beside it, names of its own."""
    (root / "data" / "possible_answer").mkdir(parents=True)
    (root / "data" / f"BFCL_v3_{name}.json").write_text("\n".join(map(json.dumps, questions)))
    if answers:
        (root / "data" / "possible_answer" / f"BFCL_v3_{name}.json").write_text("\n".join(map(json.dumps, answers)))
    return root


def test_the_first_allowed_value_is_gold_and_what_may_be_left_out_is(tmp_path: Path) -> None:
    gold = {"what": ["tea", "Tea"], "price": ["", 2], "near": [{"city": ["Ulm"], "km": ["", 5]}], "tags": [["a", "b"]]}
    folder = old_package(
        tmp_path,
        [{"id": "simple_0", "question": OLD_MESSAGES, "function": [FUNCTION]}],
        [{"id": "simple_0", "ground_truth": [{"shop.find": gold}]}],
        "simple",
    )
    (one,) = bfcl.samples("simple_python", folder)
    assert isinstance(one, Sample)
    assert (one.instruction, one.observation) == ("Tea.", "It is Monday.")
    assert one.calls == (Call("shop.find", {"what": "tea", "near": {"city": "Ulm"}, "tags": ["a", "b"]}),)
    assert one.tools[0]["function"]["parameters"]["properties"]["price"]["type"] == "number"
    assert one.checks[0].functions == (FUNCTION,) and one.checks[0].answer == [{"shop.find": gold}]
    (given,) = bfcl.samples("simple_python", folder, "give")
    assert isinstance(given, Sample)
    assert given.calls[0].arguments == {"what": "tea", "price": 2, "near": {"city": "Ulm", "km": 5}, "tags": ["a", "b"]}


def test_executable_answers_are_calls_in_python_beside_the_questions(tmp_path: Path) -> None:
    truth = ["shop.find(what='tea', price=1/4)"]
    questions = [
        {"id": f"e{n}", "question": OLD_MESSAGES, "function": [FUNCTION], "ground_truth": answer}
        for n, answer in enumerate((truth, ["shop.find('tea')"]))
    ]
    one, other = bfcl.samples("exec_simple", old_package(tmp_path, questions, [], "exec_simple"))
    assert isinstance(one, Sample) and one.calls == (Call("shop.find", {"what": "tea", "price": 0.25}),)
    assert one.checks[0].answer == [{"shop.find": {"what": ["tea"], "price": [0.25]}}]
    assert isinstance(other, Dropped) and other.where.endswith("BFCL_v3_exec_simple.json:2")


def test_what_is_of_another_shape_is_dropped_with_its_line(tmp_path: Path) -> None:
    questions = [{"id": "a"}, {"id": "b", "question": OLD_MESSAGES * 2, "function": [FUNCTION]}]
    answers = [{"id": i, "ground_truth": [{"shop.find": {"what": ["tea"]}}]} for i in "ab"]
    first, second = bfcl.samples("multiple", old_package(tmp_path, questions, answers, "multiple"))
    assert isinstance(first, Dropped) and first.where.endswith(":1") and "shape" in first.reason
    assert isinstance(second, Dropped) and second.reason == "several turns"


def test_where_there_is_no_package_the_remedy_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(bfcl.VARIABLE, raising=False)
    for given in (None, tmp_path / "python", tmp_path):
        with pytest.raises(UserError, match="pip install --no-deps bfcl-eval"):
            bfcl.package_folder(given)
    with pytest.raises(UserError, match="no single-turn category 'java'"):
        list(bfcl.samples("java", tmp_path))


@pytest.mark.parametrize(
    ("category", "counts"),
    [
        ("exec_multiple", (50, 0, 6)),
        ("exec_simple", (100, 0, 6)),
        ("live_multiple", (1053, 167, 21)),
        ("live_simple", (258, 14, 10)),
        ("multiple", (200, 0, 6)),
        ("simple_python", (400, 0, 6)),
    ],
)
def test_the_papers_table_of_parameters(package: Path, category: str, counts: tuple[int, int, int]) -> None:
    most = []
    for one in bfcl.samples(category, package):
        assert isinstance(one, Sample)
        most.append(max(len(tool["function"]["parameters"]["properties"]) for tool in one.tools))
    assert (len(most), sum(count > 6 for count in most), max(most)) == counts


def accepted(package: Path, category: str, **options: Any) -> int:
    rows = list(convert.rows(bfcl.samples(category, package), convert.ConvertOptions("eval", **options), Tally()))
    cases = [(row.check, [row.call]) for row in rows if row.check is not None and row.call is not None]
    assert len(cases) == len(rows)
    return sum(answer.valid for answer in check(cases, package))


@pytest.mark.parametrize(
    ("category", "every", "six"),
    [
        ("simple_python", 400, 400),
        ("multiple", 200, 200),
        ("live_simple", 256, 251),
        ("parallel", 540, 540),
        ("exec_simple", 99, 99),
        ("exec_multiple", 48, 48),
    ],
)
def test_gold_calls_before_the_official_checker(package: Path, category: str, every: int, six: int) -> None:
    assert (accepted(package, category), accepted(package, category, overflow="cut")) == (every, six)


def test_what_six_heads_cost_where_tools_are_largest(package: Path) -> None:
    assert (accepted(package, "live_multiple"), accepted(package, "live_multiple", overflow="cut")) == (1051, 1009)
