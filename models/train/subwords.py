"""A lossless tokenizer of subwords for a base model: common words and numbers whole, all others in pieces that words
share, so that a name nobody has seen is spelt with tokens that everybody has."""

from __future__ import annotations

import json
from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from rtcontrol.models.special import ST_TOKENS
from rtcontrol.models.train.vocabulary import CONTROL_TOKENS, add_st_tokens, splitter

SPACE = "Ġ"  # as byte-level letters


def build_subwords(
    texts: Iterable[str], size: int, numbers: Iterable[str] = (), phrases: Iterable[str] = ()
) -> Tokenizer:
    """A byte-level BPE tokenizer of at most `size` tokens, special ones included: `numbers` (with and without a leading
    space) and `phrases` whole, the rest pieces of `texts`, the most frequent first."""
    phrases = list(phrases)
    split = splitter(phrases)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    whole: dict[str, None] = {}
    for phrase in phrases:
        for piece, _ in split.pre_tokenize_str(phrase):
            whole[piece] = None
    for number in numbers:
        whole[number] = whole[f"{SPACE}{number}"] = None
    whole = {piece: None for piece in whole if len(piece) > 1}
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.Split(SPACE, "removed")])
    # Every piece of letters comes twice, so half of the room is for those without a space.
    room = size - len(whole) - len(CONTROL_TOKENS) - len(ST_TOKENS)
    trainer = trainers.BpeTrainer(vocab_size=room // 2, initial_alphabet=sorted(alphabet), show_progress=False)
    learner.train_from_iterator(texts, trainer)
    learnt = json.loads(learner.to_str())["model"]
    vocabulary = dict(learnt["vocab"])
    merges = [(a, b) for a, b in learnt["merges"]]
    # The space joins last, so that a word is cut alike wherever it stands.
    for piece in [piece for piece in vocabulary if piece != SPACE]:
        if f"{SPACE}{piece}" not in vocabulary:
            vocabulary[f"{SPACE}{piece}"] = len(vocabulary)
            merges.append((SPACE, piece))
    for piece in whole:
        vocabulary.setdefault(piece, len(vocabulary))
    # A piece that is a token is that token; the merges spell the others.
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(CONTROL_TOKENS))
    add_st_tokens(tokenizer, ST_TOKENS)
    return tokenizer
