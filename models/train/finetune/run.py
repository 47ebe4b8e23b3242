"""One fine-tuning from a base and rows to a checkpoint that flies: `base/`, `checkpoints/`, `adapter/`, `model/`."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer
from transformers.utils.logging import disable_progress_bar

from rtcontrol.models.checkpoint.checkpoint import Checkpoint, read_config, resolve
from rtcontrol.models.checkpoint.prompt import PromptTemplate
from rtcontrol.models.checkpoint.special_tokens import ST_TOKENS
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.errors import UserError
from rtcontrol.models.files import owned
from rtcontrol.models.runners.torch_runner import choose_device
from rtcontrol.models.train.base import adopt_base
from rtcontrol.models.train.finetune import checkpoints
from rtcontrol.models.train.finetune.checkpoints import FILE_NAME, check_identity, run_identity, write_identity
from rtcontrol.models.train.finetune.config import FinetuneRecipe, check_extras
from rtcontrol.models.train.finetune.dataset import GroupCollator, GroupEncoder, Groups, load
from rtcontrol.models.train.finetune.model import adapted, dtype_of, load_base
from rtcontrol.models.train.finetune.outcome import FinetuneOutcome, write_outcome
from rtcontrol.models.train.finetune.stopping import measure
from rtcontrol.models.train.memory import return_blocks
from rtcontrol.models.train.number_tokens import number_ids
from rtcontrol.models.train.seen_vocabulary import whole

Progress = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Job:
    """What is trained, on what, and where to. `base`: a bundled name, a folder or a hub id, with or without ST tokens;
    `rows` and `held_out` (judged at the end, never trained on): JSONL files of design section 9."""

    base: str
    rows: tuple[Path, ...]
    out: Path
    recipe: FinetuneRecipe
    held_out: tuple[Path, ...] = ()
    drop_bad: bool = False


def finetune(job: Job, progress: Progress | None = None) -> FinetuneOutcome:
    """Train, or go on where the same command was stopped; then merge, export and measure. What `progress` gets is a
    line of the log, or which step it goes on from (`resumed`). Raises UserError, and TrainingStopped; what was saved
    before then is kept."""
    with ExitStack() as holding:
        return _finetune(holding, job, progress)


def _finetune(holding: ExitStack, job: Job, progress: Progress | None) -> FinetuneOutcome:
    check_extras(job.recipe.tensorboard)
    from accelerate import PartialState

    from rtcontrol.models.train.finetune.stopping import stopped_whole
    from rtcontrol.models.train.finetune.trainer import GroupTrainer, arguments

    disable_progress_bar()
    return_blocks()
    device = choose_device(job.recipe.device)
    if device.type == "cuda" and device.index is not None and "LOCAL_RANK" not in os.environ:
        torch.cuda.set_device(device)
    state = PartialState(cpu=device.type == "cpu")
    given, saved = resolve(job.base), job.out / "checkpoints"
    try:
        saved.mkdir(parents=True, exist_ok=True)
        if state.is_main_process:
            holding.enter_context(owned(job.out))
        with state.main_process_first():
            base = st_base(given, job.out / "base")
        template, tokenizer = opened(base)
        encoder = GroupEncoder(template, tokenizer, job.recipe)
        groups = load(job.rows, encoder, job.drop_bad)
        held_out = _held_out(job, template, tokenizer)
        told = run_identity(job.base, given, groups.seen.files, job.recipe, state.num_processes)
        if (job.out / FILE_NAME).is_file():
            check_identity(job.out, told)
    except (OSError, SafetensorError) as error:
        raise checkpoints.not_saved(saved, error) from None
    steps = job.recipe.steps or math.ceil(job.recipe.epochs * math.ceil(len(groups) / job.recipe.groups))
    own = [*map(tokenizer.special_id, ST_TOKENS), *number_ids(Tokenizer.from_file(str(base / "tokenizer.json")))]
    model = adapted(load_base(base, dtype_of(job.recipe, device)), job.recipe, own, groups.ids())
    collator = GroupCollator(encoder.prefix, job.recipe.layout)
    args = arguments(job.recipe, saved, device, steps, state.num_processes)
    trainer = GroupTrainer(model, job.recipe, groups, collator, args, told, progress)
    if state.is_main_process:
        # From here on the folder is the run's; what was refused before has left nothing of it.
        _begin(job.out, saved, told)
    state.wait_for_everyone()
    newest = checkpoints.last(saved)
    if newest is not None and checkpoints.steps(saved)[-1] >= steps:
        trainer.restore(newest)  # resumed at its end, transformers' loop would do a step more
    else:
        if progress and newest is not None and state.is_main_process:
            progress({"resumed": checkpoints.steps(saved)[-1], "steps": steps})
        with stopped_whole(trainer):
            trainer.train(resume_from_checkpoint=None if newest is None else str(newest))
    trained = trainer.state.global_step
    history = [line for line in trainer.state.log_history if "loss" in line]
    found = None
    whole(trainer.model.base)  # it is judged as it will decide
    if held_out is not None and state.is_main_process:
        with trainer.accelerator.autocast():
            found = measure(trainer.model, encoder.prefix, held_out, tokenizer, job.recipe.device_groups)
        found["files"] = held_out.seen.files
    outcome = FinetuneOutcome(job.out, trained, len(groups), groups.seen, history, found, told, state.is_main_process)
    if state.is_main_process:
        dtype = dtype_of(job.recipe, device)
        try:
            write_outcome(outcome, trainer.model, base, tokenizer, dtype)
        except checkpoints.FULL as error:
            raise checkpoints.not_saved(saved, error) from None
    state.wait_for_everyone()
    return outcome


def _begin(out: Path, saved: Path, told: dict[str, Any]) -> None:
    checkpoints.drop_staged(saved)
    try:
        write_identity(out, told)
    except OSError as error:
        raise checkpoints.not_saved(saved, error) from None


def _held_out(job: Job, template: PromptTemplate, tokenizer: STTokenizer) -> Groups | None:
    if not job.held_out:
        return None
    if twice := {p.resolve() for p in job.held_out} & {p.resolve() for p in job.rows}:
        raise UserError(f"{twice.pop()} is trained on and held out.", "Hold out other rows.")
    # Judged alike whatever was trained: by the heads that are read, with the paper's weights.
    plain = FinetuneRecipe(all_heads=False, length=job.recipe.length, way=job.recipe.way)
    return load(job.held_out, GroupEncoder(template, tokenizer, plain), job.drop_bad)


def st_base(given: Path, place: Path) -> Path:
    """A checkpoint of the ST format: `given` itself, or what is made of it in `place`. Raises UserError."""
    if read_config(given).get("quantization_config"):
        raise UserError(f"{given} is quantised: it cannot be trained.", "Give the original.")
    own = STTokenizer.load(given / "tokenizer.json").specials
    missing = [token for token in ST_TOKENS if token not in own]
    if not missing:
        return given
    if len(missing) < len(ST_TOKENS):
        raise UserError(
            f"{given}: its tokenizer has some ST tokens and lacks {missing[0]}.",
            "Restore the tokenizer, or give the base.",
        )
    if not (place / "config.json").is_file():
        part = place.with_name(f"{place.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        try:
            adopt_base(given, part)
            os.replace(part, place)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return place


def opened(base: Path) -> tuple[PromptTemplate, STTokenizer]:
    """Template and tokenizer. Raises UserError, also for a tokenizer of more tokens than the model has rows."""
    checkpoint = Checkpoint.open(str(base))
    assert isinstance(checkpoint.template, PromptTemplate)
    return checkpoint.template, checkpoint.tokenizer


def rows_of(files: Sequence[str | Path]) -> tuple[Path, ...]:
    """Paths; raises UserError where there are none."""
    if not files:
        raise UserError("There are no rows to learn from.", "Give files with --rows.")
    return tuple(Path(file) for file in files)
