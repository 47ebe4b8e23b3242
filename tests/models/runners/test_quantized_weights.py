"""A quantised checkpoint decides like the plain one whose weights its integers stand for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rtcontrol.models.errors import UserError
from rtcontrol.models.runners.quantized_weights import Packing
from tests.models.small import build, build_checkpoint, shown, tool

HERE = Path(__file__).parent
TOOLS = [tool(n, v=["alpha beta go", "left", "green red"], w=[1, 2, 20]) for n in ("go", "stop", "open")]
GROUP = 16
# What each packed weight of the fixture is.
PACKINGS = {
    "awq": Packing("awq", 4),
    "gptq": Packing("gptq", 4, shifted=True),
    "gptq_v2": Packing("gptq", 4),
}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True, "sym": False}


def agree(tensors: dict[str, torch.Tensor]) -> None:
    for name, packing in PACKINGS.items():
        found = packing.weight(tensors, f"{name}.weight")
        assert found is not None
        torch.testing.assert_close(found, tensors[f"{name}.expected"], atol=1e-6, rtol=1e-6)


def test_what_others_packed_is_unpacked_as_they_do() -> None:
    agree(load_file(str(HERE / "packed.safetensors")))


def words(values: torch.Tensor, order: tuple[int, ...] = tuple(range(8))) -> torch.Tensor:
    """[rows, columns / 8], eight values of four bits in each."""
    rows = []
    for row in values.tolist():
        line = [sum(row[i + order[j]] << 4 * j for j in range(8)) for i in range(0, len(row), 8)]
        rows.append([word - (1 << 32) if word >= 1 << 31 else word for word in line])
    return torch.tensor(rows, dtype=torch.int32)


Packed = tuple[dict[str, torch.Tensor], torch.Tensor]


def awq(at: str, q: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> Packed:
    order, scale = (0, 2, 4, 6, 1, 3, 5, 7), scale.half()
    tensors = {"qweight": words(q.T, order), "qzeros": words(zero.T, order), "scales": scale.T.contiguous()}
    return tensors, (q - zero.repeat_interleave(GROUP, 1)) * scale.float().repeat_interleave(GROUP, 1)


def gptq(at: str, q: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> Packed:
    scale, group = scale.half(), torch.randperm(q.shape[1]) // GROUP
    tensors = {"qweight": words(q).T.contiguous(), "qzeros": words((zero - 1).T), "scales": scale.T.contiguous()}
    return tensors | {"g_idx": group.int()}, (q - zero[:, group]) * scale.float()[:, group]


def quantise(folder: Path, plain: Path, pack: Callable[..., Packed], config: dict[str, Any]) -> None:
    """Both folders hold one random model: packed, and what that stands for."""
    build_checkpoint(folder, "qwen3", seed=3)
    build_checkpoint(plain, "qwen3", seed=3)
    tensors, meant = load_file(str(folder / "model.safetensors")), {}
    torch.manual_seed(4)
    for name in [n for n in tensors if n.endswith("proj.weight")]:
        weight = tensors.pop(name)
        q, groups = torch.randint(16, weight.shape), weight.shape[1] // GROUP
        zero, scale = torch.randint(1, 16, (len(weight), groups)), torch.rand(len(weight), groups) * 0.05
        parts, meant[name] = pack(name, q, scale, zero)
        tensors |= {name.removesuffix("weight") + part: value.contiguous() for part, value in parts.items()}
    save_file(tensors, str(folder / "model.safetensors"))
    save_file(load_file(str(plain / "model.safetensors")) | meant, str(plain / "model.safetensors"))
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": config}))


@pytest.mark.parametrize(
    ("pack", "config", "told"),
    [
        (awq, AWQ, "4-bit awq"),
        (gptq, GPTQ, "4-bit gptq"),
    ],
    ids=["awq", "gptq"],
)
def test_a_quantised_checkpoint_decides_like_the_weights_it_stands_for(
    tmp_path: Path, pack: Callable[..., Packed], config: dict[str, Any], told: str
) -> None:
    quantise(tmp_path / "q", tmp_path / "p", pack, config)
    ours, plain = (build(tmp_path / name, TOOLS, dtype="fp32") for name in "qp")
    assert ours.info()["weights"] == f"{told}, dequantised"
    assert "weights" not in plain.info()
    for i in range(8):
        one, other = ours.decide(f"x={i}", "go left"), plain.decide(f"x={i}", "go left")
        assert shown(one) == shown(other)
        assert one.confidence == pytest.approx(other.confidence, abs=1e-5)


def test_a_head_of_its_own_values_is_used_though_the_config_says_tied(tmp_path: Path) -> None:
    folder = build_checkpoint(tmp_path / "m", "qwen3", seed=5)
    before = build(folder, TOOLS).decide("x=1", "go").confidence
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tie_word_embeddings": True}))
    assert build(folder, TOOLS).decide("x=1", "go").confidence == before


def without(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**config, **changes}


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (without(AWQ, version="gemv"), "quant_method awq, bits 4, version gemv"),
        (without(AWQ, bits=8), "bits 8"),
        (without(GPTQ, bits=3), "bits 3"),
        (without(GPTQ, checkpoint_format="marlin"), "checkpoint_format marlin"),
        ({"quant_method": "fp8"}, "quant_method fp8"),
        ({"quant_method": "compressed-tensors"}, "quant_method compressed-tensors"),
        ("int4", "'int4'"),
    ],
)
def test_what_cannot_be_dequantised_is_refused_with_the_engine_that_can(tmp_path: Path, config: Any, told: str) -> None:
    folder = build_checkpoint(tmp_path / "m")
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": config}))
    with pytest.raises(UserError, match="quantised in a way that the torch engine cannot read") as error:
        build(folder, TOOLS)
    assert told in error.value.what
    assert "--engine vllm" in error.value.remedy


def test_integers_that_are_not_packed_as_the_config_says_are_refused(tmp_path: Path) -> None:
    quantise(tmp_path / "q", tmp_path / "p", gptq, GPTQ)
    path = tmp_path / "q" / "model.safetensors"
    tensors = load_file(str(path))
    name = "model.layers.0.mlp.up_proj.qweight"
    save_file(tensors | {name: tensors[name][:, :3].contiguous()}, str(path))
    with pytest.raises(UserError, match=r"mlp\.up_proj\.weight is not packed as its config\.json says"):
        build(tmp_path / "q", TOOLS)
