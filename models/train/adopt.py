"""Gives a published SimpleTool checkpoint its prompt template: the authors' text comes from a file of the user's."""

from __future__ import annotations

import ast
import copy
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Formatter
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers.utils.logging import disable_progress_bar

from rtcontrol.models.checkpoint.checkpoint import read_config
from rtcontrol.models.checkpoint.prompt import FILE_NAME, SIMPLETOOL_V1_TURNS, SIMPLETOOL_V2_TURNS, VARIABLES
from rtcontrol.models.checkpoint.special_tokens import NULL, ST_TOKENS
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.errors import UserError, decoded

_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
# The words whose rows are averaged into a new token's row. A base tokenizer may split a word; its pieces all count.
INITIAL_WORDS: dict[str, tuple[str, ...]] = {
    "<content>": ("content", "response", "answer", "<", ">"),
    "</content>": ("content", "end", "stop", "</", ">"),
    "<function>": ("function", "call", "name", "<", ">"),
    "</function>": ("function", "end", "stop", "</", ">"),
    NULL: ("null", "none", "empty", "nothing"),
    **{
        f"<arg{k}>": ("argument", "parameter", "value", str(k), word, "<", ">")
        for k, word in enumerate(_ORDINALS, start=1)
    },
    **{f"</arg{k}>": ("argument", "end", "stop", str(k), word, "</", ">") for k, word in enumerate(_ORDINALS, start=1)},
}


def initialise_rows(weight: torch.Tensor, tokenizer: STTokenizer, tokens: Sequence[str] = ST_TOKENS) -> None:
    """Set the rows of `tokens` in an embedding or LM head `weight` [vocabulary, hidden], in place, to the mean of the
    rows of their related words' tokens."""
    with torch.no_grad():
        for token in tokens:
            ids = [i for word in INITIAL_WORDS[token] for i in tokenizer.encode(word)]
            weight[tokenizer.special_id(token)] = weight[ids].float().mean(0).to(weight.dtype)


VARIABLE = "SYSTEM_TEMPLATE"  # in v1's server file; v2's has it with a prefix


def adopt(checkpoint: Path, template_from: Path, out: Path | None = None, system: str | None = None) -> Path:
    """Write the template of a published `checkpoint` and return its path.

    `template_from` is one of the authors' server files (Python; it is parsed, never run) or a text file with the system
    text, where `{tools_json}` or `{tools}` stands once. The file's format is v1 (one generic header) or v2 (a header
    with `{system_prompt}`, which is a domain's own). `system` is v2's domain prompt: the text, or a text file; None:
    the file's default. The template goes beside the weights, or to the folder or file `out`. Raises UserError.
    """
    read_config(checkpoint)
    found = _strings(template_from)
    header = found.get(f"V2_{VARIABLE}", found.get(VARIABLE))
    if header is None:
        raise UserError(
            f"{template_from} assigns no {VARIABLE}.",
            "Give the authors' server file (rt_server.py), or a text file with {tools_json}.",
        )
    form, turns, text = "v1", SIMPLETOOL_V1_TURNS, header.replace("{tools_json}", "{tools}")
    if "{system_prompt}" in header:
        told = found.get("V2_DEFAULT_SYSTEM") if system is None else _domain(system)
        if told is None:
            raise UserError(f"{template_from} has no default prompt of the domain.", "Give one with --system.")
        form, turns, text = "v2", SIMPLETOOL_V2_TURNS, _filled(template_from, header, told)
    if text.count("{tools}") != 1:
        raise UserError(
            f"{template_from}: its system text holds {{tools_json}} {text.count('{tools}')} times.",
            "Give the file with the system text, where {tools_json} stands once in place of the tools.",
        )
    if others := [v for v in VARIABLES if v != "tools" and f"{{{v}}}" in text]:
        raise UserError(
            f"{template_from}: its system text holds {{{others[0]}}}, which belongs to the user turn.",
            "Give the system text alone; the turns behind it are added.",
        )
    config = {"profile": f"simpletool-{form}", "template": text + turns, "history_separator": ", ", "overflow": "cut"}
    path = checkpoint / FILE_NAME if out is None else out / FILE_NAME if out.is_dir() else out
    try:
        path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", "utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error}).", "Give another place with --out.") from None
    return path


def _filled(path: Path, template: str, system: str) -> str:
    """What `str.format` makes of a header of v2."""
    fields = {"system_prompt": system, "tools_json": "{tools}", "tools": "{tools}"}
    try:
        return "".join(
            text + (fields[name] if name is not None else "") for text, name, *_ in Formatter().parse(template)
        )
    except (ValueError, KeyError) as error:
        what = f"{path}: its template cannot be filled in ({error})."
        raise UserError(what, f"Known: {', '.join(f'{{{f}}}' for f in fields)}.") from None


def _domain(given: str) -> str:
    """Return a domain's prompt: the text itself, or that of a file."""
    try:
        return _read(Path(given)).rstrip("\n") if Path(given).is_file() else given
    except OSError:  # a text is too long for a name
        return given


def _read(path: Path) -> str:
    try:
        # Bytes, not text mode: a line break is part of what the checkpoint was trained on.
        return decoded(path.read_bytes(), path)
    except OSError as error:
        remedy = "Give the authors' server file, or a UTF-8 text file with {tools_json}."
        raise UserError(f"{path} cannot be read ({error}).", remedy) from None


def _strings(path: Path) -> dict[str, str]:
    """The strings that a Python file assigns at its top level; a text file is its VARIABLE."""
    source = _read(path)
    if path.suffix != ".py":
        return {VARIABLE: source}
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{path} is no Python file ({error}).", "Save a plain text template as .txt.") from None
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for name in (t.id for t in targets if isinstance(t, ast.Name)):
                if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                    found[name] = node.value.value
                elif name.endswith(VARIABLE):
                    raise UserError(
                        f"{path}: {name} is not a plain string.", "Save the text that it stands for as a .txt file."
                    )
    return found


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
