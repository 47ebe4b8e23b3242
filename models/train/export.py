"""Read a base model and write a trained one: weights, config, tokenizer, prompt template and card."""

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

# Files of a base that its users may look for.
KEPT = ("generation_config.json", "chat_template.jinja", "LICENSE")


def load_model(folder: Path, dtype: torch.dtype | str) -> Any:
    """Return the causal LM of a folder. Raises UserError if transformers cannot load one."""
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, trust_remote_code=False, use_safetensors=True
        )
    except Exception as error:  # a broken checkpoint may raise anything
        why = (str(error).strip() or repr(error)).splitlines()[0][:200]
        raise UserError(f"transformers cannot load {folder} ({why}).", "Give a causal model's folder.") from None


def export(
    model: Any,
    tokenizer: Tokenizer,
    template: Mapping[str, Any],
    folder: Path,
    dtype: torch.dtype = torch.float32,
    end: str = "<|im_end|>",
) -> None:
    """Write weights, config, tokenizer (`end` is its end token) and template to `folder`. An old checkpoint in `folder`
    is replaced once the new one is complete; other files stay."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder) as inside:  # on the same disk
        fresh = Path(inside)
        disable_progress_bar()  # bytes of a file that is written at once
        # A copy: the caller may continue training in its dtype.
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
            path.chmod(readable)  # the library makes weights readable for their owner only
            os.replace(path, folder / path.name)


def copy_kept(base: Path, folder: Path) -> None:
    """Copy the files of a base that users may look for."""
    for name in KEPT:
        if (base / name).is_file():
            shutil.copy(base / name, folder / name)


@contextmanager
def replaced(place: Path) -> Iterator[Path]:
    """Yield a new folder next to `place`. The new folder replaces `place` if the block succeeds; otherwise it is
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


def not_saved(out: Path, error: Exception) -> UserError:
    """Return the UserError for a checkpoint that could not be written, with a reason, since torch gives none."""
    why = getattr(error, "strerror", None) or "a file could not be written whole"
    return UserError(
        f"The checkpoint cannot be written to {out} ({why}); the training is kept there.",
        "Make room, and start the same command again: nothing is trained twice.",
    )


def write_card(folder: Path, title: str, about: str, sections: Mapping[str, str]) -> None:
    """Write the model card, `README.md`: the title, a paragraph, and sections by heading."""
    parts = [f"---\nlibrary_name: rtcontrol\n---\n# {title}", about]
    parts += [f"## {heading}\n\n{text}" for heading, text in sections.items()]
    (folder / "README.md").write_text("\n\n".join(parts) + "\n", "utf-8")


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)
