"""The driver's recipe: its tokenizer and its size."""

from __future__ import annotations

import json

import pytest

from rtcontrol.agents.road.tools import agent, observe
from rtcontrol.envs.road.world import Road
from rtcontrol.models.prompt import tools_text
from rtcontrol.models.tokenizer import STTokenizer
from rtcontrol.models.train.scratch import parameter_count
from rtcontrol.recipes.driver import RECIPE
from rtcontrol.recipes.words import SCHEMA_PHRASES


@pytest.fixture(scope="module")
def tokenizer() -> STTokenizer:
    return STTokenizer(RECIPE.build(0)[1])


def test_most_of_what_stands_between_the_words_of_a_schema_is_one_token(tokenizer: STTokenizer) -> None:
    inside = [phrase for phrase in SCHEMA_PHRASES if len(tokenizer.encode(phrase)) == 1]
    assert len(inside) >= 8
    saved = sum(tools_text(agent.tools.schemas).count(phrase) * (len(phrase.split('"')) - 1) for phrase in inside)
    assert saved > 100


def test_the_tools_are_short_and_nothing_of_them_is_lost(tokenizer: STTokenizer) -> None:
    text = tools_text(agent.tools.schemas)
    ids = tokenizer.encode(text)
    assert len(ids) < 240
    assert tokenizer.decode(ids) == text


def test_a_phrase_inside_other_text_loses_nothing(tokenizer: STTokenizer) -> None:
    text = json.dumps({"a": [", ", '": {"enum": ["', "}}}}"], "b": 'é"]}}}", "parameters'})
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_an_observation_is_a_token_a_word_and_a_token_a_number(tokenizer: STTokenizer) -> None:
    text = observe(Road(3).observe())
    assert len(tokenizer.encode(text)) == len(text.split()) == 31


def test_the_model_is_small() -> None:
    assert parameter_count(RECIPE.build(0)[0]) <= 2_000_000
