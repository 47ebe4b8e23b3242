"""Models fitted to rows or a function decide alike; stopped runs resume, and a full disk loses no progress."""

from __future__ import annotations

import io
import itertools
import json
import random
import re
import runpy
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import rtcontrol
from rtcontrol.agents import Tools
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.data.row import Row
from rtcontrol.models.errors import UserError
from rtcontrol.models.train import trainer
from rtcontrol.training.examples import (
    MIN_ROWS,
    check_rows,
    endless_rows,
    iterate_situations,
    label_situation,
    tools_of,
)
from rtcontrol.training.fit import NO_NONSENSE, Fitted, time_text
from rtcontrol.training.fit_run import LEARNING_RATE, FitRun, HeldOut, Share
from tests.helpers.disks import files_of
from tests.helpers.processes import ROOT
from tests.rtcontrol.commands import call
from tests.rtcontrol.training.signals import TOLD, TOOLS, observe, rows, teacher, write


def test_the_model_decides_as_the_rows_do(fitted: tuple[Fitted, list[dict[str, Any]]]) -> None:
    result, _ = fitted
    assert result.score.value > 0.95 and result.notes == (NO_NONSENSE,)
    rng = random.Random(99)
    right = 0
    for _ in range(40):
        told, seen = rng.choice(TOLD), observe(rng)
        call = result.decide(seen, told).call
        right += call is not None and call.to_dict() == teacher(told, seen)
    assert right >= 38
    assert result.tools is not None and result.session().tools is result.tools


def test_stopped_run_resumes_and_ends_early(
    fitted: tuple[Fitted, list[dict[str, Any]]],
) -> None:
    _, lines = fitted
    counts = [line["samples"] for line in lines]
    stopped = next(i for i, count in enumerate(counts) if count >= 1_000)
    assert counts[stopped + 1] > counts[stopped] and counts == sorted(counts)
    assert lines[-1]["seconds"] < 120 and lines[-1]["left_s"] == 0.0


def test_model_card_describes_the_training(fitted: tuple[Fitted, list[dict[str, Any]]]) -> None:
    result, _ = fitted
    learnt = TrainingMetadata.load(result.folder)
    assert learnt is not None and learnt.words is not None
    assert learnt.history == 0 and "light" in learnt.observation
    said = {row["instruction"] for row in rows()}
    assert all(learnt.unknown(one) == ((), 1.0) for one in said)
    assert learnt.unknown(f"zqorgle {min(said)}")[0] == ("zqorgle",)
    session = rtcontrol.load(str(result.folder)).session()
    assert learnt.knows(session.tools.schemas) and not learnt.knows(session.tools.schemas[:1])
    card = (result.folder / "README.md").read_text("utf-8")
    assert learnt.observed is not None and learnt.unfamiliar("hello")
    assert "| unchanged | " in card and "| an empty text | 1 | 1 |" in card
    assert result.score.message() in card and "`go(speed)`" in card and "| argument go.speed |" in card


def test_finished_run_resumes_with_more_time(fitted: tuple[Fitted, list[dict[str, Any]]], tmp_path: Path) -> None:
    result, _ = fitted
    folder = Path(shutil.copytree(result.folder, tmp_path / "m"))
    lines: list[dict[str, Any]] = []
    said: list[str] = []
    more = rtcontrol.fit(rows(), TOOLS, out=folder, minutes=4, tell=lines.append, say=said.append)
    assert any(told.startswith("Resuming after ") for told in said)
    assert lines and lines[0]["rate"] == LEARNING_RATE and more.score.right >= result.score.right


@pytest.mark.parametrize(("other", "named"), [({"seed": 1}, "seed"), ({}, "rows")])
def test_a_run_with_another_configuration_is_refused_by_name(
    fitted: tuple[Fitted, list[dict[str, Any]]], other: dict[str, Any], named: str
) -> None:
    result, _ = fitted
    given = rows() if other else rows(seed=1)
    with pytest.raises(UserError, match=rf"another configuration: .*{named} was .*, is "):
        rtcontrol.fit(given, TOOLS, out=result.folder, **({"minutes": 3} | other))


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match="holds other files"):
        rtcontrol.fit(rows(60), TOOLS, out=tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_row_beyond_model_context_is_named(tmp_path: Path) -> None:
    given = write(tmp_path / "rows.jsonl", [*rows(60), rows(1)[0] | {"observation": "car " * 9_000}])
    with pytest.raises(UserError, match=r"rows\.jsonl:61: its prompt of \d+ tokens leaves no room"):
        rtcontrol.fit(given, TOOLS, out=tmp_path / "made", minutes=0.001)


def test_full_disk_is_reported_and_saved_state_stays(tmp_path: Path) -> None:
    out = tmp_path / "made"
    for limit in (0, 10_000):  # of the log, and of the weights
        with files_of(limit), pytest.raises(UserError, match="cannot be saved.*Nothing was saved yet.*Free some disk"):
            rtcontrol.fit(rows(60), TOOLS, out=out, minutes=0.001, progress=False)
        assert [p.name for p in (out / "training").iterdir()] == ["log.jsonl"]
    rtcontrol.fit(rows(60), TOOLS, out=out, minutes=0.001, progress=False)
    (out / "model.safetensors").unlink()
    before = {path: path.read_bytes() for path in out.iterdir() if path.is_file()}
    with (
        files_of(10_000),
        pytest.raises(UserError, match="checkpoint cannot be written.*state of the training is saved"),
    ):
        rtcontrol.fit(rows(60), TOOLS, out=out, minutes=0.001, progress=False)
    assert {path: path.read_bytes() for path in out.iterdir() if path.is_file()} == before
    assert {path.name for path in out.iterdir() if path.is_dir()} == {"training"}


def test_command_line_fits_and_prints_the_score(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tools, given, out = tmp_path / "tools.json", write(tmp_path / "rows.jsonl", rows(60)), tmp_path / "made"
    tools.write_text(json.dumps(TOOLS))
    figures = tmp_path / "f.json"
    options = ("--tools", tools, "--rows", given, "--out", out, "--minutes", 0.01, "--json", figures)
    assert call("fit", *map(str, options)) == 0
    told = capsys.readouterr()
    assert "Held-out rows: " in told.out and "Wilson" in told.out and "0:00 left" in told.err
    assert json.loads(figures.read_text())["held_out"]["count"] > 0
    assert (out / "model.safetensors").is_file()


def test_few_held_out_rows_need_right_training_rows() -> None:
    assert not FitRun._is_all_right(Share(5, 5), 0.9) and not FitRun._is_all_right(Share(255, 256), 1.0)
    assert FitRun._is_all_right(Share(5, 5), 0.995) and FitRun._is_all_right(Share(64, 64), 0.9)


Seen = list[dict[str, Any]]


@pytest.fixture
def scripted_scores(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Seen]:
    """Script the scores of a fit's evaluations (of ten rows; at last 3), and keep the weights at each one."""

    def watch(*right: int, steps: int | None = None) -> Seen:
        """Use these scores, and stop `steps` steps after the last one."""
        scores = itertools.chain([Share(one, 10) for one in right], itertools.repeat(Share(3, 10)))
        seen, since = Seen(), [0]
        look, step, examine = FitRun._evaluate, FitRun.after_step, HeldOut.evaluate

        def looked(self: FitRun, *given: Any) -> dict[str, Any]:
            seen.append({name: value.clone() for name, value in self.model.state_dict().items()})
            since[0] = 0
            return look(self, *given)

        def after_step(self: FitRun, progress: Any) -> None:
            since[0] += 1
            step(self, progress)
            if len(seen) == len(right) and since[0] == steps:
                raise KeyboardInterrupt

        monkeypatch.setattr(FitRun, "_evaluate", looked)
        monkeypatch.setattr(FitRun, "after_step", after_step)
        monkeypatch.setattr(HeldOut, "evaluate", lambda *given: replace(examine(*given), score=next(scores)))
        return seen

    return watch


def test_model_has_weights_of_its_best_evaluation(
    fast_clock: None, tmp_path: Path, scripted_scores: Callable[..., Seen]
) -> None:
    seen = scripted_scores(5, 9)
    rtcontrol.fit(rows(), TOOLS, out=tmp_path / "made", minutes=0.3)
    written = load_file(tmp_path / "made" / "model.safetensors")
    assert written and len(seen) > 2 and all(value.equal(seen[1][name]) for name, value in written.items())
    assert not all(value.equal(seen[0][name]) for name, value in written.items())


@pytest.mark.parametrize(("right", "steps"), [((5, 9, 3), 0), ((5, 9), 2)])
def test_run_given_less_time_exports_best_weights(
    fast_clock: None, tmp_path: Path, scripted_scores: Callable[..., Seen], right: tuple[int, ...], steps: int
) -> None:
    """A run that stops after the last evaluation exports evaluated weights, not newer ones."""
    seen = scripted_scores(*right, steps=steps)
    out, lines = tmp_path / "made", list[dict[str, Any]]()
    with pytest.raises(KeyboardInterrupt):
        rtcontrol.fit(rows(), TOOLS, out=out, minutes=3)
    state = (out / "training" / "state.pt").read_bytes()
    last = torch.load(io.BytesIO(state), weights_only=True)
    assert last["at"]["seconds"] > 1 and not (out / "model.safetensors").exists()
    rtcontrol.fit(rows(), TOOLS, out=out, minutes=1 / 60, tell=lines.append)
    written = load_file(out / "model.safetensors")
    assert lines == [] and len(seen) == len(right)  # no step was left
    assert written and all(value.equal(seen[1][name]) for name, value in written.items())
    assert not all(value.equal(last["model"][name]) for name, value in written.items())
    assert (out / "training" / "state.pt").read_bytes() == state  # with more time it goes on from there


def test_infinite_loss_ends_run_and_keeps_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(model: Any, batch: Any, **_: Any) -> Any:
        loss, right = lost(model, batch)
        steps.append(batch)
        return (loss * float("nan") if len(steps) > 3 else loss), right

    lost, steps = trainer.tree_loss, list[Any]()
    monkeypatch.setattr(trainer, "tree_loss", lose)
    with pytest.raises(UserError, match="The loss is nan after 192 samples"):
        rtcontrol.fit(rows(), TOOLS, out=tmp_path / "made", minutes=1)
    kept = torch.load(tmp_path / "made" / "training" / "state.pt", weights_only=True)
    assert kept["at"]["samples"] == 192 and all(value.isfinite().all() for value in kept["model"].values())


LEGAL = Tools(TOOLS)


def situation(rng: random.Random) -> tuple[str, str]:
    return rng.choice(TOLD), observe(rng)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (
            lambda told, seen: {}[seen],
            r'instruction "go on", seeing "light green": the function failed: KeyError: .light green. \(.*test_fit.py',
        ),
        (
            lambda told, seen: "fly",
            r"\(test_fit.py:\d+\), instruction.* calls 'fly', which is not among its tools. Its tools are: go, stop",
        ),
        (lambda told, seen: 7, r"test_fit.py:\d+.*call is 7"),
        (lambda: "stop", "teacher"),
        ("stop", "teacher"),
    ],
)
def test_error_of_the_function_names_line_and_situation(function: Callable[..., Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        label_situation(function, LEGAL, "go on", "light green")


def test_situations_of_other_types_are_refused() -> None:
    rng = random.Random(0)
    assert list(iterate_situations(["light red"], "go", rng)) == [("go", "light red")]
    assert next(iterate_situations(situation, None, rng))[0] in TOLD
    for wrong in (["light red"], [("a", 1)], [None]):
        with pytest.raises(UserError, match="A situation is"):
            list(iterate_situations(wrong, None, rng))
    for odd in (("pick", " "), ("pick", "half a \ud800 character"), None):
        with pytest.raises(UserError, match=r"test_fit.py:\d+: A situation is"):
            next(iterate_situations(lambda rng, odd=odd: odd, None, rng))
    with pytest.raises(UserError, match=r"The situations failed: ZeroDivisionError.*test_fit.py"):
        next(iterate_situations(lambda rng: 1 / 0, "go", rng))


def test_fresh_rows_have_no_held_out_question() -> None:
    held = [Row(told, f"light {light}", None) for told in TOLD for light in ("red",)]
    asked = partial(iterate_situations, lambda rng: (rng.choice(TOLD), f"light {rng.choice(['red', 'green'])}"), None)
    rows = endless_rows(partial(label_situation, teacher, LEGAL), asked, held, random.Random(0))
    assert {row.observation for row in itertools.islice(rows, 50)} == {"light green"}


def test_a_model_is_fitted_to_a_teacher(fast_clock: None, tmp_path: Path) -> None:
    result = rtcontrol.fit(teacher=teacher, situations=situation, tools=TOOLS, out=tmp_path / "made", minutes=0.02)
    assert "The teacher at signals.py:" in (result.folder / "README.md").read_text("utf-8")
    again = rtcontrol.fit(
        teacher=teacher, situations=situation, tools=TOOLS, out=tmp_path / "on", base=str(result.folder), minutes=0.02
    )
    learnt = TrainingMetadata.load(again.folder)
    assert learnt is not None and learnt.knows(LEGAL.schemas)
    shapes = [json.loads((one.folder / "config.json").read_text())["vocab_size"] for one in (result, again)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "nothing to learn from in no arguments"),
        ({"rows": [], "env": "x"}, "env and rows"),
        ({"teacher": teacher}, "nothing to learn from in teacher"),
        ({"rows": [], "agent": "x.py"}, "agent and rows"),
        ({"rows": [], "hz": 30.0}, "hz and rows"),
        ({"teacher": teacher, "situations": situation}, "situations and teacher"),
        ({"teacher": teacher, "situations": [("a", "light red")], "tools": TOOLS}, "1 different situations"),
        ({"rows": [], "minutes": 0}, "out of range"),
    ],
)
def test_refused_arguments_leave_nothing_written(given: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=says):
        rtcontrol.fit(**given, out=tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_the_command_line_takes_a_teachers_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rules.py"
    file.write_text(
        "from tests.rtcontrol.training.signals import TOLD, TOOLS as tools, observe\n\n"
        "def teacher(instruction, observation):\n    return 'stop' if 'red' in observation else 'jump'\n\n"
        "def situations(rng):\n    return rng.choice(TOLD), observe(rng)\n"
    )
    assert call("fit", "--set", f"fit.teacher={file}", "--out", str(tmp_path / "made")) == 2
    assert "(rules.py:3), instruction" in capsys.readouterr().err and not (tmp_path / "made").exists()


def test_example_of_training_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs/training.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    now = itertools.count(step=3.0)  # its minute is twenty steps
    monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=lambda: next(now)))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "belt.py").write_text(code, "utf-8")
    runpy.run_path("belt.py")
    told = capsys.readouterr().out
    assert "Wilson 95 %" in told
    assert re.search(r"^(STOP|SLOW|RUN)\(\)$", told, re.MULTILINE)
    assert (tmp_path / "runs/belt/rtcontrol.json").is_file()
    (row,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    tools = tools_of({"STOP": "Stop the belt."})
    _, rows = check_rows(((f"fit.md:{n}", row) for n in range(MIN_ROWS)), tools)
    assert rows[0].call is not None and json.loads(row)["call"]["name"] == "STOP"


@pytest.mark.parametrize(
    ("ran_s", "text"),
    [
        (570.0, "Trained 10.0 min, 9.5 min of processor time."),
        (
            246.0,
            "Trained 10.0 min, 4.1 min of processor time. Other programs used the rest, which --minutes counts",
        ),
    ],
)
def test_fit_says_how_much_processor_time_it_had(ran_s: float, text: str) -> None:
    shown = time_text(600.0, ran_s)
    assert shown.startswith(text) and ("Stop them" in shown) == (ran_s < 300)
