"""The recipe of a fine-tuning: the paper's numbers as the defaults, others from a file or the command line."""

from __future__ import annotations

import json
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rtcontrol.models.errors import UserError, read_text
from rtcontrol.models.schema.tool_schema import MAX_HEADS
from rtcontrol.models.train.encode import LossWeights

Rate = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
PerHead = Annotated[tuple[Weight, ...], Field(min_length=MAX_HEADS, max_length=MAX_HEADS)]


class FinetuneRecipe(BaseModel):
    """Hyperparameters (paper, appendix "Training Hyperparameters"). A *group* is one row with all its heads.

    `rank` (0: all weights are trained, no LoRA), `alpha` (None: twice the rank), `dropout`, `targets`: LoRA; rates of
    LoRA (or of all weights but the following), of the embeddings and of the LM head (0: frozen; a tied head is the
    embeddings). `groups` an optimizer step, `device_groups` of them at once. A row whose prompt and longest head are
    more than `length` tokens is left out. `steps` ends the run, else `epochs`. Head weights: `content`, `function`,
    `arguments`; `focal` multiplies the labels of an argument that is not null; `end` the label of the end token.
    `all_heads`: eight heads for every row, as published checkpoints have, those beyond its tools' null; without it the
    heads that our engines read. `dtype`: of the frozen weights and of the products; what is trained, and its sums, are
    fp32 (at a rate of 1e-6 bf16 would round every step of the embeddings away).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: Annotated[int, Field(ge=0)] = 512
    alpha: Count | None = None
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.05
    targets: Annotated[tuple[str, ...], Field(min_length=1)] = ("gate_proj", "up_proj", "down_proj")
    lora_rate: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 1e-5
    embedding_rate: Rate = 1e-6
    head_rate: Rate = 1e-6
    warmup: Annotated[float, Field(ge=0, lt=1)] = 0.02
    weight_decay: Rate = 0.0
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    length: Annotated[int, Field(ge=16)] = 2048
    groups: Count = 32
    device_groups: Count = 8
    epochs: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 3.0
    steps: Count | None = None
    content: Weight = 0.01
    function: Weight = 2.0
    arguments: PerHead = (1.1, 1.2, 1.3, 1.4, 1.5, 1.6)
    focal: PerHead = (1.0, 1.0, 1.5, 2.0, 2.5, 3.0)
    end: Weight = 1.0
    all_heads: bool = True
    dtype: Literal["fp32", "bf16"] = "bf16"
    gradient_checkpointing: bool = False
    seed: Annotated[int, Field(ge=0)] = 0
    save_every_s: Annotated[float, Field(ge=0)] = 600.0
    device: str | None = None

    @model_validator(mode="after")
    def _something_is_learnt(self) -> FinetuneRecipe:
        if not self.function and not any(self.arguments):
            raise ValueError("all head weights are 0: nothing is learnt")
        return self

    def weights(self) -> LossWeights:
        """Return those of the labels."""
        heads = {"focal": self.focal, "all_heads": self.all_heads, "content": self.content}
        return LossWeights(self.function, self.arguments, self.end, **heads)  # type: ignore[arg-type]

    def settings(self) -> dict[str, Any]:
        """Return as JSON what all parts of one run have in common: not where it runs, and how often it is saved."""
        return self.model_dump(mode="json", exclude={"device", "device_groups", "save_every_s"})


def check_extras() -> None:
    """Raise UserError if peft is missing, before anything is read or written."""
    if find_spec("peft") is None:
        raise UserError("Fine-tuning needs peft, not installed here.", "Install it: pip install 'rtcontrol[train]'.")


def recipe(file: Path | None = None, **options: Any) -> FinetuneRecipe:
    """Return the paper's recipe, over it the settings of a TOML or JSON `file`, over those the options that are not
    None. Raises UserError naming file and field."""
    settings = {} if file is None else _read(file)
    settings |= {name: value for name, value in options.items() if value is not None}
    where = f"{file}: " if file is not None else ""
    try:
        return FinetuneRecipe.model_validate(settings)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        field = f"{name} is {first['input']!r}: " if name else ""
        known = f"It has: {', '.join(FinetuneRecipe.model_fields)} (docs/finetune.md)."
        raise UserError(f"{where}{field}{first['msg']}.", known) from None


def _read(file: Path) -> dict[str, Any]:
    try:
        text = read_text(file)
        settings = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:  # both decoders raise the latter
        raise UserError(f"{file} cannot be read ({error}).", "Give a TOML or JSON file.") from None
    if not isinstance(settings, dict):
        raise UserError(f"{file} is not a table of settings.", "Write lines such as: rank = 64")
    return settings
