"""Any base model becomes a checkpoint of the ST format, to be trained."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from rtcontrol.models.checkpoint.checkpoint import Checkpoint, read_config
from rtcontrol.models.checkpoint.prompt import COMPACT
from rtcontrol.models.checkpoint.special_tokens import ST_TOKENS
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.errors import UserError, read_json
from rtcontrol.models.train.adopt import export, initialise_rows
from rtcontrol.models.train.vocabulary import add_st_tokens

# Of a base's files those that its users may look for.
KEPT = ("generation_config.json", "chat_template.jinja", "LICENSE")
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


def adopt_base(base: Path, out: Path) -> Checkpoint:
    """Write `base` with the 17 tokens, each embedded as the mean of related words, and the compact template to `out`,
    a new folder; its own dtype, its head tied or not as it was. Raises UserError."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is there already.", "Give a new folder with --out.")
    model, tokenizer = _read_folder(base)
    own = STTokenizer(tokenizer)
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
    for name in KEPT:
        if (base / name).is_file():
            shutil.copy(base / name, out / name)
    return Checkpoint.open(str(out))


def _read_folder(base: Path) -> tuple[Any, Tokenizer]:
    if read_config(base).get("quantization_config"):
        raise UserError(f"{base} is quantised: rows cannot be added to it.", "Give the original.")
    STTokenizer.load(base / "tokenizer.json")  # with an error in words
    return load_model(base, "auto"), Tokenizer.from_file(str(base / "tokenizer.json"))


def load_model(folder: Path, dtype: torch.dtype | str) -> Any:
    """Return the causal LM of a folder. Raises UserError."""
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, trust_remote_code=False, use_safetensors=True
        )
    except Exception as error:  # whatever a checkpoint can be wrong in
        told = (str(error).strip() or repr(error)).splitlines()[0][:200]
        raise UserError(f"transformers cannot load {folder} ({told}).", "Give a causal model's folder.") from None


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
