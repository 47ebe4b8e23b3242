"""A checkpoint that cannot be run is refused with file and remedy; one that can is shared by its sessions."""

from __future__ import annotations

import json
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM

from rtcontrol.models.decider import DeciderSpec, STDecider
from rtcontrol.models.errors import UserError
from rtcontrol.models.runners.torch_runner import TorchRunner
from rtcontrol.models.runners.weights import ARCHITECTURES, ModelConfig, load_weights
from tests.models.small import build_checkpoint, reconfigure, tool

TOOLS = tuple(tool(n, 0, v=["left", "red"]) for n in ("go", "stop"))


@pytest.fixture
def folder(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "model"))


def build(folder: Path, **options: Any) -> STDecider:
    return DeciderSpec(str(folder), TOOLS, **options).build()


def refused(folder: Path, **options: Any) -> str:
    with pytest.raises(UserError) as error:
        build(folder, **options)
    assert error.value.remedy
    assert "\n" not in str(error.value)
    return str(error.value)


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def write(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content)


def change(**changes: Any) -> Callable[[Path], Path]:
    return lambda folder: reconfigure(folder, **changes)


def tear_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def drop_tensor(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(str(path))
    del tensors["model.layers.1.mlp.down_proj.weight"]
    save_file(tensors, str(path))


def plain_tokenizer(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["added_tokens"] = tokenizer["added_tokens"][:3]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def unresized_model(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens([f"extra{i}" for i in range(9)])
    tokenizer.save(str(folder / "tokenizer.json"))


LINEAR = {"rope_type": "linear", "factor": 2.0}
LONG_ROPE = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "rope_theta": 1e4}
YARN = {"factor": 4.0, "original_max_position_embeddings": 1024}
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, **YARN}
ROPES: list[dict[str, Any]] = [
    {},
    {"rope_theta": 1e6},
    {"rope_theta": 500000, "rope_scaling": None},
    {"rope_theta": 5e5, "rope_scaling": {}},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    {"rope_parameters": {"rope_type": "default"}, "rope_theta": 1e6},
    {"rope_parameters": {"type": "default", "rope_theta": 2e6}, "rope_theta": 1e6},
    {"rope_parameters": {"rope_theta": 2e6}, "rope_theta": 1e6},
    {"rope_parameters": {"rope_theta": 2e6}, "rope_scaling": LINEAR},
    {"rope_parameters": {**YARN, "rope_type": "yarn"}, "rope_theta": 1e6},
    {"rope_parameters": {**YARN, "rope_type": "yarn", "rope_theta": 1e6, "beta_fast": 16.0, "mscale": 0.7}},
    {"rope_scaling": {**YARN, "type": "yarn"}, "rope_theta": 1e6},
    {"rope_scaling": LLAMA3, "rope_theta": 5e5},
    {"rope_parameters": {**LLAMA3, "rope_theta": 5e5}},
    {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 1e4},
    {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
    {"rope_theta": 1e4, "partial_rotary_factor": 0.5},
]


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_rotary_frequencies_equal_those_of_transformers(kind: str, tmp_path: Path) -> None:
    sizes = {"vocab_size": 8, "hidden_size": 64, "num_attention_heads": 4, "head_dim": 16, "num_key_value_heads": 2}
    shape = {**sizes, "intermediate_size": 8, "num_hidden_layers": 1, "max_position_embeddings": 4096}
    for rope in ROPES:
        (tmp_path / "config.json").write_text(json.dumps({**shape, "model_type": kind, **rope}))
        model: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path))
        config, embedding = ModelConfig.load(tmp_path), model.model.rotary_emb
        torch.testing.assert_close(torch.tensor(config.inv_freq), embedding.inv_freq, rtol=1e-6, atol=0)
        assert config.rope_scale == pytest.approx(embedding.attention_scaling), rope


BAD: list[tuple[str, Callable[[Path], object], str]] = [
    ("no config", remove("config.json"), "is not a checkpoint: it has no config.json"),
    ("config of another kind", write("config.json", "[]"), "config.json is not a JSON object"),
    ("sizes missing", change(hidden_size=...), "config.json lacks hidden_size"),
    ("no layers", change(num_hidden_layers=0), "num_hidden_layers is 0, which is not a possible number"),
    ("layers missing", change(num_hidden_layers=1), "num_hidden_layers 1, but the weights have more layers"),
    ("negative size", change(hidden_size=-64), "hidden_size is -64, which is not a possible number"),
    ("huge vocabulary", change(vocab_size=1 << 40), "vocab_size is 1099511627776, which is"),
    ("epsilon without a value", change(rms_norm_eps=float("nan")), "rms_norm_eps is nan, which is"),
    ("undivided heads", change(num_key_value_heads=7), "num_key_value_heads does not divide"),
    ("unsupported architecture", change(model_type="mamba"), "is a 'mamba' model; the torch engine runs qwen2"),
    ("quantised", change(quantization_config={"quant_method": "awq"}), "is quantised"),
    ("mlp bias", change(mlp_bias=True), "has an MLP with a bias, unsupported by the torch"),
    ("unknown rope", change(rope_parameters={"rope_type": "spiral"}), "type 'spiral' is unsupported by the torch"),
    ("rope by length", change(rope_parameters=LONG_ROPE), "type 'longrope' is unsupported by the torch"),
    (
        "incomplete rope",
        change(rope_parameters={"rope_type": "llama3", "factor": 8.0}),
        "embedding cannot be read (KeyEr",
    ),
    ("rope of another form", change(rope_parameters=[1]), "config.json: the rotary embedding cannot be read"),
    (
        "rope without a base",
        change(rope_parameters=None, rope_theta=None),
        "config.json: the rotary embedding cannot be",
    ),
    ("partial rope", change(rope_scaling=LINEAR, partial_rotary_factor=0.5), "only a part of the"),
    ("sliding window", change(use_sliding_window=True), "has a sliding window"),
    ("no tokenizer", remove("tokenizer.json"), "tokenizer.json is not a tokenizer file"),
    ("no ST tokens", plain_tokenizer, "is neither an ST model nor a chat model: its chat template"),
    ("model not resized", unresized_model, "embeddings"),
    ("no template", remove("st_template.json"), "has no st_template.json"),
    ("torn weights", tear_weights, "model.safetensors is not a safetensors file"),
    ("missing tensor", drop_tensor, "the tensor model.layers.1.mlp.down_proj.weight is missing"),
    ("torn index", write("model.safetensors.index.json", '{"weight_map"'), "index.json cannot be read"),
    (
        "shard missing",
        write("model.safetensors.index.json", '{"weight_map": {"a": "model-00001-of-00001.safetensors"}}'),
        "model-00001-of-00001.safetensors is missing",
    ),
]


@pytest.mark.parametrize(("spoil", "message"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_checkpoint_is_refused(folder: Path, spoil: Callable[[Path], object], message: str) -> None:
    spoil(folder)
    text = refused(folder)
    assert message in text and (str(folder) in text or "rotary" in text)


def test_prompt_longer_than_the_context_is_refused_before_any_pass(folder: Path) -> None:
    decider = build(folder)
    with pytest.raises(UserError, match=r"leaves no room for the call in the model's context of 2048\. Shorten"):
        decider.decide("x " * 2048, "go")
    assert decider.decide("x=1", "go").call is not None  # and goes on


def test_sharded_checkpoint_decides_like_the_single_file(folder: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    shards = Path(shutil.copytree(folder, tmp_path / "shards"))
    (shards / "model.safetensors").unlink()
    model.save_pretrained(shards, max_shard_size="40KB")
    assert len(list(shards.glob("model-*.safetensors"))) > 1
    assert build(shards).decide("x=1", "go left") == build(folder).decide("x=1", "go left")


def test_rounded_weights_agree_with_fp32_except_near_ties(tmp_path: Path) -> None:
    agreed = decisive = 0
    for seed in range(3):
        folder = build_checkpoint(tmp_path / str(seed), seed=seed, scale=0.6)
        exact, short = build(folder, dtype="fp32"), build(folder, dtype="bf16")
        assert (exact.info()["dtype"], short.info()["dtype"]) == ("fp32", "bf16")
        for i in range(20):
            a, b = exact.decide(f"x={i}", "go left"), short.decide(f"x={i}", "go left")
            if min(a.confidence.values(), default=1.0) > 0.75:
                decisive += 1
                agreed += a.call == b.call
    assert decisive >= 20
    assert agreed == decisive


# Sessions of a checkpoint share a runner, have separate caches, and free everything at the end.


CPU = torch.device("cpu")


def runner(folder: Path, threads: int | None = None) -> TorchRunner:
    return TorchRunner.load(folder, "fp32", "cpu", threads)


def test_weights_are_freed_with_their_last_runner(tmp_path: Path) -> None:
    folder = build_checkpoint(tmp_path / "a")  # no other test uses this checkpoint
    first, second = runner(folder), runner(folder, threads=2)
    held = weakref.ref(first.model.weights)
    assert first is runner(folder) is not second
    del first
    assert held() is not None
    del second
    assert held() is None


def test_runner_does_not_change_the_threads_of_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, used = torch.get_num_threads(), []
    runner_ = runner(folder, threads=before + 1)
    handle, _ = runner_.open([1, 2, 3])
    plain = runner_.model.forward

    def forward(*arguments: Any) -> Any:
        used.append(torch.get_num_threads())
        return plain(*arguments)

    monkeypatch.setattr(runner_.model, "forward", forward)
    handle.start([1, 2, 3, 4], 1)
    runner_.prefill(handle, 1)
    assert used == [before + 1]
    assert torch.get_num_threads() == before


def test_retrained_checkpoint_is_loaded_again(tmp_path: Path) -> None:
    folder = build_checkpoint(tmp_path / "a")
    config = ModelConfig.load(folder)
    before = load_weights(folder, config, torch.float32, CPU)
    build_checkpoint(folder, seed=1)
    after = load_weights(folder, ModelConfig.load(folder), torch.float32, CPU)
    assert not torch.equal(before.embedding, after.embedding)
