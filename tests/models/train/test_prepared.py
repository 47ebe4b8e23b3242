"""The start of training: prepared weights and subwords."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from rtcontrol.models.checkpoint.special_tokens import ST_TOKENS
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.train.scratch import ModelShape, new_model, prepare
from rtcontrol.models.train.vocabulary import build_subwords, build_tokenizer, number_words
from tests.models.small import law

NAMES = ["red", "blue", "green", "black", "white", "amber", "violet", "silver"]
SYLLABLES = ("ba", "ke", "lo", "mi", "nu", "ra", "se", "ven")


def test_prepared_heads_attend_to_earlier_occurrences() -> None:
    heads = 4
    shape = ModelShape(hidden=256, layers=5, heads=heads, kv_heads=2)
    words = build_tokenizer([" ".join(NAMES)], number_words(100))
    model = prepare(new_model(shape, words, 0, ordinal=False))
    model.set_attn_implementation("eager")
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))[:24]
    ids = torch.cat([order, order])[None] + 256  # each word occurs twice, with the same successor
    with torch.no_grad():
        seen = model(ids, output_attentions=True).attentions
    at = torch.arange(8, 48)
    offsets = [int((at - seen[0][0, h, at].argmax(-1)).mode().values) for h in range(heads)]
    assert {1, 2} <= {*offsets}
    assert float(seen[0][0, :, at, :].max(-1).values.mean()) > 0.9
    again = torch.arange(26, 48)
    found = [float((seen[1][0, h, again].argmax(-1) == again - 23).float().mean()) for h in range(heads)]
    assert max(found) > 0.6


# The subword tokenizer is lossless, splits a word alike in every place, and spells new words with known pieces.


PHRASES = ('{"name": "', '", "required": ["')


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    made_up = [first + second for first in SYLLABLES for second in SYLLABLES]
    texts = [" ".join((*NAMES, "crate", "lamp", "tower", "bridge", "pump")), *[" ".join(made_up[:40])] * 2]
    return build_subwords(texts, 1400, ["12", "-0.5"], PHRASES)


@law(200)
@given(st.text(max_size=40))
def test_tokenizer_is_lossless_for_any_text(tokenizer: Tokenizer, text: str) -> None:
    mine = STTokenizer(tokenizer)
    assert mine.decode(mine.encode(text)) == text


@law(200)
@given(st.text("abdeklmnorz", min_size=2, max_size=12))
def test_word_is_split_alike_with_and_without_space(tokenizer: Tokenizer, word: str) -> None:
    mine = STTokenizer(tokenizer)
    bare, spaced = ([mine.decode([i]) for i in mine.encode(text)] for text in (word, f" {word}"))
    assert spaced == [f" {bare[0]}", *bare[1:]]


def test_common_words_are_one_token_and_new_words_several(tokenizer: Tokenizer) -> None:
    mine = STTokenizer(tokenizer)
    for text in ("12", " 12", " -0.5", *PHRASES, " red", "amber"):
        assert len(mine.encode(text)) == 1, text
    assert 2 <= len(mine.encode("venba")) <= 5
    assert mine.size <= 1400
    assert {*ST_TOKENS} <= {*mine.specials}
