"""Word vectors: words that mean the same begin alike, at the scale of all others."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rtcontrol.models.train.scratch import ModelShape, new_model
from rtcontrol.training.base_worlds import RECIPES
from rtcontrol.training.imitation import Recipe
from rtcontrol.training.word_vectors import FREQUENT, give_meaning, whole_words, word_vectors


def alike(model: Any, tokenizer: Any, one: str, other: str) -> float:
    weight, vocabulary = model.get_input_embeddings().weight.detach(), tokenizer.get_vocab()
    return float(torch.cosine_similarity(weight[vocabulary[one]], weight[vocabulary[other]], dim=0))


def test_words_of_one_kind_begin_alike_in_a_recipes_model() -> None:
    model, tokenizer, _ = RECIPES["paddle"].build(0)
    near = [("climb", "rise"), ("catch", "throw"), ("ceiling", "roof"), ("Ġtwo", "Ġthree")]
    for one, other in near:
        assert alike(model, tokenizer, one, other) > alike(model, tokenizer, one, "minister") + 0.2
    # Only words of the frequent list, in no row of any skill.
    assert alike(model, tokenizer, "monday", "thursday") > 0.6


def test_a_meaning_has_the_scale_of_chance_and_touches_nothing_else() -> None:
    _, tokenizer, _ = RECIPES["paddle"].build(0)
    shape = ModelShape(hidden=64, layers=1, heads=2, intermediate=32)
    given, plain = new_model(shape, tokenizer, 0), new_model(shape, tokenizer, 0)
    give_meaning(given, tokenizer)
    was, now = (m.get_input_embeddings().weight.detach() for m in (plain, given))
    changed = (was != now).any(1).nonzero()[:, 0].tolist()
    words = {tokenizer.id_to_token(i) for i in changed}
    assert words == tokenizer.get_vocab().keys() & word_vectors()[0].keys()
    assert float(now[changed].std()) == pytest.approx(0.02, rel=0.05)


def test_the_frequent_and_the_said_words_are_whole() -> None:
    words = whole_words(["Lob it, the zzyzx"])
    assert len(words) == len(set(words)) == FREQUENT + 1
    assert {"lob", "the"} <= set(words) and "zzyzx" not in words


def test_training_rows_say_what_their_instruction_means(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, seen = RECIPES["paddle"], list[Any]()

    class Looks:
        def __init__(self, *given: Any) -> None:
            seen.extend(given[2](9))

        def run(self, progress: Any) -> None:
            raise InterruptedError

    monkeypatch.setattr("rtcontrol.training.imitation.Trainer", Looks)
    small = Recipe(recipe.agent, (), recipe.demonstrations, recipe.config, chunk=400, nonsense=recipe.nonsense)
    with pytest.raises(InterruptedError):
        small.train(tmp_path, recipe.config)
    assert {row.meant for row in seen if row.call is None} == {""}
    assert {"aim high", "miss every ball on purpose"} <= {row.meant for row in seen if row.call is not None}
    assert any(row.meant not in ("", row.instruction) for row in seen)
