"""The model under training: LoRA on a base, its embeddings and head unfrozen, its loss that of packed trees."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from rtcontrol.models.data.convert import check_call
from rtcontrol.models.data.row import DataRow, json_value, raw_lines
from rtcontrol.models.data.sample import Unusable
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.tool_schema import ToolSchema, tool_schemas
from rtcontrol.models.train.finetune.config import FinetuneRecipe
from rtcontrol.models.train.loss import ATTENTION, tree_loss
from rtcontrol.models.train.packing import PackedBatch
from rtcontrol.models.train.rows import Row
from rtcontrol.models.train.seen_vocabulary import see, whole

TREES = {"full_attention", "sliding_attention"}  # kinds of layers that `tree_attention` computes


class BadRow(UserError):
    """A row that cannot be represented; `reason` is what is wrong with it, without file and line."""

    def __init__(self, where: str, reason: str, remedy: str) -> None:
        super().__init__(f"{where}: {reason}", remedy)
        self.reason = reason


def read_rows(file: Path) -> Iterator[tuple[str, Row | BadRow]]:
    """(FILE:LINE, row or what is wrong with it) of every line that is not empty. Rows of the same tools share them.
    Raises UserError for a file that cannot be read."""
    for line, raw in raw_lines(file):
        where = f"{file}:{line}"
        try:
            value = json_value(raw, where)
        except UserError as error:
            yield where, BadRow(where, error.what.removeprefix(f"{where}: "), error.remedy)
            continue
        yield where, _row(value, where)


def _row(value: Any, where: str) -> Row | BadRow:
    try:
        given = DataRow.from_dict(value, where)
        tools = _tools(json.dumps(given.tools))
        if given.call is not None:
            check_call(given.call, next(tool for tool in tools if tool.name == given.call.name))
    except UserError as error:
        return BadRow(where, error.what.removeprefix(f"{where}: "), error.remedy)
    except Unusable as error:
        return BadRow(where, f"{error.reason}: {error.detail}.", "Correct the call, or leave the row out.")
    return Row(given.instruction, given.observation, given.call, given.history, tools=tools, weight=given.weight)


@lru_cache(maxsize=64)  # an encoder is kept for as many
def _tools(text: str) -> tuple[ToolSchema, ...]:
    return tool_schemas(json.loads(text))


class TreeLM(torch.nn.Module):
    """A Hugging Face causal LM with adapters (`lm`, of peft's), whose forward is the loss of a batch: a data-parallel
    wrapper gathers the gradients of what went through `forward`."""

    accepts_loss_kwargs = True  # transformers' Trainer: the loss is that of the whole step already

    def __init__(self, lm: Any) -> None:
        super().__init__()
        self.lm = lm

    @property
    def base(self) -> Any:
        """The causal LM, adapters inside."""
        return self.lm.get_base_model()

    def forward(self, batch: PackedBatch, normaliser: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """`tree_loss`."""
        return tree_loss(self.base, batch, normaliser)


def dtype_of(recipe: FinetuneRecipe, device: torch.device) -> torch.dtype:
    """Of frozen weights and products; `auto` is bf16 on an accelerator, fp32 on a CPU."""
    if recipe.dtype == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return torch.float32 if recipe.dtype == "fp32" else torch.bfloat16


def load_base(folder: Path, dtype: torch.dtype) -> Any:
    """The causal LM of a checkpoint. Raises UserError for one that cannot be loaded, or trained by trees."""
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, trust_remote_code=False, use_safetensors=True
        )
    except Exception as error:  # whatever a checkpoint can be wrong in
        told = (str(error).strip() or repr(error)).splitlines()[0]
        raise UserError(f"transformers cannot load {folder} ({told}).", "Give a causal model's folder.") from None
    kinds = {*(getattr(model.config, "layer_types", None) or ["full_attention"])}
    if (other := kinds - TREES) or not hasattr(model, "lm_head") or not hasattr(model.model, "layers"):
        what = f"of {other.pop().replace('_', ' ')}" if other else "of another build"
        raise UserError(
            f"{folder}: a {model.config.model_type} model has layers {what}; trees are not computed by them.",
            "Fine-tune a Qwen2, Qwen2.5, Qwen3, Llama or Gemma 3 (text) model.",
        )
    return model


def adapted(model: Any, recipe: FinetuneRecipe, own: Iterable[int] = (), met: Iterable[int] = ()) -> TreeLM:
    """The base with fresh LoRA adapters and, where they have a rate, its embeddings and head unfrozen; all that is
    trained is fp32. By a recipe of the vocabulary of its "rows" the embeddings are those of the tokens `own`, and of
    what it scores beside them it has `met` some. Raises UserError where the base has none of the recipe's targets.
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
        lora_alpha=recipe.alpha,
        lora_dropout=recipe.dropout,
        target_modules=list(recipe.targets),
        task_type="CAUSAL_LM",
    )
    torch.manual_seed(recipe.seed)
    if recipe.vocabulary == "rows":
        see(model, own, met)
    lm = get_peft_model(model, settings)
    made = TreeLM(lm)
    embeddings, head = made.base.get_input_embeddings().weight, made.base.get_output_embeddings().weight
    for weight, rate in ((head, recipe.head_rate), (embeddings, recipe.embedding_rate)):  # tied: the embeddings' rate
        weight.requires_grad_(rate > 0)
    for parameter in made.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    made.base.set_attn_implementation(ATTENTION)
    made.base.config.use_cache = False
    if recipe.gradient_checkpointing:
        # Since transformers 5.24 under another name.
        older = "activation_checkpointing_enable" not in dir(made.base)
        enable = made.base.gradient_checkpointing_enable if older else made.base.activation_checkpointing_enable
        enable({"use_reentrant": False})
    return made


def parameter_groups(model: TreeLM, recipe: FinetuneRecipe) -> list[dict[str, Any]]:
    """What is trained, for an optimizer: LoRA, embeddings, LM head, each with its rate."""
    embeddings, head = model.base.get_input_embeddings().weight, model.base.get_output_embeddings().weight
    own = {id(embeddings), id(head)}
    lora = [p for p in model.parameters() if p.requires_grad and id(p) not in own]
    groups: list[dict[str, Any]] = [
        {"name": "lora", "params": lora, "lr": recipe.lora_rate, "weight_decay": recipe.weight_decay}
    ]
    for name, weight, rate in (("embeddings", embeddings, recipe.embedding_rate), ("head", head, recipe.head_rate)):
        if weight.requires_grad and (name == "embeddings" or weight is not embeddings):
            # No decay: most rows get no gradient in a step, and would only shrink.
            groups.append({"name": name, "params": [weight], "lr": rate, "weight_decay": 0.0})
    return groups


def trained(model: TreeLM) -> dict[str, torch.nn.Parameter]:
    """What is trained, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def merged(model: TreeLM, dtype: torch.dtype) -> Any:
    """The plain causal LM of what was learnt; `model` is of no use afterwards."""
    whole(model.base)
    plain = model.lm.merge_and_unload()
    plain.set_attn_implementation("sdpa")
    plain.config.use_cache = True
    return plain.to(dtype)
