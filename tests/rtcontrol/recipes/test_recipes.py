"""The recipes: their tokenizers, their sizes, and that they train from the command line."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rtcontrol.agents.paddle import tools as paddle
from rtcontrol.agents.road import tools as road
from rtcontrol.cli.app import main
from rtcontrol.envs.road.world import Road
from rtcontrol.models.checkpoint.prompt import tools_text
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.checkpoint.training_metadata import Learnt
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.train.vocabulary import number_words
from rtcontrol.training.controllers import ENVS, recipe_of
from rtcontrol.training.word_vectors import SCHEMA_PHRASES, SCHEMA_WORDS

RECIPES: dict[str, Any] = {name: recipe_of(name) for name in ENVS}
ROOM = {"type": "string", "enum": ["left", "right"]}
LEVEL = {"type": "integer", "minimum": 0, "maximum": 100}
LAMP = {
    "name": "set_lamp",
    "description": "Set the lamp of a room; red means stop.",
    "parameters": {"type": "object", "properties": {"room": ROOM, "level": LEVEL}, "required": ["room", "level"]},
}
STATE = {"ball_x": 81.0, "ball_y": 7.5, "ball_vx": 52.5, "ball_vy": -33.0, "own_y": 12.0, "other_y": 41.0}


@cache
def tokenizer(name: str) -> STTokenizer:
    return STTokenizer(RECIPES[name].build(0)[1])


def test_most_of_what_stands_between_the_words_of_a_schema_is_one_token() -> None:
    inside = [phrase for phrase in SCHEMA_PHRASES if len(tokenizer("driver").encode(phrase)) == 1]
    assert len(inside) >= 8
    saved = sum(tools_text(road.agent.tools.schemas).count(phrase) * (len(phrase.split('"')) - 1) for phrase in inside)
    assert saved > 100


def test_texts_are_short_and_nothing_of_them_is_lost() -> None:
    tools, foreign = tools_text(road.agent.tools.schemas), json.dumps([{"type": "function", "function": LAMP}])
    phrases = json.dumps({"a": [", ", '": {"enum": ["', "}}}}"], "b": 'é"]}}}", "parameters'})
    for name, text, most in (("driver", tools, 239), ("paddle", foreign, len(foreign) / 2.5), ("driver", phrases, 999)):
        ids = tokenizer(name).encode(text)
        assert len(ids) <= most
        assert tokenizer(name).decode(ids) == text


def test_schema_words_and_numbers_are_single_tokens() -> None:
    for word in SCHEMA_WORDS.split():
        assert len(tokenizer("paddle").encode(word)) == 1, word
    for number in ("-200", "0", "200", *number_words(3)):
        assert len(tokenizer("paddle").encode(f"x {number}")) == 2, number


def test_an_observation_is_a_token_a_word_and_a_token_a_number() -> None:
    for name, text, count in (("driver", road.observe(Road(3).observe()), 31), ("paddle", paddle.observe(STATE), 14)):
        assert len(tokenizer(name).encode(text)) == len(text.split()) == count


@pytest.mark.parametrize(("name", "most"), [("lander", 3_000_000), ("driver", 2_100_000), ("paddle", 3_000_000)])
def test_the_model_is_small(name: str, most: int) -> None:
    assert RECIPES[name].build(0)[0].num_parameters() <= most


def train(monkeypatch: pytest.MonkeyPatch, *options: str) -> object:
    """The exit status of `rtcontrol fit`."""
    monkeypatch.setattr("sys.argv", ["rtcontrol", "fit", "--threads", "1", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.mark.parametrize(
    ("options", "env", "times"), [(("--skill", "lander"), "lander", 2), (("--skill", "paddle"), "paddle", 1)]
)
def test_a_recipe_trains_resumes_and_exports_from_the_command_line(
    options: tuple[str, ...],
    env: str,
    times: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for _ in range(times):  # the second finds the run finished and exports it again
        assert train(monkeypatch, *options, "--samples", "64", "--out", str(tmp_path)) == 0
    assert json.loads((tmp_path / "log.jsonl").read_text().splitlines()[0])["samples"] == 64
    spec = DeciderSpec(str(tmp_path / "checkpoint"), tuple(RECIPES[env].agent.tools.openai()))
    learnt = Learnt.of(tmp_path / "checkpoint")
    assert learnt is not None
    assert learnt.knows(RECIPES[env].agent.tools.schemas)
    assert learnt.allow_null
    assert learnt.gate is not None
    assert 0.0 <= learnt.gate <= 1.0
    assert spec.build().decide("x 0 y 0", "land").call is not None
    assert f"rtcontrol run --env {env} --model" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "says"), [(("chess",), "lander, paddle"), (("lander", "--minutes", "5"), "by a recipe")]
)
def test_an_unknown_skill_and_options_of_other_sources_are_refused(
    options: tuple[str, ...],
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert train(monkeypatch, "--out", str(tmp_path / "made"), "--skill", *options) == 2
    assert says in capsys.readouterr().err and not (tmp_path / "made").exists()
