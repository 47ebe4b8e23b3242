"""Any base model becomes a checkpoint of the ST format, to be trained: a folder of safetensors, or a GGUF file."""

from __future__ import annotations

import shutil
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from tokenizers import Tokenizer

from rtcontrol.models.checkpoint.checkpoint import Checkpoint, read_config
from rtcontrol.models.checkpoint.prompt import COMPACT
from rtcontrol.models.checkpoint.special_tokens import ST_TOKENS
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.errors import UserError, read_json
from rtcontrol.models.train.adopt import export, initialise_rows
from rtcontrol.models.train.vocabulary import add_st_tokens

# What begins and ends a part of the prompt, where a tokenizer has both.
MARKERS = (
    ("<|im_start|>", "<|im_end|>"),
    ("<|start_header_id|>", "<|eot_id|>"),
    ("<start_of_turn>", "<end_of_turn>"),
    ("<bos>", "<eos>"),
    ("<s>", "</s>"),
    ("<|endoftext|>", "<|endoftext|>"),
)
# Models that read nothing right without it begin with this token.
FIRST = {"gemma3_text": "<bos>"}
GGUF = ".gguf"
# By what a GGUF file calls its architecture.
ARCHITECTURES = {"gemma3": "Gemma 3", "qwen2": "Qwen2 and 2.5", "qwen3": "Qwen3", "llama": "Llama"}


def is_gguf(path: Path) -> bool:
    """Whether a base is such a file."""
    return path.suffix == GGUF and path.is_file()


def adopt_base(base: Path, out: Path) -> Checkpoint:
    """Write `base` with the 17 tokens, each embedded as the mean of related words, and the compact template to `out`,
    a new folder; its own dtype, its head tied or not as it was; of a GGUF file bf16. Raises UserError."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is there already.", "Give a new folder with --out.")
    packed = is_gguf(base)
    own = None if packed else _tokenizer(base)
    model, tokenizer = _of_gguf(base) if packed else _of_folder(base)
    own = own or STTokenizer(tokenizer)
    if any(tokenizer.token_to_id(token) is not None for token in ST_TOKENS):
        raise UserError(f"{base} has ST tokens already.", "Use it as it is, or adopt its template (--template-from).")
    begin, end = _markers(base, own)
    add_st_tokens(tokenizer, ST_TOKENS)
    ids = [*tokenizer.get_vocab(with_added_tokens=True).values()]
    if len({*ids}) < len(ids):
        raise UserError(f"{base}: its tokenizer's ids have gaps: new tokens would share them.", "Give another base.")
    known = STTokenizer(tokenizer)
    rows = model.get_input_embeddings().weight.shape[0]
    if known.size > rows:
        model.resize_token_embeddings(known.size, mean_resizing=False)
    head = model.get_output_embeddings()
    weights = (model.get_input_embeddings().weight, head and head.weight, getattr(head, "bias", None))
    for weight in {id(w): w for w in weights if w is not None}.values():
        initialise_rows(weight, known)
    template = COMPACT["template"].replace("<|im_start|>", begin).replace("<|im_end|>", end)
    template = FIRST.get(model.config.model_type, "") + template
    export(model, tokenizer, COMPACT | {"template": template}, out, model.dtype, end)
    for name in ("generation_config.json", "chat_template.jinja", "LICENSE"):
        if not packed and (base / name).is_file():
            shutil.copy(base / name, out / name)
    return Checkpoint.open(str(out))


def _tokenizer(base: Path) -> STTokenizer:
    if read_config(base).get("quantization_config"):
        raise UserError(f"{base} is quantised: rows cannot be added to it.", "Give the original.")
    return STTokenizer.load(base / "tokenizer.json")


def _of_folder(base: Path) -> tuple[Any, Tokenizer]:
    return load_model(base, "auto"), Tokenizer.from_file(str(base / "tokenizer.json"))


def load_model(folder: Path, dtype: torch.dtype | str) -> Any:
    """Return the causal LM of a folder. Raises UserError."""
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, trust_remote_code=False, use_safetensors=True
        )
    except Exception as error:  # whatever a checkpoint can be wrong in
        raise UserError(
            f"transformers cannot load {folder} ({first_line(error)}).", "Give a causal model's folder."
        ) from None


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type where it has none."""
    return (str(error).strip() or repr(error)).splitlines()[0][:200]


def _of_gguf(path: Path) -> tuple[Any, Tokenizer]:
    """Return the model with its weights as they were before they were quantised, as far as the file has them, and its
    tokenizer. Raises UserError."""
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
        # transformers opens the file again for configuration, tokenizer and weights, seconds each: it gets the reader.
        with patch("gguf.GGUFReader", lambda *_, **__: reader):
            model = AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.bfloat16, **safe)
            tokenizer = AutoTokenizer.from_pretrained(path.parent, **safe)
    except Exception as error:  # a part of it is missing, or of a kind that transformers does not read
        raise UserError(
            f"transformers cannot read {path} ({first_line(error)}).", "Give another file of the model."
        ) from None
    # These weights are plain numbers now.
    model.hf_quantizer, model.is_quantized, model.quantization_method = None, False, None
    with suppress(AttributeError):
        del model.config.quantization_config
    return model, tokenizer.backend_tokenizer


def _open(path: Path) -> Any:
    """gguf's reader. It slices a numpy.memmap for each of a vocabulary's tokens, thrice: over a plain array these
    slices cost a fifth."""
    import gguf

    class Quick(gguf.GGUFReader):
        plain: Any = None

        def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
            if self.plain is None:
                self.plain = np.asarray(self.data)
            kind = np.dtype(dtype).newbyteorder(self.byte_order if override_order is None else override_order)
            return self.plain[offset : offset + kind.itemsize * int(count)].view(kind)

    return Quick(path)


def _markers(base: Path, tokenizer: STTokenizer) -> tuple[str, str]:
    found = next((pair for pair in MARKERS if {*pair} <= {*tokenizer.specials}), None)
    if found is not None:
        return found
    named: dict[str, Any] = {}
    with suppress(UserError):
        named = read_json(base / "tokenizer_config.json", UserError("", ""), "")
    begin, end = (t.get("content") if isinstance(t := named.get(n), dict) else t for n in ("bos_token", "eos_token"))
    if end in tokenizer.specials:
        return (begin if begin in tokenizer.specials else end), end
    raise UserError(
        f"{base}: its tokenizer has no token that ends a part of the prompt.",
        f"Known pairs: {', '.join(f'{a} {b}' for a, b in MARKERS)}; or name an eos_token in tokenizer_config.json.",
    )
