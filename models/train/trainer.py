"""Train a model on chunks of rows, as packed trees, with AdamW and a cosine schedule. A run can resume from its saved
state. `rtcontrol.fit` and fine-tuning override parts of the loop: schedule, end condition and batches.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from rtcontrol.models.data.row import Row
from rtcontrol.models.errors import UserError
from rtcontrol.models.files import create_file
from rtcontrol.models.train.encode import RowEncoder, ToolsEncoder
from rtcontrol.models.train.packing import PackedBatch, bf16_products, pack_rows, tree_loss

RowSource = Callable[[int], Sequence[Row]]
Progress = Callable[[dict[str, Any]], None]
PROGRESS_EVERY = 8  # number of batches between two reports of progress
STATE = "state.pt"  # file with the saved state of a training run
LOG = "log.jsonl"  # file with one line per chunk of rows


@dataclass(frozen=True)
class TrainConfig:
    """The hyperparameters of a training run.

    `samples` is the length of the schedule and of the run. A step has `group` samples in one tree; `run` consecutive
    rows share an instruction. The share `forced_share` of the rows also trains labels that constrained decoding never
    needs, for engines without tries. `bf16` multiplies matrices in bf16.
    """

    samples: int
    seed: int = 0
    group: int = 64
    run: int = 2
    learning_rate: float = 1e-3
    final_rate: float = 0.03
    warmup: float = 0.02
    weight_decay: float = 0.01
    clip: float = 1.0
    forced_share: float = 0.1
    bf16: bool = False
    save_every_s: float = 120.0


@dataclass
class TrainingProgress:
    """How far a run is: chunks, samples, seconds of training, and the loss of the last step."""

    samples: int = 0
    chunk: int = 0
    seconds: float = 0.0
    loss: float = math.nan


@dataclass
class StepCounts:
    """Counts since the last line of the log: losses of the steps, and numbers of correct labels and of all labels."""

    losses: list[float] = field(default_factory=list)
    right: int = 0
    labels: int = 0

    @property
    def loss(self) -> float:
        return sum(self.losses) / len(self.losses)

    @property
    def accuracy(self) -> float:
        return self.right / max(self.labels, 1)


def group_rows(rows: Sequence[Row], config: TrainConfig, rng: random.Random) -> list[list[Row]]:
    """Cut rows into shuffled groups for steps. `config.run` consecutive rows have the same tools and instruction if
    possible, so that they share tokens in the tree."""
    places = {id(row.tools): i for i, row in reversed([*enumerate(rows)])}
    ordered = sorted(rows, key=lambda r: (places[id(r.tools)], r.instruction, r.history, rng.random()))
    runs = [ordered[i : i + config.run] for i in range(0, len(ordered), config.run)]
    rng.shuffle(runs)
    flat = [row for run in runs for row in run]
    return [flat[i : i + config.group] for i in range(0, len(flat), config.group)]


class Trainer:
    """Trains a Hugging Face causal language model on the rows that `source(chunk)` returns. State and log are saved in
    the folder `out`; if it has a saved state, the run resumes.

    Raises UserError if the saved state has another configuration.
    """

    BETAS = (0.9, 0.95)
    SAVES_MIDWAY = False  # whether the state is also saved when a run is interrupted within a chunk

    def __init__(
        self, model: Any, encoder: RowEncoder | ToolsEncoder, source: RowSource, config: TrainConfig, out: Path
    ) -> None:
        self.model, self.encoder, self.source, self.config, self.out = model, encoder, source, config, out
        self.optimizer = torch.optim.AdamW(self.parameter_groups(), lr=config.learning_rate, betas=self.BETAS)
        self.position, self.counts, self.norm = TrainingProgress(), StepCounts(), 0.0
        self._start_s = 0.0
        self._between_steps = True  # False while the optimizer changes weights
        out.mkdir(parents=True, exist_ok=True)
        if (out / STATE).is_file():
            self.resume(self._load_saved_state())

    # -- methods that subclasses may override -------------------------------------------------------------------------

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return the optimizer's parameter groups. The learning rate of a group is `rate()` times its `share`."""
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        decay = [p for p in parameters if p.dim() >= 2]
        rest = [p for p in parameters if p.dim() < 2]
        return [{"params": decay, "weight_decay": self.config.weight_decay}, {"params": rest, "weight_decay": 0.0}]

    def settings(self) -> dict[str, Any]:
        """Return the settings that must not change when a run is resumed."""
        return asdict(self.config) | {"tokenizer": self.encoder.tokenizer.digest()}

    def is_complete(self) -> bool:
        """Return whether the run is complete."""
        return self.position.samples >= self.config.samples

    def share_done(self) -> float:
        """Return the share of the schedule that is done (from 0 to 1)."""
        return self.position.samples / self.config.samples

    def rate(self) -> float:
        """Return the current learning rate: linear warm-up, then cosine to `final_rate` of the peak."""
        done, config = self.share_done(), self.config
        if done < config.warmup:
            return config.learning_rate * max(done, 1e-3) / config.warmup
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        return config.learning_rate * (config.final_rate + (1 - config.final_rate) * cosine)

    def groups(self, rng: random.Random) -> Iterable[Sequence[Any]]:
        """Return the rows of the current chunk, cut into groups for the steps."""
        return group_rows(self.source(self.position.chunk), self.config, rng)

    def batches(self, rows: Sequence[Any], rng: random.Random) -> Iterable[PackedBatch]:
        """Return the batches of a step, whose gradients are summed."""
        encoded = [self.encoder.encode(row, forced=rng.random() < self.config.forced_share) for row in rows]
        return [pack_rows(self.encoder.prefix, encoded)]

    def loss_divisor(self, rows: Sequence[Any]) -> float | None:
        """Return the divisor of a step's losses, or None for the sum of weights, if the step has one batch."""
        return None

    def precision(self) -> AbstractContextManager[object]:
        """Return a context manager that sets the precision of matrix products."""
        return bf16_products(self.config.bf16)

    def after_step(self, progress: Progress | None) -> None:
        """Handle the end of a step: report progress every PROGRESS_EVERY steps."""
        if progress and len(self.counts.losses) % PROGRESS_EVERY == 0:
            progress(self.progress_line())

    def after_chunk(self, progress: Progress | None) -> None:
        """Handle the end of a chunk: write a line to the log, and report progress."""
        line = self.progress_line()
        self.counts = StepCounts()
        self.log(line)
        if progress:
            progress(line)

    def progress_line(self) -> dict[str, Any]:
        """Return a line for the log and `progress`, with counts since the last line."""
        return {
            "samples": self.position.samples,
            "loss": round(self.counts.loss, 4),
            "accuracy": round(self.counts.accuracy, 4),
            "rate": self.rate(),
            "seconds": round(self.position.seconds, 1),
            "samples_per_s": round(self.position.samples / max(self.position.seconds, 1e-9), 1),
        }

    def before_final_save(self) -> None:
        """Do nothing. Subclasses override this to finish a complete run before its state is saved."""

    # -- the training loop --------------------------------------------------------------------------------------------

    def run(self, progress: Progress | None = None) -> None:
        """Train to the end. `progress` gets a `progress_line()` every few steps and after each chunk; the log gets one
        line per chunk. Raises UserError if the loss is not finite, or the disk is full."""
        config, at = self.config, self.position
        self._start_s = time.monotonic() - at.seconds
        before, saved_s = (at.samples, at.chunk), self._start_s + at.seconds
        self.counts = StepCounts()
        self.model.train()
        try:
            while not self.is_complete():
                self._train_chunk(progress)
                if time.monotonic() - saved_s > config.save_every_s and not self.is_complete():
                    self.save()
                    saved_s = time.monotonic()
        except (KeyboardInterrupt, UserError):  # users' code raises other errors; nothing is saved
            if self.SAVES_MIDWAY and self._between_steps:
                self.save()
            raise
        self.before_final_save()
        if (at.samples, at.chunk) != before:
            self.save()

    def _train_chunk(self, progress: Progress | None) -> None:
        rng = random.Random(f"{self.config.seed}/{self.position.chunk}")
        for rows in self.groups(rng):
            self._train_step(rows, rng)
            self.position.samples += len(rows)
            self.update_seconds()
            self.after_step(progress)
            if self.is_complete():
                break
        self.position.chunk += 1
        self.after_chunk(progress)

    def update_seconds(self) -> None:
        """Update the seconds of training so far."""
        self.position.seconds = time.monotonic() - self._start_s

    def _train_step(self, rows: Sequence[Any], rng: random.Random) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate() * group.get("share", 1.0)
        divisor, mean = self.loss_divisor(rows), 0.0
        for batch in self.batches(rows, rng):
            with self.precision():
                loss, correct = tree_loss(self.model, batch, divisor=divisor)
                loss.backward()
            mean += float(loss.detach())
            self.counts.right += int(correct[batch.counted].sum())
            self.counts.labels += int(batch.counted.sum())
        if not math.isfinite(mean):
            raise UserError(
                f"The loss is {mean} after {self.position.samples:,} samples, so the training cannot continue.",
                "Try another seed or a lower learning rate, and avoid numbers with very many digits in the rows.",
            )
        self.norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip))
        self._between_steps = False
        self.optimizer.step()
        self._between_steps = True
        self.optimizer.zero_grad(set_to_none=True)
        self.counts.losses.append(mean)
        self.position.loss = mean

    # -- save and resume ----------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state of the run for saving, with the trained weights of the model only."""
        return {
            "config": self.settings(),
            "model": {name: p.detach() for name, p in self.model.named_parameters() if p.requires_grad},
            "optimizer": self.optimizer.state_dict(),
            "at": asdict(self.position),
        }

    def resume(self, state: Mapping[str, Any]) -> None:
        """Load a saved state. Raises UserError if it is from another configuration."""
        old, new = state["config"], self.settings()
        if old != new:
            names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
            differences = "; ".join(f"{name} was {_brief(old.get(name))}, is {_brief(new.get(name))}" for name in names)
            raise UserError(
                f"{self.out} has a run with another configuration: {differences}.",
                "Use the old settings, or give another --out.",
            )
        self.model.load_state_dict(state["model"], strict=False)
        self.optimizer.load_state_dict(state["optimizer"])
        self.position = TrainingProgress(**state["at"])

    def _load_saved_state(self) -> Mapping[str, Any]:
        try:
            state: Mapping[str, Any] = torch.load(self.out / STATE, map_location="cpu", weights_only=True)
        except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
            why = getattr(error, "strerror", None) or "it is incomplete"
            raise UserError(f"{self.out / STATE} is damaged ({why}).", "Remove it, or give another --out.") from None
        return state

    def save(self) -> None:
        """Save the state of the run atomically. Raises UserError if it cannot be written, as on a full disk."""
        part = self.out / "state.tmp"
        try:
            os.close(create_file(part))  # replaces a pipe of this name, where writing would block
            torch.save(self.state(), part)
            os.replace(part, self.out / STATE)
        except (OSError, RuntimeError) as error:  # torch raises RuntimeError if it cannot write
            part.unlink(missing_ok=True)
            raise self._save_error(error) from None

    def log(self, line: Mapping[str, Any]) -> None:
        """Append a line to the log. Raises UserError if it cannot be written."""
        try:
            if (path := self.out / LOG).is_fifo():
                path.unlink()  # writing to a pipe would block training
            with path.open("a") as log:
                log.write(json.dumps(line) + "\n")
        except OSError as error:
            raise self._save_error(error) from None

    def _save_error(self, error: Exception) -> UserError:
        kept = "The state saved before is intact" if (self.out / STATE).is_file() else "Nothing was saved yet"
        # An error from torch does not contain the reason.
        why = getattr(error, "strerror", None) or "the file could not be written completely"
        return UserError(
            f"The run cannot be saved in {self.out} ({why}). {kept}.",
            "Free some disk space, and start the same command again: it resumes.",
        )


def _brief(value: Any) -> str:
    return text if len(text := str(value)) <= 60 else f"{text[:57]}..."
