"""Writes a trained model as a checkpoint folder: Hugging Face layout plus the prompt template."""

from __future__ import annotations

import copy
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers.utils.logging import disable_progress_bar

from rtcontrol.models.prompt import FILE_NAME


def export(
    model: Any,
    tokenizer: Tokenizer,
    template: Mapping[str, Any],
    folder: Path,
    dtype: torch.dtype = torch.float32,
    end: str = "<|im_end|>",
) -> None:
    """Write weights, config, tokenizer (`end`: its token at the end) and template to `folder`; an old checkpoint there
    is replaced once the new one is whole (other files in the folder stay)."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder) as inside:  # on the same disk
        fresh = Path(inside)
        disable_progress_bar()  # of a file that is written at once
        # A copy: the caller may go on training in its own dtype.
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
            path.chmod(readable)  # the writer of weights makes them its owner's alone
            os.replace(path, folder / path.name)
