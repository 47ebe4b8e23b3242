"""The training loop: rows in chunks, packed trees, AdamW with a cosine schedule, resumable at every checkpoint."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from rtcontrol.models.errors import UserError
from rtcontrol.models.train.loss import bf16_products, tree_loss
from rtcontrol.models.train.packing import PackedBatch, pack
from rtcontrol.models.train.rows import Row, RowEncoder, ToolsEncoder

RowSource = Callable[[int], Sequence[Row]]
Progress = Callable[[dict[str, Any]], None]
PROGRESS_EVERY = 8  # batches
STATE = "state.pt"  # what a run goes on from
LOG = "log.jsonl"  # a line a chunk


def last_line(out: Path) -> dict[str, Any]:
    """Return the last whole line of the log of a run, empty where there is none: a power cut may have torn one."""
    with contextlib.suppress(OSError):
        for line in reversed((out / LOG).read_text("utf-8").splitlines()):
            with contextlib.suppress(ValueError):
                return dict(json.loads(line))
    return {}


@dataclass(frozen=True)
class TrainConfig:
    """Hyperparameters.

    `samples` is the whole run; `group` samples share a prefix in one tree and make a batch; runs of `run` rows share an
    instruction; `forced_share` of the rows also train labels that a constrained walk never asks for (engines that
    decode without our tries need them). `bf16` rounds what matrices are multiplied with (`bf16_products`).
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


def group_rows(rows: Sequence[Row], config: TrainConfig, rng: random.Random) -> list[list[Row]]:
    """Cut rows into shuffled groups; runs of `config.run` rows keep one instruction, whose tokens a tree shares (rows
    with tools of their own: one set of tools)."""
    places = {id(row.tools): i for i, row in reversed([*enumerate(rows)])}
    ordered = sorted(rows, key=lambda r: (places[id(r.tools)], r.instruction, r.history, rng.random()))
    runs = [ordered[i : i + config.run] for i in range(0, len(ordered), config.run)]
    rng.shuffle(runs)
    flat = [row for run in runs for row in run]
    return [flat[i : i + config.group] for i in range(0, len(flat), config.group)]


class Trainer:
    """Trains a Hugging Face causal LM on rows from `source(chunk)`; everything is saved under `out`.

    Fits and fine-tunings are this loop with their own schedule, end and batches. Raises UserError when `out` holds a
    run with another configuration.
    """

    BETAS = (0.9, 0.95)
    SAVES_MIDWAY = False  # whether a run that is interrupted within a chunk resumes there

    def __init__(
        self,
        model: Any,
        encoder: RowEncoder | ToolsEncoder,
        source: RowSource,
        config: TrainConfig,
        out: Path,
    ) -> None:
        self.model, self.encoder, self.source, self.config, self.out = model, encoder, source, config, out
        self.optimizer = torch.optim.AdamW(self.parameter_groups(), lr=config.learning_rate, betas=self.BETAS)
        self.samples = self.chunk = 0
        self.seconds = 0.0
        self._whole = True  # no step is half done
        out.mkdir(parents=True, exist_ok=True)
        if (out / STATE).is_file():
            self.resume(self._saved())

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return what is trained; a group's rate is the schedule's, times its `share`."""
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        decay = [p for p in parameters if p.dim() >= 2]
        rest = [p for p in parameters if p.dim() < 2]
        return [{"params": decay, "weight_decay": self.config.weight_decay}, {"params": rest, "weight_decay": 0.0}]

    def _saved(self) -> Mapping[str, Any]:
        try:
            saved: Mapping[str, Any] = torch.load(self.out / STATE, map_location="cpu", weights_only=True)
        except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
            why = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ": no whole state"
            raise UserError(
                f"{self.out / STATE} is damaged{why}.", "Remove it to begin anew, or give another --out."
            ) from None
        return saved

    def over(self) -> bool:
        """Whether the run is at its end."""
        return self.samples >= self.config.samples

    def enough(self) -> bool:
        """Whether training may end before that; asked between chunks."""
        return False

    def groups(self, rng: random.Random) -> Iterable[Sequence[Any]]:
        """Return the chunk's rows, cut into those of each step."""
        return group_rows(self.source(self.chunk), self.config, rng)

    def finished(self) -> None:
        """What is done at the end of a run, before it is saved."""

    def run(self, progress: Progress | None = None) -> None:
        """Train to the end, or until it is `enough`. `progress` gets, every few batches and after each chunk, a dict
        with samples, loss and accuracy (share of the calls' labels right) of the chunk so far, rate, seconds and
        samples_per_s; the log gets a line a chunk."""
        self._began = time.monotonic() - self.seconds
        at, saved = (self.samples, self.chunk), self._began + self.seconds
        self.forget()
        self.model.train()
        try:
            while not self.over() and not (self.chunk > 0 and self.enough()):
                rng = random.Random(f"{self.config.seed}/{self.chunk}")
                for rows in self.groups(rng):
                    self._step(rows, rng)
                    self.samples += len(rows)
                    self.clock()
                    self.stepped(progress)
                    if self.over():
                        break
                self.chunk += 1
                self.chunk_over(progress)
                if time.monotonic() - saved > self.config.save_every_s and not self.over():
                    self.save()
                    saved = time.monotonic()
        except (KeyboardInterrupt, UserError):  # the latter of a world's own code, or of rows
            if self.SAVES_MIDWAY and self._whole:
                self.save()
            raise
        self.finished()
        if (self.samples, self.chunk) != at:
            self.save()

    def clock(self) -> None:
        """Set the seconds of training so far."""
        self.seconds = time.monotonic() - self._began

    def forget(self) -> None:
        """Start the losses and the accuracy that a line tells again."""
        self.losses: list[float] = []
        self._right = self._labels = 0

    def stepped(self, progress: Progress | None) -> None:
        """After each step."""
        if progress and len(self.losses) % PROGRESS_EVERY == 0:
            progress(self.line())

    def chunk_over(self, progress: Progress | None) -> None:
        """After each chunk."""
        line = self.line()
        self.forget()
        self.log(line)
        if progress:
            progress(line)

    def line(self) -> dict[str, Any]:
        """Return how far the run is, and how well it does since the last line."""
        return {
            "samples": self.samples,
            "loss": round(sum(self.losses) / len(self.losses), 4),
            "accuracy": round(self.accuracy(), 4),
            "rate": self.rate(),
            "seconds": round(self.seconds, 1),
            "samples_per_s": round(self.samples / max(self.seconds, 1e-9), 1),
        }

    def accuracy(self) -> float:
        """Return the share of the calls' labels that were right since the last line."""
        return self._right / max(self._labels, 1)

    def done(self) -> float:
        """Return the share of the run that is done."""
        return self.samples / self.config.samples

    def rate(self) -> float:
        """The learning rate now: linear warm-up, then cosine to `final_rate` of the peak."""
        done = self.done()
        if done < self.config.warmup:
            return self.config.learning_rate * max(done, 1e-3) / self.config.warmup
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        return self.config.learning_rate * (self.config.final_rate + (1 - self.config.final_rate) * cosine)

    def settings(self) -> dict[str, Any]:
        """What a run that goes on must have in common with the one that began."""
        return asdict(self.config) | {"tokenizer": self.encoder.tokenizer.digest()}

    def state(self) -> dict[str, Any]:
        """What a run goes on from; of the model what is trained."""
        return {
            "config": self.settings(),
            "model": {name: p.detach() for name, p in self.model.named_parameters() if p.requires_grad},
            "optimizer": self.optimizer.state_dict(),
            "samples": self.samples,
            "chunk": self.chunk,
            "seconds": self.seconds,
        }

    def save(self) -> None:
        """Write the resumable state; the old one stays until the new one is whole. Raises UserError for a full disk."""
        part = self.out / "state.tmp"
        try:
            torch.save(self.state(), part)
            os.replace(part, self.out / STATE)
        except (OSError, RuntimeError) as error:  # torch's own writer raises the latter
            part.unlink(missing_ok=True)
            raise self.full(error) from None

    def log(self, line: Mapping[str, Any]) -> None:
        """A line more in the log. Raises UserError for a full disk."""
        try:
            with (self.out / LOG).open("a") as log:
                log.write(json.dumps(line) + "\n")
        except OSError as error:
            raise self.full(error) from None

    def full(self, error: Exception) -> UserError:
        """Return the error of a disk that has no room."""
        kept = "what was saved before is whole" if (self.out / STATE).is_file() else "nothing was saved yet"
        # torch's own writer says where in its code it failed, and not why.
        why = getattr(error, "strerror", None) or "the file could not be written whole"
        return UserError(
            f"The run cannot be saved in {self.out} ({why}); {kept}.",
            "Make room there, and start the same command again: it goes on.",
        )

    def _batch(self, rows: Sequence[Row], rng: random.Random) -> PackedBatch:
        share = self.config.forced_share
        encoded = [self.encoder.encode(row, forced=rng.random() < share) for row in rows]
        return pack(self.encoder.prefix, encoded)

    def batches(self, rows: Sequence[Any], rng: random.Random) -> Iterable[PackedBatch]:
        """Return the batches whose gradients make a step."""
        return [self._batch(rows, rng)]

    def products(self) -> AbstractContextManager[object]:
        """Return the precision in which matrices are multiplied."""
        return bf16_products(self.config.bf16)

    def _step(self, rows: Sequence[Any], rng: random.Random) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate() * group.get("share", 1.0)
        weight, mean = self.weight(rows), 0.0
        for batch in self.batches(rows, rng):
            with self.products():
                loss, correct = tree_loss(self.model, batch, normaliser=weight)
                loss.backward()
            mean += float(loss.detach())
            self._right += int(correct[batch.counted].sum())
            self._labels += int(batch.counted.sum())
        if not math.isfinite(mean):
            raise UserError(
                f"The loss is {mean} after {self.samples:,} samples: nothing is learnt from it.",
                "Try another --seed or a lower rate; are there numbers of very many digits in the rows?",
            )
        self.norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip))
        self._whole = False
        self.optimizer.step()
        self._whole = True
        self.optimizer.zero_grad(set_to_none=True)
        self.losses.append(mean)

    def weight(self, rows: Sequence[Any]) -> float | None:
        """Return what the losses of a step's batches are divided by; None: its only batch's sum of weights."""
        return None

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        now = self.settings()
        # A setting that the version did not know which began the run is at its default.
        was = {f.name: f.default for f in fields(TrainConfig) if f.name in now} | state["config"]
        if was != now:
            names = [name for name in {**was, **now} if was.get(name) != now.get(name)]
            differs = "; ".join(f"{name} was {_brief(was.get(name))}, is {_brief(now.get(name))}" for name in names)
            raise UserError(
                f"{self.out} holds a run with another configuration: {differs}.",
                "Continue with the old settings, or give another --out.",
            )
        self.model.load_state_dict(state["model"], strict=False)
        self.optimizer.load_state_dict(state["optimizer"])
        self.samples, self.chunk, self.seconds = state["samples"], state["chunk"], state["seconds"]


def _brief(value: Any) -> str:
    return text if len(text := str(value)) <= 60 else f"{text[:57]}..."
