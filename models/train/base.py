"""Any base model becomes a checkpoint of the ST format, to be trained: a folder of safetensors, or a GGUF file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from rtcontrol.models.checkpoint.checkpoint import Checkpoint, read_config
from rtcontrol.models.checkpoint.prompt import COMPACT
from rtcontrol.models.checkpoint.special_tokens import ST_TOKENS
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.errors import UserError
from rtcontrol.models.train.adopt import export, initialise_rows
from rtcontrol.models.train.gguf_file import Base, Stage, is_gguf, read_gguf
from rtcontrol.models.train.number_tokens import initialise_number_rows, with_number_tokens
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


class Adopted(NamedTuple):
    """What was written; `quantized`: the kinds of weights of the file that it was made of."""

    checkpoint: Checkpoint
    parameters: int
    quantized: tuple[str, ...]


def adopt_base(base: Path, out: Path, layers: int | None = None, numbers: bool = False) -> Checkpoint:
    """The checkpoint of `make_base`."""
    return make_base(base, out, layers, numbers=numbers).checkpoint


def make_base(
    base: Path,
    out: Path,
    layers: int | None = None,
    stage: Stage = lambda name, done, total: None,
    numbers: bool = False,
) -> Adopted:
    """Write `base` with the 17 tokens, each embedded as the mean of related words, and the compact template to `out`,
    a new folder; its own dtype, its head tied or not as it was; of a GGUF file bf16. `layers`: its first ones alone;
    `numbers`: with numbers as single tokens (`number_tokens`). `stage` is told what is done. Raises UserError."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is there already.", "Give a new folder with --out.")
    packed = is_gguf(base)
    own = None if packed else _tokenizer(base)
    model, tokenizer, quantized = read_gguf(base, stage) if packed else _safetensors(base, stage)
    stage("adding the ST tokens", 0, 1)
    own = own or STTokenizer(tokenizer)
    if any(tokenizer.token_to_id(token) is not None for token in ST_TOKENS):
        raise UserError(f"{base} has ST tokens already.", "Use it as it is, or adopt its template (--template-from).")
    begin, end = _markers(base, own)
    if layers is not None:
        _cut(model, layers, base)
    if numbers:
        tokenizer = with_number_tokens(tokenizer)
    add_st_tokens(tokenizer, ST_TOKENS)
    ids = [*tokenizer.get_vocab(with_added_tokens=True).values()]
    if len({*ids}) < len(ids):
        raise UserError(f"{base}: its tokenizer's ids have gaps: new tokens would share them.", "Give another base.")
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
            initialise_number_rows(weight, tokenizer, own)
            initialise_rows(weight, known)
    template = COMPACT["template"].replace("<|im_start|>", begin).replace("<|im_end|>", end)
    template = FIRST.get(model.config.model_type, "") + template
    stage("writing the checkpoint", 0, 1)
    export(model, tokenizer, COMPACT | {"template": template}, out, model.dtype, end)
    for name in ("generation_config.json", "chat_template.jinja", "LICENSE"):
        if not packed and (base / name).is_file():
            shutil.copy(base / name, out / name)
    return Adopted(Checkpoint.open(str(out)), model.num_parameters(), quantized)


def _tokenizer(base: Path) -> STTokenizer:
    if read_config(base).get("quantization_config"):
        raise UserError(f"{base} is quantised: rows cannot be added to it.", "Give the original.")
    return STTokenizer.load(base / "tokenizer.json")


def _safetensors(base: Path, stage: Stage) -> Base:
    from transformers import AutoModelForCausalLM

    stage("reading the model", 0, 1)
    try:
        safe = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True}
        model = AutoModelForCausalLM.from_pretrained(base, dtype="auto", **safe)
    except Exception as error:  # whatever a checkpoint can be wrong in
        told = (str(error).strip() or repr(error)).splitlines()[0]
        raise UserError(f"transformers cannot load {base} ({told}).", "Give a causal model's folder.") from None
    return Base(model, Tokenizer.from_file(str(base / "tokenizer.json")))


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
