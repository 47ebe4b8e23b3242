"""Define the hyperparameters of fine-tuning. The defaults are those of the SimpleTool paper."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.tool_schema import MAX_HEADS
from rtcontrol.models.train.encode import LossWeights

Rate = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
PerHead = Annotated[tuple[Weight, ...], Field(min_length=MAX_HEADS, max_length=MAX_HEADS)]


class FinetuneRecipe(BaseModel):
    """Hyperparameters (SimpleTool paper, appendix "Training Hyperparameters"). A *group* is one row with all its heads.

    Trained weights are stored in fp32, because in bf16 an update at a learning rate of 1e-6 would be rounded to zero.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    GROUP: ClassVar[str] = "train"

    rank: int = Field(default=512, description="Rank of LoRA; 0: all weights are trained.", ge=0)
    alpha: Count | None = Field(default=None, description="Alpha of LoRA. (default: twice the rank)")
    dropout: float = Field(default=0.05, description="Dropout of LoRA.", ge=0, lt=1)
    targets: tuple[str, ...] = Field(
        default=("gate_proj", "up_proj", "down_proj"), description="Layers that LoRA adapts.", min_length=1
    )
    lora_rate: float = Field(
        default=1e-5, description="Learning rate of LoRA, or of all weights.", gt=0, le=1, allow_inf_nan=False
    )
    embedding_rate: Rate = Field(default=1e-6, description="Learning rate of the embeddings; 0: frozen.")
    head_rate: Rate = Field(default=1e-6, description="Learning rate of an untied LM head; 0: frozen.")
    warmup: float = Field(default=0.02, description="Share of the steps in which the learning rates rise.", ge=0, lt=1)
    weight_decay: Rate = Field(default=0.0, description="Weight decay of LoRA.")
    clip: float = Field(default=1.0, description="Norm that gradients are clipped to.", gt=0, allow_inf_nan=False)
    length: int = Field(
        default=2048, description="Rows with more tokens, prompt and longest head, are left out.", ge=16
    )
    groups: Count = Field(default=32, description="Rows per optimizer step.")
    device_groups: Count = Field(default=8, description="Rows of a batch on the device.")
    epochs: float = Field(default=3.0, description="Passes over all rows.", gt=0, allow_inf_nan=False)
    steps: Count | None = Field(default=None, description="Optimizer steps. (default: as many as the epochs have)")
    content: Weight = Field(default=0.01, description="Weight of the content head.")
    function: Weight = Field(default=2.0, description="Weight of the function head.")
    arguments: PerHead = Field(default=(1.1, 1.2, 1.3, 1.4, 1.5, 1.6), description="Weights of the argument heads.")
    focal: PerHead = Field(
        default=(1.0, 1.0, 1.5, 2.0, 2.5, 3.0), description="Factors of an argument's labels if it is not null."
    )
    end: Weight = Field(default=1.0, description="Weight of the end token's label.")
    all_heads: bool = Field(
        default=True,
        description="Eight heads for every row, as published checkpoints have; else those that our engines read.",
    )
    dtype: Literal["fp32", "bf16"] = Field(default="bf16", description="Type of frozen weights and products.")
    gradient_checkpointing: bool = Field(
        default=False, description="Compute activations again: less memory, more time."
    )
    seed: int = Field(default=0, description="Seed of LoRA's start, dropout and the rows' order.", ge=0)
    save_every_s: float = Field(default=600.0, description="Seconds between saves.", ge=0)
    device: str | None = Field(default=None, description="cpu, cuda or cuda:NUMBER. (default: a GPU if there is one)")
    drop_bad: bool = Field(default=False, description="Leave out rows that cannot be represented, and count them.")

    @model_validator(mode="after")
    def _check_head_weights(self) -> FinetuneRecipe:
        if not self.function and not any(self.arguments):
            raise ValueError("all head weights are 0, so nothing can be learnt")
        return self

    def weights(self) -> LossWeights:
        """Return the loss weight of each kind of label."""
        heads = {"focal": self.focal, "all_heads": self.all_heads, "content": self.content}
        return LossWeights(self.function, self.arguments, self.end, **heads)  # type: ignore[arg-type]

    def settings(self) -> dict[str, Any]:
        """Return the settings that must stay the same when a run is resumed, as a JSON object."""
        return self.model_dump(mode="json", exclude={"device", "device_groups", "save_every_s", "drop_bad"})


def check_extras() -> None:
    """Raise UserError if the package peft is not installed."""
    if find_spec("peft") is None:
        raise UserError("The package peft is not installed.", "Install it: pip install 'rtcontrol[train]'.")
