"""A run's checkpoints: written aside and renamed when they are whole, and read with what is wrong named."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from rtcontrol.models.checkpoint.prompt import FILE_NAME as TEMPLATE
from rtcontrol.models.errors import UserError, read_json
from rtcontrol.models.files import no_link, replace_file
from rtcontrol.models.train.finetune.config import FinetuneRecipe

FILE_NAME = "run.json"
FORMAT = 1


def run_identity(
    name: str, base: Path, rows: Mapping[str, str], recipe: FinetuneRecipe, processes: int
) -> dict[str, Any]:
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


def check_identity(folder: Path, now: Mapping[str, Any]) -> None:
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


def write_identity(folder: Path, run_identity: Mapping[str, Any]) -> None:
    """Into a folder; an old one stays until it is whole."""
    replace_file(no_link(folder / FILE_NAME), json.dumps(run_identity, indent=1, ensure_ascii=False) + "\n")


WEIGHTS = "trained.safetensors"
NAME = re.compile(r"checkpoint-(\d+)")
STAGING = "saving"  # what is not whole yet
# torch's own writer and the tensors' raise the latter two.
FULL = (OSError, RuntimeError, SafetensorError)


def steps(folder: Path) -> list[int]:
    """Those of the whole checkpoints, ascending."""
    return sorted(int(m[1]) for path in folder.glob("checkpoint-*") if (m := NAME.fullmatch(path.name)))


def last(folder: Path) -> Path | None:
    """The newest whole checkpoint."""
    found = steps(folder)
    return folder / f"checkpoint-{found[-1]}" if found else None


def finish(folder: Path, step: int, keep: int) -> None:
    """The staged checkpoint takes its place; of the older ones the newest stay."""
    place = folder / f"checkpoint-{step}"
    if place.exists():  # of a run that went on from an earlier one
        shutil.rmtree(place)
    os.replace(folder / STAGING / place.name, place)
    drop_staged(folder)
    for old in steps(folder)[:-keep]:
        shutil.rmtree(folder / f"checkpoint-{old}", ignore_errors=True)


def drop_staged(folder: Path) -> None:
    """What was not whole when its run ended."""
    shutil.rmtree(folder / STAGING, ignore_errors=True)


def write_trained(folder: Path, parameters: Mapping[str, torch.Tensor], told: Mapping[str, Any]) -> None:
    """The trained parameters, and whose they are."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: p.detach().cpu().contiguous() for name, p in parameters.items()}, folder / WEIGHTS)
    write_identity(folder, told)


def read_trained(folder: Path, parameters: Mapping[str, torch.Tensor], told: Mapping[str, Any]) -> None:
    """Load them, in place. Raises UserError for a checkpoint of another base or run, and for a damaged one."""
    check_identity(folder, told)
    with reading(folder):
        saved = load_file(folder / WEIGHTS)
    shapes = {name: tuple(p.shape) for name, p in parameters.items()}
    if (found := {name: tuple(p.shape) for name, p in saved.items()}) != shapes:
        name = next(n for n in {**shapes, **found} if shapes.get(n) != found.get(n))
        raise UserError(
            f"{folder} is of another model: {name} has shape {found.get(name)} there, {shapes.get(name)} here.",
            "Remove it, or give another --out.",
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(saved[name])


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """What fails meanwhile is told as a damaged checkpoint."""
    try:
        yield
    except (OSError, EOFError, KeyError, RuntimeError, ValueError, pickle.UnpicklingError, SafetensorError) as error:
        told = (str(error).strip() or repr(error)).splitlines()[0]
        raise UserError(
            f"{folder} is damaged ({told[:200]}).", "Remove it: the run goes on from the one before, or begins anew."
        ) from None


def not_saved(folder: Path, error: BaseException) -> UserError:
    """Of a disk that has no room."""
    newest = last(folder)
    kept = f"{newest} is whole" if newest is not None else "nothing was saved yet"
    why = getattr(error, "strerror", None) or "the file could not be written whole"
    return UserError(
        f"The run cannot be saved in {folder} ({why}); {kept}.",
        "Make room there, and start the same command again: it goes on.",
    )
