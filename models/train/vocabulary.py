"""Build small tokenizers for models that are trained from scratch, and add the ST tokens to tokenizers.

Each word and number of the training text is one token, with and without a leading space. Other text is split into
bytes, so any UTF-8 text can be encoded without loss.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from rtcontrol.models.checkpoint.special_tokens import NULL, ST_TOKENS
from rtcontrol.models.checkpoint.tokenizer import STTokenizer

SPACE = "Ġ"  # represents a space in byte-level tokenizers
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# Splits a text into signed numbers, sequences of letters, underscores, sequences of punctuation, and white space.
PIECES = r" ?-?\p{N}+(?:\.\p{N}+)?| ?\p{L}+|_| ?[^\s\p{L}\p{N}_]+|\s+"

_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
# The initial embedding of each special token is the mean of the embeddings of all tokens of these words.
INITIAL_WORDS: dict[str, tuple[str, ...]] = {
    "<content>": ("content", "response", "answer", "<", ">"),
    "</content>": ("content", "end", "stop", "</", ">"),
    "<function>": ("function", "call", "name", "<", ">"),
    "</function>": ("function", "end", "stop", "</", ">"),
    NULL: ("null", "none", "empty", "nothing"),
    **{
        f"<arg{k}>": ("argument", "parameter", "value", str(k), word, "<", ">")
        for k, word in enumerate(_ORDINALS, start=1)
    },
    **{f"</arg{k}>": ("argument", "end", "stop", str(k), word, "</", ">") for k, word in enumerate(_ORDINALS, start=1)},
}


def build_tokenizer(texts: Iterable[str], numbers: Iterable[str] = (), phrases: Iterable[str] = ()) -> Tokenizer:
    """Return a byte-level tokenizer with one token for each word of `texts`, number and phrase, and the 17 ST tokens.
    Words and numbers also have a token with a leading space, and words a capitalised token.
    """
    split = _splitter(phrases)
    pieces: dict[str, None] = {}
    for text in texts:
        for piece, _ in split.pre_tokenize_str(text):
            bare = piece.removeprefix(SPACE)
            for form in (piece, bare, bare.capitalize(), f"{SPACE}{bare}") if bare.isalpha() else (piece,):
                pieces[form] = None
    for number in numbers:
        pieces[number] = pieces[f"{SPACE}{number}"] = None
    vocabulary = {token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for piece in sorted(pieces):
        vocabulary.setdefault(piece, len(vocabulary))
    # There are no merges: a piece of text is one token if it is in the vocabulary (ignore_merges), else its bytes.
    return _tokenizer(vocabulary, [], split)


def build_subwords(
    texts: Iterable[str], size: int, numbers: Iterable[str] = (), phrases: Iterable[str] = ()
) -> Tokenizer:
    """Return a byte-level BPE tokenizer with at most `size` tokens. `numbers` (with and without a leading space) and
    `phrases` are whole tokens; the other tokens are the most frequent pieces of `texts`."""
    phrases = list(phrases)
    split = _splitter(phrases)
    whole = {piece: None for phrase in phrases for piece, _ in split.pre_tokenize_str(phrase)}
    for number in numbers:
        whole[number] = whole[f"{SPACE}{number}"] = None
    whole = {piece: None for piece in whole if len(piece) > 1}
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.Split(SPACE, "removed")])
    # Each learnt piece gets a second token with a leading space, so learn half as many pieces as there is room for.
    room = size - len(whole) - len(CONTROL_TOKENS) - len(ST_TOKENS)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    learner.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=room // 2, initial_alphabet=alphabet, show_progress=False)
    )
    learnt = json.loads(learner.to_str())["model"]
    vocabulary = dict(learnt["vocab"])
    merges = [(a, b) for a, b in learnt["merges"]]
    # Merge the space last, so that a word is split in the same way with and without a space.
    for piece in [piece for piece in vocabulary if piece != SPACE]:
        if f"{SPACE}{piece}" not in vocabulary:
            vocabulary[f"{SPACE}{piece}"] = len(vocabulary)
            merges.append((SPACE, piece))
    for piece in whole:
        vocabulary.setdefault(piece, len(vocabulary))
    # A piece of text is one token if it is in the vocabulary (ignore_merges). Other pieces are built by merges.
    return _tokenizer(vocabulary, merges, split)


def _tokenizer(
    vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]], split: pre_tokenizers.PreTokenizer
) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab=dict(vocabulary), merges=list(merges), ignore_merges=True))
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(CONTROL_TOKENS))
    add_st_tokens(tokenizer)
    return tokenizer


def _splitter(phrases: Iterable[str]) -> pre_tokenizers.PreTokenizer:
    """Return a pre-tokenizer that splits text into `phrases` and other pieces (see PIECES), in byte-level letters."""
    whole = [re.escape(phrase) for phrase in sorted(phrases, key=len, reverse=True)]
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("|".join([*whole, PIECES])), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def number_words(limit: int = 200, decimal_limit: float = 2.0) -> list[str]:
    """Return all integers from -`limit` to `limit`, and numbers with one or two decimals up to `decimal_limit`."""
    words = [str(i) for i in range(-limit, limit + 1)]
    hundredths = int(decimal_limit * 100)
    for i in range(-hundredths, hundredths + 1):
        words.append(f"{i / 100:.2f}")
        if i % 10 == 0:
            words.append(f"{i / 100:.1f}")
    return [w for w in words if w not in ("-0.00", "-0.0")]


def add_st_tokens(tokenizer: Tokenizer) -> None:
    """Add the ST tokens to a tokenizer as special tokens, which are not normalised or stripped."""
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ST_TOKENS])


def initialise_vectors(weight: torch.Tensor, tokenizer: STTokenizer, tokens: Sequence[str] = ST_TOKENS) -> None:
    """Set the vectors of `tokens` in `weight` [vocabulary, hidden] (embeddings or LM head), in place. Each becomes the
    mean of the vectors of its INITIAL_WORDS."""
    with torch.no_grad():
        for token in tokens:
            ids = [i for word in INITIAL_WORDS[token] for i in tokenizer.encode(word)]
            weight[tokenizer.special_id(token)] = weight[ids].float().mean(0).to(weight.dtype)
