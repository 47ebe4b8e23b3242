"""The paddle's recipe: its tokenizer, its size, and that it trains from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rtcontrol.agents.paddle.tools import agent, observe
from rtcontrol.cli.app import main
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.tokenizer import STTokenizer
from rtcontrol.models.train.scratch import parameter_count
from rtcontrol.models.train.vocabulary import number_words
from rtcontrol.recipes.paddle import RECIPE
from rtcontrol.recipes.words import SCHEMA_WORDS

FOREIGN = [
    {
        "type": "function",
        "function": {
            "name": "set_lamp",
            "description": "Set the lamp of a room; red means stop.",
            "parameters": {
                "type": "object",
                "properties": {
                    "room": {"type": "string", "enum": ["left", "right"]},
                    "level": {"type": "integer", "minimum": 0, "maximum": 100},
                },
                "required": ["room", "level"],
            },
        },
    }
]
STATE = {"ball_x": 81.0, "ball_y": 7.5, "ball_vx": 52.5, "ball_vy": -33.0, "own_y": 12.0, "other_y": 41.0}


@pytest.fixture(scope="module")
def tokenizer() -> STTokenizer:
    return STTokenizer(RECIPE.build(0)[1])


def test_schema_words_and_numbers_are_single_tokens(tokenizer: STTokenizer) -> None:
    for word in SCHEMA_WORDS.split():
        assert len(tokenizer.encode(word)) == 1, word
    for number in ("-200", "0", "200", *number_words(3)):
        assert len(tokenizer.encode(f"x {number}")) == 2, number


def test_a_foreign_tool_does_not_turn_into_bytes(tokenizer: STTokenizer) -> None:
    text = json.dumps(FOREIGN)
    assert len(tokenizer.encode(text)) < len(text) / 2.5
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_an_observation_is_a_token_a_word_and_a_token_a_number(tokenizer: STTokenizer) -> None:
    assert len(tokenizer.encode(observe(STATE))) == 14


def test_the_model_is_small() -> None:
    assert parameter_count(RECIPE.build(0)[0]) <= 3_000_000


def test_the_recipe_trains_and_exports_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    words = ["models", "train", "--recipe", "paddle", "--samples", "64", "--out", str(out), "--threads", "1"]
    monkeypatch.setattr("sys.argv", ["rtcontrol", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert json.loads((out / "log.jsonl").read_text().splitlines()[0])["samples"] == 64
    decider = DeciderSpec(str(out / "checkpoint"), tuple(agent.tools.openai())).build()
    assert decider.decide(observe(STATE), "aim low").call is not None
    assert "rtcontrol run --env paddle --model" in capsys.readouterr().out


def test_an_unknown_recipe_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["rtcontrol", "models", "train", "--recipe", "chess"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "lander, paddle" in capsys.readouterr().err
