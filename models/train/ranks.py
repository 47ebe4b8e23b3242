"""Several processes that train one model: each its own rows, the gradients' mean, the same weights everywhere.

A process that was not started as one of several is the only one, and pays nothing.
"""

from __future__ import annotations

import contextlib
import pickle
import signal
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.multiprocessing.spawn import ProcessRaisedException, spawn

WAIT = timedelta(minutes=30)  # of one for another: a chunk of one's own episodes may take long


def count() -> int:
    """How many train together."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def mine() -> int:
    """Which of them this one is, from 0; the first one writes files."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def mean_gradients(model: Any) -> None:
    """Every gradient becomes the mean of all processes' ones."""
    if count() == 1:
        return
    given = [p for p in model.parameters() if p.requires_grad]
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in given])
    distributed.all_reduce(flat)
    flat /= count()
    for p, mean in zip(given, flat.split([p.numel() for p in given]), strict=True):
        p.grad = mean.view_as(p)


def agreed(value: bool) -> bool:
    """The first one's `value`, everywhere: a barrier, too."""
    if count() == 1:
        return value
    told = torch.tensor(float(value))
    distributed.broadcast(told, 0)
    return bool(told)


def together(processes: int, work: Callable[..., object], *arguments: Any) -> None:
    """Run `work(*arguments)`, a function of a module, in so many processes of one thread each; one alone is this one.
    Raises what the first that fails raises; the others are ended."""
    if processes == 1:
        work(*arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        failed = Path(folder) / "failed"
        try:
            spawn(_one, (processes, folder, work, arguments), processes)
        except ProcessRaisedException:
            if failed.is_file():
                raise pickle.loads(failed.read_bytes()) from None
            raise


def _one(rank: int, processes: int, folder: str, work: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    # torch sends this where the process that waits for them is gone; a shell's background would have it ignored.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{folder}/meet", WAIT, processes, rank)
    try:
        work(*arguments)
    except Exception as error:
        # The others fail next, for want of this one: whose error was first is known here alone.
        with contextlib.suppress(FileExistsError), (Path(folder) / "failed").open("xb") as file:
            file.write(pickle.dumps(error))
        raise
    finally:
        distributed.destroy_process_group()
