"""A quantised checkpoint decides like a plain checkpoint with the dequantised weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rtcontrol.models.errors import UserError
from rtcontrol.models.quantize import calibration_sequences, check_quantization, find_interpreter, quantize
from rtcontrol.models.runners.quantized_weights import Packing, read_packing
from tests.models.small import build, build_checkpoint, prompt_of, reconfigure, shown, tool

HERE = Path(__file__).parent
TOOLS = [tool(n, v=["alpha beta go", "left", "green red"], w=[1, 2, 20]) for n in ("go", "stop", "open")]
GROUP = 16
# The value of each packed weight in the fixture.
PACKINGS = {"w4": Packing(4), "w4_zeros": Packing(4), "w4_ordered": Packing(4), "w8": Packing(8), "w3": Packing(3)}
# The configuration of the published 4B checkpoint.
W4A16 = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {
            "format": "pack-quantized",
            "input_activations": None,
            "output_activations": None,
            "targets": ["Linear"],
            "weights": {"actorder": None, "group_size": GROUP, "num_bits": 4, "strategy": "group", "symmetric": True},
        }
    },
    "kv_cache_scheme": None,
    "sparsity_config": {},
    "transform_config": {},
}


def test_packed_weights_of_other_tools_are_unpacked_alike() -> None:
    tensors = load_file(str(HERE / "packed.safetensors"))
    for name, kind in PACKINGS.items():
        weight = kind.weight(tensors, f"{name}.weight")
        assert weight is not None
        torch.testing.assert_close(weight, tensors[f"{name}.expected"], atol=1e-6, rtol=1e-6)


def words(values: torch.Tensor) -> torch.Tensor:
    """Pack 4-bit values, eight per word, to the shape [rows, columns / 8]."""
    rows = []
    for row in values.tolist():
        line = [sum(row[i + j] << 4 * j for j in range(8)) for i in range(0, len(row), 8)]
        rows.append([word - (1 << 32) if word >= 1 << 31 else word for word in line])
    return torch.tensor(rows, dtype=torch.int32)


def quantise(folder: Path, plain: Path) -> None:
    """Write a random model to both folders: packed like compressed-tensors, and with the dequantised weights."""
    build_checkpoint(folder, "qwen3", seed=3)
    build_checkpoint(plain, "qwen3", seed=3)
    tensors, meant = load_file(str(folder / "model.safetensors")), {}
    torch.manual_seed(4)
    for name in [n for n in tensors if n.endswith("proj.weight")]:
        weight = tensors.pop(name)
        q, groups = torch.randint(16, weight.shape), weight.shape[1] // GROUP
        scale = (torch.rand(len(weight), groups) * 0.05).half()
        group = torch.randperm(q.shape[1]) // GROUP
        tensors |= {f"{name}_packed": words(q), f"{name}_scale": scale, f"{name}_g_idx": group.int()}
        tensors[f"{name}_shape"] = torch.tensor(weight.shape)
        meant[name] = (q - 8) * scale.float()[:, group]
    save_file(tensors, str(folder / "model.safetensors"))
    save_file(load_file(str(plain / "model.safetensors")) | meant, str(plain / "model.safetensors"))
    reconfigure(folder, quantization_config=W4A16)


def test_quantised_checkpoint_decides_like_its_plain_weights(tmp_path: Path) -> None:
    quantise(tmp_path / "q", tmp_path / "p")
    ours, plain = (build(tmp_path / name, TOOLS, dtype="fp32") for name in "qp")
    assert ours.info()["weights"] == "4-bit compressed-tensors, dequantised"
    assert "weights" not in plain.info()
    for i in range(8):
        decision, other = ours.decide(f"x={i}", "go left"), plain.decide(f"x={i}", "go left")
        assert shown(decision) == shown(other)
        assert decision.confidence == pytest.approx(other.confidence, abs=1e-5)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "awq", "bits": 4, "version": "gemm"}, "quant_method awq, bits 4, version gemm"),
        ({"quant_method": "gptq", "bits": 4}, "quant_method gptq, bits 4"),
        ({**W4A16, "config_groups": {"g": {"format": "nvfp4", "weights": {"num_bits": 4}}}}, "format pack-quantized"),
        ({"quant_method": "fp8"}, "quant_method fp8"),
        ("int4", "'int4'"),
    ],
)
def test_unsupported_quantisation_is_refused_with_a_usable_engine(config: Any, message: str) -> None:
    with pytest.raises(UserError, match="quantised in a format that the torch engine does not support") as error:
        read_packing({"quantization_config": config}, HERE)
    assert message in error.value.what
    assert "host.engine=vllm" in error.value.remedy


def test_integers_packed_against_the_config_are_refused(tmp_path: Path) -> None:
    quantise(tmp_path / "q", tmp_path / "p")
    path = tmp_path / "q" / "model.safetensors"
    tensors = load_file(str(path))
    name = "model.layers.0.mlp.up_proj.weight_packed"
    save_file(tensors | {name: tensors[name][:, :3].contiguous()}, str(path))
    with pytest.raises(UserError, match=r"mlp\.up_proj\.weight is not packed as its config\.json says"):
        build(tmp_path / "q", TOOLS)


# The input of llmcompressor from `models quantize`, and checkpoints that are refused beforehand.


# Writes its input in the same way as llmcompressor writes a checkpoint.
STANDIN = """
import json, os, sys
job = json.load(open(sys.argv[2] if sys.argv[1].endswith("quantizer.py") else sys.argv[1]))
if job["ids"] == [[1]]:
    sys.exit("RuntimeError: out of memory")
os.makedirs(job["out"])
config = json.load(open(job["model"] + "/config.json"))
weights = {"num_bits": 4, "scale_dtype": None, "zp_dtype": None}
config["quantization_config"] = {"kv_cache_scheme": None, "config_groups": {"group_0": {"weights": weights}}}
json.dump(config, open(job["out"] + "/config.json", "w"))
open(job["out"] + "/model.safetensors", "w").write(json.dumps(job))
"""


@pytest.fixture
def standin(tmp_path: Path) -> Path:
    """An interpreter that runs the stand-in for llmcompressor instead of any program."""
    program, shell = tmp_path / "standin.py", tmp_path / "python"
    program.write_text(STANDIN)
    shell.write_text(f'#!/bin/sh\nexec {sys.executable} {program} "$@"\n')
    shell.chmod(0o755)
    return shell


def test_calibration_prompts_have_each_head_with_its_value(folder: Path) -> None:
    decider = build(folder, [tool("go", v=["left", "red"], w=[1, 2]), tool("stop")])
    situations = [("x=1", "go left"), ("x=2", "stop")]
    sequences_ = calibration_sequences(decider, situations)
    expected = []
    for situation in situations:
        call = decider.decide(*situation).call
        for head, text in decider.plan.head_values(call):
            value = [head.null_id] if text is None else [*decider.tokenizer.encode(text), head.end_id]
            expected.append([*prompt_of(decider, *situation), head.head_id, *value])
    assert sequences_ == expected and len(sequences_) == 2 * len(decider.plan.heads)


def test_quantised_folder_is_complete_or_absent_without_nulls(folder: Path, tmp_path: Path, standin: Path) -> None:
    out = tmp_path / "made" / "new"
    quantize(folder, "int8", out, [[1, 2], [3]], standin)
    job = json.loads((out / "model.safetensors").read_text())
    assert (job["ids"], job["scheme"]) == ([[1, 2], [3]], "int8")
    assert (out / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    assert (out / "st_template.json").is_file()
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    assert config == {"config_groups": {"group_0": {"weights": {"num_bits": 4}}}}
    with pytest.raises(UserError, match="out of memory"):
        quantize(folder, "int8", out.with_name("other"), [[1]], standin)
    assert sorted(p.name for p in out.parent.iterdir()) == ["new", "other.log"]


def test_unquantisable_checkpoint_is_refused_before_starting(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Unknown scheme 'fp4'.*Choose awq, gptq"):
        check_quantization(folder, "fp4", tmp_path / "new")
    with pytest.raises(UserError, match="48, 64 are not multiples of 32.*int8"):
        check_quantization(folder, "awq", tmp_path / "new")
    with pytest.raises(UserError, match="already exists"):
        check_quantization(folder, "int8", tmp_path)
    packed = tmp_path / "packed"
    packed.mkdir()
    (packed / "config.json").write_text('{"quantization_config": {"quant_method": "awq"}}')
    with pytest.raises(UserError, match="already quantised"):
        check_quantization(packed, "int8", tmp_path / "new")
    (packed / "tokenizer.json").write_text("{}")
    (packed / "chat_template.jinja").write_text("")
    with pytest.raises(UserError, match="packed is a chat model"):
        check_quantization(packed, "int8", tmp_path / "new")
    for python, message in ((Path(sys.executable), "is not installed for"), (tmp_path / "none", "not a working")):
        with pytest.raises(UserError, match=f"{message}.*pip install llmcompressor"):
            find_interpreter(python)
