"""Train a controller within a time limit, and evaluate it on held-out rows. A run can be stopped and resumed at any
moment."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rtcontrol.agents import Tools
from rtcontrol.models.call import Call
from rtcontrol.models.data.row import Row
from rtcontrol.models.decode.protocol import DecodeError
from rtcontrol.models.errors import UserError
from rtcontrol.models.intervals import wilson_interval
from rtcontrol.models.train.encode import with_word_probes
from rtcontrol.models.train.policy import TreeDecider
from rtcontrol.models.train.scratch import WORD, Learner
from rtcontrol.models.train.trainer import Progress, StepCounts, TrainConfig, Trainer, group_rows

if TYPE_CHECKING:
    import torch

NAMING = 0.2  # see `instructions_name_things`: minimum share of instructions with observed words
CHUNK = 1_024
FEW = 64  # with fewer held-out rows, the model must also be right on the training rows
TOGETHER = 20_480  # maximum number of tokens in a batch, to limit the memory
SHARE = 0.1
MAX_HELD_OUT = 1_000
SAMPLE = 256  # number of held-out rows in each evaluation during training
# The learning rate has a short warm-up, a constant phase and a decay. Unlike in a cosine schedule, the decay may start
# at any time (S. Hu et al.: MiniCPM, arXiv 2404.06395, section 4).
LEARNING_RATE, FINAL = 5e-4, 0.03  # the double rate did not converge on the world yard (docs/training.md)
WARMUP_SAMPLES, DECAY = 1_024, 0.4
GOOD = 0.97
KEEP = "(keep)"  # the name of null (keep the active call) in results
Answer = Call | None | DecodeError


def split(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Split rows into training rows and held-out rows, with about a tenth of the questions in the second part. Rows
    with the same question are in the same part, in any order. Raises UserError if there is only one question."""
    order = sorted({row.question for row in rows}, key=lambda q: hashlib.sha256(repr(q).encode()).digest())
    if len(order) < 2:
        raise UserError(
            f"All {len(rows)} rows have the same question, so none can be held out and no difference can be learnt.",
            "Add rows with other observations or instructions.",
        )
    held = set(order[: min(MAX_HELD_OUT, max(1, round(SHARE * len(order))))])
    sides: tuple[list[Row], list[Row]] = ([], [])
    for row in rows:
        sides[row.question in held].append(row)
    # Training evaluates only the first MAX_HELD_OUT held-out rows. Shuffle them, because rows are often sorted.
    random.Random(0).shuffle(sides[1])
    return sides[0], sides[1][:MAX_HELD_OUT]


@dataclass(frozen=True)
class Share:
    """The number of right rows among all rows."""

    right: int
    count: int

    @property
    def value(self) -> float:
        return self.right / max(self.count, 1)

    def message(self) -> str:
        """Return a text such as `19 of 20 right`, with the percentage and its 95 % Wilson interval."""
        low, high = wilson_interval(self.right, self.count)
        return f"{self.right} of {self.count} right ({self.value:.1%}, Wilson 95 % {low:.1%} to {high:.1%})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        low, high = wilson_interval(self.right, self.count)
        return {"right": self.right, "count": self.count, "wilson_95": [round(low, 4), round(high, 4)]}


@dataclass(frozen=True)
class HeldOutResults:
    """A model's results on held-out rows. `score`: all rows. `parts`: rows by expected tool, and values by argument if
    the tool was right."""

    score: Share
    parts: Mapping[str, Share]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        parts = {name: [share.right, share.count] for name, share in self.parts.items()}
        return {"held_out": self.score.to_dict(), "parts": parts}

    def worst(self) -> str | None:
        """Return a sentence about the worst part with at least ten rows, or None if all parts are good."""
        poor = {name: share for name, share in self.parts.items() if share.count >= 10 and share.value < GOOD}
        name = min(poor, key=lambda name: poor[name].value, default=None)
        return None if name is None else f"Worst result: {name}, {poor[name].right} of {poor[name].count} right."


class HeldOut:
    """An evaluation, on held-out rows, of the model that is being trained."""

    def __init__(self, learner: Learner, rows: Sequence[Row]) -> None:
        self.rows, self._plan = rows, learner.encoder.plan
        self.decide = TreeDecider(learner.model, learner.encoder)

    def answers(self, rows: Iterable[Row]) -> list[Answer]:
        """Return the model's answer for each row."""
        return self.decide(list(rows))

    def key(self, call: Answer) -> tuple[str | None, ...]:
        """Return a key of a call. Keys are equal if the heads output the same text (as for the numbers 1 and 1.0)."""
        if isinstance(call, DecodeError):
            return ("", "no call")
        return tuple(text for _, text in self._plan.head_values(call))

    def evaluate(self, max_rows: int) -> HeldOutResults:
        """Return the model's results on at most `max_rows` held-out rows, from the first row on."""
        rows = self.rows[:max_rows]
        parts: dict[str, list[bool]] = defaultdict(list)
        verdicts = []
        for row, answer in zip(rows, self.answers(rows), strict=True):
            call = row.call
            is_right = self.key(answer) in {self.key(call), *map(self.key, row.allowed)}
            verdicts.append(is_right)
            parts[f"tool {KEEP if call is None else call.name}"].append(is_right)
            if isinstance(call, Call) and isinstance(answer, Call) and answer.name == call.name:
                for name in dict.fromkeys((*call.arguments, *answer.arguments)):
                    is_same = is_right or call.arguments.get(name) == answer.arguments.get(name)
                    parts[f"argument {call.name}.{name}"].append(is_same)
        shares = {name: Share(sum(each), len(each)) for name, each in sorted(parts.items(), reverse=True)}
        return HeldOutResults(Share(sum(verdicts), len(verdicts)), shares)


def shuffled(rows: Sequence[Row], rng: random.Random) -> Iterator[Row]:
    """Yield all rows in random order, and repeat this endlessly in other orders."""
    while True:
        yield from rng.sample(rows, len(rows))


@dataclass(frozen=True)
class FitData:
    """The data of a training run. `stream` yields rows endlessly. `start` gets the model in training, so that it plays
    episodes of a world. The vocabulary comes from `known` rows and `texts`; `held` rows are never trained on. `source`
    describes the origin of the rows, `count` is their number (None: endless), `instruction` the default instruction.
    A resumed run must have the same `identity`. `base` is a checkpoint to start from. `sentences` are further
    instructions. `nonsense` has held-out meaningless sentences. With `probes`, some rows ask for a word of the
    observation."""

    tools: Tools
    stream: Callable[[random.Random], Iterator[Row]]
    known: Sequence[Row]
    held: Sequence[Row]
    source: str
    count: int | None
    instruction: str
    identity: Mapping[str, Any]
    texts: str = ""
    sentences: Sequence[str] = ()
    allow_null: bool = False
    probes: bool = False
    nonsense: Sequence[str] = ()
    notes: tuple[str, ...] = ()
    rate_hz: float | None = None
    base: str | None = None
    start: Callable[[HeldOut, FitRun], None] = lambda judge, run: None
    minutes: float = 15.0
    seed: int = 0


def instructions_name_things(rows: Sequence[Row]) -> bool:
    """Return whether many instructions name something that is in their observation, such as a colour."""
    counts: Counter[str] = Counter(word for row in rows for word in dict.fromkeys(WORD.findall(row.instruction)))
    # Ignore words that are in most instructions, such as `the`.
    apart = {word for word, count in counts.items() if count < 0.9 * len(rows)}
    naming = [apart & set(WORD.findall(row.instruction)) & set(WORD.findall(row.observation)) for row in rows]
    return sum(map(bool, naming)) >= NAMING * len(rows) and len(set().union(*naming)) > 1


@dataclass
class TrainingSchedule:
    """The times of a training run in seconds: its end, its requested duration, and the start of the learning rate's
    decay. `best`: the score and the weights of the best evaluation."""

    ends: float
    asked_s: float
    decays_from: float | None = None
    best: tuple[float, dict[str, torch.Tensor] | None] = (-1.0, None)


class FitRun(Trainer):
    """A trainer that stops when its time is over, or some time after all held-out rows are right.

    Its state is saved in `out`. The same run resumes from this state, even if it was complete and gets more time.
    Raises UserError if the run in `out` has another configuration.
    """

    SAVES_MIDWAY = True

    def __init__(
        self,
        learner: Learner,
        data: FitData,
        judge: HeldOut,
        out: Path,
        say: Callable[[str], object] = lambda text: None,
    ) -> None:
        self.learner, self.data = learner, data
        self._judge, self._say = judge, say
        self.course = TrainingSchedule(data.minutes * 60, data.minutes * 60)
        config = TrainConfig(
            samples=1 << 60,
            seed=data.seed,
            learning_rate=LEARNING_RATE,
            group=max(1, min(TrainConfig.group, TOGETHER // learner.longest)),
            bf16=True,
        )
        super().__init__(learner.model, learner.encoder, lambda chunk: (), config, out)

    def settings(self) -> dict[str, Any]:
        data, tokenizer = self.data, self.encoder.tokenizer.digest()
        tools = [schema.canonical_json() for schema in data.tools.schemas]
        return {**data.identity, "base": data.base, "seed": data.seed, "tools": tools, "tokenizer": tokenizer}

    def state(self) -> dict[str, Any]:
        return super().state() | {"course": vars(self.course)}

    def resume(self, state: Mapping[str, Any]) -> None:
        super().resume(state)
        self.course = course = TrainingSchedule(**state["course"])
        if (asked_s := self.data.minutes * 60) > course.asked_s:
            # The run gets more time, so continue with the constant learning rate.
            course.ends, course.asked_s, course.decays_from = asked_s, asked_s, None
        elif asked_s < course.asked_s and self.position.seconds < course.ends:
            # The run gets less time, so decay the learning rate until the end.
            course.ends, course.asked_s = max(self.position.seconds, asked_s), asked_s
            course.decays_from = self.position.seconds

    def is_complete(self) -> bool:
        """Return whether the time is over, and the model was evaluated at least once."""
        return self.position.seconds >= self.course.ends and self.course.best[1] is not None

    def share_done(self) -> float:
        """Return the share of the training time that has passed (0 to 1)."""
        return self.position.seconds / self.course.ends

    def rate(self) -> float:
        """Return the learning rate for the next step."""
        course = self.course
        if course.decays_from is not None:
            share = (self.position.seconds - course.decays_from) / max(course.ends - course.decays_from, 1e-9)
            return LEARNING_RATE * (1 - (1 - FINAL) * min(1.0, share))
        return LEARNING_RATE * min(1.0, (self.position.samples + self.config.group) / WARMUP_SAMPLES)

    def run(self, progress: Progress | None = None) -> None:
        """Train from the start, or from the saved state, to the end, and set the best weights. Raises UserError if the
        disk is full; the saved state remains valid."""
        rng = random.Random(f"{self.config.seed}/{self.position.samples}")
        rows = self.data.stream(rng)
        self._rows = with_word_probes(rows, rng) if self.data.probes else rows
        self._due_s = max(self.position.seconds, 1.0)
        super().run(progress)

    def groups(self, rng: random.Random) -> Iterator[list[Row]]:
        for group in group_rows(list(itertools.islice(self._rows, CHUNK)), self.config, rng):
            # Sort the rows: neighbours then share most tokens, and shared tokens are computed only once.
            yield sorted(group, key=lambda r: (r.instruction, r.history, r.observation))

    def after_step(self, progress: Progress | None) -> None:
        """Evaluate the model on held-out rows if this is due. Evaluations take at most a tenth of the time."""
        course = self.course
        if course.decays_from is None and self.position.seconds >= course.ends * (1 - DECAY):
            course.decays_from = self.position.seconds
        if self.position.seconds < min(self._due_s, course.ends):
            super().after_step(progress)
            return
        start_s, line = self.position.seconds, self._evaluate()
        if progress:
            progress(line)
        self.counts = StepCounts()
        self.update_seconds()
        self._due_s = (now_s := self.position.seconds) + max(1.0, 0.12 * now_s, 10 * (now_s - start_s))

    def after_chunk(self, progress: Progress | None) -> None:
        """Do nothing, because progress is reported at evaluations."""

    def before_final_save(self) -> None:
        # Use the weights of the best evaluation, because no later evaluation was better.
        if (weights := self.course.best[1]) is not None:
            self.model.load_state_dict(weights)

    def progress_line(self) -> dict[str, Any]:
        line = super().progress_line()
        del line["samples_per_s"]
        return line | {"left_s": round(max(0.0, self.course.ends - self.position.seconds), 1)}

    def _evaluate(self) -> dict[str, Any]:
        course, line = self.course, self.progress_line()
        truth = self._judge.evaluate(SAMPLE)
        score = truth.score
        line |= truth.to_dict()
        self.log(line)
        if score.value >= course.best[0]:
            weights = {name: value.clone() for name, value in self.model.state_dict().items()}
            course.best = (score.value, weights)
        if course.decays_from is None and self._is_all_right(score, self.counts.accuracy):
            # Start the decay, because only a falling learning rate can still improve the model.
            course.decays_from = self.position.seconds
            course.ends = min(course.ends, self.position.seconds * (1 + DECAY))
            left_s = course.ends - self.position.seconds
            self._say(f"All held-out rows are right. The learning rate falls now, and training ends in {left_s:.0f} s.")
        return line

    @staticmethod
    def _is_all_right(score: Share, accuracy: float) -> bool:
        """Return whether all held-out rows are right and, if there are few, nearly all training rows as well."""
        return score.right == score.count and (score.count >= FEW or accuracy > 0.99)
