"""From rows, wherever they come from, to a checkpoint's folder: the part that every source of rows shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from rtcontrol.agents import Tools
from rtcontrol.agents.phrasing import FILLERS
from rtcontrol.models import __version__
from rtcontrol.models.call import Decision
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata, words
from rtcontrol.models.errors import UserError
from rtcontrol.models.files import owned
from rtcontrol.models.train.adopt import export
from rtcontrol.models.train.rows import Row
from rtcontrol.models.train.trainer import STATE, Progress
from rtcontrol.training.fit_run import FitRun, FitSchedule, RowStream
from rtcontrol.training.gate import fit_gate
from rtcontrol.training.model_size import WORD, Learner, learner
from rtcontrol.training.validation import MOST, SAMPLE, HeldOut, Share, Truth

TRAINING = "training"  # the run's own folder, in the checkpoint's
CALL_ROOM = 256  # tokens of a call, and of what stands around the texts
LONGEST_FEW = 16
BEGUN = {"log.jsonl", "state.tmp"}  # what it holds before anything is saved
ELSEWHERE = "Give another folder with --out."
PROMPTS = 12  # instructions that the card lists
MOST_WORDS_SEEN = 400
NO_GATE = (
    "No row shows what means nothing here, so it has no gate: it calls something whatever it is told. "
    "`--min-confidence` of run and serve holds unsure calls; a fit from a world learns what to leave undone."
)
RATE = 5e-4  # twice as much stays on a plateau of the yard (docs/fit.md)


@dataclass(frozen=True)
class Fitted:
    """What `fit` made: the checkpoint's folder, what was found out about it on held-out rows, what was noticed in the
    rows, and the `tools` with their functions."""

    folder: Path
    truth: Truth
    notes: tuple[str, ...]
    instruction: str | None
    tools: Tools | None = None

    @property
    def score(self) -> Share:
        """Held-out rows that are right."""
        return self.truth.score

    def session(self, **options: Any) -> Any:
        """A session of the model for its own tools, with their functions where such were given
        (`rtcontrol.run.api.ModelSession`)."""
        from rtcontrol.run.api import Model

        return Model(str(self.folder)).session(self.tools, **options)

    def decide(self, observation: str, instruction: str | None = None) -> Decision:
        """One decision, by default for the goal that was fitted. Raises UserError."""
        told = instruction or self.instruction
        if told is None:
            raise UserError(
                "No instruction, and none was fitted as the goal.", "Give decide(observation, instruction)."
            )
        if not hasattr(self, "_session"):
            object.__setattr__(self, "_session", self.session())
        made: Decision = self._session.decide(observation, told)  # type: ignore[attr-defined]
        return made


@dataclass(frozen=True)
class Lessons:
    """What is learnt from, and what is to be known of it: the words of `learnt` are the model's, with those of `texts`;
    `held` is never trained on; `source` says in words where rows come from, `count` how many there are (None: no end);
    `instruction` is told by default; `identity` is what a run that goes on must share, `ceiling` the share that can be
    right at all; `base` a checkpoint to go on from; `taught` are words that its sentences can hold beside those of
    `learnt`; `unheard` is what asks for nothing here and is never trained on: rows that do teach the model to notice
    it; with `probes` rows also ask for words of what is seen, so that a model learns to find what is named."""

    tools: Tools
    stream: RowStream
    learnt: Sequence[Row]
    held: Sequence[Row]
    source: str
    count: int | None
    instruction: str
    identity: Mapping[str, Any]
    texts: str = ""
    taught: str = ""
    allow_null: bool = False
    probes: bool = False
    unheard: Sequence[str] = ()
    ceiling: float = 1.0
    notes: tuple[str, ...] = ()
    rate_hz: float | None = None
    base: str | None = None


def make(
    lessons: Lessons,
    folder: Path,
    minutes: float,
    seed: int,
    tell: Progress | None,
    say: Callable[[str], object],
) -> Fitted:
    """Train and write the checkpoint. Raises UserError."""
    import torch

    for note in lessons.notes:
        say(note)
    threads_before = torch.get_num_threads()
    torch.set_num_threads(1)  # a second one gains a small model little, and loses much on a busy machine
    try:
        with ExitStack() as holding:
            return _made(holding, lessons, folder, minutes, seed, tell, say)
    finally:
        torch.set_num_threads(threads_before)


def _made(
    holding: ExitStack,
    lessons: Lessons,
    folder: Path,
    minutes: float,
    seed: int,
    tell: Progress | None,
    say: Callable[[str], object],
) -> Fitted:
    known = lessons.learnt
    words_from = [*known, Row(f"{lessons.texts} {lessons.instruction}", "", None)]
    allow_null = lessons.allow_null or bool(lessons.unheard)
    one, seen = learner(lessons.tools, words_from, lessons.instruction, allow_null, seed, lessons.base)
    shape, parameters = one.model.config, one.model.num_parameters()
    identity = {
        **lessons.identity,
        "seed": seed,
        "tools": [s.canonical_json() for s in lessons.tools.schemas],
        "layers": shape.num_hidden_layers,
        "hidden": shape.hidden_size,
        "heads": f"{shape.num_attention_heads} of {shape.num_key_value_heads}",
        "tokenizer": one.encoder.tokenizer.digest(),
    }
    endless = lessons.count is None
    rows = "New rows as long as it trains" if endless else f"{lessons.count:,} rows to learn from"
    size = f"{parameters:,} parameters ({shape.num_hidden_layers} layers of {shape.hidden_size})"
    say(f"{rows}, {len(lessons.held):,} held out; {size}, {seen.seen_words:,} words, {seen.seen_numbers:,} numbers.")
    longest = _longest(one, [*lessons.learnt, *lessons.held])
    judge, schedule, training = HeldOut(one, lessons.held), FitSchedule(float(minutes), RATE), _begun(folder, holding)
    run = FitRun(
        one, lessons.stream, judge, schedule, identity, training, lessons.ceiling, longest, lessons.probes, say
    )
    if (begin := getattr(lessons.stream, "begin", None)) is not None:
        begin(judge, run)
    if run.samples:
        say(f"Goes on from {run.samples:,} samples, {run.seconds:.0f} s of training.")
    run.run(tell)
    truth = judge.look(MOST)
    gate = _gate(judge, lessons, seed)
    learnt = TrainingMetadata(
        (tuple(lessons.tools.openai()),),
        history=max(len(row.history) for row in known),
        allow_null=allow_null,
        gate=gate,
        instruction=lessons.instruction,
        observation=dict.fromkeys(_words_seen(known)),
        rate_hz=lessons.rate_hz,
        words=_taught(lessons),
    )
    found = NO_GATE if gate is None else f"What means nothing here it leaves undone, at a gate of {gate:g}."
    made = Fitted(folder, truth, (*lessons.notes, found), learnt.instruction, lessons.tools)
    trained = f"{run.samples:,} samples in {run.seconds:.0f} s, seed {seed}"
    try:
        export(one.model, one.tokenizer, one.template, folder, end=one.end)
        learnt.write(folder)
        (folder / "README.md").write_text(card(made, lessons, size, trained), "utf-8")
    except (OSError, SafetensorError) as error:  # the latter of the weights' own writer
        why = getattr(error, "strerror", None) or error
        raise UserError(
            f"The checkpoint cannot be written to {folder} ({why}); the training is kept there.",
            "Make room, and start the same command again: nothing is trained twice.",
        ) from None
    say(found)
    return made


def card(made: Fitted, lessons: Lessons, size: str, trained: str) -> str:
    """The model card of what was fitted: what it learnt, from what, and how well."""
    calls = ", ".join(f"`{t.name}({', '.join(p.name for p in t.parameters)})`" for t in lessons.tools.schemas)
    instructions = dict.fromkeys(one.instruction for one in lessons.learnt if one.meant != "")
    told = "\n".join(f"- {text}" for text in list(instructions)[:PROMPTS])
    notes = "\n".join(f"- {note}" for note in made.notes)
    learnt = "rows without end" if lessons.count is None else f"{lessons.count:,} rows learnt from"
    table = "\n".join(f"| {name} | {share.right} | {share.count} |" for name, share in made.truth.parts.items())
    return f"""---
library_name: rtcontrol
---
# {made.folder.name}: a small SimpleTool controller

{size}. It knows {calls}, and nothing else. Made by `rtcontrol fit` (rtcontrol {__version__}).

## Data

{lessons.source}: {learnt}, {len(lessons.held):,} held out, never trained on;
the first {min(len(lessons.held), SAMPLE)} of them also chose the weights and the end of the run. What was noticed:

{notes}

It was told, among others:
{told}

## Training

{trained}; `training/log.jsonl` is the log.

## Score

Held-out rows: {made.score.message()}.

| | right | of |
|---|---|---|
{table}
"""


def _taught(lessons: Lessons) -> str:
    """The words that a sentence may have and be believed: those that were trained to mean something, and fillers."""
    said = [one.instruction for one in lessons.learnt if one.meant != ""]
    return " ".join(sorted({*words(" ".join([*said, lessons.taught, lessons.instruction])), *FILLERS}))


def _gate(judge: HeldOut, lessons: Lessons, seed: int) -> float | None:
    """The gate below which the model was told nothing that it understands, found on what it never saw."""
    if not lessons.unheard:
        return None
    rows = [replace(one, instruction=one.meant) for one in lessons.held if one.meant]
    return fit_gate(judge.decide, rows, lessons.unheard, seed)


def _longest(one: Learner, rows: Sequence[Row]) -> int:
    """Tokens of the longest prompt behind the tools. Raises UserError for one that leaves no room for a call."""
    context = one.model.config.max_position_embeddings
    room = context - len(one.encoder.prefix) - CALL_ROOM
    # Texts have no more tokens than bytes: the longest few tell the longest of all nearly enough.
    sizes = [len(" ".join((t.instruction, t.observation, *t.history)).encode()) for t in rows]
    order = sorted(range(len(rows)), key=lambda i: -sizes[i])
    looked = [i for n, i in enumerate(order) if n < LONGEST_FEW or sizes[i] + CALL_ROOM > room]
    lengths = {i: len(one.encoder.suffix(rows[i])) for i in looked}
    worst = max(lengths, key=lambda i: lengths[i])
    if lengths[worst] > room:
        raise UserError(
            f"{rows[worst].where or 'A row'}: its prompt of {len(one.encoder.prefix) + lengths[worst]} tokens leaves "
            f"no room for the call in the model's context of {context}.",
            "Shorten its observation or its instruction, describe fewer tools, or leave the row out.",
        )
    return lengths[worst]


def check_folder(folder: Path) -> None:
    """Refuse to write over what is not a run of ours. Raises UserError."""
    training = folder / TRAINING
    try:
        if not (training / STATE).is_file() and not _empty(folder, training):
            raise UserError(f"{folder} holds something else.", ELSEWHERE)
    except OSError as error:
        raise UserError(f"{folder} cannot be read ({error.strerror}).", ELSEWHERE) from None


def _begun(folder: Path, holding: ExitStack) -> Path:
    """The run's own folder, made only when there is something to train: what is refused before leaves nothing. No other
    run's until `holding` ends."""
    training = folder / TRAINING
    try:
        training.mkdir(parents=True, exist_ok=True)
        holding.enter_context(owned(folder))
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror}).", ELSEWHERE) from None
    return training


def _empty(folder: Path, training: Path) -> bool:
    """Nothing is in it but what a run has begun with, and what other commands' files begin as."""
    if not folder.is_dir():
        return not folder.exists()
    others = [path for path in folder.iterdir() if path != training and (path.is_dir() or path.stat().st_size)]
    return not others and (not training.is_dir() or {path.name for path in training.iterdir()} <= BEGUN)


def _words_seen(rows: Sequence[Row]) -> list[str]:
    """The commonest words of the observations."""
    counted: dict[str, int] = {}
    for row in rows:
        for word in WORD.findall(row.observation):
            counted[word] = counted.get(word, 0) + 1
    return sorted(counted, key=lambda w: -counted[w])[:MOST_WORDS_SEEN]
