"""A small lossless tokenizer for controller models that are trained from scratch.

Every word and number of the training text is one token, with and without a leading space; anything else falls back to
bytes, so any UTF-8 schema or instruction goes through.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from rtcontrol.models.special import ST_TOKENS

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# Signed numbers with their space, letter runs, underscores, punctuation runs, white space: they cover all text.
PIECES = r" ?-?\p{N}+(?:\.\p{N}+)?| ?\p{L}+|_| ?[^\s\p{L}\p{N}_]+|\s+"


def build_tokenizer(texts: Iterable[str], numbers: Iterable[str] = (), phrases: Iterable[str] = ()) -> Tokenizer:
    """A byte-level tokenizer whose pieces are those of `texts` (each word also capitalised and without its space),
    `numbers` (with and without a leading space) and whole `phrases`, wherever they stand; then the 17 ST tokens."""
    split = splitter(phrases)
    pieces: dict[str, None] = {}
    for text in texts:
        for piece, _ in split.pre_tokenize_str(text):
            bare = piece.removeprefix("Ġ")
            for form in (piece, bare, bare.capitalize(), f"Ġ{bare}") if bare.isalpha() else (piece,):
                pieces[form] = None
    for number in numbers:
        pieces[number] = pieces[f"Ġ{number}"] = None
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(alphabet)}
    for piece in sorted(pieces):
        vocabulary.setdefault(piece, len(vocabulary))
    # No merges: a piece is either one token (ignore_merges looks it up whole) or its bytes.
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(CONTROL_TOKENS))
    add_st_tokens(tokenizer, ST_TOKENS)
    return tokenizer


def splitter(phrases: Iterable[str]) -> pre_tokenizers.PreTokenizer:
    """Cuts text into pieces, whole `phrases` before all others, and writes these as byte-level letters."""
    whole = [re.escape(phrase) for phrase in sorted(phrases, key=len, reverse=True)]
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("|".join([*whole, PIECES])), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def number_words(limit: int = 200, decimal_limit: float = 2.0) -> list[str]:
    """Signed integers up to `limit`, and decimals of one and two digits up to `decimal_limit`."""
    words = [str(i) for i in range(-limit, limit + 1)]
    hundredths = int(decimal_limit * 100)
    for i in range(-hundredths, hundredths + 1):
        words.append(f"{i / 100:.2f}")
        if i % 10 == 0:
            words.append(f"{i / 100:.1f}")
    return [w for w in words if w not in ("-0.00", "-0.0")]


def add_st_tokens(tokenizer: Tokenizer, tokens: Sequence[str]) -> None:
    """Add special tokens to a base tokenizer as the paper does: special, not normalised, nothing stripped."""
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in tokens])
