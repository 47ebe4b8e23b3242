"""The recipes: they start as scripts, resume exactly, and still make what the bundled models are."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from rtcontrol.models.checkpoint.checkpoint import ZOO, Checkpoint, resolve
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.schema.domain import ClosedDomain
from rtcontrol.models.train.trainer import Trainer
from tests.helpers.processes import python
from tests.models.recipes import FOLDER, recipe

SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if "__main__" in path.read_text("utf-8"))
WORLDS = ("lander", "paddle", "driver")


def script(name: str, *options: str) -> Any:
    return python(str(FOLDER / f"{name}.py"), *options)


@pytest.mark.parametrize("name", SCRIPTS)
def test_recipe_help_names_its_command(name: str) -> None:
    done = script(name, "--help")
    assert done.returncode == 0 and f"python models/recipes/{name}.py" in done.stdout, done.stderr


@pytest.mark.parametrize("name", WORLDS)
def test_world_recipe_has_the_tokens_and_words_of_the_bundled_model(name: str) -> None:
    made = recipe("bundled_world").RECIPES[name]
    learnt = TrainingMetadata.of(resolve(name))
    assert learnt is not None and learnt.words == made.taught()
    assert STTokenizer(made.build(0).tokenizer).digest() == Checkpoint.open(name).tokenizer.digest()


def test_world_recipe_trains_and_exports(tmp_path: Path) -> None:
    done = script("bundled_world", "paddle", "--samples", "64", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    checkpoint = tmp_path / "paddle" / "checkpoint"
    learnt = TrainingMetadata.of(checkpoint)
    assert learnt is not None and learnt.gate is not None and learnt.allow_null
    tools = recipe("bundled_world").RECIPES["paddle"].agent.tools.openai()
    assert DeciderSpec(str(checkpoint), tuple(tools)).build().decide("x 1", "return every ball") is not None


class CutError(Exception):
    """The power is gone."""


def test_stopped_stage_resumes_to_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = recipe("heads_or_json")
    monkeypatch.setattr(module, "CHUNK", 32)
    monkeypatch.setattr(module, "JUDGED", 8)
    arm, states = module.Arm(tokens=6e3), []
    for name, stop in (("whole", False), ("cut", True)):
        if stop:

            def enough(self: Trainer) -> bool:
                self.save()
                raise CutError

            monkeypatch.setattr(Trainer, "enough", enough)
            with pytest.raises(CutError):
                module.trained_and_judged(arm, 0, tmp_path / name, name)
            monkeypatch.undo()
            monkeypatch.setattr(module, "CHUNK", 32)
            monkeypatch.setattr(module, "JUDGED", 8)
        module.trained_and_judged(arm, 0, tmp_path / name, name)
        states.append(torch.load(tmp_path / name / "state.pt", weights_only=True))
    assert all(torch.equal(states[0]["model"][name], states[1]["model"][name]) for name in states[0]["model"])


def test_both_forms_of_a_call_are_trained_on_equal_tokens() -> None:
    module, corpus = recipe("heads_or_json"), recipe("robot_corpus")
    assert {arm.tokens for arm in module.EXPERIMENTS["weights"].values()} == {module.TOKENS}
    calls = [sample.call for sample in itertools.islice(corpus.samples(0), 400)]
    assert {len(call.arguments) for call in calls} == set(range(7))


def test_held_out_sentences_are_never_trained() -> None:
    corpus = recipe("robot_corpus")
    held = {s.instruction for s in itertools.islice(corpus.samples(7, corpus.Options(held_out=True)), 500)}
    shown = {s.instruction for s in itertools.islice(corpus.samples(0), 5_000)}
    assert not {text for text in held & shown if text.count(",") > 1}


@pytest.mark.parametrize("name", WORLDS)
def test_call_under_other_names_is_legal(name: str) -> None:
    base, rng = recipe("base_model"), Random(0)
    world = recipe("bundled_world").RECIPES[name]
    tools = world.agent.tools.schemas
    for row in itertools.islice(world.plan.demonstrations(0, 2), 60):
        for way in (base.plain(tools), base.dressed(rng, tools, 1.0)):
            call = way.call(row.call)
            (tool,) = [tool for tool in way.tools if tool.name == call.name]
            assert list(call.arguments) == [p.name for p in tool.parameters]
            for p in tool.parameters:
                assert not isinstance(p.domain, ClosedDomain) or p.domain.holds(call.arguments[p.name])


def test_answer_of_a_look_up_follows_from_its_text() -> None:
    tasks, rng = recipe("base_tasks"), Random(0)
    ways = {word for words in tasks.WAYS for word in words}
    for _ in range(300):
        for row in tasks.look_up(rng, 3):
            (tool,) = [tool for tool in row.tools if tool.name == row.call.name]
            assert [p.name for p in tool.parameters] == list(row.call.arguments)
            for value in row.call.arguments.values():
                assert str(value) in row.observation
            assert ways & {str(value) for value in row.call.arguments.values()}


def test_base_finds_names_under_new_tools() -> None:
    tasks, rng, right, asked = recipe("base_tasks"), Random("bundled"), 0, 0
    variety = tasks.Variety((0, 0, 1, 0, 2), several_tools=0.0, unasked=0.0)
    for _ in range(12):
        rows = [*tasks.look_up(rng, 3, variety)]
        decider = DeciderSpec("base", tuple(tool.to_openai() for tool in rows[0].tools)).build()
        right += sum(decider.decide(row.observation, row.instruction).call == row.call for row in rows)
        asked += len(rows)
    assert right >= 0.8 * asked > 40  # chance is a third and less


def test_base_stages_and_worlds_train_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = recipe("base_model")
    monkeypatch.setattr(base, "STAGES", base.STAGES[:1])
    given = type("Given", (), {"out": tmp_path, "seed": 0, "samples": 48})
    for _ in range(2):  # the second run has nothing to train
        assert base.train(given) == f"Model: {tmp_path / 'checkpoint'}"
    lines = [json.loads(line) for line in (tmp_path / "5-worlds" / "log.jsonl").read_text().splitlines()]
    assert [line["samples"] >= 48 for line in lines] == [True]
    learnt = TrainingMetadata.of(tmp_path / "checkpoint")
    assert learnt is not None and learnt.any_tools and len(learnt.tool_sets) == 3


def test_every_sentence_of_the_village_has_one_right_call() -> None:
    village, rng = recipe("village"), Random(1)
    seen = village.situations(rng)[1]
    for saying in village.SAYINGS:
        right = village.teacher(saying, seen)
        assert village.teacher(f"please {saying}", seen) == right == village.teacher(f"{saying} now", seen)
    with pytest.raises(LookupError):
        village.teacher("paint the well", seen)


def test_bundled_villagers_do_what_they_are_told() -> None:
    village, rng = recipe("village"), Random(2_000_003)
    learnt = DeciderSpec("village", tuple(village.tools), history=0).build()
    right = asked = 0
    for told, seen in (village.situations(rng) for _ in range(150)):
        if village.SAYINGS.get(told, ("flee",))[0] == "flee":  # what its card says that it did not learn
            continue
        call = village.teacher(told, seen)
        wanted = {"name": call, "arguments": {}} if isinstance(call, str) else call
        made = learnt.decide(seen, told).call
        right += made is not None and {"name": made.name, "arguments": dict(made.arguments)} == wanted
        asked += 1
    assert asked > 60 and right >= 0.97 * asked


def test_zoo_is_as_small_as_was_asked() -> None:
    assert (ZOO / "base" / "model.safetensors").stat().st_size <= 16 << 20
