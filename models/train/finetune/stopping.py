"""Ctrl-C of a training: the step under way ends, what it gave is kept, and then the run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import Trainer, TrainerCallback


class TrainingStopped(KeyboardInterrupt):
    """Somebody stopped the run, which kept what it had after so many `steps`."""

    def __init__(self, steps: int) -> None:
        super().__init__(f"stopped after {steps} steps")
        self.steps = steps


class _Stop(TrainerCallback):
    asked = False

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.asked:
            control.should_save = control.should_training_stop = True


@contextmanager
def stopped_whole(trainer: Trainer) -> Iterator[None]:
    """While a trainer trains: after Ctrl-C it keeps a checkpoint of the step under way, and TrainingStopped is raised;
    a second one ends it at once. Of several processes each would end at a step of its own: they all end at once."""
    if trainer.args.world_size > 1 or threading.current_thread() is not threading.main_thread():
        yield
        return
    callback, before = _Stop(), signal.getsignal(signal.SIGINT)
    trainer.add_callback(callback)

    def stop(number: int, frame: Any) -> None:
        callback.asked = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if callback.asked and trainer.state.global_step < trainer.state.max_steps:
        raise TrainingStopped(trainer.state.global_step)
