from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rtcontrol.evaluation.experiments import delay, kept
from rtcontrol.evaluation.experiments.kept import RESULT, KeptRun
from rtcontrol.models.errors import UserError

done: list[int] = []


def counting(number: int, folder: Path) -> dict[str, Any]:
    done.append(number)
    return {"number": number}


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    done.clear()
    run = KeptRun("one", tmp_path / "a", counting, (7,))
    assert run.result() is None
    assert run.do() == run.do() == run.result() == {"number": 7} and done == [7]


def test_a_full_disk_is_told_and_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, packed: bytes) -> int:
        with self.open("wb") as half:
            half.write(packed[:4])
        raise OSError(28, "No space left on device")

    run = KeptRun("one", tmp_path / "a", counting, (7,))
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UserError, match="No space left"):
        run.do()
    assert run.result() is None and not [*(tmp_path / "a").iterdir()]


def test_no_checkpoint_is_taken_of_what_is_not_done(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the target: it is not done yet"):
        KeptRun("the target", tmp_path, counting, (1,)).checkpoint()


def test_of_runs_side_by_side_what_is_whole_stays_where_one_fails(tmp_path: Path) -> None:
    few = delay.Lateness((0,), 64)
    good = KeptRun("good", tmp_path / "good", delay.run, (few, 0))
    bad = KeptRun("bad", tmp_path / "bad", delay.run, ("nothing", 0))
    told: list[str] = []
    with pytest.raises(AttributeError):
        kept.do_all([good, bad, good], 1, lambda says, _: told.append(says))
    assert told == ["good"] and (tmp_path / "good" / RESULT).is_file() and bad.result() is None
