"""Two evaluations of the same rows by the same rule."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rtcontrol.evaluation.run import DOCUMENT
from rtcontrol.models.errors import UserError, read_json
from rtcontrol.models.metrics.intervals import paired

REMEDY = "Give files that `rtcontrol eval --json` wrote."


def load(path: Path) -> dict[str, Any]:
    """The document in a file. Raises UserError."""
    found = read_json(path, UserError(f"There is no {path}.", REMEDY), REMEDY)
    whole = isinstance(found.get("samples"), dict) and isinstance(found.get("data"), dict)
    if found.get("eval") != DOCUMENT or not whole:
        raise UserError(f"{path} holds no figures of an evaluation.", REMEDY)
    return found


def compare(a: Mapping[str, Any], b: Mapping[str, Any], names: tuple[str, str]) -> dict[str, Any]:
    """Overall and function, paired by sample. Raises UserError where rows or rules differ."""
    if a["data"]["digest"] != b["data"]["digest"]:
        raise UserError(
            f"{names[0]} and {names[1]} answer other rows ({_data(a)}; {_data(b)}).",
            "Compare answers to the same rows: evaluate both with the same source, version and --limit.",
        )
    if a["rule"] != b["rule"]:
        raise UserError(
            f"{names[0]} is judged by the rule {a['rule']}, {names[1]} by {b['rule']}.",
            "Evaluate one of them again with the other's --rule: with --out its answers are there.",
        )
    assert set(a["samples"]) == set(b["samples"]), "the same rows have the same samples"
    ids = list(a["samples"])
    found = {}
    for k, name in enumerate(("overall", "function")):
        first, second = ([bool(one["samples"][i][k]) for i in ids] for one in (a, b))
        found[name] = paired(first, second).to_dict()
    return {"a": _named(a, names[0]), "b": _named(b, names[1]), "rule": a["rule"], "paired": found}


def _data(document: Mapping[str, Any]) -> str:
    data = document["data"]
    return f"{data.get('source')}, {data.get('rows')} rows, {data.get('digest')}"


def _named(document: Mapping[str, Any], path: str) -> str:
    model = document.get("model", {})
    return f"{model.get('name', '?')} ({model.get('way', 'answers')}; {path})"
