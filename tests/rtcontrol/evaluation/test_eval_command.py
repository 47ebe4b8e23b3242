"""`rtcontrol eval` with a bundled model: tables, figures, going on, judging again, comparing, pages."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import call, refused

from rtcontrol.evaluation import rows as evaluating
from rtcontrol.models.data.row import DataRow, write_rows
from rtcontrol.models.metrics.predictions import Prediction, Predictions


def evaluated(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert call("eval", *arguments, "--json", "-") == 0
    return dict(json.loads(capsys.readouterr().out))


def test_a_model_is_judged_by_its_rows(capsys: pytest.CaptureFixture[str], lander_file: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    found = evaluated(capsys, str(lander_file), "--model", "lander", "--html", str(page))
    assert (found["rule"], found["model"]["name"], found["model"]["way"]) == ("exact", "lander", "heads")
    # One call of twelve is wrong, hence one of six samples.
    assert (found["rows"]["right"], found["rows"]["count"]) == (11, 12)
    assert (found["overall"]["right"], found["overall"]["count"], found["function"]["right"]) == (5, 6, 6)
    assert found["samples"]["s0"] == [0, 1] and found["wrong"] == {"argument main": 1}
    heads = {name: (one["right"], one["count"]) for name, one in found["by_head"].items()}
    assert heads == {"function": (12, 12), "arg1": (11, 12), "arg2": (12, 12)}
    assert found["latency_ms"]["count"] == 12 and found["passes"]["p50"] >= 1
    assert found["data"]["counts"]["rows"] == {"source 0": 4, "source 1": 4, "source 2": 4}
    text = page.read_text()
    assert (
        "source 2" in text and "uPlot" in text and "http" not in text.partition("<script")[0].replace("http-equiv", "")
    )


class Counting:
    """Answers like another one, so many times, and then is stopped."""

    def __init__(self, own: Any, most: int) -> None:
        self.own, self.most, self.asked = own, most, list[str]()
        self.told, self.tokens = own.told, None

    def forget(self) -> None:
        self.forgot_after = len(self.asked)
        self.own.forget()

    def answer(self, row: DataRow) -> Prediction:
        if len(self.asked) == self.most:
            raise KeyboardInterrupt
        self.asked.append(row.id)
        return self.own.answer(row)


def test_a_run_that_was_stopped_goes_on_and_ends_as_if_it_was_not(
    capsys: pytest.CaptureFixture[str], lander_file: Path, tmp_path: Path
) -> None:
    from rtcontrol.evaluation.answerers import HeadsAnswerer
    from rtcontrol.evaluation.options import ModelOptions

    out = tmp_path / "answers.jsonl"
    found = evaluating.read(evaluating.RowSource(str(lander_file)))
    first = Counting(HeadsAnswerer(ModelOptions("lander")), evaluating.WARM_UP + 4)
    head = {"model": first.told, "data": found.told}
    with Predictions(head, out) as kept, pytest.raises(KeyboardInterrupt):
        evaluating.answer_all(found.rows, first, kept, lambda done, total: None)
    assert first.forgot_after == evaluating.WARM_UP
    assert first.asked[: evaluating.WARM_UP] == [row.id for row in found.rows[-evaluating.WARM_UP :]]
    document = evaluated(capsys, str(lander_file), "--model", "lander", "--out", str(out))
    assert len(out.read_text().splitlines()) == 1 + len(found.rows)
    whole = evaluated(capsys, str(lander_file), "--model", "lander")
    assert document["samples"] == whole["samples"] and document["by_head"] == whole["by_head"]


def test_answers_of_another_model_or_other_rows_are_refused(
    capsys: pytest.CaptureFixture[str], lander_file: Path, lander_rows: list[DataRow], tmp_path: Path
) -> None:
    out = tmp_path / "answers.jsonl"
    evaluated(capsys, str(lander_file), "--model", "lander", "--out", str(out))
    before = out.read_bytes()
    said = refused(capsys, "eval", str(lander_file), "--model", "base", "--out", str(out))
    assert "another model: name 'lander', not 'base'" in said
    other = tmp_path / "other.jsonl"
    write_rows(other, [replace(row, instruction="go up") for row in lander_rows])
    assert "another data" in refused(capsys, "eval", str(other), "--model", "lander", "--out", str(out))
    assert "another data" in refused(
        capsys, "eval", str(lander_file), "--model", "lander", "--out", str(out), "--limit", "3"
    )
    assert out.read_bytes() == before
    moved = tmp_path / "moved.jsonl"
    lander_file.rename(moved)
    evaluated(capsys, str(moved), "--model", "lander", "--out", str(out))  # the same rows
    assert out.read_bytes() == before


def test_answers_are_judged_again_without_the_model(
    capsys: pytest.CaptureFixture[str], lander_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "answers.jsonl"
    first = evaluated(capsys, str(lander_file), "--model", "lander", "--out", str(out))
    again = evaluated(capsys, "rescore", str(out), "--source", str(lander_file), "--rule", "loose")
    assert again["rule"] == "loose" and again["samples"] == first["samples"]
    lines = out.read_text().splitlines(keepends=True)
    out.write_text("".join(lines[:-1]))
    said = refused(capsys, "eval", "rescore", str(out), "--source", str(lander_file))
    assert "lacks 1 answers" in said and "r11" in said


def test_published_predictions_are_judged_by_both_rules(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    given, answers = tmp_path / "given.jsonl", tmp_path / "answers.jsonl"
    answers.write_text('{"id": "1", "ground_truth": [{"go": {"to": ["Paris"]}}]}\n')
    given.write_text('{"id": "1", "result": [{"name": "go", "arguments": {"to": "paris", "fast": true}}]}\n')
    (found,) = evaluated(capsys, "rescore", str(given), "--answers", str(answers))["rescored"]
    assert (found["strict"]["right"], found["loose"]["right"], found["strict"]["count"]) == (0, 1, 1)
    assert call("eval", "rescore", str(given), "--answers", str(answers)) == 0
    assert "0/1 0.00 %" in capsys.readouterr().out


def test_two_evaluations_are_compared_by_sample(
    capsys: pytest.CaptureFixture[str], lander_file: Path, lander_rows: list[DataRow], tmp_path: Path
) -> None:
    files = [tmp_path / f"{way}.json" for way in ("heads", "json")]
    for path, more in zip(files, ((), ("--way", "json", "--grammar")), strict=True):
        assert call("eval", str(lander_file), "--model", "lander", "--json", str(path), *more) == 0
    a, b = (json.loads(path.read_text()) for path in files)
    capsys.readouterr()
    found = evaluated(capsys, "compare", *map(str, files))["paired"]["overall"]
    assert found["both"] + found["only_a"] == a["overall"]["right"] == 5
    assert found["both"] + found["only_b"] == b["overall"]["right"]
    assert found["low"] <= found["difference"] <= found["high"]
    page = tmp_path / "both.html"
    assert call("eval", "page", *map(str, files), "--out", str(page)) == 0
    text = page.read_text()
    assert text.count("source 1</th>") == 2 and "together</th>" in text
    bars = [text.count(f'background: var(--{ink})"></i>') for ink in ("accent", "decide")]
    assert bars[0] == bars[1] > 3, "a run has its colour in bars and lines"
    assert '"ink":"accent"' in text and '"ink":"decide"' in text
    capsys.readouterr()
    files[1].write_text(json.dumps({**b, "rule": "loose"}))
    assert "by the rule exact" in refused(capsys, "eval", "compare", *map(str, files))
    files[1].write_text(json.dumps({**b, "data": {**b["data"], "digest": "other"}}))
    assert "answer other rows" in refused(capsys, "eval", "compare", *map(str, files))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("nowhere.jsonl", "--model", "lander"), "neither a file nor a set"),
        (("seal-tools", "--model", "lander"), "Where seal-tools is was not said"),
        (("ROWS", "--model", "nobody"), "nobody"),
        (("ROWS", "--model", "lander", "--rule", "mine"), "Unknown rule"),
        (("ROWS", "--model", "lander", "--rule", "official"), "not judged by BFCL's checker"),
        (("ROWS", "--model", "lander", "--way", "prose"), "Unknown way"),
        (("ROWS", "--model", "lander", "--grammar"), "--grammar"),
        (("ROWS", "--model", "openai:nowhere"), "its URL is none"),
        (("ROWS", "--model", "decisions:http://127.0.0.1:9/v1", "--way", "json"), "is an endpoint"),
        (("ROWS", "--model", "lander", "--overflow", "hide"), "Unknown --overflow"),
        (("rescore", "ROWS"), "was not said"),
        (("rescore", "ROWS", "ROWS", "--answers", "ROWS"), "2 files of predictions and 1 --answers"),
        (("rescore", "ROWS", "--answers", "nowhere.jsonl"), "nowhere.jsonl cannot be read"),
        (("rescore", "ROWS", "--source", "ROWS"), "holds no answers"),
        (("compare", "ROWS", "ROWS"), "no figures of an evaluation|no JSON object|cannot be read"),
    ],
)
def test_mistakes_are_told_before_anything_is_answered(
    capsys: pytest.CaptureFixture[str], lander_file: Path, arguments: tuple[str, ...], named: str
) -> None:
    said = refused(capsys, "eval", *(str(lander_file) if one == "ROWS" else one for one in arguments))
    assert re.search(named, said)


def test_a_row_with_a_broken_line_is_named(capsys: pytest.CaptureFixture[str], lander_file: Path) -> None:
    with lander_file.open("a") as file:
        file.write('{"instruction": 3}\n')
    assert f"{lander_file.name}:13" in refused(capsys, "eval", str(lander_file), "--model", "lander")


def test_what_always_right_would_score(capsys: pytest.CaptureFixture[str], lander_file: Path) -> None:
    found = evaluated(capsys, "oracle", str(lander_file))["by_source"]
    for one in found.values():
        assert one["exact"] == {"all": one["samples"], "six": one["samples"]}


def test_prefixes_of_an_evaluations_tools_are_not_kept(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, lander_rows: list[DataRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RTCONTROL_CACHE", str(tmp_path / "cache"))
    tools = tuple({**tool, "function": {**tool["function"], "description": "Anew."}} for tool in lander_rows[0].tools)
    write_rows(tmp_path / "rows.jsonl", [replace(row, tools=tools) for row in lander_rows])
    evaluated(capsys, str(tmp_path / "rows.jsonl"), "--model", "lander", "--way", "json", "--grammar")
    assert not list(tmp_path.glob("cache/prefix/*"))
