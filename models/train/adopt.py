"""Gives a published SimpleTool checkpoint its prompt template: the system text comes from a file that the user has."""

from __future__ import annotations

import ast
import json
from pathlib import Path

from rtcontrol.models.checkpoint import read_config
from rtcontrol.models.errors import UserError
from rtcontrol.models.prompt import FILE_NAME, VARIABLES

SIMPLETOOL_V1_TURNS = (
    "<|im_start|>user\nenvironment: {environment}\nhistory: [{history}]\n\n{instruction}<|im_end|>\n"
    "<|im_start|>assistant\n"
)
VARIABLE = "SYSTEM_TEMPLATE"


def adopt(checkpoint: Path, template_from: Path, out: Path | None = None) -> Path:
    """Write the `simpletool-v1` template for `checkpoint` and return its path.

    `template_from` is the authors' server file (Python with `SYSTEM_TEMPLATE = "..."`; it is parsed, never run) or a
    text file; the system text must contain `{tools_json}` or `{tools}` once. The template goes beside the weights, or
    to the folder or file `out`. Raises UserError.
    """
    read_config(checkpoint)
    text = _system_text(template_from)
    system = text.replace("{tools_json}", "{tools}")
    if system.count("{tools}") != 1:
        raise UserError(
            f"{template_from}: its system text holds {{tools_json}} {system.count('{tools}')} times.",
            "Give the file with the system text, where {tools_json} stands once in place of the tools.",
        )
    if others := [v for v in VARIABLES if v != "tools" and f"{{{v}}}" in system]:
        raise UserError(
            f"{template_from}: its system text holds {{{others[0]}}}, which belongs to the user turn.",
            "Give the system text alone; the turns behind it are added.",
        )
    config = {"profile": "simpletool-v1", "template": system + SIMPLETOOL_V1_TURNS}
    config |= {"history_separator": ", ", "overflow": "cut"}
    path = checkpoint / FILE_NAME if out is None else out / FILE_NAME if out.is_dir() else out
    try:
        path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", "utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error}).", "Give another place with --out.") from None
    return path


def _system_text(path: Path) -> str:
    try:
        # Bytes, not text mode: a line break is part of what the checkpoint was trained on.
        source = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        remedy = "Give the authors' server file, or a UTF-8 text file with {tools_json}."
        raise UserError(f"{path} cannot be read ({error}).", remedy) from None
    return _assigned(path, source) if path.suffix == ".py" else source


def _assigned(path: Path, source: str) -> str:
    """The string assigned to SYSTEM_TEMPLATE at the top level of a Python file."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{path} is no Python file ({error}).", "Save a plain text template as .txt.") from None
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(t, ast.Name) and t.id == VARIABLE for t in targets):
            value = node.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                return value.value
            raise UserError(
                f"{path}: {VARIABLE} is not a plain string.", "Save the text that it stands for as a .txt file."
            )
    raise UserError(
        f"{path} assigns no {VARIABLE}.",
        "Give the authors' server file (rt_server.py), or a text file with {tools_json}.",
    )
