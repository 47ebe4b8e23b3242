"""The base's last stage: rows of every world under names of many kinds, beside what was taught before."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.checkpoint import Checkpoint
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.errors import UserError
from rtcontrol.training.base_model import BaseRecipe
from rtcontrol.training.base_worlds import RECIPES, Worlds, WorldsRun
from tests.rtcontrol.recipes.test_base_recipe import SMALL
from tests.rtcontrol.recipes.test_dressed import legal

FEW = Worlds(samples=1280, kept=0.25, parallel=8, ways=3, chunk=320)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> WorldsRun:
    out = tmp_path_factory.mktemp("worlds")
    model, _, encoder = SMALL.build(out)
    return WorldsRun(model, encoder.nullable(), FEW, SMALL.stages[-1].rows, 0, out / "worlds")


def test_a_chunk_has_its_share_of_what_was_taught_before_and_of_every_world(run: WorldsRun) -> None:
    rows = run.rows(1)
    assert len(rows) == 320
    own = {tool.name: name for name, recipe in RECIPES.items() for tool in recipe.agent.tools.schemas}
    seen = Counter("kept" if "legs" not in r.observation else "lander" for r in rows[:80])
    assert seen == {"kept": 80}
    marks = {"lander": " legs ", "paddle": " ball ", "road": " junction "}
    found = {name: [r for r in rows[80:] if mark in r.observation] for name, mark in marks.items()}
    assert {name: len(those) for name, those in found.items()} == {"lander": 80, "paddle": 80, "road": 80}
    for name, those in found.items():
        plain = [r for r in those if r.tools == tuple(RECIPES[name].agent.tools.schemas)]
        assert len(plain) == 40
        assert len({id(r.tools) for r in those}) == 1 + FEW.ways
        for row in those:
            assert row.meant is not None
            assert (row.call is None) == (row.meant == "")
            assert row.call is None or legal(row.call, row.tools)
        assert {own[r.call.name] for r in plain if r.call is not None} == {name}
    assert any(r.call is None for r in rows[80:])


def test_the_first_chunks_of_some_worlds_are_said_plainly_and_mean_something(run: WorldsRun) -> None:
    roads = [r for r in run.rows(0) if " junction " in r.observation]
    assert roads and all(r.call is not None and r.instruction == r.meant for r in roads)


def test_the_model_plays_in_some_chunks_by_calls_alone(run: WorldsRun, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[str] = Counter()
    for name, policy in list(run._acting.items()):

        def play(situations: list[tuple[str, str]], name: str = name, policy: object = policy) -> list[Call]:
            asked[name] += len(situations)
            calls: list[Call] = policy(situations)  # type: ignore[operator]
            assert all(isinstance(call, Call) for call in calls)
            return calls

        monkeypatch.setitem(run._acting, name, play)
    run.rows(0)
    run.rows(1)
    assert not asked
    run.rows(2)
    assert {*asked} == {*RECIPES}


def test_the_whole_recipe_ends_with_all_worlds_and_says_what_it_learnt(tmp_path: Path) -> None:
    small = BaseRecipe(SMALL.shape, SMALL.stages[:1], Worlds(samples=96, parallel=4, ways=2, chunk=96), chunk=36)
    folder = small.train(tmp_path / "whole")
    learnt = TrainingMetadata.of(folder)
    assert learnt is not None and learnt.allow_null and learnt.gate is not None and learnt.history == 0
    for recipe in RECIPES.values():
        assert learnt.knows(recipe.agent.tools.schemas)
    assert Checkpoint.open(str(folder)).config["dtype"] == "bfloat16"
    lines = (tmp_path / "whole" / "worlds" / "log.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["samples"] == 96
    before = torch.load(tmp_path / "whole" / "worlds" / "state.pt")["model"]
    small.train(tmp_path / "whole")  # it is done, and stays as it is
    after = torch.load(tmp_path / "whole" / "worlds" / "state.pt")["model"]
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_stage_of_worlds_goes_on_with_its_own_settings_alone(
    run: WorldsRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "out", tmp_path)
    run.save()
    again = (run.model, run.encoder, FEW, SMALL.stages[-1].rows, 0)
    assert WorldsRun(*again, tmp_path).samples == run.samples
    with pytest.raises(UserError, match="another configuration"):
        WorldsRun(*again[:2], replace(FEW, ways=2), *again[3:], tmp_path)
