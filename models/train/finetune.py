"""Fine-tune a base model on rows, with LoRA or all weights. The run's folder has `base/`, `training/` and `model/`."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer
from transformers.utils.logging import disable_progress_bar

from rtcontrol.models.checkpoint.checkpoint import Checkpoint, read_config, resolve
from rtcontrol.models.checkpoint.prompt import FILE_NAME as TEMPLATE
from rtcontrol.models.checkpoint.prompt import PromptTemplate
from rtcontrol.models.checkpoint.special_tokens import ST_TOKENS
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.errors import UserError
from rtcontrol.models.files import folder_lock, replace_file
from rtcontrol.models.runners.torch_runner import choose_device
from rtcontrol.models.runners.weights import ARCHITECTURES
from rtcontrol.models.train.adopt import adopt_base
from rtcontrol.models.train.encode import MAX_TOOL_SETS, EncodedRow, EncodedRows, ToolsEncoder, load_rows
from rtcontrol.models.train.export import (
    copy_extra_files,
    export,
    load_model,
    markdown_table,
    replace_folder,
    save_error,
    write_card,
)
from rtcontrol.models.train.packing import ATTENTION, PackedBatch, pack_by_tools
from rtcontrol.models.train.recipe import FinetuneRecipe, check_extras
from rtcontrol.models.train.trainer import Progress, TrainConfig, Trainer

MODEL, RESULT, TRAINING = "model", "result.json", "training"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class FinetuneJob:
    """A fine-tuning job. `base` is a bundled name, a folder or a hub id of a checkpoint with or without ST tokens;
    `rows` are JSONL files; `out` is the run's folder. With `drop_bad` invalid rows are dropped."""

    base: str
    rows: tuple[Path, ...]
    out: Path
    recipe: FinetuneRecipe
    drop_bad: bool = False


@dataclass(frozen=True)
class FinetuneOutcome:
    """The result of a fine-tuning: number of `steps`, `rows`, `loss` of the last step, and `identity` of base and
    rows."""

    out: Path
    steps: int
    rows: EncodedRows
    loss: float
    identity: Mapping[str, Any]
    recipe: FinetuneRecipe

    @property
    def model(self) -> Path:
        """Return the folder of the trained checkpoint."""
        return self.out / MODEL

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `result.json`."""
        return {
            "steps": self.steps,
            "groups": len(self.rows),
            "rows": self.rows.files,
            "dropped": dict(self.rows.dropped),
            "loss": self.loss,
            "run": {**self.identity, **self.recipe.settings()},
        }


def finetune(job: FinetuneJob, progress: Progress | None = None) -> FinetuneOutcome:
    """Train, or resume a run that was stopped; then merge the adapters and write the checkpoint. `progress` is called
    with a dict for each step; a resumed run first calls it with `resumed`. Raises UserError; saved steps are kept."""
    check_extras()
    disable_progress_bar()
    device = choose_device(job.recipe.device)
    source = resolve(job.base)
    try:
        (job.out / TRAINING).mkdir(parents=True, exist_ok=True)
        with folder_lock(job.out):
            return _finetune_locked(job, source, device, progress)
    except (OSError, SafetensorError) as error:
        raise save_error(job.out, error) from None


def _finetune_locked(
    job: FinetuneJob, source: Path, device: torch.device, progress: Progress | None
) -> FinetuneOutcome:
    base = ensure_st_format(source, job.out / "base")
    checkpoint = Checkpoint.open(str(base))
    assert isinstance(checkpoint.template, PromptTemplate)
    encoder = ToolsEncoder(checkpoint.template, checkpoint.tokenizer, job.recipe.weights(), allow_null=True)
    rows = load_rows(job.rows, encoder, job.recipe.length, job.drop_bad)
    identity = {
        "base": f"{Path(job.base).name} ({_digest(source)[:12]})",
        "rows": ", ".join(f"{Path(path).name} ({sha[:12]})" for path, sha in rows.files.items()),
    }
    lm = set_trainable(load_base(base, DTYPES[job.recipe.dtype]), job.recipe).to(device)
    run = FinetuneRun(lm, encoder, rows, job.recipe, identity, job.out / TRAINING)
    if progress and 0 < run.position.chunk < run.steps:
        progress({"resumed": run.position.chunk, "steps": run.steps})
    run.run(progress)
    outcome = FinetuneOutcome(job.out, run.position.chunk, rows, round(run.position.loss, 4), identity, job.recipe)
    try:
        _write_checkpoint(outcome, lm, base)
    except RuntimeError as error:  # torch raises it if a file cannot be written
        raise save_error(job.out, error) from None
    return outcome


def ensure_st_format(source: Path, place: Path) -> Path:
    """Return the folder of a checkpoint in ST format: `source` itself, or a converted copy in `place`. Raises UserError
    if `source` cannot be trained."""
    if read_config(source).get("quantization_config"):
        raise UserError(f"{source} is quantised, so it cannot be trained.", "Give the original checkpoint.")
    specials = STTokenizer.load(source / "tokenizer.json").specials
    missing = [token for token in ST_TOKENS if token not in specials]
    if not missing:
        return source
    if len(missing) < len(ST_TOKENS):
        message = f"{source}: its tokenizer has some ST tokens, but not {missing[0]}."
        raise UserError(message, "Restore the tokenizer, or give the base model.")
    if not (place / "config.json").is_file():
        with replace_folder(place) as part:
            adopt_base(source, part)
    return place


def _digest(folder: Path) -> str:
    """Return the SHA-256 of a checkpoint's config, weights, tokenizer and template."""
    digest = hashlib.sha256()
    for path in [folder / "config.json", folder / "tokenizer.json", *sorted(folder.glob("*.safetensors"))]:
        with path.open("rb") as file:
            digest.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    if (folder / TEMPLATE).is_file():
        digest.update((folder / TEMPLATE).read_bytes())
    return digest.hexdigest()


def load_base(folder: Path, dtype: torch.dtype) -> Any:
    """Return the model of a checkpoint. Raises UserError if it cannot be loaded, or its architecture does not support
    training with packed trees."""
    model = load_model(folder, dtype)
    if model.config.model_type not in ARCHITECTURES or getattr(model.config, "sliding_window", None) is not None:
        raise UserError(
            f"{folder} cannot be fine-tuned: it is a {model.config.model_type} model, or has a sliding window.",
            f"Give a model of the type {', '.join(ARCHITECTURES)} without a sliding window.",
        )
    return model


def set_trainable(model: Any, recipe: FinetuneRecipe) -> Any:
    """Return the model with new LoRA adapters (in peft's wrapper), or with all weights trainable if the rank is 0.
    Embeddings and LM head are trained if their learning rate is not 0. Trained weights become fp32. Raises UserError if
    the model has no layer of the name of one of LoRA's targets."""
    torch.manual_seed(recipe.seed)
    lm = _with_lora(model, recipe) if recipe.rank else model
    embeddings, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    for weight, rate in ((head, recipe.head_rate), (embeddings, recipe.embedding_rate)):  # tied: the last rate counts
        weight.requires_grad_(rate > 0)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    model.set_attn_implementation(ATTENTION)
    model.config.use_cache = False
    if recipe.gradient_checkpointing:
        # Transformers 5.24 renamed the method that enables gradient checkpointing.
        has_old_name = "activation_checkpointing_enable" not in dir(model)
        enable = model.gradient_checkpointing_enable if has_old_name else model.activation_checkpointing_enable
        enable({"use_reentrant": False})
    return lm


def _with_lora(model: Any, recipe: FinetuneRecipe) -> Any:
    from peft import LoraConfig, get_peft_model

    names = {name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    if missing := [target for target in recipe.targets if target not in names]:
        raise UserError(
            f"The {model.config.model_type} model has no linear layer {missing[0]!r} for LoRA.",
            f"Choose targets from {', '.join(sorted(names))}.",
        )
    settings = LoraConfig(
        r=recipe.rank,
        lora_alpha=recipe.alpha or 2 * recipe.rank,
        lora_dropout=recipe.dropout,
        target_modules=list(recipe.targets),
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, settings)


def parameter_groups(model: Any, recipe: FinetuneRecipe) -> list[dict[str, Any]]:
    """Return the optimizer's parameter groups: LoRA (or all weights but the following), embeddings, and LM head.
    `share` is a group's learning rate relative to LoRA's."""
    embeddings, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    separate_ids = {id(embeddings), id(head)}
    lora = [p for p in model.parameters() if p.requires_grad and id(p) not in separate_ids]
    groups: list[dict[str, Any]] = [{"name": "lora", "params": lora, "share": 1.0, "weight_decay": recipe.weight_decay}]
    for name, weight, rate in (("embeddings", embeddings, recipe.embedding_rate), ("head", head, recipe.head_rate)):
        if weight.requires_grad and (name == "embeddings" or weight is not embeddings):
            # Use no weight decay: most tokens get no gradient in a step, so decay would only shrink their vectors.
            share = rate / recipe.lora_rate
            groups.append({"name": name, "params": [weight], "share": share, "weight_decay": 0.0})
    return groups


class FinetuneRun(Trainer):
    """A trainer for fine-tuning. A chunk is one optimizer step, whose rows are computed in several batches."""

    BETAS = (0.9, 0.999)
    SAVES_MIDWAY = True

    def __init__(
        self,
        lm: Any,
        encoder: ToolsEncoder,
        rows: EncodedRows,
        recipe: FinetuneRecipe,
        identity: Mapping[str, Any],
        out: Path,
    ) -> None:
        self.rows, self.recipe, self._identity = rows, recipe, identity
        self._epoch_steps = math.ceil(len(rows) / recipe.groups)
        self.steps = recipe.steps or math.ceil(recipe.epochs * self._epoch_steps)
        config = TrainConfig(
            samples=self.steps * recipe.groups,
            seed=recipe.seed,
            learning_rate=recipe.lora_rate,
            final_rate=0.0,
            warmup=recipe.warmup,
            clip=recipe.clip,
            save_every_s=recipe.save_every_s,
        )
        model = lm.get_base_model() if recipe.rank else lm  # remove peft's wrapper
        super().__init__(model, encoder, lambda chunk: (), config, out)

    def parameter_groups(self) -> list[dict[str, Any]]:
        return parameter_groups(self.model, self.recipe)

    def settings(self) -> dict[str, Any]:
        return {**self._identity, **self.recipe.settings()}

    def is_complete(self) -> bool:
        return self.position.chunk >= self.steps

    def share_done(self) -> float:
        return self.position.chunk / self.steps

    def groups(self, rng: random.Random) -> list[list[EncodedRow]]:
        """Return the rows of this step as one group. Each epoch has all rows, in a new random order."""
        epoch, step = divmod(self.position.chunk, self._epoch_steps)
        order = random.Random(f"{self.config.seed}/epoch {epoch}").sample(range(len(self.rows)), len(self.rows))
        size = self.recipe.groups
        return [[self.rows[i] for i in order[step * size : (step + 1) * size]]]

    def batches(self, rows: Sequence[EncodedRow], rng: random.Random) -> Iterator[PackedBatch]:
        """Yield the batches of a step. Dropout depends on the step only, so that resumed runs give the same result."""
        torch.manual_seed(rng.getrandbits(40))
        size, device = self.recipe.device_groups, next(self.model.parameters()).device
        for start in range(0, len(rows), size):
            yield pack_by_tools(self.encoder.prefix, rows[start : start + size]).to(device)

    def loss_divisor(self, rows: Sequence[EncodedRow]) -> float:
        return math.fsum(w for row in rows for head in row.heads for w in head.weights)

    def precision(self) -> AbstractContextManager[object]:
        kind = next(self.model.parameters()).device.type
        return torch.autocast(kind, torch.bfloat16, enabled=self.recipe.dtype == "bf16")

    def progress_line(self) -> dict[str, Any]:
        return {"step": self.position.chunk, "steps": self.steps, "grad_norm": self.norm, **super().progress_line()}


def _write_checkpoint(outcome: FinetuneOutcome, lm: Any, base: Path) -> None:
    """Write the merged checkpoint and `result.json`, each atomically. `lm` cannot be used afterwards."""
    recipe, rows, dtype = outcome.recipe, outcome.rows, DTYPES[outcome.recipe.dtype]
    merged = lm.merge_and_unload() if recipe.rank else lm
    merged.set_attn_implementation("sdpa")
    merged.config.use_cache = True
    settings = json.loads((base / "tokenizer_config.json").read_text("utf-8"))
    template = json.loads((base / TEMPLATE).read_text("utf-8"))
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    # After training on many tool sets, the model also accepts other tools, so the metadata list no tool sets.
    has_many_sets = len(rows.tool_sets) > MAX_TOOL_SETS
    sets = () if has_many_sets else tuple(rows.tool_sets.values())
    with replace_folder(outcome.model) as part:
        export(merged.to(dtype), tokenizer, template, part, dtype, settings.get("eos_token", "<|im_end|>"))
        copy_extra_files(base, part)
        TrainingMetadata(sets, history=rows.history, allow_null=rows.null, any_tools=has_many_sets).write(part)
        _write_model_card(part, outcome)
    replace_file(outcome.out / RESULT, json.dumps(outcome.to_dict(), indent=1, ensure_ascii=False) + "\n")


def _write_model_card(folder: Path, outcome: FinetuneOutcome) -> None:
    rows, recipe = outcome.rows, outcome.recipe
    data = [f"{len(rows):,} of {rows.lines:,} rows, {min(len(rows.tool_sets), MAX_TOOL_SETS)} sets of tools or more:\n"]
    data += [f"- `{path}`: sha256 `{sha}`" for path, sha in rows.files.items()]
    data += [f"- {count} left out: {reason}" for reason, count in rows.dropped.items()]
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "peft"))
    steps = f"{outcome.steps:,} steps of {recipe.groups} groups; the loss of the last one was {outcome.loss}.\n\n"
    table = markdown_table(("setting", "value"), recipe.settings().items())
    title = f"{outcome.identity['base']}, fine-tuned to the ST format"
    about = f"Written by `rtcontrol models train` with {versions}."
    write_card(folder, title, about, {"Data": "\n".join(data), "Training": steps + table})
