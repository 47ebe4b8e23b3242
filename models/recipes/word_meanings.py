"""Initialise the embeddings of everyday words from word vectors: words with similar meanings get similar embeddings.

The vectors are GloVe's (J. Pennington, R. Socher, C. D. Manning: Global Vectors for Word Representation, EMNLP 2014),
with 100 dimensions in eight bits, for frequent words and those of the bundled agents' sentences (vectors.NOTICE).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rtcontrol.agents.phrasing import split_words
from rtcontrol.models.train.scratch import SCHEMA_WORDS

FREQUENT_WORDS = 900  # this number of the most frequent words become whole tokens
VECTOR_SHARE = 0.9  # share of an initial embedding that comes from the word's vector; the rest is random
ENGLISH_WORDS = """
a an the and or not no yes if then else when while until of in on at to from by for with without into over under above
below between near far this that these those it its is are was be been being do does did done has have had will would
can could should must may might as so than too very more most less least much many few all any each every both either
none one two three four five six seven eight nine ten first second third last next previous new old same other another
such i you he she we they me him her us them my your his our their mine yours what which who where why how here there
now later soon always never again once only just also still even back up down left right forward backward ahead behind
north south east west top bottom middle centre center side front rear edge corner end start begin stop go goes move
moves moved turn turns turned rotate look see find get give take put set make keep hold let leave open close push pull
pick place drop lift raise lower drive walk run jump fly land hover shoot fire attack defend dodge hit miss block
catch throw kick use press release wait stay remain follow avoid reach return send aim play win lose help try want
need like know think say tell ask answer show read write call calls count change increase decrease add remove select
choose speed velocity acceleration angle direction distance position height width length size depth radius time
seconds milliseconds ms minutes degrees radians meters metres percent unit units level power force thrust torque rate
limit range minimum maximum min max low high slow fast slowly quickly gently small large big short long target goal
state status mode action actions command robot arm hand finger gripper wheel motor engine main joint camera sensor
light lamp door window room wall floor ceiling table box object objects item player enemy enemies bullet ship car boat
ball paddle game score point points health ammo weapon map world screen field grid cell row column x y z vx vy vz
current positive negative zero off safe safely please ok okay good bad best nearest closest red green blue white black
temperature heat cool fan volume music song message text email user search query weather city date day night today
"""


def common_words() -> str:
    """Return everyday words and words of JSON schemas, sorted and separated by spaces."""
    return " ".join(sorted({*SCHEMA_WORDS.split(), *ENGLISH_WORDS.split()}))


@cache
def word_vectors() -> tuple[dict[str, int], NDArray[np.float32]]:
    """Return the word vectors [words, 100], normalised to length 1, and each word's row; frequent words are first."""
    stored = np.load(Path(__file__).with_name("vectors.npz"))
    words, vectors = bytes(stored["words"]).decode().split(), stored["vectors"].astype(np.float32)
    return {word: row for row, word in enumerate(words)}, vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def whole_words(texts: Iterable[str]) -> list[str]:
    """Return the words that should be whole tokens: the FREQUENT_WORDS most frequent words, and all words of `texts`
    that have a vector."""
    rows, _ = word_vectors()
    known = sorted({word.lower() for text in texts for word in split_words(text)} & rows.keys())
    return [*dict.fromkeys([*list(rows)[:FREQUENT_WORDS], *known])]


def set_embeddings(model: Any, tokenizer: Tokenizer) -> None:
    """Set the embeddings of a new model's whole words, in place. An embedding is the word's vector, projected at random
    to the model's hidden size and scaled as its initial weights, plus noise."""
    rows, vectors = word_vectors()
    weight = model.get_input_embeddings().weight
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    matches = sorted((index, rows[token]) for token, index in vocabulary.items() if token in rows)
    meanings = torch.from_numpy(vectors[[row for _, row in matches]])
    projected = meanings @ torch.randn(meanings.shape[1], weight.shape[1])
    scale, noise = model.config.initializer_range, torch.randn_like(projected)
    with torch.no_grad():
        mixed = VECTOR_SHARE * projected / projected.std() + (1 - VECTOR_SHARE**2) ** 0.5 * noise
        weight[[index for index, _ in matches]] = scale * mixed
