"""Checkpoints of random weights, tools and prompts of a given size, for what is measured of time alone."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers.utils import logging

from rtcontrol.bench.situations import Situation
from rtcontrol.models.checkpoint.prompt import COMPACT, PromptTemplate, tools_text
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.schema.tool_schema import tool_schemas
from rtcontrol.models.train.adopt import export
from rtcontrol.models.train.scratch import ModelShape, new_model
from rtcontrol.models.train.vocabulary import build_tokenizer

FIFTEEN = ModelShape(hidden=384, layers=8, heads=6, kv_heads=2, intermediate=1152)  # 15 M parameters with VOCABULARY
VOCABULARY = 4096
RANDOM = "random weights"  # what their model is called
CONSTANT, CHANGING = 326, 39  # tokens of a prompt that stay, and that change with each call
SYLLABLES = [a + b for a in "bdfghklmnprstvz" for b in "aeiou"]
NAMES = ("go_to_base_pad1", "go_to_base_pad2"), ("east_go_to_pad1", "west_go_to_pad1")
HEAD_TOKENS = 8  # of a value, or a name
PHRASE = "slow turn to left side at level"
CHOICES = ("one", "two", "six")
PARAMETERS = ("main", "side", "lamp")


def words() -> Iterator[str]:
    """Words of two and of three syllables; each, with and without a space or a capital, takes three tokens."""
    for size in (2, 3):
        yield from map("".join, itertools.product(SYLLABLES, repeat=size))


def some_words() -> list[str]:
    """Words that every small vocabulary has."""
    return list(itertools.islice(words(), 400))


@dataclass(frozen=True)
class Shaped:
    """A checkpoint of random weights, with the tools and the situations that are decided with it."""

    folder: Path
    tools: list[dict[str, Any]]
    asked: list[Situation]


def eight_tokens(early: bool) -> list[dict[str, Any]]:
    """Two tools of three arguments. The names, and each head's values, have eight tokens, of which the last alone tells
    them apart; or `early` the first alone, and all others must follow."""
    values = [f"{c} {PHRASE}" if early else f"{PHRASE} {c}" for c in CHOICES]
    properties = {p: {"enum": values} for p in PARAMETERS}
    return [
        {"name": name, "parameters": {"properties": properties, "required": list(PARAMETERS)}} for name in NAMES[early]
    ]


def random_weights(
    folder: Path,
    shape: ModelShape,
    tokenizer: Tokenizer,
    template: Any = COMPACT,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Path:
    """A checkpoint in ST format, made on a device; the same arguments give the same weights."""
    logging.disable_progress_bar()
    with torch.random.fork_rng(), torch.device(device):
        model = new_model(shape, tokenizer, seed=0, ordinal=False)
    export(model, tokenizer, template, folder, dtype)
    return folder


def small_vocabulary(texts: Sequence[str], size: int = VOCABULARY) -> Tokenizer:
    """A tokenizer of at most `size` tokens, 60 fewer at the least: those of the texts, and words."""
    made, count = build_tokenizer(texts), 0
    while (room := (size - made.get_vocab_size()) // 3) > 10:
        count += room
        made = build_tokenizer([*texts, " ".join(itertools.islice(words(), count))])
    return made


def eight_token_heads(
    folder: Path, count: int, early: bool = False, shape: ModelShape = FIFTEEN, **made_by: Any
) -> Shaped:
    """`count` situations for four heads of eight tokens: prompts of CONSTANT + CHANGING tokens. `made_by`: `device` and
    `dtype` of `random_weights`."""
    tools = eight_tokens(early)
    made = small_vocabulary([tools_text(tool_schemas(tools)), PHRASE, *CHOICES])
    random_weights(folder, shape, made, **made_by)
    tokenizer = STTokenizer(made)
    template = PromptTemplate.load(folder, tokenizer)
    known, draw = some_words(), random.Random(0)

    def filled(room: int) -> str:
        return " ".join(draw.choices(known, k=room))

    prefix, bare = len(template.prefix_ids(tool_schemas(tools))), len(template.suffix_ids("", ""))
    # Behind an observation stands one token, which follows what changes.
    told = filled(CONSTANT - prefix - bare + 1)
    asked = [Situation(told, filled(CHANGING - 1)) for _ in range(count)]
    size = len(template.suffix_ids(told, asked[0].observation))
    assert prefix + size == CONSTANT + CHANGING, json.dumps([prefix, bare, size])
    return Shaped(folder, tools, asked)
