"""Create a small Qwen2 model to train on tools and rows, or load a checkpoint to train further.

The initial weights of a new model help it to learn to look up words. With the usual weights N(0, 0.02), the attention
of a small model stays uniform, so the model ignores which thing the instruction names. Larger weights help. It helps
most to initialise some heads as trained transformers have them: heads that attend to the previous word, and induction
heads, which attend to the same word earlier in the text and copy the word after it (C. Olsson et al.: In-context
Learning and Induction Heads, 2022). This is called mimetic initialisation (A. Trockman, J. Z. Kolter, ICML 2023).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, TypeVar

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from rtcontrol.models.checkpoint.checkpoint import Checkpoint
from rtcontrol.models.checkpoint.prompt import COMPACT, PromptTemplate, tools_text
from rtcontrol.models.checkpoint.prompt import FILE_NAME as TEMPLATE
from rtcontrol.models.checkpoint.special_tokens import ST_TOKENS
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.data.row import Row, Tools
from rtcontrol.models.decode.plan import compile_plan
from rtcontrol.models.errors import UserError
from rtcontrol.models.train.encode import LossWeights, RowEncoder
from rtcontrol.models.train.export import load_model
from rtcontrol.models.train.vocabulary import build_tokenizer, initialise_vectors

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
MAX_LINEAR = 100.0  # in hundreds: up to 10,000, initial embeddings of numbers are linear in the number


@dataclass(frozen=True)
class ModelShape:
    """The dimensions of a model that is trained from scratch. The head dimension is hidden / heads."""

    hidden: int = 256
    layers: int = 4
    heads: int = 8
    kv_heads: int = 2
    intermediate: int = 512
    context: int = 8192
    rope_theta: float = 10_000.0


def new_model(shape: ModelShape, tokenizer: Tokenizer, seed: int, ordinal: bool = True) -> Qwen2ForCausalLM:
    """Return a randomly initialised model in fp32 with tied embeddings.

    With `ordinal`, the embeddings of number tokens are computed from their values (a linear part and sinusoids), so
    close numbers have similar embeddings. Without `ordinal`, the loss stays on a plateau.
    """
    torch.manual_seed(seed)
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    config = Qwen2Config(
        vocab_size=(size + 63) // 64 * 64,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.context,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings=True,
        attention_dropout=0.0,
        use_sliding_window=False,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id("<|im_end|>"),
        pad_token_id=tokenizer.token_to_id("<|endoftext|>"),
        dtype="float32",
    )
    config._attn_implementation = "sdpa"
    model = Qwen2ForCausalLM(config)
    weight = model.get_input_embeddings().weight
    wrapped = STTokenizer(tokenizer)
    initialise_vectors(weight, wrapped, [token for token in ST_TOKENS if token in wrapped.specials])
    if ordinal:
        with torch.no_grad():
            _set_number_vectors(weight, tokenizer)
    return model


def number_values(texts: Iterable[str]) -> torch.Tensor:
    """Return the values [numbers, 1] of number tokens, in hundreds. Large values are compressed, so that time stamps do
    not dominate.

    `0.7` counts as 70, because observations write hundredths as integers, but instructions write decimals.
    """
    bare = [text.lstrip("Ġ▁") for text in texts]
    values = torch.tensor([float(text) * (100 if "." in text else 1) for text in bare])[:, None] / 100
    far = MAX_LINEAR + 2 * torch.log10((values.abs() / MAX_LINEAR).clamp(1, 1e30))
    return torch.where(values.abs() <= MAX_LINEAR, values, values.sign() * far)


def _set_number_vectors(weight: torch.Tensor, tokenizer: Tokenizer, scale: float = 0.02) -> None:
    # Sort by id, because the library's order differs between processes. Each token must get the same random numbers.
    tokens = sorted(tokenizer.get_vocab(with_added_tokens=False).items(), key=lambda entry: entry[1])
    numbers = {index: token for token, index in tokens if re.fullmatch(r"Ġ?(-?\d+)(\.\d+)?", token)}
    values, hidden = number_values(numbers.values()), weight.shape[1]
    directions = torch.randn(3, hidden) * scale
    pattern = torch.zeros(len(numbers), hidden)
    turns = values * torch.exp(torch.linspace(0.0, 4.0, hidden // 4))[None]
    waves = torch.cat([torch.sin(turns), torch.cos(turns)], 1)
    pattern[:, : waves.shape[1]] = waves * scale
    pattern += values * directions[0] * 2 + values.abs() * directions[1] + values.sign() * directions[2]
    weight[list(numbers)] = pattern + torch.randn(len(numbers), hidden) * scale * 0.1


Model = TypeVar("Model", bound=PreTrainedModel)
EMBEDDING_SCALE = 0.5
FINAL_NORM = 0.1
FORM_SIMILARITY = 0.9  # initial cosine similarity of the embeddings of `red`, ` red` and `Red`
NUMBER_NOISE = 0.4  # scale of the random part of a number's embedding
LOOKBACK_BIAS = 6.5  # in lookback heads, this bias of queries and keys raises the right token's score by 5 nats
LOOKBACK_PLANES = 6  # lookback heads use the 6 fastest RoPE rotations, which distinguish neighbouring tokens
MATCH_SCALE = 2.0  # scale of queries and keys in heads that match equal words
SLOW_ROTATION = 0.03  # radians per token; RoPE dimensions that rotate slower can match distant tokens
RANDOM_SHARE = 0.1  # in initialised heads, random weights are scaled by this
PREVIOUS_SHARE = 0.5  # the first layer adds the previous words to a word's state with this scale
FIRST_MLP_SCALE = 0.3  # scale of the first layer's MLP; a larger MLP output would hide the embeddings


def initialise_weights(model: Model, tokenizer: Tokenizer | None = None, distances: Sequence[int] = (1,)) -> Model:
    """Initialise a new model in place, and return it. First scale its random weights: embeddings to N(0, 0.5), linear
    weights to N(0, hidden^-0.5), the final norm's weight to 0.1. With a `tokenizer`, forms of a word with and without
    space or capital get similar embeddings, and numbers get a random part.

    Then set the attention heads: those of the first layer attend a few tokens back, half of those in the next three
    layers attend to the same word earlier, and all heads copy what they attend to. The heads look up facts about a word
    at one of these `distances` after the word: in `crate red north` the place is two tokens after `crate`.

    Raises ValueError if embeddings and LM head are not tied, or attention has no biases (Qwen2 has them).
    """
    config = model.config
    embeddings = model.get_input_embeddings().weight
    layers = model.base_model.layers
    if model.get_output_embeddings().weight is not embeddings or layers[0].self_attn.q_proj.bias is None:
        raise ValueError("the model must have tied embeddings, and queries with a bias")
    was = config.initializer_range
    with torch.no_grad():
        embeddings *= EMBEDDING_SCALE / was
        if tokenizer is not None:
            _align_word_forms(embeddings, tokenizer)
        for module in model.base_model.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight *= config.hidden_size**-0.5 / was
        model.base_model.norm.weight.fill_(FINAL_NORM)
        _initialise_heads(config, layers, distances)
    return model


def _align_word_forms(weight: torch.Tensor, tokenizer: Tokenizer) -> None:
    vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=False)
    forms = sorted(vocabulary.items(), key=lambda entry: entry[1])
    for token, index in forms:
        if NUMBER.fullmatch(token):  # neighbouring numbers are similar; lookups must distinguish them
            weight[index] += NUMBER_NOISE * torch.randn(weight.shape[1])
    # A leading space or a capital adds the same vector to all words, so the model can learn to subtract it.
    marks = EMBEDDING_SCALE * torch.randn(2, weight.shape[1])
    for token, index in forms:
        bare = token.removeprefix("Ġ")
        word = bare.lower()
        if word != token and (word.isalpha() or NUMBER.fullmatch(word)) and word in vocabulary:
            mark = (
                marks[torch.tensor([bare != token, word != bare])].sum(0)
                / (1 + (bare != token and word != bare)) ** 0.5
            )
            weight[index] = FORM_SIMILARITY * weight[vocabulary[word]] + (1 - FORM_SIMILARITY**2) ** 0.5 * mark


def _initialise_heads(config: Any, layers: Any, distances: Sequence[int]) -> None:
    hidden, count, groups = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
    size, each = hidden // count, count // groups
    heads = [slice(h * size, (h + 1) * size) for h in range(count)]
    speed = config.rope_parameters["rope_theta"] ** (-torch.arange(0, size, 2) / size)
    fast = torch.where(torch.arange(size // 2) < LOOKBACK_PLANES, LOOKBACK_BIAS, 0.0)
    # The first head of a set copies a part of the previous token, the second the same part of the token before, and so
    # on. A set is a group of heads with the same keys and values, or two heads if there are no groups.
    sets = [[*range(g * each, (g + 1) * each)] for g in range(groups)]
    if each == 1 < count:
        sets = [[h, h + count // 2] for h in range(count // 2)]
    words = [*_orthogonal(len(sets) * size, hidden).split(size)]
    written = _orthogonal(hidden, hidden)
    first = layers[0].self_attn
    first.q_proj.weight *= RANDOM_SHARE
    first.k_proj.weight *= RANDOM_SHARE
    first.k_proj.bias.copy_(torch.cat([fast, torch.zeros(size // 2)]).repeat(groups))
    first.o_proj.weight.copy_(written * PREVIOUS_SHARE)
    layers[0].mlp.down_proj.weight *= FIRST_MLP_SCALE
    for word, same in zip(words, sets, strict=True):
        for tokens, h in enumerate(same, start=1):
            # RoPE rotates keys by their positions. Rotate the query's bias back by `tokens` to match that key.
            first.q_proj.bias[heads[h]] = torch.cat([fast * (-tokens * speed).cos(), fast * (-tokens * speed).sin()])
            first.v_proj.weight[heads[h // each]] = word
    # A query combines the current and the previous word, a key the word at the lookup distance and the word before it.
    slow = torch.cat([speed < SLOW_ROTATION] * 2).nonzero()[:, 0]
    slow = slow[torch.randperm(len(slow))]
    word_planes, before = slow.split([n := len(slow) * 2 // 3, len(slow) - n])
    for number, layer in enumerate(layers[1:4]):
        queries, keys = layer.self_attn.q_proj.weight, layer.self_attn.k_proj.weight
        for turn, (word, same) in enumerate(zip(words, sets, strict=True)):
            back = [written[:, heads[h]].T for h in same]
            near, back = back[0], back[min(distances[(number + turn) % len(distances)], len(back)) - 1 :]
            key = keys[heads[same[0] // each]]
            key[slow] *= RANDOM_SHARE
            key[word_planes] += MATCH_SCALE * back[0][word_planes]
            for h in same[: (len(same) + 1) // 2]:
                query = queries[heads[h]]
                query *= RANDOM_SHARE
                query[word_planes] += MATCH_SCALE * word[word_planes]
                if len(back) > 1:
                    query[before] += MATCH_SCALE * near[before]
            if len(back) > 1:
                key[before] += MATCH_SCALE * back[1][before]
    for layer in layers[1:]:
        values = _orthogonal(groups * size, hidden)
        layer.self_attn.v_proj.weight.copy_(values)
        for h, rows in enumerate(heads):
            layer.self_attn.o_proj.weight[:, rows] = values[heads[h // each]].T / each**0.5


def _orthogonal(rows: int, columns: int) -> torch.Tensor:
    """Return a matrix [rows, columns] with random orthonormal rows."""
    return torch.linalg.qr(torch.randn(columns, rows))[0].T


# -- a model to train -------------------------------------------------------------------------------------------------

NARROW = ModelShape(hidden=128, layers=4, heads=2, kv_heads=2, intermediate=256)
# The shape for many words or numbers. The bundled worlds need it.
WIDE = ModelShape(hidden=256, layers=4, heads=8, kv_heads=2, intermediate=512)
MANY_WORDS, MANY_NUMBERS = 1_500, 150
MOST_WORDS, MOST_NUMBERS = 6_000, 3_000  # only this many words and numbers get a token; others become bytes
RESERVED_TOKENS = 256  # tokens of the context that are reserved for the call and punctuation
LONGEST_COUNT = 16  # the 16 longest texts are encoded to measure the longest prompt
WORD = re.compile(r"[^\W\d_]+")
WEIGHTS = LossWeights(quote=0.3)  # with quote=1.0, the model takes longer to learn arguments
LOOKUP_DISTANCES = (1, 2)  # in tokens; see `initialise_weights`
MAX_VOCABULARY = 32_768  # a checkpoint with more tokens counts as a language model
CALL_SHAPE = '{"name": "", "arguments": {}}'
# These texts, which every tool definition contains, become one token each. As words they would be half of the prompt.
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
class RowVocabulary:
    """The words (joined in `texts`) and `numbers` that become tokens. `word_count` and `number_count` count the
    different words and numbers of the rows; `numbers` also has numbers between those of the rows."""

    texts: tuple[str, ...]
    numbers: tuple[str, ...]
    word_count: int
    number_count: int


def count_words(rows: Iterable[Row]) -> RowVocabulary:
    """Return the most frequent words and numbers of rows."""
    words: Counter[str] = Counter()
    numbers: Counter[str] = Counter()
    marks: dict[str, None] = {}
    for row in rows:
        for text in (row.instruction, row.observation, *row.history):
            numbers.update(NUMBER.findall(text))
            words.update(WORD.findall(text))
            marks |= dict.fromkeys(NUMBER.sub(" ", WORD.sub(" ", text)).split())
    frequent_numbers = [number for number, _ in numbers.most_common(MOST_NUMBERS)]
    return RowVocabulary(
        (" ".join(word for word, _ in words.most_common(MOST_WORDS)), " ".join(list(marks)[:MOST_WORDS])),
        tuple(dict.fromkeys([*frequent_numbers, *_fill_gaps(frequent_numbers)])),
        len(words),
        len(numbers),
    )


def _fill_gaps(numbers: Sequence[str]) -> list[str]:
    """Return the numbers between `numbers` with as many decimals, because later observations may contain them."""
    filled: list[str] = []
    by_digits: dict[int, list[Decimal]] = {}
    for number in numbers:
        by_digits.setdefault(len(number.partition(".")[2]), []).append(Decimal(number))
    for digits, values in by_digits.items():
        step = Decimal(1).scaleb(-digits)
        low, high = min(values), max(values)
        # Add the numbers between `low` and `high` only if they are at most 8 times as many as the known numbers.
        if len(values) >= 8 and (count := int((high - low) / step) + 1) <= min(MOST_NUMBERS, 8 * len(values)):
            filled += [f"{low + i * step:.{digits}f}" for i in range(count)]
    return [n for n in filled if Decimal(n) or not n.startswith("-")]


def choose_shape(words: RowVocabulary) -> ModelShape:
    """Return a model shape that is wide enough for these words and numbers."""
    return WIDE if words.word_count > MANY_WORDS or words.number_count > MANY_NUMBERS else NARROW


@dataclass(frozen=True)
class Learner:
    """A model to train, with its tokenizer, row encoder and prompt template. `end` is the end token, `longest` the
    number of tokens in the longest prompt, without the tools."""

    model: Any
    tokenizer: Tokenizer
    encoder: RowEncoder
    template: dict[str, Any]
    end: str = "<|im_end|>"
    longest: int = 1

    def with_longest_prompt(self, rows: Sequence[Row]) -> Learner:
        """Return a copy with `longest` measured on these rows. Raises UserError if a prompt is so long that no call
        fits after it."""
        context, prefix = self.model.config.max_position_embeddings, len(self.encoder.prefix)
        room = context - prefix - RESERVED_TOKENS
        # Encode only the longest texts, and all that may be too long. A text never has more tokens than bytes.
        sizes = [len(" ".join((row.instruction, row.observation, *row.history)).encode()) for row in rows]
        order = sorted(range(len(rows)), key=lambda i: -sizes[i])
        encoded = [i for n, i in enumerate(order) if n < LONGEST_COUNT or sizes[i] + RESERVED_TOKENS > room]
        lengths = {i: len(self.encoder.suffix(rows[i])) for i in encoded}
        longest = max(lengths, key=lambda i: lengths[i])
        if lengths[longest] > room:
            raise UserError(
                f"{rows[longest].where or 'A row'}: its prompt of {prefix + lengths[longest]} tokens leaves no room "
                f"for the call in the model's context of {context}.",
                "Shorten its observation or its instruction, describe fewer tools, or remove the row.",
            )
        return replace(self, longest=lengths[longest])


def new_learner(tools: Tools, words: RowVocabulary, goal: str, allow_null: bool, seed: int) -> Learner:
    """Return a new learner for these tools and words. Raises UserError for tools that cannot be decoded."""
    texts = [tools_text(tools), *words.texts, goal, CALL_SHAPE, SCHEMA_WORDS]
    tokenizer = build_tokenizer(texts, words.numbers, SCHEMA_PHRASES)
    wrapped = STTokenizer(tokenizer)
    template = PromptTemplate(COMPACT, wrapped, "the compact profile")
    plan = compile_plan(tools, wrapped, allow_null, template.overflow)
    model = initialise_weights(new_model(choose_shape(words), tokenizer, seed), tokenizer, LOOKUP_DISTANCES)
    return Learner(model, tokenizer, RowEncoder(template, wrapped, plan, WEIGHTS), dict(COMPACT))


def learner_from_base(base: str, tools: Tools, allow_null: bool) -> Learner:
    """Return a learner for these tools that starts from the checkpoint `base`. Raises UserError if `base` is not in ST
    format."""
    checkpoint = Checkpoint.open(base)
    if not isinstance(checkpoint.template, PromptTemplate):
        hint = "Convert it with `rtcontrol models adopt --base`, and start from the result."
        raise UserError(f"{base} is not a checkpoint in ST format, so a fit cannot start from it.", hint)
    if checkpoint.tokenizer.size > MAX_VOCABULARY:
        message = f"{base} is a language model of {checkpoint.tokenizer.size:,} tokens, too large to fit."
        raise UserError(message, "Fine-tune it with `rtcontrol models train --base`.")
    folder = checkpoint.folder
    plan = compile_plan(tools, checkpoint.tokenizer, allow_null, checkpoint.template.overflow)
    named = json.loads((folder / "tokenizer_config.json").read_text("utf-8")).get("eos_token")
    return Learner(
        load_model(folder, torch.float32),
        Tokenizer.from_file(str(folder / "tokenizer.json")),
        RowEncoder(checkpoint.template, checkpoint.tokenizer, plan, WEIGHTS),
        json.loads((folder / TEMPLATE).read_text("utf-8")),
        named,
    )
