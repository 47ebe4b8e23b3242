"""The subword tokenizer loses nothing, cuts a word alike wherever it stands, and spells new words in known pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from rtcontrol.models.checkpoint.special_tokens import ST_TOKENS
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.train.tasks import names
from rtcontrol.models.train.vocabulary import build_subwords
from tests.models.small import law

PHRASES = ('{"name": "', '", "required": ["')


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    texts = [" ".join(names.FIRST), *[" ".join(names.MADE_UP[:40])] * 2]
    return build_subwords(texts, 1400, ["12", "-0.5"], PHRASES)


@law(200)
@given(st.text(max_size=40))
def test_any_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    mine = STTokenizer(tokenizer)
    assert mine.decode(mine.encode(text)) == text


@law(200)
@given(st.text("abdeklmnorz", min_size=2, max_size=12))
def test_a_word_is_cut_alike_with_and_without_its_space(tokenizer: Tokenizer, word: str) -> None:
    mine = STTokenizer(tokenizer)
    bare, spaced = ([mine.decode([i]) for i in mine.encode(text)] for text in (word, f" {word}"))
    assert spaced == [f" {bare[0]}", *bare[1:]]


def test_numbers_phrases_and_common_words_are_one_token_and_new_words_several_known_ones(tokenizer: Tokenizer) -> None:
    mine = STTokenizer(tokenizer)
    for text in ("12", " 12", " -0.5", *PHRASES, " red", "amber"):
        assert len(mine.encode(text)) == 1, text
    assert 2 <= len(mine.encode(names.MADE_UP[-1])) <= 5
    assert mine.size <= 1400
    assert {*ST_TOKENS} <= {*mine.specials}
