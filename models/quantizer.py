"""Quantise a checkpoint, as a script that imports nothing of rtcontrol: it runs in llmcompressor's environment.

Its argument is a JSON file with the keys `model` and `out` (folders), `scheme`, `ids` (token sequences for
calibration) and `group` (how many inputs share a scale).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

COMMON: dict[str, Any] = {"targets": ["Linear"], "ignore": ["lm_head"]}


def make_recipe(scheme: str, group: int) -> list[Any]:
    """Return llmcompressor's modifiers for a scheme. In schemes with 4 bits, `group` inputs share a scale."""
    from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier

    if scheme == "int8":
        return [QuantizationModifier(scheme="W8A16", **COMMON)]
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": group, "symmetric": scheme == "gptq"}
    groups = {"group_0": {"targets": COMMON["targets"], "weights": weights}}
    if scheme == "gptq":
        return [GPTQModifier(config_groups=groups, ignore=COMMON["ignore"])]
    from llmcompressor.modifiers.awq import AWQModifier

    return [AWQModifier(config_groups=groups, ignore=COMMON["ignore"])]


def main(model: str, out: str, scheme: str, ids: list[list[int]], group: int) -> None:
    """Quantise the checkpoint `model`, and write weights and config to `out`."""
    import torch
    from datasets import Dataset
    from llmcompressor import oneshot
    from transformers import AutoModelForCausalLM

    if not torch.accelerator.is_available():
        from llmcompressor.pipelines.cache import IntermediatesCache

        # llmcompressor 0.14 always pins memory, which torch cannot do without a GPU.
        IntermediatesCache.pin_memory = lambda *_, **__: None
    data = Dataset.from_dict({"input_ids": ids, "attention_mask": [[1] * len(i) for i in ids]})
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype="auto", trust_remote_code=False, use_safetensors=True)
    oneshot(
        model=loaded,
        dataset=data,
        recipe=make_recipe(scheme, group),
        max_seq_length=max(map(len, ids)),
        num_calibration_samples=len(ids),
    )
    loaded.save_pretrained(out, save_compressed=True)


if __name__ == "__main__":
    main(**json.loads(Path(sys.argv[1]).read_text("utf-8")))
