"""What processes that train together do in tests, with no more imported than that takes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch

from rtcontrol.models.errors import UserError
from rtcontrol.models.train import trainer


def waits(folder: Path) -> None:
    (folder / str(os.getpid())).touch()
    time.sleep(600)


def second_fails(folder: Path) -> None:
    if trainer.process_rank():
        raise UserError("The second has no more rows.", "Give it some.")
    trainer.mean_gradients(torch.nn.Linear(1, 1))
    (folder / "went on").touch()
