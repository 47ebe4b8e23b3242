"""The base recipe: stages end at their bars, a stopped run goes on to the same weights, and a plateau is named."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from rtcontrol.models.checkpoint.checkpoint import Checkpoint
from rtcontrol.models.errors import UserError
from rtcontrol.models.train.scratch import ModelShape
from rtcontrol.models.train.tasks import names
from rtcontrol.training.base_model import RECIPE, STAGES, BaseRecipe, Stage, base_tokenizer
from tests.models.small import build, tool

LOOK_UP = STAGES[0].tasks
SMALL = BaseRecipe(
    ModelShape(hidden=32, layers=3, heads=2, kv_heads=2, intermediate=32, context=512),
    (Stage("first", LOOK_UP, (2,), 72, bar=0.0), Stage("second", LOOK_UP, (2,), 72, bar=0.0)),
    worlds=None,
    chunk=36,
)


def test_stages_run_one_after_the_other_and_the_checkpoint_decides(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = []
    folder = SMALL.train(tmp_path, lines.append)
    assert [line["stage"] for line in lines] == ["first", "second"]
    assert all(line["samples"] == 36 and line["left_at_most_s"] >= 0 for line in lines)
    for name in ("1-first", "2-second"):
        assert json.loads((tmp_path / name / "done.json").read_text())["samples"] == 36
    assert Checkpoint.open(str(folder)).config["dtype"] == "bfloat16"
    decider = build(folder, [tool("fly", way=["port", "starboard"])])
    call = decider.decide("buoy port, crate starboard", "fly to the crate").call
    assert call is not None and call.name == "fly"


def test_a_run_that_was_stopped_between_stages_ends_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SMALL.train(tmp_path / "whole")
    first = replace(SMALL, stages=SMALL.stages[:1])
    first.train(tmp_path / "cut")
    # Words that were added to the lists meanwhile change no id of a run that goes on.
    monkeypatch.setattr("rtcontrol.training.base_model.common_words", lambda: "entirely other words")
    SMALL.train(tmp_path / "cut")
    whole, cut = (torch.load(tmp_path / name / "2-second" / "state.pt") for name in ("whole", "cut"))
    assert whole["samples"] == cut["samples"] == 36
    assert all(torch.equal(whole["model"][name], cut["model"][name]) for name in whole["model"])


def test_a_stage_that_ends_below_its_bar_is_named_and_gone_past_by_another_run(tmp_path: Path) -> None:
    recipe = replace(SMALL, stages=(replace(SMALL.stages[0], bar=1.1), SMALL.stages[1]))
    with pytest.raises(UserError, match=r"Stage 1 \(first\) ends after 72 samples at .* below its bar of 1.1") as error:
        recipe.train(tmp_path)
    assert "checks.jsonl" in error.value.what and "shape" in error.value.remedy
    assert not (tmp_path / "2-second").exists()
    checks = [json.loads(line) for line in (tmp_path / "1-first" / "checks.jsonl").read_text().splitlines()]
    assert [c["samples"] for c in checks] == [36, 72]
    recipe.train(tmp_path)
    ends = [json.loads((tmp_path / stage / "done.json").read_text()) for stage in ("1-first", "2-second")]
    assert [end["bar"] for end in ends] == [1.1, 0.0]


def test_every_stage_keeps_looking_up_and_checks_with_names_never_trained() -> None:
    assert [stage.unseen for stage in RECIPE.stages] == [False, *[True] * (len(RECIPE.stages) - 1)]
    for stage in RECIPE.stages[1:]:
        total = sum(share for share, _ in stage.tasks)
        assert sum(share for share, task in stage.tasks if "look_up" in repr(task)) >= 0.3 * total
        trained = {word for row in stage.rows(Random(0), 400) for word in re.findall(r"\w+", row.observation)}
        assert not trained & ({*names.HELD_OUT["made up"]} - {*names.OBJECTS})
        asked = {word for task in stage.held_out(40) for word in re.findall(r"\w+", task.observation)}
        assert not asked & {*names.TRAINING["made up"]}
        assert asked & {*names.HELD_OUT["words"]}


def test_the_base_tokenizer_is_the_same_each_time_and_within_its_size() -> None:
    first, again = base_tokenizer(), base_tokenizer()
    assert first.to_str() == again.to_str()
    assert first.get_vocab_size() <= 7000
