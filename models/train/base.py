"""Any base model becomes a checkpoint of the ST format, to be trained: a folder of safetensors, or a GGUF file."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer

from rtcontrol.models.checkpoint.checkpoint import Checkpoint, read_config
from rtcontrol.models.checkpoint.prompt import COMPACT
from rtcontrol.models.checkpoint.special_tokens import ST_TOKENS
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.errors import UserError
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


class Base(NamedTuple):
    """A causal language model of transformers', and its tokenizer."""

    model: Any
    tokenizer: Tokenizer


def adopt_base(base: Path, out: Path, layers: int | None = None) -> Checkpoint:
    """Write `base` with the 17 tokens, each embedded as the mean of related words, and the compact template to `out`,
    a new folder; its own dtype, its head tied or not as it was; of a GGUF file bf16. `layers`: its first ones alone.
    Raises UserError."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is there already.", "Give a new folder with --out.")
    packed = base.suffix == GGUF and base.is_file()
    own = None if packed else _tokenizer(base)
    model, tokenizer = _gguf(base) if packed else _safetensors(base)
    own = own or STTokenizer(tokenizer)
    if "<function>" in own.specials:
        raise UserError(f"{base} has ST tokens already.", "Use it as it is, or adopt its template (--template-from).")
    begin, end = _markers(base, own)
    if layers is not None:
        _cut(model, layers, base)
    add_st_tokens(tokenizer, ST_TOKENS)
    known = STTokenizer(tokenizer)
    rows = model.get_input_embeddings().weight.shape[0]
    if known.size > rows:
        model.resize_token_embeddings(known.size, mean_resizing=False)
    head = model.get_output_embeddings()
    weights = {
        id(w): w for w in (model.get_input_embeddings().weight, head and head.weight, getattr(head, "bias", None))
    }
    for weight in weights.values():
        if weight is not None:
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


def _safetensors(base: Path) -> Base:
    from transformers import AutoModelForCausalLM

    try:
        safe = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True}
        model = AutoModelForCausalLM.from_pretrained(base, dtype="auto", **safe)
    except Exception as error:  # whatever a checkpoint can be wrong in
        told = (str(error).strip() or repr(error)).splitlines()[0]
        raise UserError(f"transformers cannot load {base} ({told}).", "Give a causal model's folder.") from None
    return Base(model, Tokenizer.from_file(str(base / "tokenizer.json")))


def _gguf(path: Path) -> Base:
    """Its weights as they were before they were quantised, as far as that can be told. Raises UserError."""
    if find_spec("gguf") is None:
        raise UserError("A GGUF file needs the package gguf, which is not here.", "pip install 'rtcontrol[train]'.")
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        field = GGUFReader(path).get_field("general.architecture")
        kind = "" if field is None else str(field.contents())
    except Exception as error:  # whatever a file can be wrong in
        raise UserError(f"{path} is no GGUF file ({error}).", "Download it again, or give a model's folder.") from None
    if kind not in ARCHITECTURES:
        raise UserError(
            f"{path} is a model of the architecture {kind!r}.",
            f"Give a GGUF file of {', '.join(ARCHITECTURES.values())} (text models), or a folder of safetensors.",
        )
    try:
        model = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.bfloat16, local_files_only=True, trust_remote_code=False
        )
        tokenizer = AutoTokenizer.from_pretrained(
            path.parent, gguf_file=path.name, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # a part of it is missing, or of a kind that transformers does not read
        told = (str(error).strip() or repr(error)).splitlines()[0]
        raise UserError(f"transformers cannot read {path} ({told}).", "Give another file of the model.") from None
    # These weights are plain numbers now.
    model.hf_quantizer, model.is_quantized, model.quantization_method = None, False, None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    return Base(model, tokenizer.backend_tokenizer)


def _cut(model: Any, layers: int, base: Path) -> None:
    """Leave the first layers alone. Raises UserError for a number that it has not."""
    own = model.base_model.layers
    if not 1 <= layers <= len(own):
        raise UserError(f"{base} has {len(own)} layers, not {layers}.", f"Give --layers from 1 to {len(own)}.")
    model.base_model.layers = own[:layers]
    model.config.num_hidden_layers = layers
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = model.config.layer_types[:layers]


def _markers(base: Path, tokenizer: STTokenizer) -> tuple[str, str]:
    found = next((pair for pair in MARKERS if {*pair} <= {*tokenizer.specials}), None)
    if found is not None:
        return found
    named = _settings(base)
    begin, end = (t.get("content") if isinstance(t := named.get(n), dict) else t for n in ("bos_token", "eos_token"))
    if end in tokenizer.specials:
        return (begin if begin in tokenizer.specials else end), end
    raise UserError(
        f"{base}: its tokenizer has no token that ends a part of the prompt.",
        f"Known pairs: {', '.join(f'{a} {b}' for a, b in MARKERS)}; or name an eos_token in tokenizer_config.json.",
    )


def _settings(base: Path) -> dict[str, Any]:
    try:
        found = json.loads((base / "tokenizer_config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
