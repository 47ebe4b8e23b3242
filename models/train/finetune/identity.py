"""What a run was begun with: base, rows, recipe. Its later parts must have the same."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rtcontrol.models.errors import UserError, read_json
from rtcontrol.models.prompt import FILE_NAME as TEMPLATE
from rtcontrol.models.train.finetune.config import FinetuneRecipe

FILE_NAME = "run.json"
FORMAT = 1


def identity(name: str, base: Path, rows: Mapping[str, str], recipe: FinetuneRecipe, processes: int) -> dict[str, Any]:
    """As JSON: the base's `name` and the sha256 of its files, that of each file of `rows` (by path), the recipe, and
    how many processes share the rows."""
    return {
        "format": FORMAT,
        "base": {"name": name, "sha256": base_digest(base)},
        "rows": dict(rows),
        "recipe": recipe.settings(),
        "processes": processes,
    }


def base_digest(folder: Path) -> str:
    """One sha256 of a checkpoint's config, weights, tokenizer and template. Raises UserError."""
    found = hashlib.sha256()
    try:
        for path in [folder / "config.json", folder / "tokenizer.json", *sorted(folder.glob("*.safetensors"))]:
            with path.open("rb") as file:
                found.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
        if (folder / TEMPLATE).is_file():
            found.update((folder / TEMPLATE).read_bytes())
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read ({error.strerror}).", "Give a complete checkpoint.") from None
    return found.hexdigest()


def check(folder: Path, now: Mapping[str, Any]) -> None:
    """Raises UserError where `folder` holds the identity of another run, naming what differs."""
    path = folder / FILE_NAME
    was = read_json(path, UserError(f"{path} is gone.", "Give another --out."), "Remove it, or give another --out.")
    if differs := list(_differences(was, now)):
        raise UserError(
            f"{folder} holds a run with another configuration: {'; '.join(differs)}.",
            "Continue with the old settings, or give another --out.",
        )


def _differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    told = []
    before, after = was.get("base", {}), now["base"]
    if before.get("sha256") != after["sha256"]:
        told.append(f"base was {_base(before)}, is {_base(after)}")
    if _hashes(was.get("rows", {})) != _hashes(now["rows"]):
        told.append(f"rows was {_rows(was.get('rows', {}))}, is {_rows(now['rows'])}")
    # A setting that the version did not know which began the run is at its default.
    old, new = {**FinetuneRecipe().settings(), **was.get("recipe", {})}, now["recipe"]
    told += [f"{k} was {old.get(k)}, is {new.get(k)}" for k in {**old, **new} if old.get(k) != new.get(k)]
    if was.get("processes") != now["processes"]:
        told.append(f"processes was {was.get('processes')}, is {now['processes']}")
    return told


def _hashes(rows: Mapping[str, str]) -> Sequence[str]:
    return [*rows.values()]


def _base(told: Mapping[str, Any]) -> str:
    return f"{told.get('name')} ({str(told.get('sha256'))[:12]})"


def _rows(told: Mapping[str, str]) -> str:
    return ", ".join(f"{path} ({sha[:12]})" for path, sha in told.items()) or "none"


def write(folder: Path, identity: Mapping[str, Any]) -> None:
    """Into a folder; an old one stays until it is whole."""
    part = folder / f"{FILE_NAME}.part"
    try:
        part.write_text(json.dumps(identity, indent=1, ensure_ascii=False) + "\n", "utf-8")
        os.replace(part, folder / FILE_NAME)
    except OSError:
        part.unlink(missing_ok=True)
        raise
