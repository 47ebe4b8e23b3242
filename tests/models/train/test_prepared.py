"""The prepared start has the scales that it says, and keeps what rows mean."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen2ForCausalLM

from rtcontrol.models.train.prepared import prepare
from rtcontrol.models.train.scratch import ModelShape, new_model
from rtcontrol.models.train.vocabulary import build_tokenizer, number_words

NAMES = ["red", "blue", "green", "black", "white", "amber", "violet", "silver"]


def fresh(seed: int = 0, ordinal: bool = False) -> Qwen2ForCausalLM:
    words = build_tokenizer([" ".join(NAMES)], number_words(100))
    return new_model(ModelShape(hidden=128, layers=2, heads=4, intermediate=256), words, seed, ordinal)


def test_a_prepared_model_has_the_documented_scales() -> None:
    model = prepare(fresh())
    assert float(model.get_input_embeddings().weight.detach().std()) == pytest.approx(0.5, rel=0.02)
    linear = [m.weight for m in model.model.modules() if isinstance(m, torch.nn.Linear)]
    assert len(linear) == 14
    for weight in linear:
        assert float(weight.detach().std()) == pytest.approx(128**-0.5, rel=0.03)
    assert bool((model.model.norm.weight == 0.1).all())


def test_preparing_keeps_head_and_embeddings_one_and_numbers_in_order() -> None:
    plain, model = fresh(ordinal=True), prepare(fresh(ordinal=True))
    before, after = plain.get_input_embeddings().weight, model.get_input_embeddings().weight
    assert model.get_output_embeddings().weight is after
    torch.testing.assert_close(after, before * 25)


def test_untied_embeddings_are_refused() -> None:
    model = fresh()
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    with pytest.raises(ValueError, match="tied"):
        prepare(model)
