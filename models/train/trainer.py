"""The training loop with rows in chunks, packed trees, AdamW and a cosine schedule. A run can resume at every
checkpoint.

`fit` and fine-tuning use this loop with different schedules, end conditions and batches.
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
from rtcontrol.models.train.encode import RowEncoder, ToolsEncoder
from rtcontrol.models.train.packing import PackedBatch, bf16_products, pack, tree_loss

RowSource = Callable[[int], Sequence[Row]]
Progress = Callable[[dict[str, Any]], None]
PROGRESS_EVERY = 8  # batches
STATE = "state.pt"  # what a run resumes from
LOG = "log.jsonl"  # a line a chunk


@dataclass(frozen=True)
class TrainConfig:
    """The hyperparameters of a training run.

    `samples` is the length of the schedule and of the run. `group` samples share a prefix in one tree and make a batch;
    runs of `run` rows share an instruction. `forced_share` of the rows also train labels that a constrained walk never
    asks for, for engines that decode without tries. `bf16` rounds the factors of matrix products.
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
class Position:
    """The position of a run: chunk, samples, seconds of training, and the loss of the last step."""

    samples: int = 0
    chunk: int = 0
    seconds: float = 0.0
    loss: float = math.nan


@dataclass
class StepCounts:
    """Counts since the last line of the log: losses of the steps, and how many labels of calls were right."""

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
    """Cut rows into shuffled groups. Runs of `config.run` rows keep one instruction (or one set of tools, if rows have
    tools), whose tokens a tree shares."""
    places = {id(row.tools): i for i, row in reversed([*enumerate(rows)])}
    ordered = sorted(rows, key=lambda r: (places[id(r.tools)], r.instruction, r.history, rng.random()))
    runs = [ordered[i : i + config.run] for i in range(0, len(ordered), config.run)]
    rng.shuffle(runs)
    flat = [row for run in runs for row in run]
    return [flat[i : i + config.group] for i in range(0, len(flat), config.group)]


class Trainer:
    """Trains a Hugging Face causal LM on rows from `source(chunk)`; everything is saved under `out`.

    Raises UserError when `out` holds a run with another configuration.
    """

    BETAS = (0.9, 0.95)
    SAVES_MIDWAY = False  # whether an interrupted run resumes within a chunk

    def __init__(
        self, model: Any, encoder: RowEncoder | ToolsEncoder, source: RowSource, config: TrainConfig, out: Path
    ) -> None:
        self.model, self.encoder, self.source, self.config, self.out = model, encoder, source, config, out
        self.optimizer = torch.optim.AdamW(self.parameter_groups(), lr=config.learning_rate, betas=self.BETAS)
        self.at, self.tally, self.norm = Position(), StepCounts(), 0.0
        self._start_s = 0.0
        self._consistent = True  # no step is partly done
        out.mkdir(parents=True, exist_ok=True)
        if (out / STATE).is_file():
            self.resume(self._saved())

    # Methods that a kind of training may override.

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return the groups of trained weights. The rate of a group is the schedule's rate times the group's
        `share`."""
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        decay = [p for p in parameters if p.dim() >= 2]
        rest = [p for p in parameters if p.dim() < 2]
        return [{"params": decay, "weight_decay": self.config.weight_decay}, {"params": rest, "weight_decay": 0.0}]

    def settings(self) -> dict[str, Any]:
        """Return the settings that a resumed run must share with the original one."""
        return asdict(self.config) | {"tokenizer": self.encoder.tokenizer.digest()}

    def over(self) -> bool:
        """Return whether the run is complete."""
        return self.at.samples >= self.config.samples

    def done(self) -> float:
        """Return the share of the schedule that is done."""
        return self.at.samples / self.config.samples

    def rate(self) -> float:
        """Return the current learning rate: linear warm-up, then cosine to `final_rate` of the peak."""
        done, config = self.done(), self.config
        if done < config.warmup:
            return config.learning_rate * max(done, 1e-3) / config.warmup
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        return config.learning_rate * (config.final_rate + (1 - config.final_rate) * cosine)

    def groups(self, rng: random.Random) -> Iterable[Sequence[Any]]:
        """Return the rows of a chunk, cut into groups for the steps."""
        return group_rows(self.source(self.at.chunk), self.config, rng)

    def batches(self, rows: Sequence[Any], rng: random.Random) -> Iterable[PackedBatch]:
        """Return the batches whose gradients make a step."""
        encoded = [self.encoder.encode(row, forced=rng.random() < self.config.forced_share) for row in rows]
        return [pack(self.encoder.prefix, encoded)]

    def weight(self, rows: Sequence[Any]) -> float | None:
        """Return the divisor of a step's losses, or None for the sum of weights of the only batch."""
        return None

    def products(self) -> AbstractContextManager[object]:
        """Return a context in which matrices are multiplied with the run's precision."""
        return bf16_products(self.config.bf16)

    def stepped(self, progress: Progress | None) -> None:
        """Act on the end of a step."""
        if progress and len(self.tally.losses) % PROGRESS_EVERY == 0:
            progress(self.line())

    def chunk_over(self, progress: Progress | None) -> None:
        """Act on the end of a chunk."""
        line = self.line()
        self.tally = StepCounts()
        self.log(line)
        if progress:
            progress(line)

    def line(self) -> dict[str, Any]:
        """Return the progress since the last line."""
        return {
            "samples": self.at.samples,
            "loss": round(self.tally.loss, 4),
            "accuracy": round(self.tally.accuracy, 4),
            "rate": self.rate(),
            "seconds": round(self.at.seconds, 1),
            "samples_per_s": round(self.at.samples / max(self.at.seconds, 1e-9), 1),
        }

    def finished(self) -> None:
        """Finish a run before it is saved."""

    # The loop.

    def run(self, progress: Progress | None = None) -> None:
        """Train to the end. `progress` gets, every few batches and after each chunk, a dict with samples, loss and
        accuracy (share of the calls' labels right) of the chunk so far, rate, seconds and samples_per_s; the log gets a
        line per chunk. Raises UserError if the loss is not finite or the disk is full."""
        config, at = self.config, self.at
        self._start_s = time.monotonic() - at.seconds
        before, saved_s = (at.samples, at.chunk), self._start_s + at.seconds
        self.tally = StepCounts()
        self.model.train()
        try:
            while not self.over():
                self._chunk(progress)
                if time.monotonic() - saved_s > config.save_every_s and not self.over():
                    self.save()
                    saved_s = time.monotonic()
        except (KeyboardInterrupt, UserError):  # LookupError and the like come from the code of a world, or from rows
            if self.SAVES_MIDWAY and self._consistent:
                self.save()
            raise
        self.finished()
        if (at.samples, at.chunk) != before:
            self.save()

    def _chunk(self, progress: Progress | None) -> None:
        rng = random.Random(f"{self.config.seed}/{self.at.chunk}")
        for rows in self.groups(rng):
            self._step(rows, rng)
            self.at.samples += len(rows)
            self.clock()
            self.stepped(progress)
            if self.over():
                break
        self.at.chunk += 1
        self.chunk_over(progress)

    def clock(self) -> None:
        """Update the seconds of training so far."""
        self.at.seconds = time.monotonic() - self._start_s

    def _step(self, rows: Sequence[Any], rng: random.Random) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate() * group.get("share", 1.0)
        weight, mean = self.weight(rows), 0.0
        for batch in self.batches(rows, rng):
            with self.products():
                loss, correct = tree_loss(self.model, batch, normaliser=weight)
                loss.backward()
            mean += float(loss.detach())
            self.tally.right += int(correct[batch.counted].sum())
            self.tally.labels += int(batch.counted.sum())
        if not math.isfinite(mean):
            raise UserError(
                f"The loss is {mean} after {self.at.samples:,} samples: nothing is learnt from it.",
                "Try another seed or a lower rate; are there numbers of very many digits in the rows?",
            )
        self.norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip))
        self._consistent = False
        self.optimizer.step()
        self._consistent = True
        self.optimizer.zero_grad(set_to_none=True)
        self.tally.losses.append(mean)
        self.at.loss = mean

    # Saving and resuming.

    def state(self) -> dict[str, Any]:
        """Return the state that a run resumes from, with only the trained weights of the model."""
        return {
            "config": self.settings(),
            "model": {name: p.detach() for name, p in self.model.named_parameters() if p.requires_grad},
            "optimizer": self.optimizer.state_dict(),
            "at": asdict(self.at),
        }

    def resume(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state. Raises UserError if the state is from another configuration."""
        old, new = state["config"], self.settings()
        if old != new:
            names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
            differences = "; ".join(f"{name} was {_brief(old.get(name))}, is {_brief(new.get(name))}" for name in names)
            raise UserError(
                f"{self.out} holds a run with another configuration: {differences}.",
                "Continue with the old settings, or give another --out.",
            )
        self.model.load_state_dict(state["model"], strict=False)
        self.optimizer.load_state_dict(state["optimizer"])
        self.at = Position(**state["at"])

    def _saved(self) -> Mapping[str, Any]:
        try:
            state: Mapping[str, Any] = torch.load(self.out / STATE, map_location="cpu", weights_only=True)
        except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
            why = getattr(error, "strerror", None) or "it is not whole"
            raise UserError(f"{self.out / STATE} is damaged ({why}).", "Remove it, or give another --out.") from None
        return state

    def save(self) -> None:
        """Write the state that a run resumes from; the old file stays until the new one is complete. Raises UserError
        for a full disk."""
        part = self.out / "state.tmp"
        try:
            torch.save(self.state(), part)
            os.replace(part, self.out / STATE)
        except (OSError, RuntimeError) as error:  # torch's writer raises RuntimeError
            part.unlink(missing_ok=True)
            raise self._full(error) from None

    def log(self, line: Mapping[str, Any]) -> None:
        """Append a line to the log. Raises UserError for a full disk."""
        try:
            with (self.out / LOG).open("a") as log:
                log.write(json.dumps(line) + "\n")
        except OSError as error:
            raise self._full(error) from None

    def _full(self, error: Exception) -> UserError:
        kept = "what was saved before is whole" if (self.out / STATE).is_file() else "nothing was saved yet"
        # torch's error gives a place in its code, but no reason.
        why = getattr(error, "strerror", None) or "the file could not be written whole"
        return UserError(
            f"The run cannot be saved in {self.out} ({why}); {kept}.",
            "Make room there, and start the same command again: it resumes.",
        )


def _brief(value: Any) -> str:
    return text if len(text := str(value)) <= 60 else f"{text[:57]}..."
