"""Load models for training, and write trained checkpoints: weights, config, tokenizer, prompt template and card."""

from __future__ import annotations

import copy
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers.utils.logging import disable_progress_bar

from rtcontrol.models.checkpoint.prompt import FILE_NAME
from rtcontrol.models.errors import UserError

# Other files of a base model that are copied to the trained checkpoint.
EXTRA_FILES = ("generation_config.json", "chat_template.jinja", "LICENSE")


def load_model(folder: Path, dtype: torch.dtype | str) -> Any:
    """Return the causal language model of a folder. Raises UserError if transformers cannot load it."""
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, trust_remote_code=False, use_safetensors=True
        )
    except Exception as error:  # a broken checkpoint may raise any exception
        why = (str(error).strip() or repr(error)).splitlines()[0][:200]
        raise UserError(f"transformers cannot load {folder} ({why}).", "Give the folder of a causal model.") from None


def export(
    model: Any,
    tokenizer: Tokenizer,
    template: Mapping[str, Any],
    folder: Path,
    dtype: torch.dtype = torch.float32,
    end: str = "<|im_end|>",
) -> None:
    """Write weights, config, tokenizer (with the end token `end`) and template to `folder`. A checkpoint that exists
    there is replaced only after the new checkpoint is complete; other files are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder) as inside:  # os.replace needs the same disk
        fresh = Path(inside)
        disable_progress_bar()  # else save_pretrained would print a progress bar
        # Convert a copy, because the caller may continue training in the model's dtype.
        (model if model.dtype == dtype else copy.deepcopy(model).to(dtype)).save_pretrained(fresh)
        (fresh / "generation_config.json").unlink(missing_ok=True)
        tokenizer.save(str(fresh / "tokenizer.json"))
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": end,
            "pad_token": "<|endoftext|>" if tokenizer.token_to_id("<|endoftext|>") is not None else end,
            "clean_up_tokenization_spaces": False,
        }
        (fresh / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
        (fresh / FILE_NAME).write_text(json.dumps(dict(template), indent=2) + "\n")
        readable = (fresh / FILE_NAME).stat().st_mode
        for path in [*fresh.iterdir()]:
            path.chmod(readable)  # transformers writes weights that only the owner can read
            os.replace(path, folder / path.name)


def copy_extra_files(base: Path, folder: Path) -> None:
    """Copy EXTRA_FILES from a base model to `folder`, if they exist."""
    for name in EXTRA_FILES:
        if (base / name).is_file():
            shutil.copy(base / name, folder / name)


@contextmanager
def replace_folder(place: Path) -> Iterator[Path]:
    """Yield a temporary folder, which replaces the folder `place` at the end of the `with` block. After an error it is
    removed."""
    part = place.with_name(f"{place.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        yield part
        shutil.rmtree(place, ignore_errors=True)
        os.replace(part, place)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def save_error(out: Path, error: Exception) -> UserError:
    """Return the UserError for a checkpoint that could not be written because of `error`."""
    why = getattr(error, "strerror", None) or "a file could not be written completely"
    return UserError(
        f"The checkpoint cannot be written to {out} ({why}). The state of the training is saved there.",
        "Free some disk space, and start the same command again: it resumes from this state.",
    )


def write_card(folder: Path, title: str, about: str, sections: Mapping[str, str]) -> None:
    """Write the model card `README.md` with a title, a paragraph `about`, and sections by heading."""
    parts = [f"---\nlibrary_name: rtcontrol\n---\n# {title}", about]
    parts += [f"## {heading}\n\n{text}" for heading, text in sections.items()]
    (folder / "README.md").write_text("\n\n".join(parts) + "\n", "utf-8")


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a Markdown table with these columns and rows."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)
