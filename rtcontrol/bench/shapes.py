"""Random weights, tools and prompts of a given size, for what is measured of time alone."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
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
CONSTANT, CHANGING = 326, 39  # tokens of a prompt that stay, and that change with each call
SYLLABLES = [a + b for a in "bdfghklmnprstvz" for b in "aeiou"]
# Each word takes three tokens: with and without a space, and with a capital.
WORDS = [*map("".join, itertools.product(SYLLABLES, repeat=2)), *map("".join, itertools.product(SYLLABLES, repeat=3))]
NAMES = ("go_to_base_pad1", "go_to_base_pad2")
HEAD_TOKENS = 8  # of a value, or a name
PHRASE = "slow turn to left side at level"
CHOICES, PARAMETERS = ("one", "two", "six"), ("main", "side", "lamp")


def eight_token_heads(
    folder: Path, count: int, shape: ModelShape = FIFTEEN
) -> tuple[list[dict[str, Any]], list[Situation]]:
    """Write a checkpoint of random weights, always the same ones, for four heads of eight tokens.

    Returns two tools of three arguments (the names, and each head's values, differ in the last token alone), and
    `count` situations whose prompts have CONSTANT + CHANGING tokens.
    """
    logging.disable_progress_bar()
    properties = {p: {"enum": [f"{PHRASE} {choice}" for choice in CHOICES]} for p in PARAMETERS}
    parameters = {"properties": properties, "required": list(PARAMETERS)}
    tools = [{"name": name, "parameters": parameters} for name in NAMES]
    schemas = tool_schemas(tools)
    vocabulary = _vocabulary([tools_text(schemas), PHRASE, *CHOICES])
    with torch.random.fork_rng():
        model = new_model(shape, vocabulary, seed=0, ordinal=False)
    export(model, vocabulary, COMPACT, folder, torch.float32)
    template = PromptTemplate.load(folder, STTokenizer(vocabulary))
    rng = random.Random(0)
    # After an observation stands one token, which follows what changes.
    room = CONSTANT - len(template.prefix_ids(schemas)) - len(template.suffix_ids("", "")) + 1
    instruction = " ".join(rng.choices(WORDS[:400], k=room))
    seen = [" ".join(rng.choices(WORDS[:400], k=CHANGING - 1)) for _ in range(count)]
    return tools, [Situation(instruction, text) for text in seen]


def _vocabulary(texts: Sequence[str]) -> Tokenizer:
    """Return a tokenizer of at most VOCABULARY tokens, 60 fewer at the least: those of the texts, and words."""
    made, count = build_tokenizer(texts), 0
    while (room := (VOCABULARY - made.get_vocab_size()) // 3) > 10:
        count += room
        made = build_tokenizer([*texts, " ".join(WORDS[:count])])
    return made
