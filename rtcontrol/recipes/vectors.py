"""What everyday words mean before anything is trained: word vectors, so that a word that no row ever shows stands near
those that mean the same.

GloVe (J. Pennington, R. Socher, C. D. Manning: Global Vectors for Word Representation, EMNLP 2014), 100 dimensions:
the most frequent words, and those of the bundled agents' sentences, in eight bits (vectors.NOTICE).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rtcontrol.agents.phrasing import split_words

FREQUENT = 900  # of the words, which every tokenizer knows whole
ALIKE = 0.9  # of a word's row, as in the prepared start: the rest is its own


@cache
def word_vectors() -> tuple[dict[str, int], NDArray[np.float32]]:
    """The row of each word, the most frequent first, and the vectors [words, 100]: around zero, of length 1."""
    with resources.files("rtcontrol.recipes").joinpath("vectors.npz").open("rb") as file:
        stored = np.load(file)
        words, vectors = bytes(stored["words"]).decode().split(), stored["vectors"].astype(np.float32)
    return {word: row for row, word in enumerate(words)}, vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def whole_words(said: Iterable[str]) -> list[str]:
    """Words with a vector that a tokenizer should know whole: the most frequent, and those that were `said`."""
    rows, _ = word_vectors()
    told = sorted({word.lower() for text in said for word in split_words(text)} & rows.keys())
    return [*dict.fromkeys([*list(rows)[:FREQUENT], *told])]


def give_meaning(model: Any, tokenizer: Tokenizer) -> None:
    """Set the embeddings of a fresh model's whole words, in place: their vectors, turned at random into its hidden
    size, at the scale of its initial weights."""
    rows, vectors = word_vectors()
    weight = model.get_input_embeddings().weight
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    found = sorted((index, rows[token]) for token, index in vocabulary.items() if token in rows)
    if not found:
        return
    meanings = torch.from_numpy(vectors[[row for _, row in found]])
    turned = meanings @ torch.randn(meanings.shape[1], weight.shape[1])
    scale, own = model.config.initializer_range, torch.randn_like(turned)
    with torch.no_grad():
        weight[[index for index, _ in found]] = scale * (ALIKE * turned / turned.std() + (1 - ALIKE**2) ** 0.5 * own)
