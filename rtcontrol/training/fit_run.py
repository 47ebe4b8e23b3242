"""The training run within a budget of time: it ends well whenever it ends, and goes on where it was stopped."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from rtcontrol.models.train.rows import Row, with_word_probes
from rtcontrol.models.train.trainer import Progress, TrainConfig, Trainer, group_rows
from rtcontrol.training.model_size import WORD, Learner
from rtcontrol.training.validation import SAMPLE, HeldOut, Share, score_of

NAMING = 0.2  # of the rows


class RowStream(Protocol):
    """Rows without end. A world's go on as the world does: they are asked for once a run, not once a chunk."""

    def rows(self, rng: random.Random) -> Iterator[Row]:
        """Rows for ever."""


class GivenRows:
    """The same rows again and again, each time in another order."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = list(rows)

    def rows(self, rng: random.Random) -> Iterator[Row]:
        """Epoch after epoch."""
        while True:
            epoch = list(self._rows)
            rng.shuffle(epoch)
            yield from epoch


def name_things(rows: Sequence[Row]) -> bool:
    """Whether instructions name what is seen: a word of theirs, now this and now that, stands in the observation."""
    told: Counter[str] = Counter(word for row in rows for word in dict.fromkeys(WORD.findall(row.instruction)))
    # A word that every instruction has, as `the`, tells them not apart.
    apart = {word for word, count in told.items() if count < 0.9 * len(rows)}
    naming = [apart & set(WORD.findall(row.instruction)) & set(WORD.findall(row.observation)) for row in rows]
    return sum(map(bool, naming)) >= NAMING * len(rows) and len(set().union(*naming)) > 1


CHUNK = 1_024
FEW = 64  # held-out rows
TOGETHER = 20_480  # tokens in a batch: its memory grows with them, and with the square of the longest sample


@dataclass(frozen=True)
class FitSchedule:
    """A steady rate between a short warm-up and a decay over the last `decay` of the time: unlike a cosine, it may end
    at any moment, by decaying from there (S. Hu et al.: MiniCPM, arXiv 2404.06395, section 4)."""

    minutes: float = 15.0
    learning_rate: float = 1e-3
    warmup_samples: int = 1_024
    decay: float = 0.4
    final: float = 0.03


class FitRun(Trainer):
    """Trains until the time is out, or until the held-out rows say that there is nothing left to learn.

    `identity` is what a run that goes on must share, by name; `longest` the tokens of a sample. Everything is kept in
    `out`; a run that is started again goes on there, a finished one where it is given more time. Raises UserError where
    it belongs to another configuration.
    """

    SAVES_MIDWAY = True

    def __init__(
        self,
        learner: Learner,
        stream: RowStream,
        judge: HeldOut,
        schedule: FitSchedule,
        identity: Mapping[str, Any],
        out: Path,
        ceiling: float = 1.0,
        longest: int = 1,
        probes: bool = False,
        say: Callable[[str], object] = lambda text: None,
    ) -> None:
        self.schedule, self._judge, self._identity, self._ceiling = schedule, judge, dict(identity), ceiling
        self._stream, self._probes, self._say = stream, probes, say
        self.decays_from: float | None = None
        self.ends = self.asked_s = schedule.minutes * 60
        self.lines: list[dict[str, Any]] = []
        self._best: tuple[float, Any] = (-1.0, None)
        config = TrainConfig(
            samples=1 << 60,
            seed=identity.get("seed", 0),
            learning_rate=schedule.learning_rate,
            group=max(1, min(TrainConfig.group, TOGETHER // longest)),
            bf16=True,
        )
        super().__init__(learner.model, learner.encoder, lambda chunk: (), config, out)

    def rate(self) -> float:
        """The learning rate now."""
        peak, s = self.schedule.learning_rate, self.schedule
        if self.decays_from is not None:
            share = (self.seconds - self.decays_from) / max(self.ends - self.decays_from, 1e-9)
            return peak * (1 - (1 - s.final) * min(1.0, share))
        return peak * min(1.0, (self.samples + self.config.group) / s.warmup_samples)

    def settings(self) -> dict[str, Any]:
        schedule = asdict(self.schedule)
        del schedule["minutes"]
        return {**self._identity, **schedule}

    def state(self) -> dict[str, Any]:
        more = ("decays_from", "ends", "asked_s", "lines", "_best")
        return super().state() | {"fit": {name: getattr(self, name) for name in more}}

    def resume(self, state: Mapping[str, Any]) -> None:
        super().resume(state)
        for name, value in state["fit"].items():
            setattr(self, name, value)
        if (asked_s := self.schedule.minutes * 60) > self.asked_s:
            # More time than before: on from there, at the steady rate.
            self.ends, self.asked_s, self.decays_from = asked_s, asked_s, None
        elif asked_s < self.asked_s and self.seconds < self.ends:
            # Less: what is left of it, falling from here.
            self.ends, self.asked_s, self.decays_from = max(self.seconds, asked_s), asked_s, self.seconds

    def over(self) -> bool:
        """Whether its time is out; a run that was stopped in its only look is looked at."""
        return self.seconds >= self.ends and bool(self.lines)

    def run(self, progress: Progress | None = None) -> None:
        """Train to the end, or on from where it was stopped; then the model has its best weights. Raises UserError for
        a disk that is full: what was saved stays."""
        rng = random.Random(f"{self.config.seed}/{self.samples}")
        self._rows = with_word_probes(self._stream.rows(rng), rng) if self._probes else self._stream.rows(rng)
        self._due = max(self.seconds, 1.0)
        super().run(progress)

    def groups(self, rng: random.Random) -> Iterator[list[Row]]:
        for group in group_rows(list(itertools.islice(self._rows, CHUNK)), self.config, rng):
            # In order, neighbours share most of their tokens, which are computed once.
            yield sorted(group, key=lambda r: (r.instruction, r.history, r.observation))

    def stepped(self, progress: Progress | None) -> None:
        """Look at the held-out rows now and then, seldom enough to cost little."""
        if self.decays_from is None and self.seconds >= self.ends * (1 - self.schedule.decay):
            self.decays_from = self.seconds
        if self.seconds < min(self._due, self.ends):
            super().stepped(progress)
            return
        looked, line = self.seconds, self._look()
        if progress:
            progress(line)
        self.forget()
        self.clock()
        self._due = self.seconds + max(1.0, 0.12 * self.seconds, 10 * (self.seconds - looked))

    def chunk_over(self, progress: Progress | None) -> None:
        """A line is told by looks, not by chunks."""

    def finished(self) -> None:
        # What was trained since the last look is not known to be better than that look's weights.
        if self.lines[-1]["samples"] < self.samples or self._best[0] > score_of(self.lines[-1]):
            self.model.load_state_dict(self._best[1])

    def line(self) -> dict[str, Any]:
        line = super().line()
        del line["samples_per_s"]
        return line | {"left_s": round(max(0.0, self.ends - self.seconds), 1)}

    def _look(self) -> dict[str, Any]:
        line = self.line()
        found = self._judge.look(SAMPLE)
        score = found.score
        line |= found.to_dict()
        self.lines.append(line)
        self.log(line)
        if score.value > self._best[0]:
            weights = {name: value.clone() for name, value in self.model.state_dict().items()}
            self._best = (score.value, weights)
        if self.decays_from is None and (self._all_right(score, self.accuracy()) or self._learnt_by_heart(score)):
            # What is left to gain is what a falling rate gives.
            self.decays_from, self.ends = self.seconds, min(self.ends, self.seconds * (1 + self.schedule.decay))
            why = "All held-out rows of this look are right" if score.right == score.count else "No more is learnt"
            self._say(f"{why}: the learning rate falls, and it ends in {self.ends - self.seconds:.0f} s.")
        return line

    @staticmethod
    def _all_right(score: Share, accuracy: float) -> bool:
        """Every held-out row; where those are few, what is rare is among the rows that are trained."""
        return score.right == score.count and (score.count >= FEW or accuracy > 0.99)

    def _learnt_by_heart(self, score: Share) -> bool:
        """The rows are known, and the held-out ones have not got better for a third of the time."""
        scores = [*map(score_of, self.lines)]
        since = next(line["seconds"] for line, s in zip(self.lines, scores, strict=True) if s == max(scores))
        known = self.lines[-1]["accuracy"] > 0.999 or score.value >= self._ceiling
        return known and self.seconds > 20 and self.seconds - since > self.seconds / 3
