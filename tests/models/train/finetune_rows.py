"""Rows of many tool sets, and small bases, for the tests of fine-tuning."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers as hf

from tests.models.small import tool

PLACES = ("left", "right", "north", "green blue")


def tool_set(rng: random.Random) -> list[dict[str, Any]]:
    """One to three tools of up to seven parameters."""
    names = rng.sample(("go", "turn_left", "set_value", "open", "stop"), rng.randint(1, 3))
    made = []
    for name in names:
        kinds: list[Any] = [list(PLACES), {"type": "integer", "minimum": 0, "maximum": 9}, {"type": "string"}]
        domains = {f"{c}": rng.choice(kinds) for c in "abcdefg"[: rng.randint(0, 7)]}
        made.append(tool(name, rng.randint(0, 7), **domains))
    return made


def value_of(schema: dict[str, Any], rng: random.Random) -> Any:
    if "enum" in schema:
        return rng.choice(schema["enum"])
    return rng.randint(0, 9) if schema["type"] == "integer" else rng.choice(["go red", "ü", "the left"])


def random_row(rng: random.Random, tools: list[dict[str, Any]]) -> dict[str, Any]:
    chosen = rng.choice(tools)
    parameters = chosen["parameters"]
    given = {
        name: value_of(schema, rng)
        for name, schema in parameters["properties"].items()
        if name in parameters["required"] or rng.random() < 0.5
    }
    return {
        "instruction": rng.choice(["go left", "go to the red", "stop"]),
        "observation": rng.choice(["x=1", "x=2 y=3", ""]),
        "tools": tools,
        "history": [f"go({i})" for i in range(rng.randint(0, 2))],
        "call": None if rng.random() < 0.1 else {"name": chosen["name"], "arguments": given},
        "source": "test",
        "weight": rng.choice([1.0, 1.0, 0.5]),
    }


def random_rows(seed: int, count: int, sets: int = 4) -> list[dict[str, Any]]:
    """Rows whose tools are a few sets, in any order."""
    rng = random.Random(seed)
    tools = [tool_set(rng) for _ in range(sets)]
    return [random_row(rng, rng.choice(tools)) for _ in range(count)]


def write(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def qwen_base(folder: Path, data: Path, kind: str = "qwen2", layers: int = 2, hidden: int = 32, **more: Any) -> Path:
    """A small random Qwen with the true tokenizer, its embeddings tied (qwen2) or with a head of its own (qwen3)."""
    torch.manual_seed(1)
    shape: dict[str, Any] = {
        "vocab_size": 151_936, "hidden_size": hidden, "intermediate_size": hidden * 3 // 2, "num_hidden_layers": layers,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": hidden // 4, "max_position_embeddings": 2048,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")), **more,
    }  # fmt: skip
    if kind == "qwen2":
        shape.pop("head_dim")
        model: Any = hf.Qwen2ForCausalLM(hf.Qwen2Config(**shape, tie_word_embeddings=True))
    else:
        model = hf.Qwen3ForCausalLM(hf.Qwen3Config(**shape, tie_word_embeddings=False))
    model.to(torch.bfloat16).save_pretrained(folder)
    shutil.copy(data / "qwen2_tokenizer" / "tokenizer.json", folder)
    return folder
