"""The one verb: from rows and tools to a folder that `--model` takes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rtcontrol import __version__
from rtcontrol.agents import Tools
from rtcontrol.fitting.card import card, write_card
from rtcontrol.fitting.held_out import MOST, HeldOut, Share, split
from rtcontrol.fitting.material import Taught, check, contradictions, read_files, tools_of
from rtcontrol.fitting.run import FitRun, FitSchedule
from rtcontrol.fitting.sizing import learner
from rtcontrol.fitting.sources import GivenRows, Probed, RowStream, name_things
from rtcontrol.fitting.truth import Examiner, Truth
from rtcontrol.fitting.words import SITUATIONS, Swaps
from rtcontrol.models.call import Decision
from rtcontrol.models.errors import UserError
from rtcontrol.models.learnt import Learnt
from rtcontrol.models.train.export import export
from rtcontrol.models.train.trainer import Progress

TRAINING = "training"  # the run's own folder, in the checkpoint's
PROMPTS = 12  # instructions that the card lists


@dataclass(frozen=True)
class Fitted:
    """What `fit` made: the checkpoint's folder, what was found out about it on held-out rows, and what was noticed in
    the rows."""

    folder: Path
    truth: Truth
    notes: tuple[str, ...]
    instruction: str | None

    @property
    def score(self) -> Share:
        """Held-out rows that are right."""
        return self.truth.score

    def session(self, **options: Any) -> Any:
        """A session of the model for its own tools (`rtcontrol.run.api.ModelSession`)."""
        from rtcontrol.run.api import Model

        return Model(str(self.folder)).session(**options)

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


def fit(
    rows: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Iterable[Any],
    tools: Any = None,
    *,
    out: str | os.PathLike[str],
    goal: str | None = None,
    minutes: float = 15.0,
    seed: int = 0,
    threads: int | None = None,
    tell: Progress | None = None,
    say: Callable[[str], object] | None = None,
) -> Fitted:
    """Fit a controller to rows and write it to the folder `out`, which `--model` and `rtcontrol.load` take.

    `rows` is a file of rows (JSONL, the format of docs/fit.md), several, or rows: dicts, or tuples (observation, call)
    and (instruction, observation, call), where a call is a `Call`, a dict, or the name of a tool without parameters.
    `tools` as `rtcontrol.load(...).session` takes them, or names with descriptions (None: those that the rows name).
    `goal` is the instruction of rows that have none, and what the model is told by default. `minutes` is the most it
    takes; it ends earlier where all held-out rows are right. Started again with the same arguments, a run that was
    interrupted goes on. `tell` gets a dict now and then: seconds, left_s, samples, loss, accuracy, held_out; `say` a
    line that people should read.

    Raises UserError for rows that do not fit the tools (by file and line), for a folder that holds something else or
    another run, and for a full disk; what was done before is kept.
    """
    import torch

    say = say or (lambda told: None)
    if not isinstance(minutes, int | float) or not 0 < minutes <= 7 * 24 * 60:
        raise UserError(f"minutes={minutes!r} is no time to train.", "Give a number of minutes above 0.")
    given = None if tools is None else tools_of(tools)
    source, (known, taught) = _read(rows, given, goal)
    folder = Path(out)
    _check_folder(folder)
    notes = [told] if (told := (found := contradictions(taught)).told()) else []
    for note in notes:
        say(note)
    learn, held = split(taught)
    threads_before = torch.get_num_threads()
    torch.set_num_threads(threads or 1)  # a second one gains a small model little, and loses much on a busy machine
    try:
        allow_null = any(one.row.call is None for one in taught)
        one, words = learner(known, (t.row for t in learn), goal, allow_null, seed)
        shape = one.model.config
        identity = {
            "seed": seed,
            "goal": goal,
            "tools": [s.canonical_json() for s in known.schemas],
            "rows": _digest(taught),
            "layers": shape.num_hidden_layers,
            "hidden": shape.hidden_size,
            "vocabulary": shape.vocab_size,
        }
        schedule = FitSchedule(minutes=float(minutes))
        judge = HeldOut(one, held)
        stream: RowStream = GivenRows(given_rows := [t.row for t in learn])
        if name_things(given_rows):
            stream = Probed(stream)
        say(
            f"{len(learn):,} rows to learn from, {len(held):,} held out; {one.model.num_parameters():,} parameters "
            f"({shape.num_hidden_layers} layers of {shape.hidden_size}), {words.seen_words:,} words, "
            f"{words.seen_numbers:,} numbers."
        )
        examiner = Examiner(judge, Swaps(judge, learn), learn, found.ceiling, say)
        run = FitRun(one, stream, examiner, schedule, identity, folder / TRAINING, found.ceiling)
        run.run(tell)
        truth = replace(examiner.look(MOST, situations=SITUATIONS), plateau=run.lines[-1]["plateau"])
    finally:
        torch.set_num_threads(threads_before)
    figures = {
        "layers": shape.num_hidden_layers,
        "hidden": shape.hidden_size,
        "parameters": one.model.num_parameters(),
        "version": __version__,
        "rows": len(learn),
        "held_out": len(held),
        "samples": run.samples,
        "seconds": run.seconds,
        "seed": seed,
    }
    told_of = list(dict.fromkeys(t.row.instruction for t in learn))[:PROMPTS]
    history = max(len(t.row.history) for t in taught)
    learnt = Learnt(
        (tuple(known.openai()),),
        history=history,
        allow_null=allow_null,
        instruction=goal or _commonest(learn),
        observation=dict.fromkeys(_words_seen(learn)),
    )
    try:
        export(one.model, one.tokenizer, one.template, folder)
        learnt.write(folder)
        write_card(folder, card(folder.name, known.schemas, source, truth, figures, notes, told_of))
    except OSError as error:
        raise UserError(
            f"The checkpoint cannot be written to {folder} ({error.strerror or error}); the training is kept there.",
            "Make room, and start the same command again: nothing is trained twice.",
        ) from None
    return Fitted(folder, truth, tuple(notes), learnt.instruction)


def _read(rows: Any, tools: Tools | None, goal: str | None) -> tuple[str, tuple[Tools, list[Taught]]]:
    if isinstance(rows, str | os.PathLike):
        rows = [rows]
    listed = list(rows)
    files = [Path(r) for r in listed if isinstance(r, os.PathLike) or (isinstance(r, str) and not r.startswith("{"))]
    if files and len(files) == len(listed):
        return f"Rows of {', '.join(f.name for f in files)}", read_files(files, tools, goal)
    return "Rows given in Python", check(((f"row {n}", r) for n, r in enumerate(listed, start=1)), tools, goal)


def _check_folder(folder: Path) -> None:
    """Refuse to write over what is not a run of ours."""
    ours = (folder / TRAINING).is_dir() or not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if not ours:
        raise UserError(f"{folder} holds something else.", "Give another folder with --out.")
    try:
        (folder / TRAINING).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror}).", "Give another folder with --out.") from None


def _digest(rows: Sequence[Taught]) -> str:
    found = hashlib.sha256()
    for one in rows:
        found.update(repr((one.row, one.allowed)).encode())
    return f"{len(rows)} rows, {found.hexdigest()[:16]}"


def _commonest(rows: Sequence[Taught]) -> str:
    counted: dict[str, int] = {}
    for one in rows:
        counted[one.row.instruction] = counted.get(one.row.instruction, 0) + 1
    return max(counted, key=lambda text: counted[text])


def _words_seen(rows: Iterable[Taught], most: int = 400) -> Mapping[str, None]:
    from rtcontrol.fitting.sizing import WORD

    counted: dict[str, int] = {}
    for one in rows:
        for word in WORD.findall(one.row.observation):
            counted[word] = counted.get(word, 0) + 1
    return dict.fromkeys(sorted(counted, key=lambda w: -counted[w])[:most])
