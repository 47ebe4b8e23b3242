"""Implement `fit`: train a controller on rows, a labelling function or a world, and write a checkpoint."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from rtcontrol.agents import Tools
from rtcontrol.agents.phrasing import FILLERS
from rtcontrol.agents.signatures import location_of
from rtcontrol.models import __version__
from rtcontrol.models.call import Decision
from rtcontrol.models.checkpoint.observations import KnownObservations
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata, words
from rtcontrol.models.data.row import Row, read_raw_lines
from rtcontrol.models.decode.probe import check_probes, probe_hints
from rtcontrol.models.errors import UserError
from rtcontrol.models.files import folder_lock
from rtcontrol.models.numbers import known_numbers
from rtcontrol.models.train.export import export, markdown_table, save_error, write_card
from rtcontrol.models.train.observations import ObservationCounts
from rtcontrol.models.train.scratch import WORD, RowVocabulary, count_words, learner_from_base, new_learner
from rtcontrol.models.train.trainer import LOG, STATE, Progress
from rtcontrol.run.skills import UserSkill, skill_of
from rtcontrol.run.toolsets import load_tools
from rtcontrol.run.user_files import file_digests, is_gym
from rtcontrol.telemetry import progress as displays
from rtcontrol.training import examples, fit_run
from rtcontrol.training.examples import is_text
from rtcontrol.training.fit_run import FitData, FitRun, HeldOut, HeldOutResults, Share
from rtcontrol.training.gaps import GapFiller, gap_notices, known_table, unfamiliar_shares
from rtcontrol.training.gate import fit_familiar_gate, fit_gate, spare_words
from rtcontrol.training.world_rows import world_data

SAMPLED = 8_000  # vocabulary and held-out rows are taken from this number of situations
MOST_SITUATIONS = 200_000
HZ = 16.0
SOURCES = (  # combinations of arguments of `fit`: (required, optional)
    ({"rows"}, {"tools", "goal"}),
    ({"teacher", "situations", "tools"}, {"goal"}),
    ({"env"}, {"agent", "hz"}),
)
TRAINING = "training"  # the state of the training is in this subfolder of the checkpoint's folder
ELSEWHERE = "Use another folder: --out."
MOST_WORDS = 400  # a checkpoint lists at most this number of observed words
OBSERVED = 8_192  # rows of an endless stream from which the model's usual observations are learnt
NO_NONSENSE = (
    "No training row has a meaningless instruction, so the model may follow one that has only known words. "
    "A fit from a world learns to hold meaningless ones."
)


@dataclass(frozen=True)
class Fitted:
    """The result of `fit`. `folder`: the checkpoint. `truth`: results on held-out rows. `notes`: notes about the rows.
    `unfamiliar`: the shares of held-out observations, unchanged and after changes, that count as unfamiliar."""

    folder: Path
    truth: HeldOutResults
    notes: tuple[str, ...]
    instruction: str | None
    tools: Tools | None = None
    unfamiliar: Mapping[str, Share] = field(default_factory=dict)

    @property
    def score(self) -> Share:
        """Return the share of held-out rows for which the model's call is right."""
        return self.truth.score

    def session(self, **options: Any) -> Any:
        """Return a `rtcontrol.run.api.ModelSession` of the fitted model with the fitted tools. `options` are those of
        `rtcontrol.run.api.Model.session`."""
        from rtcontrol.run.api import Model

        return Model(str(self.folder)).session(self.tools, **options)

    def decide(self, observation: str, instruction: str | None = None) -> Decision:
        """Make one decision, by default with the fitted goal as the instruction. Raises UserError."""
        instruction = instruction or self.instruction
        if instruction is None:
            message = "There is no instruction, and the model has no default goal."
            raise UserError(message, "Call decide(observation, instruction).")
        decision: Decision = self._open_session.decide(observation, instruction)
        return decision

    @cached_property
    def _open_session(self) -> Any:
        return self.session()


def fit(
    rows: str | os.PathLike[str] | Iterable[Any] | None = None,
    tools: Any = None,
    *,
    out: str | os.PathLike[str],
    env: str | None = None,
    agent: str | None = None,
    hz: float | None = None,
    teacher: Callable[..., Any] | None = None,
    situations: Callable[[random.Random], Any] | Iterable[Any] | None = None,
    base: str | None = None,
    goal: str | None = None,
    minutes: float = 15.0,
    seed: int = 0,
    tell: Progress | None = None,
    say: Callable[[str], object] | None = None,
    progress: bool = True,
) -> Fitted:
    """Train a controller on rows, a labelling function or a world's expert, and write it to the folder `out`, for
    `--model` and `rtcontrol.load`.

    With `rows`, the examples are a file (JSONL, docs/training.md), several files, or rows: dicts, or tuples
    (observation, call) and (instruction, observation, call). A call is a `Call`, a dict, or the name of a tool without
    parameters. `tools` has any form that `rtcontrol.load(...).session` accepts, or is a dict of names and descriptions
    (None: the tools in the rows).
    With `teacher`, a function (instruction, observation) returns the call, and `situations` gives its arguments, as a
    list or a function of a random.Random: (instruction, observation), or an observation if there is a `goal`.
    With `env` and `agent`, the files of a world and of an agent with expert and goals as for `rtcontrol run`, the rows
    come from episodes, decided `hz` times a second (None: 16; in a Gymnasium world once a step).

    `base` is a checkpoint to start from (None: a new model, sized for the examples). `goal` is the instruction of rows
    without one, and the model's default. Training takes at most `minutes`, and ends earlier if all held-out rows are
    right. An interrupted run resumes if it is started again with the same arguments. Progress and notes are shown on
    standard error; `progress=False` shows nothing. `tell` regularly gets a dict with seconds, left_s, samples, loss,
    accuracy and held_out; `say` gets the notes.

    Raises UserError for rows that do not fit the tools (by file and line), for errors of the function or the world, for
    a folder with other content or another run, and for a full disk; training progress is kept.
    """
    if not (minutes > 0 and 0 <= seed < 1 << 63 and (goal is None or is_text(goal))):
        problem = f"minutes={minutes!r}, seed={seed!r} or goal={goal!r} is out of range."
        raise UserError(problem, "Use minutes above 0, a seed of 0 or more, and a text as the goal.")
    named = {"rows": rows, "teacher": teacher, "situations": situations, "tools": tools, "goal": goal}
    named |= {"env": env, "agent": agent, "hz": hz}
    _check_arguments({name for name, value in named.items() if value is not None})
    folder = Path(out)
    with ExitStack() as stack, FitProgress(shows=progress) as display:
        if env is not None:
            data = _world_data(env, agent, hz, seed, folder, stack)
        else:
            known = None if tools is None else examples.tools_of(load_tools(str(tools)) if _is_path(tools) else tools)
            by_function = partial(_function_data, teacher, situations)
            data = by_function(known, goal, seed) if teacher and known else _row_data(rows, known, goal)
            check_folder(folder)
        data = replace(data, base=base, minutes=float(minutes), seed=seed)
        return _train_and_export(data, folder, partial(display.show_step, tell), say or display.say)


class FitProgress(displays.Progress):
    """A progress display with the remaining time, the newest score on held-out rows, and the loss."""

    score = "-"

    def show_step(self, tell: Progress | None, line: dict[str, Any]) -> None:
        """Display the newest line of the training log, and pass it to `tell`."""
        if tell is not None:
            tell(line)
        if (score := line.get("held_out")) is not None:
            self.score = f"{score['right']}/{score['count']}"
        left, spent = int(line["left_s"]), line["seconds"]
        text = f"{left // 60}:{left % 60:02d} left  held out {self.score}  loss {line['loss']}"
        self.show(f"{text}  {line['samples']:,} samples", spent, spent + line["left_s"])


def _check_arguments(named: set[str]) -> None:
    """Raise UserError unless the arguments named `named` belong to one source of training data."""
    if not any(needed <= named <= needed | optional for needed, optional in SOURCES):
        raise UserError(
            f"There is nothing to learn from in {' and '.join(sorted(named)) or 'no arguments'}.",
            "Use rows (tools, goal), or a teacher with situations and tools (goal), or a world: env (agent, hz).",
        )


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike)


def _world_data(env: str, agent: str | None, hz: float | None, seed: int, folder: Path, stack: ExitStack) -> FitData:
    """Return the training data of a user's world, which `stack` will close."""
    skill = skill_of(env, agent)
    if not isinstance(skill, UserSkill):
        hint = "Use an agent's FILE.py with `goals` and `expert`, or models/recipes/bundled_world.py."
        raise UserError(f"The agent of {env} is bundled, so `fit` cannot train it.", hint)
    stack.callback(skill.close)
    check_folder(folder)
    if hz is None:
        hz = round(1.0 / skill.step_s, 6) if is_gym(env) else HZ
    # Use the names of the files without their folders, so that the files may be moved.
    files = file_digests((env, agent, skill.all_goals.source)).items()
    return world_data(skill, hz, seed, [f"{Path(file).name} {digest}" for file, digest in files])


def _row_data(rows: Any, tools: Tools | None, goal: str | None) -> FitData:
    """Return the training data of rows, which training repeats in random order."""
    listed = [rows] if _is_path(rows) else list(rows)
    files = [Path(row) for row in listed if _is_path(row)]
    lines = ((f"{path}:{n}", line) for path in files for n, line in read_raw_lines(path))
    numbered = ((f"row {n}", row) for n, row in enumerate(listed, start=1))
    source = f"Rows of {', '.join(file.name for file in files)}" if files else "Rows from Python"
    return _split_data(source, *examples.check_rows(lines if files else numbered, tools, goal), goal)


def _function_data(function: Any, situations: Any, tools: Tools, goal: str | None, seed: int) -> FitData:
    """Return the training data of a labelling function. A list of situations is repeated, a function makes new ones."""
    label = partial(examples.label_situation, function, tools)
    sample: examples.Sample = partial(examples.iterate_situations, situations, goal)
    filled: list[str] = []
    if callable(situations):
        sample = filler = GapFiller.from_sample(sample, label, random.Random(f"{seed}/gaps"))
        filled = filler.names()
    max_count = SAMPLED if callable(situations) else MOST_SITUATIONS
    rows = examples.distinct_rows(label, sample(random.Random(f"{seed}/situations")), max_count)
    if len(rows) < examples.MIN_ROWS:
        raise examples.too_few_error(len(rows), "different situations")
    data = _split_data(f"The teacher at {location_of(function)}", tools, rows, goal, filled)
    if not callable(situations):
        return data
    return replace(data, stream=partial(examples.endless_rows, label, sample, data.held), count=None)


def _split_data(
    source: str, tools: Tools, rows: Sequence[Row], goal: str | None, filled: Sequence[str] = ()
) -> FitData:
    note = examples.contradiction_notice(rows)
    gaps = gap_notices((row.observation for row in rows), filled)
    known, held = fit_run.split(rows)
    digest = hashlib.sha256()
    for row in rows:
        digest.update(repr((row.question, row.call, row.weight, row.allowed)).encode())
    return FitData(
        tools,
        partial(fit_run.shuffled, known),
        known,
        held,
        source,
        len(known),
        goal or Counter(row.instruction for row in known).most_common(1)[0][0],
        {"rows": f"{len(rows)} rows, {digest.hexdigest()[:16]}", "goal": goal},
        allow_null=any(row.call is None for row in rows),
        probes=fit_run.instructions_name_things(known),
        notes=tuple(filter(None, (note, *gaps))),
    )


def _train_and_export(data: FitData, folder: Path, tell: Progress, say: Callable[[str], object]) -> Fitted:
    """Train on a single CPU thread, write the checkpoint, and return the result. Raises UserError."""
    check_probes(data.tools.schemas)
    rare = probe_hints(data.tools.schemas)
    data = replace(data, notes=(*data.notes, *(f"Tool {name}, {text}" for name in rare for text in rare[name])))
    for note in data.notes:
        say(note)
    threads_before = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine, more threads slow down a small model
    try:
        with ExitStack() as stack:
            run, judge = _prepare_run(data, folder, say, stack)
            clocks = time.monotonic(), time.process_time()
            run.run(tell)
            say(time_text(time.monotonic() - clocks[0], time.process_time() - clocks[1]))
            return _export(run, judge, folder, say)
    finally:
        torch.set_num_threads(threads_before)


def time_text(spent_s: float, ran_s: float) -> str:
    """Return a text about a training that took `spent_s` seconds, of which it had `ran_s` seconds of processor time."""
    divisor, unit = (60, "min") if spent_s > 60 else (1, "s")
    text = f"Trained {spent_s / divisor:.1f} {unit}, {ran_s / divisor:.1f} {unit} of processor time."
    if ran_s > 0.8 * spent_s:
        return text
    return f"{text} Other programs used the rest, which --minutes counts as well. Stop them, or use more minutes."


def _prepare_run(data: FitData, folder: Path, say: Callable[[str], object], stack: ExitStack) -> tuple[FitRun, HeldOut]:
    """Return the training run and its evaluation on held-out rows. The folder is locked until `stack` closes."""
    counts: RowVocabulary = count_words([*data.known, Row(f"{data.texts} {data.instruction}", "", None)])
    allow_null = data.allow_null or bool(data.nonsense)
    if data.base is not None:
        learner = learner_from_base(data.base, data.tools.schemas, allow_null)
    else:
        learner = new_learner(data.tools.schemas, counts, data.instruction, allow_null, data.seed)
    rows = "New rows are made during the training" if data.count is None else f"{data.count:,} rows to learn from"
    size = f"{_size_text(learner.model)}, {counts.word_count:,} words, {counts.number_count:,} numbers"
    say(f"{rows}, {len(data.held):,} held out; {size}.")
    learner = learner.with_longest_prompt([*data.known, *data.held])
    training = folder / TRAINING
    try:
        training.mkdir(parents=True, exist_ok=True)
        stack.enter_context(folder_lock(folder))
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror}).", ELSEWHERE) from None
    judge = HeldOut(learner, data.held)
    run = FitRun(learner, data, judge, training, say)
    data.start(judge, run)
    if run.position.samples:
        say(f"Resuming after {run.position.samples:,} samples and {run.position.seconds:.0f} s of training.")
    return run, judge


def _size_text(model: Any) -> str:
    shape = model.config
    return f"{model.num_parameters():,} parameters ({shape.num_hidden_layers} layers of {shape.hidden_size})"


def _export(run: FitRun, judge: HeldOut, folder: Path, say: Callable[[str], object]) -> Fitted:
    data, learner = run.data, run.learner
    truth = judge.evaluate(fit_run.MAX_HELD_OUT)
    if data.nonsense:  # fit the gate on held-out rows
        rows = [replace(row, instruction=row.meant) for row in data.held if row.meant]
        gate = fit_gate(judge.decide, rows, data.nonsense, data.seed)
    else:
        gate = fit_familiar_gate(judge.decide, data.held)
    observations, unfamiliar = _known_observations(data), dict[str, Share]()
    if observations is not None:
        rng = random.Random(f"{data.seed}/changes")
        unfamiliar = unfamiliar_shares(observations, [row.observation for row in data.held], rng)
    instructions = {*(row.instruction for row in data.known if row.meant != ""), *data.sentences, data.instruction}
    observed = Counter(word for row in data.known for word in WORD.findall(row.observation))
    metadata = TrainingMetadata(
        (tuple(data.tools.openai()),),
        history=max(len(row.history) for row in data.known),
        allow_null=learner.encoder.plan.allow_null,
        gate=gate,
        instruction=data.instruction,
        observation=dict.fromkeys(word for word, _ in observed.most_common(MOST_WORDS)),
        rate_hz=data.rate_hz,
        words=" ".join(sorted({*words(" ".join(instructions)), *FILLERS})),
        unknown_words=0 if data.nonsense else spare_words(data.known),
        numbers=known_numbers(instructions),
        observed=None if observations is None else observations.to_dict(),
        null_keeps=data.allow_null,
    )
    note = (
        f"The model holds meaningless instructions, by a confidence gate of {gate:g}." if data.nonsense else NO_NONSENSE
    )
    fitted = Fitted(folder, truth, (*data.notes, note), data.instruction, data.tools, unfamiliar)
    try:
        export(learner.model, learner.tokenizer, learner.template, folder, end=learner.end)
        metadata.write(folder)
        _write_card(fitted, run, observations)
    except (OSError, SafetensorError) as error:  # writing weights may raise SafetensorError
        raise save_error(folder, error) from None
    say(note)
    return fitted


def _known_observations(data: FitData) -> KnownObservations | None:
    """Return the words and numbers that training observations have, or None if the rows have no observations."""
    counts = ObservationCounts()
    for row in data.known:
        counts.add(row.observation)
    if data.count is None:
        for row in itertools.islice(data.stream(random.Random(f"{data.seed}/observed")), OBSERVED):
            counts.add(row.observation)
    return counts.known() if any(row.observation for row in data.known) else None


def _write_card(fitted: Fitted, run: FitRun, observations: KnownObservations | None) -> None:
    """Write the model card (README.md) with the data, the training and the score."""
    data = run.data
    calls = ", ".join(f"`{t.name}({', '.join(p.name for p in t.parameters)})`" for t in data.tools.schemas)
    count = "new rows during training" if data.count is None else f"{data.count:,} training rows"
    sections = {
        "Data": f"{data.source}: {count}, {len(data.held):,} held out, never trained on;\n"
        f"the first {min(len(data.held), fit_run.SAMPLE)} also chose the weights and the end of the run. Notes:\n\n"
        + "\n".join(f"- {note}" for note in fitted.notes),
        "Training": f"{run.position.samples:,} samples in {run.position.seconds:.0f} s, seed {data.seed}; "
        f"`{TRAINING}/{LOG}` is the log.",
        "Score": f"Held-out rows: {fitted.score.message()}.\n\n"
        + markdown_table(("", "right", "of"), [(n, s.right, s.count) for n, s in fitted.truth.parts.items()]),
    }
    if observations is not None:
        changes = [(name, share.right, share.count) for name, share in fitted.unfamiliar.items()]
        sections["Observations"] = (
            "The model was trained on these numbers. It holds calls for others, for words that training never had, and "
            f"for texts of another form.\n\n{markdown_table(('number', 'in training'), known_table(observations))}\n\n"
            f"Held-out observations that count as unfamiliar, as they are and after a change:\n\n"
            + markdown_table(("change", "held", "of"), changes)
        )
    about = f"{_size_text(run.model)}. It knows only {calls}. By `rtcontrol fit` (rtcontrol {__version__})."
    write_card(fitted.folder, f"{fitted.folder.name}: a small SimpleTool controller", about, sections)


def check_folder(folder: Path) -> None:
    """Raise UserError if the folder has files that are not of a training run."""
    try:
        paths = [path for path in folder.iterdir() if path.name != TRAINING] if folder.exists() else []
        has_other_files = any(path.is_dir() or path.stat().st_size for path in paths)  # empty files do not count
    except OSError as error:
        raise UserError(f"{folder} cannot be read ({error.strerror}).", ELSEWHERE) from None
    if has_other_files and not (folder / TRAINING / STATE).is_file():
        raise UserError(f"{folder} holds other files, but not a training run.", ELSEWHERE)
