"""Weights of compressed-tensors, AWQ and GPTQ, dequantised on loading: they take the memory of the dtype they get.

An integer q stands for (q - zero) * scale; inputs, counted from the first, share zero and scale in groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from rtcontrol.models.errors import UserError

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # of the eight columns in one word
COMPRESSED = "compressed-tensors"
FORMATS = frozenset({"pack-quantized", "int-quantized", "naive-quantized"})  # its formats of integers


class Tensors(Protocol):
    """Tensors by name, as they are in the files."""

    def __contains__(self, name: str) -> bool: ...

    def __getitem__(self, name: str) -> torch.Tensor: ...


@dataclass(frozen=True)
class Packing:
    """How a checkpoint's weights are kept; `shifted`: GPTQ's zeros are kept one too small."""

    method: str
    bits: int
    shifted: bool = False

    @property
    def summary(self) -> str:
        """For people."""
        return f"{self.bits}-bit {self.method}, dequantised"

    def scales(self, name: str) -> str:
        """Return what the scales of a weight are called."""
        return f"{name}_scale" if self.method == COMPRESSED else f"{name.removesuffix('weight')}scales"

    def weight(self, tensors: Tensors, name: str) -> torch.Tensor | None:
        """Return fp32 [outputs, inputs] of a weight that is quantised, else None."""
        if self.scales(name) not in tensors:
            return None
        if self.method == COMPRESSED:
            return self._packed(tensors, name) if f"{name}_packed" in tensors else _plain(tensors, name)
        at = name.removesuffix("weight")
        values, zero = (self._awq if self.method == "awq" else self._gptq)(tensors, at)
        groups = _groups(tensors, f"{at}g_idx", len(values), len(zero))
        return ((values - zero[groups]) * tensors[self.scales(name)].float()[groups]).T

    def _packed(self, tensors: Tensors, name: str) -> torch.Tensor:
        outputs, inputs = (int(n) for n in tensors[f"{name}_shape"])
        scale, offset = tensors[f"{name}_scale"].float(), 1 << (self.bits - 1)
        values = unpacked(tensors[f"{name}_packed"], self.bits)[:, :inputs] - offset
        if scale.ndim < 2:
            return values * scale
        groups = _groups(tensors, f"{name}_g_idx", inputs, scale.shape[1])
        if f"{name}_zero_point" in tensors:
            zero = unpacked(tensors[f"{name}_zero_point"].T, self.bits).T[:outputs] - offset
            values = values - zero[:, groups]
        return values * scale[:, groups]

    def _awq(self, tensors: Tensors, at: str) -> tuple[torch.Tensor, torch.Tensor]:
        words = len(AWQ_ORDER)
        place = torch.tensor(AWQ_ORDER).argsort()
        values, zero = (
            unpacked(tensors[at + part], self.bits).unflatten(1, (-1, words))[..., place].flatten(1)
            for part in ("qweight", "qzeros")
        )
        return values, zero

    def _gptq(self, tensors: Tensors, at: str) -> tuple[torch.Tensor, torch.Tensor]:
        zero = unpacked(tensors[f"{at}qzeros"], self.bits)
        if self.shifted:
            zero = (zero + 1) & ((1 << self.bits) - 1)
        return unpacked(tensors[f"{at}qweight"].T, self.bits).T, zero


def unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """[rows, words * (32 // bits)] integers from 32-bit words that hold them from their lowest bit on."""
    shifts = torch.arange(32 // bits, dtype=torch.int32) * bits
    return ((words[..., None] >> shifts) & ((1 << bits) - 1)).flatten(1)


def _groups(tensors: Tensors, listed: str, inputs: int, groups: int) -> torch.Tensor:
    """Return the group of each input: as listed, or in order."""
    if listed in tensors and bool((indices := tensors[listed].long()).ge(0).all()):
        return indices
    return torch.arange(inputs) // -(-inputs // groups)


def _plain(tensors: Tensors, name: str) -> torch.Tensor:
    """Return a weight whose integers are not packed into words."""
    zero = tensors[f"{name}_zero_point"].float() if f"{name}_zero_point" in tensors else 0.0
    return (tensors[name].float() - zero) * tensors[f"{name}_scale"].float()


def packing(config: Mapping[str, Any], folder: Path) -> Packing | None:
    """What a checkpoint's `config.json` says of its weights; None: they are plain. Raises UserError for a kind that
    cannot be dequantised here."""
    told = config.get("quantization_config") or config.get("compression_config")
    if not told:
        return None
    if isinstance(told, dict):
        method, bits = told.get("quant_method"), told.get("bits", told.get("w_bit"))
        if method == "awq" and bits == 4 and str(told.get("version", "gemm")).lower() == "gemm":
            return Packing("awq", 4)
        kept = told.get("checkpoint_format", "gptq")
        if method == "gptq" and bits in (2, 4, 8) and kept in ("gptq", "gptq_v2"):
            return Packing("gptq", bits, kept == "gptq")
        if method in (COMPRESSED, None) and (compressed_bits := _compressed(told)) is not None:
            return Packing(COMPRESSED, compressed_bits)
    raise UserError(
        f"{folder} is quantised in a way that the torch engine cannot read ({_kind(told)}).",
        "Run it with --engine vllm, or use the original.",
    )


def _compressed(config: Mapping[str, Any]) -> int | None:
    """Return the bits of compressed-tensors' weights, where all are kept alike and in a known format; null fields are
    as if not there."""
    try:
        groups = list((config.get("config_groups") or {}).values())
        formats = {group.get("format") or config.get("format") for group in groups}
        weights = [group.get("weights") or {} for group in groups]
        bits = {weight.get("num_bits") for weight in weights}
        known = formats <= FORMATS and {weight.get("strategy") for weight in weights} <= {"group", "channel", "tensor"}
        # A sparse weight, or one that is rotated at run time, is not what its integers say.
        sparse = (config.get("sparsity_config") or {}).get("format") or "dense"
        alone = sparse == "dense" and not (config.get("transform_config") or {}).get("config_groups")
    except AttributeError:
        return None
    number = bits.pop() if len(bits) == 1 else None
    return number if known and alone and isinstance(number, int) and 1 <= number <= 8 else None


def _kind(told: Any) -> str:
    if not isinstance(told, dict):
        return repr(told)
    names = ("quant_method", "format", "bits", "w_bit", "version", "checkpoint_format")
    return ", ".join(f"{name} {told[name]}" for name in names if told.get(name) is not None) or "no quant_method"
