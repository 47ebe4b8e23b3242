"""What is trained: the words that a model of these rows needs, its shape, and the model itself, made ready to learn."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import torch
from tokenizers import Tokenizer

from rtcontrol.agents import Tools
from rtcontrol.models.checkpoint.checkpoint import Checkpoint
from rtcontrol.models.checkpoint.prompt import COMPACT, PromptTemplate, tools_text
from rtcontrol.models.checkpoint.prompt import FILE_NAME as TEMPLATE
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decode.plan import compile_plan
from rtcontrol.models.errors import UserError
from rtcontrol.models.train.base import MARKERS, load_model
from rtcontrol.models.train.rows import LossWeights, Row, RowEncoder
from rtcontrol.models.train.scratch import ModelShape, new_model, prepare
from rtcontrol.models.train.vocabulary import build_tokenizer

NARROW = ModelShape(hidden=128, layers=4, heads=2, kv_heads=2, intermediate=256)
# For more words, and where numbers are what decides: measured, the bundled skills need it.
WIDE = ModelShape(hidden=256, layers=4, heads=8, kv_heads=2, intermediate=512)
MANY_WORDS, MANY_NUMBERS = 1_500, 150
MOST_WORDS, MOST_NUMBERS = 6_000, 3_000  # each has an embedding; rarer ones are spelt in bytes
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
WORD = re.compile(r"[^\W\d_]+")
WEIGHTS = LossWeights(quote=0.3)  # with 1.0 what is named is found as soon, and what follows from it later
BEHIND = (1, 2)  # tokens
LARGE = 32_768  # tokens: a language model's
CALL_SHAPE = '{"name": "", "arguments": {}}'
# What stands between the words of every tool definition, each one token: half of a prompt's tools otherwise.
SCHEMA_PHRASES = (
    '{"type": "function", "function": {"name": "',
    '", "description": "',
    '.", "parameters": {"type": "object", "properties": {',
    '", "parameters": {"type": "object", "properties": {',
    '}, "required": []}}}',
    '": {"type": "integer", "enum": [',
    '": {"type": "number", "enum": [',
    '": {"enum": ["',
    '"], "type": "string"}',
    ']}}, "required": ["',
    '"}}, "required": ["',
    '}, "required": ["',
    '"]}}}',
    '"]}',
    '", "',
)
SCHEMA_WORDS = """
type object properties required description enum integer string number boolean array null minimum maximum function
parameters name title default items anyOf allOf oneOf const format additionalProperties maxLength minLength pattern
multipleOf exclusiveMinimum exclusiveMaximum minItems maxItems uniqueItems group tool tools arguments result strict
true false schema value values id key index
"""


@dataclass(frozen=True)
class Words:
    """The words and numbers of rows that get a token of their own; `numbers` fills the gaps between those seen.
    `seen_numbers` is how many different ones there were, `longest` the characters of the longest row."""

    texts: tuple[str, ...]
    numbers: tuple[str, ...]
    seen_words: int
    seen_numbers: int
    longest: int


def words_of(rows: Iterable[Row]) -> Words:
    """Count them; of too many, the commonest stay."""
    words: Counter[str] = Counter()
    numbers: Counter[str] = Counter()
    marks: dict[str, None] = {}
    longest = 0
    for row in rows:
        for text in (row.instruction, row.observation, *row.history):
            numbers.update(NUMBER.findall(text))
            words.update(WORD.findall(text))
            marks |= dict.fromkeys(NUMBER.sub(" ", WORD.sub(" ", text)).split())
            longest = max(longest, len(text))
    kept = [number for number, _ in numbers.most_common(MOST_NUMBERS)]
    return Words(
        (" ".join(word for word, _ in words.most_common(MOST_WORDS)), " ".join(list(marks)[:MOST_WORDS])),
        tuple(dict.fromkeys([*kept, *_between(kept)])),
        len(words),
        len(numbers),
        longest,
    )


def _between(numbers: Sequence[str]) -> list[str]:
    """Those that were not seen, but lie between two that were, with as many digits: they may come tomorrow."""
    filled: list[str] = []
    by_digits: dict[int, list[Decimal]] = {}
    for number in numbers:
        by_digits.setdefault(len(number.partition(".")[2]), []).append(Decimal(number))
    for digits, values in by_digits.items():
        step = Decimal(1).scaleb(-digits)
        low, high = min(values), max(values)
        # Only where enough of them were seen to stand for all.
        if len(values) >= 8 and (count := int((high - low) / step) + 1) <= min(MOST_NUMBERS, 8 * len(values)):
            filled += [f"{low + i * step:.{digits}f}" for i in range(count)]
    return [n for n in filled if Decimal(n) or not n.startswith("-")]


def shape_for(words: Words) -> ModelShape:
    """As wide as what is read needs."""
    return WIDE if words.seen_words > MANY_WORDS or words.seen_numbers > MANY_NUMBERS else NARROW


@dataclass(frozen=True)
class Learner:
    """A model that is to be trained, with what turns rows into its ids and back."""

    model: Any
    tokenizer: Tokenizer
    encoder: RowEncoder
    template: dict[str, Any]
    end: str = "<|im_end|>"  # the token that ends a text


def learner(
    tools: Tools, rows: Iterable[Row], goal: str | None, allow_null: bool, seed: int, base: str | None = None
) -> tuple[Learner, Words]:
    """A new model for these tools and the words of these rows, or the checkpoint `base`, to go on with. Raises
    UserError for tools that cannot be decoded, and for a base that is no checkpoint in ST format."""
    words = words_of(rows)
    if base is not None:
        return from_base(base, tools, allow_null), words
    texts = [tools_text(tools.schemas), *words.texts, goal or "", CALL_SHAPE, SCHEMA_WORDS]
    tokenizer = build_tokenizer(texts, words.numbers, SCHEMA_PHRASES)
    wrapped = STTokenizer(tokenizer)
    template = PromptTemplate(COMPACT, wrapped, "the compact profile")
    plan = compile_plan(tools.schemas, wrapped, allow_null, template.overflow)
    model = prepare(new_model(shape_for(words), tokenizer, seed), tokenizer, BEHIND)
    return Learner(model, tokenizer, RowEncoder(template, wrapped, plan, WEIGHTS), dict(COMPACT)), words


def from_base(base: str, tools: Tools, allow_null: bool) -> Learner:
    """The checkpoint `base` as a learner of these tools. Raises UserError for one that is none in ST format."""
    found = Checkpoint.open(base)
    if not isinstance(found.template, PromptTemplate):
        remedy = "Make it one: `rtcontrol models adopt --base`, then fit from that."
        raise UserError(f"{base} is no checkpoint in ST format: there is nothing to go on from.", remedy)
    if found.tokenizer.size > LARGE:
        what = f"{base} is a language model of {found.tokenizer.size:,} tokens, too large to fit."
        raise UserError(what, "Fine-tune it: `rtcontrol models train --base`.")
    plan = compile_plan(tools.schemas, found.tokenizer, allow_null, found.template.overflow)
    model = load_model(found.folder, torch.float32)
    template = json.loads((found.folder / TEMPLATE).read_text("utf-8"))
    tokenizer = Tokenizer.from_file(str(found.folder / "tokenizer.json"))
    encoder = RowEncoder(found.template, found.tokenizer, plan, WEIGHTS)
    named = json.loads((found.folder / "tokenizer_config.json").read_text("utf-8")).get("eos_token")
    end = next((end for _, end in MARKERS if end in found.tokenizer.specials), named)
    return Learner(model, tokenizer, encoder, template, end)
