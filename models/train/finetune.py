"""One fine-tuning from a base and rows to a checkpoint that flies: `base/`, `training/`, `model/`."""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
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
from rtcontrol.models.files import no_link, owned, replace_file
from rtcontrol.models.runners.torch_runner import choose_device
from rtcontrol.models.train.adopt import export
from rtcontrol.models.train.base import KEPT, adopt_base, load_model
from rtcontrol.models.train.groups import SETS, GroupEncoder, Groups, load, pack_groups
from rtcontrol.models.train.loss import ATTENTION
from rtcontrol.models.train.packing import PackedBatch
from rtcontrol.models.train.recipe import FinetuneRecipe, check_extras
from rtcontrol.models.train.rows import EncodedRow
from rtcontrol.models.train.trainer import Progress, TrainConfig, Trainer, last_line

MODEL, RESULT, TRAINING = "model", "result.json", "training"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
TREES = {"full_attention", "sliding_attention"}  # kinds of layers that `tree_attention` computes


def load_base(folder: Path, dtype: torch.dtype) -> Any:
    """The causal LM of a checkpoint. Raises UserError for one that cannot be loaded, or trained by trees."""
    model = load_model(folder, dtype)
    kinds = {*(getattr(model.config, "layer_types", None) or ["full_attention"])}
    if (other := kinds - TREES) or not hasattr(model, "lm_head") or not hasattr(model.model, "layers"):
        what = f"of {other.pop().replace('_', ' ')}" if other else "of another build"
        raise UserError(
            f"{folder}: a {model.config.model_type} model has layers {what}; trees are not computed by them.",
            "Fine-tune a Qwen2, Qwen2.5, Qwen3, Llama or Gemma 3 (text) model.",
        )
    return model


def adapted(model: Any, recipe: FinetuneRecipe) -> Any:
    """The base in peft's wrapper, with fresh LoRA adapters and, where they have a rate, its embeddings and head
    unfrozen; all that is trained is fp32. Raises UserError where the base has none of the recipe's targets.
    """
    from peft import LoraConfig, get_peft_model

    names = {name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    if missing := [target for target in recipe.targets if target not in names]:
        raise UserError(
            f"A {model.config.model_type} model has no linear layer {missing[0]!r} to adapt.",
            f"Choose targets among {', '.join(sorted(names))}.",
        )
    settings = LoraConfig(
        r=recipe.rank,
        lora_alpha=recipe.alpha or 2 * recipe.rank,
        lora_dropout=recipe.dropout,
        target_modules=list(recipe.targets),
        task_type="CAUSAL_LM",
    )
    torch.manual_seed(recipe.seed)
    lm = get_peft_model(model, settings)
    embeddings, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    for weight, rate in ((head, recipe.head_rate), (embeddings, recipe.embedding_rate)):  # tied: the embeddings' rate
        weight.requires_grad_(rate > 0)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    model.set_attn_implementation(ATTENTION)
    model.config.use_cache = False
    if recipe.gradient_checkpointing:
        # Since transformers 5.24 under another name.
        older = "activation_checkpointing_enable" not in dir(model)
        enable = model.gradient_checkpointing_enable if older else model.activation_checkpointing_enable
        enable({"use_reentrant": False})
    return lm


def parameter_groups(model: Any, recipe: FinetuneRecipe) -> list[dict[str, Any]]:
    """What is trained, for an optimizer: LoRA, embeddings, LM head, each with its share of LoRA's rate."""
    embeddings, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    own = {id(embeddings), id(head)}
    lora = [p for p in model.parameters() if p.requires_grad and id(p) not in own]
    groups: list[dict[str, Any]] = [{"name": "lora", "params": lora, "share": 1.0, "weight_decay": recipe.weight_decay}]
    for name, weight, rate in (("embeddings", embeddings, recipe.embedding_rate), ("head", head, recipe.head_rate)):
        if weight.requires_grad and (name == "embeddings" or weight is not embeddings):
            # No decay: most rows get no gradient in a step, and would only shrink.
            share = rate / recipe.lora_rate
            groups.append({"name": name, "params": [weight], "share": share, "weight_decay": 0.0})
    return groups


def merged(lm: Any, dtype: torch.dtype) -> Any:
    """The plain causal LM of what was learnt; `lm` is of no use afterwards."""
    plain = lm.merge_and_unload()
    plain.set_attn_implementation("sdpa")
    plain.config.use_cache = True
    return plain.to(dtype)


@dataclass(frozen=True)
class Job:
    """What is trained, on what, and where to. `base`: a bundled name, a folder or a hub id, with or without ST tokens;
    `rows`: JSONL files of design section 9."""

    base: str
    rows: tuple[Path, ...]
    out: Path
    recipe: FinetuneRecipe
    drop_bad: bool = False


class FinetuneRun(Trainer):
    """A trainer whose chunk is one step of the recipe."""

    BETAS = (0.9, 0.999)
    SAVES_MIDWAY = True

    def __init__(
        self, model: Any, encoder: GroupEncoder, groups: Groups, identity: Mapping[str, Any], out: Path
    ) -> None:
        recipe = self.recipe = encoder.recipe
        self._groups, self._identity = groups, identity
        self._epoch_steps = math.ceil(len(groups) / recipe.groups)
        self.steps = recipe.steps or math.ceil(recipe.epochs * self._epoch_steps)
        self.device = next(model.parameters()).device
        config = TrainConfig(
            samples=self.steps * recipe.groups,
            seed=recipe.seed,
            learning_rate=recipe.lora_rate,
            final_rate=0.0,
            warmup=recipe.warmup,
            clip=recipe.clip,
            save_every_s=recipe.save_every_s,
        )
        super().__init__(model, encoder, lambda chunk: (), config, out)  # type: ignore[arg-type]

    def parameter_groups(self) -> list[dict[str, Any]]:
        return parameter_groups(self.model, self.recipe)

    def settings(self) -> dict[str, Any]:
        return {**self._identity, **self.recipe.settings()}

    def over(self) -> bool:
        return self.chunk >= self.steps

    def done(self) -> float:
        return self.chunk / self.steps

    def groups(self, rng: random.Random) -> list[list[EncodedRow]]:
        """Return the rows of this step: each row comes once an epoch, each time in another order."""
        epoch, step = divmod(self.chunk, self._epoch_steps)
        order = random.Random(f"{self.config.seed}/epoch {epoch}").sample(range(len(self._groups)), len(self._groups))
        size = self.recipe.groups
        return [[self._groups[i] for i in order[step * size : (step + 1) * size]]]

    def batches(self, rows: Sequence[EncodedRow], rng: random.Random) -> Iterator[PackedBatch]:
        """Yield a step's batches; dropout follows from the step alone, so that a resumed run repeats it."""
        torch.manual_seed(rng.getrandbits(40))
        size = self.recipe.device_groups
        for start in range(0, len(rows), size):
            yield pack_groups(self.encoder.prefix, rows[start : start + size]).to(self.device)

    def weight(self, rows: Sequence[EncodedRow]) -> float:
        return math.fsum(w for row in rows for head in row.heads for w in head.weights)

    def products(self) -> AbstractContextManager[object]:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.dtype == "bf16")

    def line(self) -> dict[str, Any]:
        return {"step": self.chunk, "steps": self.steps, "grad_norm": self.norm, **super().line()}


@dataclass(frozen=True)
class FinetuneOutcome:
    """`steps` done on `groups`; `loss` of the last one; `identity`: the run's base and rows."""

    out: Path
    steps: int
    groups: Groups
    loss: float
    identity: Mapping[str, Any]
    recipe: FinetuneRecipe

    @property
    def model(self) -> Path:
        """The merged checkpoint."""
        return self.out / MODEL

    def to_dict(self) -> dict[str, Any]:
        """As `result.json` has it."""
        return {
            "steps": self.steps,
            "groups": len(self.groups),
            "rows": self.groups.files,
            "dropped": dict(self.groups.dropped),
            "loss": self.loss,
            "run": {**self.identity, **self.recipe.settings()},
        }


def finetune(job: Job, progress: Progress | None = None) -> FinetuneOutcome:
    """Train, or go on where the same command was stopped; then merge and export. What `progress` gets is a
    line of the log, a step each, or which step it goes on from (`resumed`). Raises UserError; what was saved before
    then is kept."""
    check_extras()
    disable_progress_bar()
    device = choose_device(job.recipe.device)
    given = resolve(job.base)
    try:
        (job.out / TRAINING).mkdir(parents=True, exist_ok=True)
        with owned(job.out):
            return _finetune(job, given, device, progress)
    except (OSError, SafetensorError) as error:
        raise _not_saved(job.out, error) from None


def _finetune(job: Job, given: Path, device: torch.device, progress: Progress | None) -> FinetuneOutcome:
    base = st_base(given, job.out / "base")
    checkpoint = Checkpoint.open(str(base))
    assert isinstance(checkpoint.template, PromptTemplate)
    encoder = GroupEncoder(checkpoint.template, checkpoint.tokenizer, job.recipe)
    groups = load(job.rows, encoder, job.drop_bad)
    identity = {
        "base": f"{Path(job.base).name} ({base_digest(given)[:12]})",
        "rows": ", ".join(f"{Path(path).name} ({sha[:12]})" for path, sha in groups.files.items()),
    }
    dtype = DTYPES[job.recipe.dtype]
    lm = adapted(load_base(base, dtype), job.recipe)
    lm.to(device)
    run = FinetuneRun(lm.get_base_model(), encoder, groups, identity, job.out / TRAINING)
    if progress and 0 < run.chunk < run.steps:
        progress({"resumed": run.chunk, "steps": run.steps})
    run.run(progress)
    loss = last_line(run.out).get("loss", math.nan)
    outcome = FinetuneOutcome(job.out, run.chunk, groups, loss, identity, job.recipe)
    try:
        _write(outcome, lm, base, dtype)
    except RuntimeError as error:  # of torch's own writer
        raise _not_saved(job.out, error) from None
    return outcome


def _not_saved(out: Path, error: Exception) -> UserError:
    why = getattr(error, "strerror", None) or "a file could not be written whole"
    return UserError(
        f"The run cannot be saved in {out} ({why}); the training is kept.",
        "Make room there, and start the same command again: it goes on.",
    )


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
        with _aside(place) as part:
            adopt_base(given, part)
    return place


def base_digest(folder: Path) -> str:
    """One sha256 of a checkpoint's config, weights, tokenizer and template. Raises UserError."""
    found = hashlib.sha256()
    try:
        for path in [folder / "config.json", folder / "tokenizer.json", *sorted(folder.glob("*.safetensors"))]:
            with path.open("rb") as file:
                found.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
        if (folder / TEMPLATE).is_file():
            found.update((folder / TEMPLATE).read_bytes())
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read ({error.strerror}).", "Give a complete checkpoint.") from None
    return found.hexdigest()


def _write(outcome: FinetuneOutcome, lm: Any, base: Path, dtype: torch.dtype) -> None:
    """Write merged checkpoint and result, each aside and renamed when it is whole. `lm` is of no use afterwards."""
    with _aside(outcome.model) as part:
        settings = json.loads((base / "tokenizer_config.json").read_text("utf-8"))
        template = json.loads((base / TEMPLATE).read_text("utf-8"))
        own = Tokenizer.from_file(str(base / "tokenizer.json"))
        export(merged(lm, dtype), own, template, part, dtype, settings.get("eos_token", "<|im_end|>"))
        for name in KEPT:
            if (base / name).is_file():
                shutil.copy(base / name, part / name)
        learnt(outcome.groups).write(part)
        (part / "README.md").write_text(card(outcome), "utf-8")
    replace_file(no_link(outcome.out / RESULT), json.dumps(outcome.to_dict(), indent=1, ensure_ascii=False) + "\n")


def learnt(groups: Groups) -> TrainingMetadata:
    """What the checkpoint says of itself; one of many tool sets reads tools, and may try others."""
    sets, many = tuple(groups.tool_sets.values()), len(groups.tool_sets) > SETS
    return TrainingMetadata(() if many else sets, history=groups.history, allow_null=groups.null, any_tools=many)


@contextmanager
def _aside(place: Path) -> Iterator[Path]:
    """A new folder beside `place`, which it replaces when the block ended well; else it is removed."""
    part = place.with_name(f"{place.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        yield part
        shutil.rmtree(place, ignore_errors=True)
        os.replace(part, place)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def card(outcome: FinetuneOutcome) -> str:
    """The text of `README.md`."""
    groups = outcome.groups
    files = "\n".join(f"- `{path}`: sha256 `{sha}`" for path, sha in groups.files.items())
    dropped = "".join(f"\n- {count} left out: {reason}" for reason, count in groups.dropped.items())
    settings = "\n".join(f"| {name} | {value} |" for name, value in outcome.recipe.settings().items())
    made = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "peft"))
    return f"""---
library_name: rtcontrol
---
# {outcome.identity["base"]}, fine-tuned to the ST format

Made by `rtcontrol models train` with {made}.

## Data

{len(groups):,} of {groups.rows:,} rows, {min(len(groups.tool_sets), SETS)} sets of tools or more:

{files}{dropped}

## Training

{outcome.steps:,} steps of {outcome.recipe.groups} groups; the loss of the last one was {outcome.loss}.

| setting | value |
|---|---|
{settings}
"""
