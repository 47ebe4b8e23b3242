"""A run's checkpoints: written aside and renamed when they are whole, and read with what is wrong named."""

from __future__ import annotations

import os
import pickle
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from rtcontrol.models.errors import UserError
from rtcontrol.models.train.finetune import identity

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
    identity.write(folder, told)


def read_trained(folder: Path, parameters: Mapping[str, torch.Tensor], told: Mapping[str, Any]) -> None:
    """Load them, in place. Raises UserError for a checkpoint of another base or run, and for a damaged one."""
    identity.check(folder, told)
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
