"""A new small Qwen2-shaped model: configuration and initial weights."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from transformers import Qwen2Config, Qwen2ForCausalLM

from rtcontrol.models.checkpoint.special_tokens import ST_TOKENS
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.train.adopt import initialise_rows

FAR = 100.0  # hundreds: numbers up to 10,000 begin in proportion


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model trained from scratch; the head dimension is hidden / heads."""

    hidden: int = 256
    layers: int = 4
    heads: int = 8
    kv_heads: int = 2
    intermediate: int = 512
    context: int = 8192
    rope_theta: float = 10_000.0


def new_model(shape: ModelShape, tokenizer: Tokenizer, seed: int, ordinal: bool = True) -> Qwen2ForCausalLM:
    """A randomly initialised model in fp32 with tied embeddings.

    `ordinal`: number tokens start from a pattern of their value (a linear part and sinusoids), because neighbouring
    numbers mean neighbouring states; measured, a model without it stays on a plateau.
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
    told = STTokenizer(tokenizer)
    initialise_rows(weight, told, [token for token in ST_TOKENS if token in told.specials])
    if ordinal:
        with torch.no_grad():
            _ordinal_rows(weight, tokenizer)
    return model


def number_values(texts: Iterable[str]) -> torch.Tensor:
    """[numbers, 1]: where each stands in the order, in hundreds; none is far, a time stamp would drown all others.

    Observations count in hundredths and instructions in decimals: 0.7 stands where 70 does."""
    bare = [text.lstrip("Ġ▁") for text in texts]
    values = torch.tensor([float(text) * (100 if "." in text else 1) for text in bare])[:, None] / 100
    far = FAR + 2 * torch.log10((values.abs() / FAR).clamp(1, 1e30))
    return torch.where(values.abs() <= FAR, values, values.sign() * far)


def ordinal_waves(values: torch.Tensor, frequencies: int) -> torch.Tensor:
    """[numbers, 2 * frequencies]: sines and cosines of their `values` [numbers, 1]."""
    turns = torch.exp(torch.linspace(0.0, 4.0, frequencies))[None]
    return torch.cat([torch.sin(values * turns), torch.cos(values * turns)], 1)


def _ordinal_rows(weight: torch.Tensor, tokenizer: Tokenizer, scale: float = 0.02) -> None:
    # By id: the library's order changes from process to process, and with it the random rows of one seed.
    tokens = sorted(tokenizer.get_vocab(with_added_tokens=False).items(), key=lambda entry: entry[1])
    numbers = {index: token for token, index in tokens if re.fullmatch(r"Ġ?(-?\d+)(\.\d+)?", token)}
    values, hidden = number_values(numbers.values()), weight.shape[1]
    directions = torch.randn(3, hidden) * scale
    pattern = torch.zeros(len(numbers), hidden)
    waves = ordinal_waves(values, hidden // 4)
    pattern[:, : waves.shape[1]] = waves * scale
    pattern += values * directions[0] * 2 + values.abs() * directions[1] + values.sign() * directions[2]
    weight[list(numbers)] = pattern + torch.randn(len(numbers), hidden) * scale * 0.1
