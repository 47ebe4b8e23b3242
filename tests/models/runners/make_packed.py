"""Packs random weights with others' code (compressed-tensors' compressor, vLLM's packers): integers and scales as the
files of a checkpoint have them, and what they stand for. To run where both are: `python make_packed.py OUT SEED`.

`packed.safetensors` beside this file was written by it (compressed-tensors 0.17.0, vLLM 0.32.0)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

OUTPUTS, INPUTS, GROUP = 8, 32, 16


def compressed(name: str, tensors: dict[str, torch.Tensor], **arguments: Any) -> None:
    from compressed_tensors.compressors import PackedQuantizationCompressor
    from compressed_tensors.compressors.naive_quantized import IntQuantizationCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    plain = arguments.pop("plain", False)
    weights = QuantizationArgs(type="int", **arguments)
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    weight = torch.randn(OUTPUTS, INPUTS).to(torch.bfloat16)
    state = {"weight": weight}
    if weights.actorder == "group":
        state["weight_g_idx"] = (torch.randperm(INPUTS) // GROUP).int()
    order = state["weight_g_idx"].argsort() if "weight_g_idx" in state else torch.arange(INPUTS)
    groups = weight[:, order].unflatten(1, (-1, weights.group_size or INPUTS)).float()
    scale, zero = calculate_qparams(groups.amin(-1), groups.amax(-1), weights)
    state |= {"weight_scale": scale.to(torch.bfloat16), "weight_zero_point": zero}
    packer = IntQuantizationCompressor if plain else PackedQuantizationCompressor
    made = packer.compress(state, scheme)
    tensors |= {f"{name}.{key}": value.contiguous() for key, value in made.items()}
    wide = {k: v.float() if k == "weight_scale" else v for k, v in made.items()}
    tensors[f"{name}.expected"] = packer.decompress(wide, scheme)["weight"].float().contiguous()


def others(tensors: dict[str, torch.Tensor]) -> None:
    from vllm.model_executor.layers.quantization.utils.quant_utils import awq_pack, gptq_pack, pack_cols

    groups = INPUTS // GROUP
    for name in ("awq", "gptq", "gptq_v2"):
        values, zero = torch.randint(16, (INPUTS, OUTPUTS)), torch.randint(1, 16, (groups, OUTPUTS))
        scale = torch.rand(groups, OUTPUTS).half() * 0.1
        at = torch.arange(INPUTS) // GROUP if name == "awq" else torch.randperm(INPUTS) // GROUP
        if name == "awq":
            packed = awq_pack(values, 4, INPUTS, OUTPUTS), awq_pack(zero, 4, groups, OUTPUTS)
        else:
            packed = gptq_pack(values, 4, INPUTS, OUTPUTS), pack_cols(zero - int(name == "gptq"), 4, groups, OUTPUTS)
            tensors[f"{name}.g_idx"] = at.int()
        tensors |= {f"{name}.qweight": packed[0], f"{name}.qzeros": packed[1], f"{name}.scales": scale}
        tensors[f"{name}.expected"] = ((values - zero[at]) * scale.float()[at]).T.contiguous()


def main(out: Path, seed: int) -> None:
    torch.manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    group = {"strategy": "group", "group_size": GROUP}
    compressed("w4", tensors, num_bits=4, symmetric=True, **group)
    compressed("w4_zeros", tensors, num_bits=4, symmetric=False, **group)
    compressed("w4_ordered", tensors, num_bits=4, symmetric=True, actorder="group", **group)
    compressed("w8", tensors, num_bits=8, symmetric=True, strategy="channel")
    compressed("w8_plain", tensors, num_bits=8, symmetric=True, strategy="channel", plain=True)
    compressed("w3", tensors, num_bits=3, symmetric=True, **group)
    others(tensors)
    save_file(tensors, str(out))
    print(json.dumps(sorted(tensors)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
