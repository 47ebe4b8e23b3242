"""Read a GGUF file as a causal language model of transformers and its tokenizer."""

from __future__ import annotations

from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from tokenizers import Tokenizer

from rtcontrol.models.errors import UserError

GGUF = ".gguf"
# By what a GGUF file calls its architecture.
ARCHITECTURES = {"gemma3": "Gemma 3", "qwen2": "Qwen2 and 2.5", "qwen3": "Qwen3", "llama": "Llama"}


def is_gguf(path: Path) -> bool:
    """Return whether a base is a GGUF file."""
    return path.suffix == GGUF and path.is_file()


def read_gguf(path: Path) -> tuple[Any, Tokenizer]:
    """Return the model with its weights dequantised to bf16, and its tokenizer.

    Raises UserError: no GGUF file, another architecture, a part that is missing, or no `gguf` package.
    """
    if find_spec("gguf") is None:
        raise UserError("A GGUF file needs the package gguf, which is not here.", "pip install 'rtcontrol[train]'.")
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    try:
        reader = _open(path)
        field = reader.get_field("general.architecture")
        kind = "" if field is None else str(field.contents())
    except Exception as error:  # whatever a file can be wrong in
        raise UserError(f"{path} is no GGUF file ({error}).", "Download it again, or give a model's folder.") from None
    if kind not in ARCHITECTURES:
        raise UserError(
            f"{path} is a model of the architecture {kind!r}.",
            f"Give a GGUF file of {', '.join(ARCHITECTURES.values())} (text models), or a folder of safetensors.",
        )
    safe: dict[str, Any] = {"gguf_file": path.name, "local_files_only": True, "trust_remote_code": False}
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        # transformers opens the file for configuration, tokenizer and weights, seconds each: it gets the reader.
        with patch("gguf.GGUFReader", lambda *_, **__: reader):
            model = AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.bfloat16, **safe)
            tokenizer = AutoTokenizer.from_pretrained(path.parent, **safe)
    except Exception as error:  # a part of it is missing, or of a kind that transformers does not read
        text = (str(error).strip() or repr(error)).splitlines()[0][:200]
        raise UserError(f"transformers cannot read {path} ({text}).", "Give another file of the model.") from None
    # These weights are plain numbers now.
    model.hf_quantizer, model.is_quantized, model.quantization_method = None, False, None
    with suppress(AttributeError):
        del model.config.quantization_config
    return model, tokenizer.backend_tokenizer


def _open(path: Path) -> Any:
    """Open the file with a reader that slices a plain array: a numpy.memmap costs five times as much a token."""
    import gguf

    class Quick(gguf.GGUFReader):
        plain: Any = None

        def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
            if self.plain is None:
                self.plain = np.asarray(self.data)
            kind = np.dtype(dtype).newbyteorder(self.byte_order if override_order is None else override_order)
            return self.plain[offset : offset + kind.itemsize * int(count)].view(kind)

    return Quick(path)
