"""Ctrl-C of a training: the step under way ends, what it gave is kept, and then the run."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import Trainer, TrainerCallback

from rtcontrol.models.checkpoint.special_tokens import HEADS, opening
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.train.finetune.dataset import GroupCollator, Groups
from rtcontrol.models.train.rows import EncodedRow


def measure(
    model: Any, prefix: tuple[int, ...], groups: Groups, tokenizer: STTokenizer, at_once: int
) -> dict[str, Any]:
    """`rows`; `loss`, the weighted mean; `rows_right`, the share whose labels are all the most probable tokens: what is
    decoded greedily without a constraint is then the row's call; `heads`, the same of each head that is not null."""
    names = {tokenizer.special_id(opening(head)): head for head in HEADS}
    loss = weight = 0.0
    right = 0
    asked, hit = Counter[str](), Counter[str]()
    null = tokenizer.special_id("<|null|>")
    model.eval()
    device, collator = next(model.parameters()).device, GroupCollator(prefix)
    every = sorted((groups[i] for i in range(len(groups))), key=lambda group: group.suffix)  # those of like tools meet
    for start in range(0, len(every), at_once):
        part: list[EncodedRow] = every[start : start + at_once]
        batch = collator.batch(part).to(device)
        with torch.no_grad():
            total, correct = model(batch, 1.0)
        loss += float(total)
        weight += float(batch.weights.sum())
        flags, at = correct.tolist(), 0
        for group in part:
            whole = True
            for head in group.heads:
                count = sum(w > 0 for w in head.weights)
                known = all(flags[at : at + count])
                at += count
                whole &= known
                if head.labels[0] != null:
                    name = names.get(head.ids[0], "json")
                    asked[name] += 1
                    hit[name] += known
            right += whole
    heads = {name: hit[name] / asked[name] for name in (*HEADS, "json") if asked[name]}
    return {"rows": len(groups), "loss": loss / weight, "rows_right": right / len(groups), "heads": heads}


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
