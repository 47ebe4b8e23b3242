"""Find and check a checkpoint: weights, tokenizer with the ST tokens, prompt template."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rtcontrol.models.checkpoint import hub
from rtcontrol.models.checkpoint.chat_template import ChatTemplate
from rtcontrol.models.checkpoint.prompt import PromptTemplate
from rtcontrol.models.checkpoint.special_tokens import ST_TOKENS
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.errors import UserError, read_json, user_path

CODE = ("auto_map", "custom_generate", "custom_pipelines")
KERNELS = ("attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation")
FILES = ("vocab_file", "merges_file", "spm_file", "fast_tokenizer_files")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def check(folder: Path) -> None:
    """Raise UserError for a checkpoint that names code, another base model or files outside its folder, or whose
    weights are pickles only. Loading never runs or opens such things, and without them the model would differ from what
    its authors meant."""
    for path in sorted({*folder.glob("*config*.json"), *folder.glob("*.index.json")}):
        try:
            settings = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError, RecursionError):
            continue  # the reader of this file reports the error
        for key, value in _entries(settings):
            if value and (why := _wrong(key, value)):
                raise UserError(
                    f"{path} {why} ({key}: {str(value)[:120]!r}). Nothing that a checkpoint names is run or opened.",
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


def _entries(settings: Any) -> Iterator[tuple[str, Any]]:
    """Yield each key and value, at any depth."""
    left = [settings]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            yield from part.items()
        left += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()


ZOO = Path(__file__).resolve().parents[1] / "zoo"


def zoo() -> list[str]:
    """Return the names of the bundled checkpoints."""
    return sorted(p.parent.name for p in ZOO.glob("*/config.json"))


def resolve(model: str) -> Path:
    """Return the folder of a model, given by a bundled name, a path, or an id of the Hugging Face hub (OWNER/NAME or
    OWNER/NAME:SUBFOLDER, downloaded if needed), in this order. Raises UserError for an unknown or ambiguous name, and
    as `check` does."""
    path = user_path(model)
    if "/" not in model and (ZOO / model / "config.json").is_file():
        if (path / "config.json").is_file() and path.resolve() != ZOO / model:
            raise UserError(
                f"{model!r} is a bundled model, and a folder here that holds one.",
                f"Write ./{model} for the folder, or {ZOO / model} for the bundled one.",
            )
        return ZOO / model
    if path.is_dir():
        check(path)
        return path
    where = "" if path.is_absolute() else f" in {Path.cwd()}"
    nowhere = f"There is no folder {model!r}{where}, and no bundled model of that name"
    others = f"Bundled: {', '.join(zoo()) or 'none'}. Or give the path of a checkpoint folder"
    others = f"{others} in Hugging Face format"
    if not path.exists() and hub.is_id(model):
        folder = hub.fetch(model, nowhere, f"{others}.")
        check(folder)
        return folder
    if path.is_file():
        raise UserError(f"{model} is a file, no checkpoint folder.", f"Give the folder that it is in: {path.parent}.")
    raise UserError(
        f"{nowhere}; it is not a hub's OWNER/NAME[:SUBFOLDER] either.",
        f"{others}, or OWNER/NAME[:SUBFOLDER] of the Hugging Face hub.",
    )


def read_config(folder: Path) -> dict[str, Any]:
    """Return `config.json` as a dict. Raises UserError if the folder is not a checkpoint."""
    hint = "Give a name from `rtcontrol models info` or a folder in Hugging Face format."
    if (folder / "model" / "config.json").is_file():  # the result of `models train`
        hint = f"Give what was trained there: {folder / 'model'}."
    missing = UserError(f"{folder} is not a checkpoint: it has no config.json.", hint)
    return read_json(folder / "config.json", missing, "Restore the checkpoint.")


def chats(model: str) -> bool:
    """Return whether a model is a chat model: with a chat template, and without ST tokens in its tokenizer. Raises
    UserError as `resolve` does."""
    folder = resolve(model)
    try:
        written = (folder / "tokenizer.json").read_text("utf-8")
        template = any(folder.glob("chat_template*")) or (
            '"chat_template"' in (folder / "tokenizer_config.json").read_text("utf-8")
        )
    except (OSError, ValueError):
        return False  # the loader of this file reports the error
    return template and not all(f'"{token}"' in written for token in ST_TOKENS)


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint, in the ST format if its tokenizer has the ST tokens, else as a chat model."""

    folder: Path
    config: dict[str, Any]
    tokenizer: STTokenizer
    template: PromptTemplate | ChatTemplate

    @classmethod
    def open(cls, model: str) -> Checkpoint:
        """Open a checkpoint by name, path or hub id. Raises UserError, with a hint, if a part is missing."""
        folder = resolve(model)
        config = read_config(folder)
        tokenizer = STTokenizer.load(folder / "tokenizer.json")
        rows = config.get("vocab_size")
        if isinstance(rows, int) and tokenizer.size > rows:
            raise UserError(
                f"{folder}: its tokenizer has {tokenizer.size} tokens, its model only {rows} rows of embeddings.",
                "The special tokens were added without resizing the model: use the tokenizer and weights that belong "
                "together.",
            )
        if any(t not in tokenizer.specials for t in ST_TOKENS):
            return cls(folder, config, tokenizer, ChatTemplate(folder, tokenizer))
        return cls(folder, config, tokenizer, PromptTemplate.load(folder, tokenizer))
