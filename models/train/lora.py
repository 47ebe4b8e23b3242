"""The model under training: LoRA on a base, its embeddings and head unfrozen, its loss that of packed trees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rtcontrol.models.errors import UserError
from rtcontrol.models.train.base import load_model
from rtcontrol.models.train.loss import ATTENTION
from rtcontrol.models.train.recipe import FinetuneRecipe

TREES = {"full_attention", "sliding_attention"}  # kinds of layers that `tree_attention` computes


def dtype_of(recipe: FinetuneRecipe, device: torch.device) -> torch.dtype:
    """Of frozen weights and products; `auto` is bf16 on an accelerator, fp32 on a CPU."""
    if recipe.dtype == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return torch.float32 if recipe.dtype == "fp32" else torch.bfloat16


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
