"""A file of answers: gone on with, never mixed with those of something else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.models.call import Call
from rtcontrol.models.data.row import DataRow
from rtcontrol.models.errors import UserError
from rtcontrol.models.metrics.predictions import Prediction, Predictions, digest, read
from tests.helpers.disks import files_of

HEAD = {"model": {"name": "a", "weights": "1"}, "data": {"digest": "x", "rows": 2}}
ONE = Prediction("1", (Call("go", {"x": 1}),), {"function": 0.5}, 1.5, passes=2, tokens=30)
TWO = Prediction("2", (), error="no legal call")


def test_a_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "new" / "answers.jsonl"
    with Predictions(HEAD, path) as first:
        first.add(ONE)
    with Predictions(HEAD, path) as second:
        assert second.found == {"1": ONE}
        second.add(TWO)
    assert read(path) == (HEAD, {"1": ONE, "2": TWO})


def test_an_answer_that_was_not_written_whole_comes_again(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    with Predictions(HEAD, path) as first:
        first.add(ONE)
        first.add(TWO)
    path.write_bytes(path.read_bytes()[:-9])
    with Predictions(HEAD, path) as second:
        assert second.found == {"1": ONE}
        second.add(TWO)
    assert read(path)[1] == {"1": ONE, "2": TWO}


@pytest.mark.parametrize(
    ("part", "key", "named"),
    [("model", "weights", "another model: weights"), ("data", "digest", "another data: digest")],
)
def test_answers_of_another_model_or_data_are_refused_and_stay(tmp_path: Path, part: str, key: str, named: str) -> None:
    path = tmp_path / "answers.jsonl"
    with Predictions(HEAD, path) as first:
        first.add(ONE)
    before = path.read_bytes()[:-3]
    path.write_bytes(before)
    other = {**HEAD, part: {**HEAD[part], key: "other"}}  # type: ignore[dict-item]
    with pytest.raises(UserError, match=named):
        Predictions(other, path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("text", ["", "{}\n", '{"rtcontrol_predictions": 9}\n', "\x00", '{"a": 1'])
def test_a_file_that_holds_something_else_is_refused_and_stays(tmp_path: Path, text: str) -> None:
    path = tmp_path / "precious.jsonl"
    path.write_text(text)
    if text:
        with pytest.raises(UserError, match="holds no answers"):
            Predictions(HEAD, path)
    with pytest.raises(UserError, match="holds no answers"):
        read(path)
    assert path.read_text() == text


@pytest.mark.parametrize("line", ['{"id": "3"}', "[]", '{"id": "3", "calls": [3]}', '{"id": "1", "calls": []}'])
def test_a_line_that_is_no_answer_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "answers.jsonl"
    with Predictions(HEAD, path) as first:
        first.add(ONE)
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(UserError, match=rf"{path.name}:3"):
        read(path)


def test_what_was_answered_before_the_disk_was_full_is_kept(tmp_path: Path) -> None:
    path, kept = tmp_path / "answers.jsonl", 0
    with files_of(100_000), Predictions(HEAD, path) as found, pytest.raises(UserError, match="Make room"):
        for n in range(100):
            found.add(Prediction(str(n), (), error="x" * 5000))
            kept += 1
    with Predictions(HEAD, path) as again:
        assert len(again.found) == kept > 10
        again.add(ONE)


@given(st.lists(st.text(max_size=5), min_size=1, max_size=4, unique=True))
def test_rows_have_the_digest_of_all_of_them(names: list[str]) -> None:
    rows = [DataRow(name, name, "test", "go", "", (), (), None) for name in names]
    assert digest(rows) == digest(list(rows))
    assert digest(rows) != digest(rows[1:])
    assert len(digest(rows)) == 16
