"""The recipes run as scripts and still match the bundled models."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.checkpoint import Checkpoint, resolve
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.decider import DeciderSpec
from tests.helpers.processes import python
from tests.models.recipes import FOLDER, recipe

WORLDS = ("lander", "paddle", "driver")


@pytest.mark.parametrize("name", WORLDS)
def test_world_recipe_has_the_tokens_and_words_of_the_bundled_model(name: str) -> None:
    made = recipe("bundled_world").RECIPES[name]
    learnt = TrainingMetadata.load(resolve(name))
    assert learnt is not None and learnt.words == made.trained_words()
    assert STTokenizer(made.new_learner(0).tokenizer).digest() == Checkpoint.open(name).tokenizer.digest()


def test_world_recipe_trains_and_exports(tmp_path: Path) -> None:
    script = FOLDER / "bundled_world.py"
    done = python(str(script), "paddle", "--samples", "64", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    checkpoint = tmp_path / "paddle" / "checkpoint"
    learnt = TrainingMetadata.load(checkpoint)
    assert learnt is not None and learnt.gate is not None and learnt.allow_null
    tools = recipe("bundled_world").RECIPES["paddle"].agent.tools.openai()
    assert DeciderSpec(str(checkpoint), tuple(tools)).build().decide("x 1", "return every ball") is not None


def test_base_model_copies_names_under_new_tools() -> None:
    right = count = 0
    for task in json.loads((Path(__file__).parent / "base_rows.json").read_text()):
        decider = DeciderSpec("base", tuple(task["tools"])).build()
        for instruction, observation, call in task["rows"]:
            right += decider.decide(observation, instruction).call == Call.from_dict(call)
            count += 1
    assert right >= 0.8 * count > 40  # chance is at most a third


def test_bundled_villagers_obey_instructions() -> None:
    village, rng = recipe("village"), Random(2_000_003)
    learnt = DeciderSpec("village", tuple(village.tools), history=0).build()
    right = count = 0
    for told, seen in (village.random_situation(rng) for _ in range(150)):
        if village.SENTENCES.get(told, ("flee",))[0] == "flee":  # the model's card says that it did not learn this
            continue
        call = village.right_call(told, seen)
        wanted = {"name": call, "arguments": {}} if isinstance(call, str) else call
        made = learnt.decide(seen, told).call
        right += made is not None and {"name": made.name, "arguments": dict(made.arguments)} == wanted
        count += 1
    assert count > 60 and right >= 0.97 * count
