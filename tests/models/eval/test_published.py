"""Others' predictions, judged again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rtcontrol.models.errors import UserError
from rtcontrol.models.metrics.published import rescore


def lines(path: Path, *values: Any) -> Path:
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def question(name: str, parameters: int = 1, history: list[str] | None = None) -> dict[str, Any]:
    message = {"role": "user", "content": "go", "history": history or []}
    properties = {f"p{n}": {"type": "string"} for n in range(parameters)}
    functions = [{"name": "go", "parameters": {"properties": properties}}]
    return {"id": name, "question": [[message]], "function": functions}


def go(**arguments: Any) -> list[dict[str, Any]]:
    return [{"name": "go", "arguments": arguments}]


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    gold = {"go": {"to": ["Paris", "paris, france"], "speed": [3, ""]}}
    return lines(tmp_path / "answers.jsonl", *({"id": str(n), "ground_truth": [gold]} for n in range(4)))


def test_both_rules_and_what_toldsay_of_themselves(tmp_path: Path, answers: Path) -> None:
    given = lines(
        tmp_path / "given.jsonl",
        {"id": "0", "result": go(to="PARIS"), "overall_correct": True},
        {"id": "1", "result": go(to="paris", speed="3", more=1), "overall_correct": True},
        {"id": "2", "result": [{"go": {"to": "Rome"}}], "overall_correct": True},
        {"id": "3", "result": [], "overall_correct": False},
    )
    found = rescore(given, answers)
    assert (found["strict"]["right"], found["loose"]["right"], found["strict"]["count"]) == (1, 2, 4)
    assert found["function"]["right"] == 3 and found["agreement"] == {"loose": [3, 4]}
    assert found["left_out"] == {} and found["answers_without_prediction"] == 0


def test_what_is_left_out_is_counted_with_its_reason(tmp_path: Path, answers: Path) -> None:
    given = lines(
        tmp_path / "given.jsonl",
        {"id": "0", "result": go(to="paris")},
        {"id": "1", "result": go(to="paris")},
        {"id": "2", "excluded": "missing_ground_truth"},
        {"id": "9", "result": go(to="paris")},
    )
    asked = lines(tmp_path / "asked.jsonl", question("0", 7), question("1", 6))
    found = rescore(given, answers, asked)
    assert found["strict"]["right"] == found["strict"]["count"] == 1
    assert found["left_out"] == {
        "a tool with more than 6 parameters": 1,
        "missing_ground_truth": 1,
        "no answer of that id": 1,
    }
    assert found["answers_without_prediction"] == 1


def test_an_answer_that_is_no_json_is_told_by_its_line_and_left_out(tmp_path: Path, answers: Path) -> None:
    whole, broken = answers.read_text(), '{"id": "x", "ground_truth": [{"go": {"to": [0.5, 1/6]}}]}\n'
    answers.write_text(broken + whole)
    told = ({"id": "0", "prediction": go(to="paris"), "strict_correct": True}, {"id": "x", "excluded": "no answer"})
    found = rescore(lines(tmp_path / "given.jsonl", *told), answers)
    assert (found["strict"]["right"], found["strict"]["count"], found["unreadable_answers"]) == (1, 1, [1])
    assert found["left_out"] == {"no answer of that id that can be read": 1}
    answers.write_text(broken)
    with pytest.raises(UserError, match=r"answers.jsonl:1.*no JSON"):
        rescore(tmp_path / "given.jsonl", answers)


def test_an_answer_may_be_one_call_that_stands_in_no_list(tmp_path: Path) -> None:
    answers = lines(tmp_path / "answers.jsonl", {"id": "0", "ground_truth": {"go": {"to": "Paris"}}})
    given = lines(tmp_path / "given.jsonl", {"id": "0", "result": go(to="paris"), "overall_correct": True})
    assert rescore(given, answers)["agreement"] == {"loose": [1, 1]}


def test_of_several_calls_the_strict_rule_takes_the_one_that_is_due(tmp_path: Path) -> None:
    several = [{"go": {"to": ["a"]}}, {"go": {"to": ["b"]}}]
    answers = lines(tmp_path / "answers.jsonl", *({"id": name, "ground_truth": several} for name in ("first", "last")))
    given = lines(tmp_path / "g.jsonl", {"id": "first", "result": go(to="a")}, {"id": "last", "result": go(to="a")})
    with pytest.raises(UserError, match=r"g.jsonl:1.*2 calls.*questions"):
        rescore(given, answers)
    asked = lines(tmp_path / "asked.jsonl", question("first"), question("last", history=["go(to=a)"]))
    found = rescore(given, answers, asked)
    assert (found["strict"]["right"], found["loose"]["right"]) == (1, 2)


@pytest.mark.parametrize(
    "line", [3, {"result": []}, {"id": "0"}, {"id": "0", "result": [3]}, {"id": "0", "result": [{"go": "{"}]}]
)
def test_a_line_that_is_no_prediction_is_named(tmp_path: Path, answers: Path, line: Any) -> None:
    given = lines(tmp_path / "given.jsonl", {"id": "1", "result": []}, line)
    with pytest.raises(UserError, match=r"given.jsonl:2"):
        rescore(given, answers)


def test_an_id_that_comes_twice_and_answers_that_are_none_are_named(tmp_path: Path, answers: Path) -> None:
    given = lines(tmp_path / "given.jsonl", {"id": "1", "result": []}, {"id": "1", "result": []})
    with pytest.raises(UserError, match=r"given.jsonl:2.*before"):
        rescore(given, answers)
    with pytest.raises(UserError, match=r"bad.jsonl:1"):
        rescore(given, lines(tmp_path / "bad.jsonl", {"id": "1"}))
