"""Convert a checkpoint to the ST format: add the ST tokens to a base model, or a prompt template to a published
SimpleTool checkpoint."""

from __future__ import annotations

import ast
import json
from contextlib import suppress
from pathlib import Path
from string import Formatter
from typing import Any

from tokenizers import Tokenizer

from rtcontrol.models.checkpoint.checkpoint import Checkpoint, read_config
from rtcontrol.models.checkpoint.prompt import COMPACT, FILE_NAME, SIMPLETOOL_V1_TURNS, SIMPLETOOL_V2_TURNS, VARIABLES
from rtcontrol.models.checkpoint.special_tokens import ST_TOKENS
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.errors import UserError, decode_utf8, read_json
from rtcontrol.models.train.export import copy_extra_files, export, load_model
from rtcontrol.models.train.vocabulary import add_st_tokens, initialise_vectors

# Pairs of tokens that start and end a message, one pair for each known chat format.
MARKERS = (
    ("<|im_start|>", "<|im_end|>"),
    ("<|start_header_id|>", "<|eot_id|>"),
    ("<start_of_turn>", "<end_of_turn>"),
    ("<bos>", "<eos>"),
    ("<s>", "</s>"),
    ("<|endoftext|>", "<|endoftext|>"),
)
# By model type: the token with which each prompt must start.
FIRST_TOKENS = {"gemma3_text": "<bos>"}
TEMPLATE_VARIABLE = "SYSTEM_TEMPLATE"  # the template's name in the authors' server file (in version 2 after V2_)
SOURCE_HINT = "Give the authors' server file (rt_server.py), or a UTF-8 text file with {tools_json}."


def adopt_base(base: Path, out: Path) -> Checkpoint:
    """Write the base model with the compact template and the 17 ST tokens to the new folder `out`. The embedding of an
    ST token is the mean of related words' embeddings. Raises UserError if the base or the folder cannot be used."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} already exists.", "Give a new folder with --out.")
    if read_config(base).get("quantization_config"):
        raise UserError(f"{base} is quantised, so tokens cannot be added.", "Give the original checkpoint.")
    before = STTokenizer.load(base / "tokenizer.json")
    model, tokenizer = load_model(base, "auto"), Tokenizer.from_file(str(base / "tokenizer.json"))
    if any(tokenizer.token_to_id(token) is not None for token in ST_TOKENS):
        raise UserError(f"{base} already has ST tokens.", "Use it unchanged, or add a template (--template-from).")
    start, end = _find_markers(base, before)
    add_st_tokens(tokenizer)
    ids = [*tokenizer.get_vocab(with_added_tokens=True).values()]
    if len({*ids}) < len(ids):
        raise UserError(f"{base}: its tokenizer's ids have gaps, so new ids would collide.", "Give another base.")
    after = STTokenizer(tokenizer)
    if after.size > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(after.size, mean_resizing=False)
    head = model.get_output_embeddings()
    weights = (model.get_input_embeddings().weight, head and head.weight, getattr(head, "bias", None))
    for weight in {id(w): w for w in weights if w is not None}.values():
        initialise_vectors(weight, after)
    template = COMPACT["template"].replace("<|im_start|>", start).replace("<|im_end|>", end)
    template = FIRST_TOKENS.get(model.config.model_type, "") + template
    export(model, tokenizer, COMPACT | {"template": template}, out, model.dtype, end)
    copy_extra_files(base, out)
    return Checkpoint.open(str(out))


def _find_markers(base: Path, tokenizer: STTokenizer) -> tuple[str, str]:
    known = next((pair for pair in MARKERS if {*pair} <= {*tokenizer.specials}), None)
    if known is not None:
        return known
    config: dict[str, Any] = {}
    with suppress(UserError):
        config = read_json(base / "tokenizer_config.json", UserError("", ""), "")
    start, end = (t.get("content") if isinstance(t := config.get(n), dict) else t for n in ("bos_token", "eos_token"))
    if end in tokenizer.specials:
        return (start if start in tokenizer.specials else end), end
    raise UserError(
        f"{base}: its tokenizer has no known token that ends a part of the prompt.",
        f"Known pairs: {', '.join(f'{a} {b}' for a, b in MARKERS)}; or set eos_token in tokenizer_config.json.",
    )


def adopt(checkpoint: Path, template_from: Path, out: Path | None = None, system: str | None = None) -> Path:
    """Write the prompt template of a published SimpleTool `checkpoint`, and return its path.

    `template_from` is the authors' server file (Python, which is parsed and never run), or a text file with the system
    text, which contains `{tools_json}` or `{tools}` once. In format v2 the system text also contains `{system_prompt}`,
    which is replaced by `system`, a text or a text file (None: the default in the server file). The template is written
    next to the weights, or to the folder or file `out`. Raises UserError.
    """
    read_config(checkpoint)
    strings = _assigned_strings(template_from)
    header = strings.get(f"V2_{TEMPLATE_VARIABLE}", strings.get(TEMPLATE_VARIABLE))
    if header is None:
        raise UserError(f"{template_from} does not define {TEMPLATE_VARIABLE}.", SOURCE_HINT)
    profile, turns, text = "simpletool-v1", SIMPLETOOL_V1_TURNS, header.replace("{tools_json}", "{tools}")
    if "{system_prompt}" in header:
        domain = strings.get("V2_DEFAULT_SYSTEM") if system is None else _domain_prompt(system)
        if domain is None:
            raise UserError(f"{template_from} has no default for the system prompt.", "Set train.system=TEXT.")
        profile, turns, text = "simpletool-v2", SIMPLETOOL_V2_TURNS, _fill_header(template_from, header, domain)
    if text.count("{tools}") != 1:
        count = text.count("{tools}")
        raise UserError(f"{template_from}: its system text has {{tools_json}} {count} times, not once.", SOURCE_HINT)
    if others := [v for v in VARIABLES if v != "tools" and f"{{{v}}}" in text]:
        raise UserError(
            f"{template_from}: its system text has {{{others[0]}}}, which belongs to the user message.",
            "Give the system text alone; the messages after it are added.",
        )
    config = {"profile": profile, "template": text + turns, "history_separator": ", ", "overflow": "cut"}
    path = checkpoint / FILE_NAME if out is None else out / FILE_NAME if out.is_dir() else out
    try:
        path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", "utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error}).", "Give another place with --out.") from None
    return path


def _fill_header(path: Path, template: str, system: str) -> str:
    """Fill in the variables of a v2 header as `str.format` does. Raises UserError for unknown variables."""
    fields = {"system_prompt": system, "tools_json": "{tools}", "tools": "{tools}"}
    try:
        return "".join(
            text + (fields[name] if name is not None else "") for text, name, *_ in Formatter().parse(template)
        )
    except (ValueError, KeyError) as error:
        message = f"{path}: its template cannot be filled in ({error})."
        raise UserError(message, f"Known variables: {', '.join(f'{{{f}}}' for f in fields)}.") from None


def _domain_prompt(system: str) -> str:
    """Return the content of the file `system`, or the text `system` if it is not the path of a file."""
    try:
        return _read(Path(system)).rstrip("\n") if Path(system).is_file() else system
    except OSError:  # a long text is not a valid file name
        return system


def _read(path: Path) -> str:
    try:
        # Read bytes, because text mode would change line breaks on which the checkpoint was trained.
        return decode_utf8(path.read_bytes(), path)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error}).", SOURCE_HINT) from None


def _assigned_strings(path: Path) -> dict[str, str]:
    """Return the strings that a Python file assigns to names at the top level. Of any other file, return the content
    under the name TEMPLATE_VARIABLE."""
    source = _read(path)
    if path.suffix != ".py":
        return {TEMPLATE_VARIABLE: source}
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{path} is not valid Python ({error}).", "Save a plain text as .txt.") from None
    strings = {}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for name in (t.id for t in targets if isinstance(t, ast.Name)):
                if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                    strings[name] = node.value.value
                elif name.endswith(TEMPLATE_VARIABLE):
                    message = f"{path}: {name} is not a plain string."
                    raise UserError(message, "Save its text as a .txt file.")
    return strings
