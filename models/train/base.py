"""Makes a checkpoint of the ST format from any base model: tokens, rows for them, and a prompt template. It is to be
trained: until then its calls are legal, and nonsense."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from rtcontrol.models.checkpoint import Checkpoint, read_config
from rtcontrol.models.errors import UserError
from rtcontrol.models.prompt import COMPACT
from rtcontrol.models.special import ST_TOKENS
from rtcontrol.models.tokenizer import STTokenizer
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


def adopt_base(base: Path, out: Path) -> Checkpoint:
    """Write `base` with the 17 tokens, each embedded as the mean of related words, and the compact template to `out`,
    a new folder; its own dtype, its head tied or not as it was. Raises UserError."""
    from transformers import AutoModelForCausalLM

    from rtcontrol.models.train.export import export
    from rtcontrol.models.train.initial_rows import initialise_rows

    if read_config(base).get("quantization_config"):
        raise UserError(f"{base} is quantised: rows cannot be added to it.", "Give the original.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is there already.", "Give a new folder with --out.")
    own = STTokenizer.load(base / "tokenizer.json")
    if "<function>" in own.specials:
        raise UserError(f"{base} has ST tokens already.", "Use it as it is, or adopt its template (--template-from).")
    begin, end = _markers(base, own)
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    add_st_tokens(tokenizer, ST_TOKENS)
    known = STTokenizer(tokenizer)
    try:
        safe = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True}
        model = AutoModelForCausalLM.from_pretrained(base, dtype="auto", **safe)
    except Exception as error:  # whatever a checkpoint can be wrong in
        told = (str(error).strip() or repr(error)).splitlines()[0]
        raise UserError(f"transformers cannot load {base} ({told}).", "Give a causal model's folder.") from None
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
    export(model, tokenizer, COMPACT | {"template": template}, out, model.dtype, end)
    for name in ("generation_config.json", "chat_template.jinja", "LICENSE"):
        if (base / name).is_file():
            shutil.copy(base / name, out / name)
    return Checkpoint.open(str(out))


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
