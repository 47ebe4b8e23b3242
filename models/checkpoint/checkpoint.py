"""Find a checkpoint by name, path or hub id, check that it is safe to load, and open it."""

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

CODE_KEYS = ("auto_map", "custom_generate", "custom_pipelines")
KERNEL_KEYS = ("attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation")
FILE_KEYS = ("vocab_file", "merges_file", "spm_file", "fast_tokenizer_files")
PICKLE_PATTERNS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def check_folder(folder: Path) -> None:
    """Raise UserError if a checkpoint's configuration refers to code, another base model or files outside its folder,
    or if it has only pickled weights. rtcontrol never loads such things, and the model would differ without them."""
    for path in folder.glob("*"):
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise UserError(f"{path} is a pipe, socket or device, not a file.", "Remove it from the checkpoint.")
    for path in sorted({*folder.glob("*config*.json"), *folder.glob("*.index.json")}):
        try:
            settings = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError, RecursionError):
            continue  # the loader of this file reports the error
        for key, value in _entries(settings):
            if value and (why := _rejection(key, value)):
                raise UserError(
                    f"{path} refers to {why} ({key}: {str(value)[:120]!r}), which is never run or opened.",
                    f"Use a checkpoint without {key}, or remove it if transformers knows the model without it.",
                )
    paths = (path for pattern in PICKLE_PATTERNS for path in folder.glob(pattern))
    pickles = sorted(path.name for path in paths if path.name != "training_args.bin")
    if pickles and not any(folder.glob("*.safetensors")):
        raise UserError(
            f"{folder}: its weights are a pickle ({pickles[0]}), which can run code when it is loaded.",
            "Use a copy in safetensors format; the hub's page of the model often has one.",
        )


def _rejection(key: str, value: Any) -> str:
    """Return what a setting refers to if it is never loaded (code, or other files); otherwise an empty string."""
    if key in CODE_KEYS:
        return "code in the checkpoint"
    if key in KERNEL_KEYS and any("/" in str(v) for v in (value.values() if isinstance(value, dict) else [value])):
        return "code on a hub"
    if key == "base_model_name_or_path":
        return "another model as its base"
    if key in FILE_KEYS and any(_is_outside(entry) for entry in (value if isinstance(value, list) else [value])):
        return "a file in another folder"
    if key == "weight_map" and isinstance(value, dict) and any(map(_is_outside, value.values())):
        return "a file in another folder"
    return ""


def _is_outside(name: Any) -> bool:
    return not isinstance(name, str) or name in (".", "..") or any(character in name for character in "/\\\0")


def _entries(settings: Any) -> Iterator[tuple[str, Any]]:
    """Yield each (key, value) pair of a JSON value, at any depth."""
    pending = [settings]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            yield from part.items()
        pending += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()


ZOO = Path(__file__).resolve().parents[1] / "zoo"


def bundled_models() -> list[str]:
    """Return the names of the bundled checkpoints."""
    return sorted(p.parent.name for p in ZOO.glob("*/config.json"))


def resolve(model: str) -> Path:
    """Return the folder of a model. `model` is a bundled name, a path, or an id of the Hugging Face hub (OWNER/NAME or
    OWNER/NAME:SUBFOLDER, downloaded if needed), tried in this order. Raises UserError for an unknown or ambiguous name,
    and for an unsafe checkpoint (see `check_folder`)."""
    path = user_path(model)
    if "/" not in model and (ZOO / model / "config.json").is_file():
        if (path / "config.json").is_file() and path.resolve() != ZOO / model:
            raise UserError(
                f"{model!r} is the name of a bundled model and of a checkpoint folder here.",
                f"Write ./{model} for the folder, or {ZOO / model} for the bundled model.",
            )
        return ZOO / model
    if path.is_dir():
        check_folder(path)
        return path
    where = "" if path.is_absolute() else f" in {Path.cwd()}"
    problem = f"There is no folder {model!r}{where}, and no bundled model of that name"
    hint = f"Bundled: {', '.join(bundled_models()) or 'none'}. Or give the path of a checkpoint folder"
    hint = f"{hint} in Hugging Face format"
    if not path.exists() and hub.is_hub_id(model):
        folder = hub.fetch_checkpoint(model, problem, f"{hint}.")
        check_folder(folder)
        return folder
    if path.exists():
        raise UserError(f"{model} is not a folder, as checkpoints are.", f"Give the folder: {path.parent}.")
    raise UserError(
        f"{problem}; it is not a hub id OWNER/NAME[:SUBFOLDER] either.",
        f"{hint}, or OWNER/NAME[:SUBFOLDER] of the Hugging Face hub.",
    )


def read_config(folder: Path) -> dict[str, Any]:
    """Return `config.json` as a dict. Raises UserError if the folder is not a checkpoint."""
    hint = "Give a name from `rtcontrol models info` or a folder in Hugging Face format."
    if (folder / "model" / "config.json").is_file():  # `rtcontrol models train` writes this folder
        hint = f"Give the trained model in it: {folder / 'model'}."
    missing = UserError(f"{folder} is not a checkpoint: it has no config.json.", hint)
    return read_json(folder / "config.json", missing, "Restore the checkpoint.")


def is_chat_model(model: str) -> bool:
    """Return whether a model has a chat template but no ST tokens. Raises UserError as `resolve` does."""
    folder = resolve(model)
    try:
        tokenizer_text = (folder / "tokenizer.json").read_text("utf-8")
        template = any(folder.glob("chat_template*")) or (
            '"chat_template"' in (folder / "tokenizer_config.json").read_text("utf-8")
        )
    except (OSError, ValueError):
        return False  # the loader of this file reports the error
    return template and not all(f'"{token}"' in tokenizer_text for token in ST_TOKENS)


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint: an ST checkpoint if its tokenizer has the ST tokens, otherwise a chat model."""

    folder: Path
    config: dict[str, Any]
    tokenizer: STTokenizer
    template: PromptTemplate | ChatTemplate

    @classmethod
    def open(cls, model: str) -> Checkpoint:
        """Open a checkpoint by name, path or hub id. Raises UserError if a part is missing or invalid."""
        folder = resolve(model)
        config = read_config(folder)
        tokenizer = STTokenizer.load(folder / "tokenizer.json")
        rows = config.get("vocab_size")
        if isinstance(rows, int) and tokenizer.size > rows:
            raise UserError(
                f"{folder}: its tokenizer has {tokenizer.size} tokens, but its model has only {rows} embeddings.",
                "Tokens were added without resizing the model: use weights and tokenizer that belong together.",
            )
        if any(t not in tokenizer.specials for t in ST_TOKENS):
            return cls(folder, config, tokenizer, ChatTemplate(folder, tokenizer))
        return cls(folder, config, tokenizer, PromptTemplate.load(folder, tokenizer))
