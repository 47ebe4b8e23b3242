"""Results that are kept: a folder a run, its result written when it is whole; what is done is not done again."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rtcontrol.models.errors import UserError
from rtcontrol.models.files import replace_file
from rtcontrol.models.train.trainer import STATE

VERSION = 1  # of what is not in a setting: another one, and all is done anew
RESULT, CHECKPOINT = "result.json", "checkpoint"
Told = Callable[[str, Mapping[str, Any]], None]


@dataclass(frozen=True)
class KeptRun:
    """`work(*given, folder)` gives what is found out; it can be sent to another process. `folder` tells it from others:
    the same work, the same place."""

    says: str
    folder: Path
    work: Callable[..., dict[str, Any]]
    given: tuple[Any, ...]

    def result(self) -> dict[str, Any] | None:
        """None where it is not done."""
        path = self.folder / RESULT
        if not path.is_file():
            return None
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return found

    def checkpoint(self) -> Path:
        """Where its model is kept. Raises UserError where it is not done."""
        if self.result() is None:
            raise UserError(f"{self.says}: it is not done yet.", "Do the experiment that trains it first.")
        return self.folder / CHECKPOINT

    def do(self) -> dict[str, Any]:
        """What is found out; kept. Raises UserError for a full disk."""
        if (known := self.result()) is not None:
            return known
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            found = self.work(*self.given, self.folder)
            replace_file(self.folder / RESULT, json.dumps(found, indent=1) + "\n")
        except OSError as error:
            raise UserError(
                f"{self.folder} cannot be written ({error.strerror}).", "Make room, and start it again."
            ) from None
        (self.folder / STATE).unlink(missing_ok=True)  # nothing is left to go on with
        return found


def digest(said: object) -> str:
    """A name for what can be written as JSON."""
    return hashlib.sha256(json.dumps([VERSION, said], sort_keys=True).encode()).hexdigest()[:10]


def do_all(runs: Iterable[KeptRun], jobs: int, told: Told | None = None) -> None:
    """All that are not done, `jobs` at a time, each in a process of one thread; of the same folder one. `told` gets
    what a run is and what it found. Raises what a run raised, when those under way are done."""
    left = {run.folder: run for run in runs if run.result() is None}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        begun = {pool.submit(run.do): run for run in left.values()}
        for done in as_completed(begun):
            if (error := done.exception()) is not None:
                pool.shutdown(cancel_futures=True)
                raise error
            if told:
                told(begun[done].says, done.result())
