"""The prepared start has the scales that it says, and keeps what rows mean."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen2ForCausalLM

from rtcontrol.models.train.prepared import prepare
from rtcontrol.models.train.scratch import ModelShape, new_model
from rtcontrol.models.train.vocabulary import build_tokenizer, number_words

NAMES = ["red", "blue", "green", "black", "white", "amber", "violet", "silver"]


def fresh(seed: int = 0, ordinal: bool = False, layers: int = 2) -> Qwen2ForCausalLM:
    words = build_tokenizer([" ".join(NAMES)], number_words(100))
    return new_model(ModelShape(hidden=128, layers=layers, heads=4, intermediate=256), words, seed, ordinal)


def test_a_prepared_model_has_the_documented_scales() -> None:
    model = prepare(fresh(layers=5))
    assert float(model.get_input_embeddings().weight.detach().std()) == pytest.approx(0.5, rel=0.02)
    assert bool((model.model.norm.weight == 0.1).all())
    last = model.model.layers[-1]
    for linear in (last.self_attn.q_proj, last.self_attn.k_proj, last.mlp.gate_proj, last.mlp.up_proj):
        assert float(linear.weight.detach().std()) == pytest.approx(128**-0.5, rel=0.05)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (4, 4), (2, 1)])
def test_heads_of_the_first_layer_look_back_and_those_of_the_next_find_the_word_again(
    heads: int, kv_heads: int
) -> None:
    shape = ModelShape(hidden=256, layers=5, heads=heads, kv_heads=kv_heads)
    words = build_tokenizer([" ".join(NAMES)], number_words(100))
    model = prepare(new_model(shape, words, 0, ordinal=False))
    model.set_attn_implementation("eager")
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))[:24]
    ids = torch.cat([order, order])[None] + 256  # each word twice: what followed it follows again
    with torch.no_grad():
        seen = model(ids, output_attentions=True).attentions
    at = torch.arange(8, 48)
    offsets = [int((at - seen[0][0, h, at].argmax(-1)).mode().values) for h in range(heads)]
    assert {1, 2} <= {*offsets}
    assert float(seen[0][0, :, at, :].max(-1).values.mean()) > 0.9
    again = torch.arange(26, 48)
    found = [float((seen[1][0, h, again].argmax(-1) == again - 23).float().mean()) for h in range(heads)]
    assert max(found) > 0.6


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 2)])
def test_what_stands_two_words_behind_is_looked_for_where_that_is_asked(heads: int, kv_heads: int) -> None:
    words = build_tokenizer([" ".join(NAMES)], number_words(100))
    shape = ModelShape(hidden=256, layers=5, heads=heads, kv_heads=kv_heads)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))[:24]
    ids = torch.cat([order, order])[None] + 256
    again = torch.arange(26, 48)
    found = {}
    for behind in ((1,), (2,), (1, 2)):
        model = prepare(new_model(shape, words, 0, ordinal=False), behind=behind)
        model.set_attn_implementation("eager")
        with torch.no_grad():
            seen = model(ids, output_attentions=True).attentions[1][0][:, again].argmax(-1)
        found[behind] = [max(float((row == again - 24 + n).float().mean()) for row in seen) for n in (1, 2)]
    assert found[(1,)][0] > 0.5 > 0.2 > found[(1,)][1]
    assert found[(2,)][1] > 0.4 > 0.2 > found[(2,)][0]
    assert min(found[(1, 2)]) > 0.4


def test_forms_of_one_word_start_alike_where_the_tokenizer_is_given() -> None:
    words = build_tokenizer([" ".join(NAMES)])
    model = prepare(new_model(ModelShape(hidden=128, layers=2, heads=4), words, 0, ordinal=False), words)
    weight = model.get_input_embeddings().weight.detach()

    def near(a: str, b: str) -> float:
        pair = weight[words.token_to_id(a)], weight[words.token_to_id(b)]
        return float(torch.cosine_similarity(*pair, dim=0))

    assert all(near(form, name) > 0.8 for name in NAMES for form in (f"Ġ{name}", name.capitalize()))
    assert abs(near("red", "blue")) < 0.4


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
