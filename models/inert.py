"""What a checkpoint's files may say: data, and nothing that loads code, another model, or a file elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rtcontrol.models.errors import UserError

CODE = ("auto_map", "custom_generate", "custom_pipelines")
KERNELS = ("attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation")
FILES = ("vocab_file", "merges_file", "spm_file", "fast_tokenizer_files")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def check(folder: Path) -> None:
    """UserError where the checkpoint in `folder` names code of its own or of a hub, another model as its base, or files
    outside of it, or where its weights are pickles alone, which run code when they are read. None of it would be
    obeyed: but what it asks for was meant, and without it the model is another."""
    for path in sorted({*folder.glob("*config*.json"), *folder.glob("*.index.json")}):
        try:
            told = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError, RecursionError):
            continue  # whoever needs it says what is wrong
        for key, value in _entries(told):
            if value and (why := _wrong(key, value)):
                raise UserError(
                    f"{path} {why} ({key}: {str(value)[:120]!r}). What a checkpoint names is not run or opened.",
                    f"Use one without. Where transformers knows its kind of model by itself, remove {key} there.",
                )
    pickles = sorted(path.name for kind in PICKLES for path in folder.glob(kind) if path.name != "training_args.bin")
    if pickles and not any(folder.glob("*.safetensors")):
        raise UserError(
            f"{folder}: its weights are a pickle ({pickles[0]}), which may run code when it is read.",
            "Use a copy in safetensors; its authors, or the hub's page of the model, mostly have one.",
        )


def _wrong(key: str, value: Any) -> str:
    if key in CODE:
        return "names code of its own"
    if key in KERNELS and any("/" in str(one) for one in (value.values() if isinstance(value, dict) else [value])):
        return "names code of a hub"
    if key == "base_model_name_or_path":
        return "names another model, which it would be loaded with"
    if key in FILES and any(_outside(one) for one in (value if isinstance(value, list) else [value])):
        return "names a file elsewhere"
    if key == "weight_map" and isinstance(value, dict) and any(map(_outside, value.values())):
        return "names a file elsewhere"
    return ""


def _outside(name: Any) -> bool:
    return not isinstance(name, str) or name in (".", "..") or any(sign in name for sign in "/\\\0")


def _entries(told: Any) -> Iterator[tuple[str, Any]]:
    """Each key and value, at any depth."""
    left = [told]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            yield from one.items()
        left += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
