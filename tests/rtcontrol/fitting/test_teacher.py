"""A teacher's situations become rows, and what it gets wrong is told by its own file and line."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rtcontrol
from rtcontrol.agents import Tools
from rtcontrol.cli.app import main
from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.errors import UserError
from rtcontrol.models.train.rows import Row
from rtcontrol.training.dataset import Taught, recorded
from rtcontrol.training.teacher import Situations, Teacher, TeacherRows, examples
from tests.rtcontrol.fitting.signals import TOLD, TOOLS, observe, teacher

LEGAL = Tools(TOOLS)


def situation(rng: random.Random) -> tuple[str, str]:
    return rng.choice(TOLD), observe(rng)


def alone(observation: str) -> str:
    return "stop" if "red" in observation else "fly"


def endless(rng: random.Random) -> Iterator[tuple[str, str]]:
    yield situation(rng)


def fails(instruction: str, observation: str) -> str:
    return {"light": "stop"}[observation]  # the line that is told


def test_what_it_answers_is_a_call_however_it_is_written() -> None:
    asked = Teacher(teacher, LEGAL)
    assert asked("drive fast", "light green cars 1 lane left") == Call("go", {"speed": "fast"})
    assert Teacher(alone, LEGAL)("go", "light red") == Call("stop")
    assert Teacher(lambda told, seen: None, LEGAL)("go", "light red") is None


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (fails, r'failed, told "go on", shown "light green": KeyError: .light green. \(.*test_teacher.py:\d+\)'),
        (alone, r"\(test_teacher.py:\d+\) answered nonsense.*unknown tool 'fly'; the tools are stop, go"),
        (lambda told, seen: 7, r"test_teacher.py:\d+.* answered nonsense.*7 is no call"),
    ],
)
def test_its_mistakes_are_told_with_file_line_and_situation(function: Callable[..., Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        Teacher(function, LEGAL)("go on", "light green")
    with pytest.raises(LookupError):
        Teacher(function, LEGAL).guess("go on", "light green")


@pytest.mark.parametrize("function", [lambda: "stop", lambda a, b, c: "stop", "stop"])
def test_a_teacher_of_another_shape_is_refused(function: Any) -> None:
    with pytest.raises(UserError, match="teacher"):
        Teacher(function, LEGAL)


def test_situations_may_be_listed_or_made_and_are_told_apart_from_nonsense() -> None:
    rng = random.Random(0)
    assert list(Situations(["light red"], "go").draw(rng)) == [("go", "light red")]
    assert next(Situations(situation, None).draw(rng))[0] in TOLD
    for wrong in (["light red"], [("a", 1)], [None]):
        with pytest.raises(UserError, match="A situation is"):
            list(Situations(wrong, None).draw(rng))
    with pytest.raises(UserError, match="The situations are a str"):
        Situations("light red", "go")
    for odd in (("pick", " "), ("pick", "half a \ud800 character"), None):
        with pytest.raises(UserError, match=r"test_teacher.py:\d+: A situation is"):
            next(Situations(lambda rng, odd=odd: odd, None).draw(rng))
    for function, says in ((lambda: ("a", "b"), "too many positional"), (endless, "yields")):
        with pytest.raises(UserError, match=rf"test_teacher.py:\d+: situations .*{says}"):
            Situations(function, None)
    with pytest.raises(UserError, match=r"The situations failed: ZeroDivisionError.*test_teacher.py"):
        next(Situations(lambda rng: 1 / 0, "go").draw(rng))


def test_examples_are_different_and_end_where_there_are_no_more() -> None:
    few = Situations(lambda rng: ("drive fast", f"light {rng.choice(['red', 'green'])} lane left"), None)
    found = examples(Teacher(teacher, LEGAL), few, 1_000, random.Random(0))
    assert len(found) == 2 and {one.row.observation.split()[1] for one in found} == {"red", "green"}


def test_listed_situations_are_all_looked_at_however_often_one_stands_there() -> None:
    same = ("drive fast", "light red lane left")
    listed = [*[same] * 500, *(("drive fast", f"light red lane {i}") for i in range(300))]
    found = examples(Teacher(lambda told, seen: "stop", LEGAL), Situations(listed, None), 1_000, random.Random(0))
    assert len(found) == 301


def test_fresh_rows_never_ask_what_is_held_out() -> None:
    held = [Taught(Row(told, f"light {light}", None)) for told in TOLD for light in ("red",)]
    asked = Situations(lambda rng: (rng.choice(TOLD), f"light {rng.choice(['red', 'green'])}"), None)
    fresh = TeacherRows(Teacher(teacher, LEGAL), asked, held).rows(random.Random(0))
    assert {row.observation for row in itertools.islice(fresh, 50)} == {"light green"}
    nothing_new = TeacherRows(Teacher(teacher, LEGAL), Situations(lambda rng: (TOLD[0], "light red"), None), held)
    with pytest.raises(UserError, match="ask only what is held out"):
        next(nothing_new.rows(random.Random(0)))


def test_a_model_is_fitted_to_a_teacher_that_judges_its_words_too(tmp_path: Path) -> None:
    made = rtcontrol.fit(teacher=teacher, situations=situation, tools=TOOLS, out=tmp_path / "made", minutes=0.02)
    assert all(swap.certain for swap in made.truth.swaps) and not any("new rows" in note.lower() for note in made.notes)
    assert "The teacher at signals.py:" in (made.folder / "README.md").read_text("utf-8")
    again = rtcontrol.fit(
        teacher=teacher, situations=situation, tools=TOOLS, out=tmp_path / "on", base=str(made.folder), minutes=0.02
    )
    learnt = TrainingMetadata.of(again.folder)
    assert learnt is not None and learnt.knows(LEGAL.schemas)
    shapes = [json.loads((one.folder / "config.json").read_text())["vocab_size"] for one in (made, again)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "nothing to learn from"),
        ({"rows": [], "runs": "x"}, "rows and runs are given"),
        ({"teacher": teacher}, "belong together"),
        ({"rows": [], "agent": "x.py"}, "learnt in a world"),
        ({"teacher": teacher, "situations": situation}, "without tools"),
        ({"teacher": teacher, "situations": [("a", "light red")], "tools": TOOLS}, "1 different situations"),
        ({"runs": "nowhere"}, "No record at nowhere"),
        ({"rows": [], "minutes": 0}, "no time to train"),
    ],
)
def test_what_cannot_be_learnt_from_is_refused_before_anything_is_written(
    given: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=says):
        rtcontrol.fit(**given, out=tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_the_command_line_takes_a_teachers_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rules.py"
    file.write_text(
        "from tests.rtcontrol.fitting.signals import TOOLS as tools\n"
        "from tests.rtcontrol.fitting.signals import TOLD, observe\n\n"
        "def teacher(instruction, observation):\n    return 'stop' if 'red' in observation else 'jump'\n\n"
        "def situations(rng):\n    return rng.choice(TOLD), observe(rng)\n"
    )
    monkeypatch.setattr("sys.argv", ["rtcontrol", "fit", "--teacher", str(file), "--out", str(tmp_path / "made")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and "(rules.py:4) answered nonsense" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


def test_recorded_runs_are_rows_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = "--env lander --model expert --host inprocess --clock lockstep --no-live --duration 5"
    monkeypatch.setattr("sys.argv", ["rtcontrol", "run", *flags.split(), "--out", str(tmp_path / "run")])
    with pytest.raises(SystemExit):
        main()
    given = list(recorded([tmp_path / "run"]))
    assert len(given) > 50 and given[0][0].endswith("record.mcap, row 1")
    made = rtcontrol.fit(runs=tmp_path / "run", out=tmp_path / "made", minutes=0.02)
    learnt = TrainingMetadata.of(made.folder)
    assert learnt is not None and [t["function"]["name"] for t in learnt.tools or ()] == ["engines"]
    (tmp_path / "record.mcap").write_bytes(b"no record")
    with pytest.raises(UserError, match=r"record\.mcap"):
        list(recorded([tmp_path / "record.mcap"]))
