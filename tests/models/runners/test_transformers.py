"""The transformers engine, and the core over Hugging Face's forwards, decide like forwards of whole sequences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.models.decode.protocol import Budget
from rtcontrol.models.errors import UserError
from rtcontrol.models.runners import hf_runner, lean, packed
from tests.models.small import (
    MARGIN,
    TOLD,
    Oracle,
    build,
    build_checkpoint,
    law,
    prompt_of,
    reconfigure,
    shown,
    tool,
    tool_lists,
)

BARE: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
PLAIN: dict[str, Any] = {"hidden_size": 48, "num_hidden_layers": 3, "initializer_range": 0.3, **BARE}
DENSE = {**PLAIN, "intermediate_size": 64, "num_attention_heads": 4, "max_position_embeddings": 2048}
DENSE["num_key_value_heads"] = 4
FEW = {**DENSE, "num_key_value_heads": 2, "head_dim": 16}
MIXED = {**FEW, "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
# Architectures with each kind of mask, and a window shorter than any prompt.
ARCHITECTURES: dict[str, Any] = {
    "qwen2 with a window": lambda v: hf.Qwen2Config(vocab_size=v, **MIXED, use_sliding_window=True),
    "qwen3": lambda v: hf.Qwen3Config(vocab_size=v, **FEW),
    "llama": lambda v: hf.LlamaConfig(vocab_size=v, **FEW),
    "mistral": lambda v: hf.MistralConfig(vocab_size=v, **FEW, sliding_window=16),
    "gemma3": lambda v: hf.Gemma3TextConfig(vocab_size=v, **MIXED),
    "phi": lambda v: hf.PhiConfig(vocab_size=v, **DENSE),
}


def build_architecture(folder: Path, name: str) -> Path:
    """Create a small checkpoint of another architecture."""
    size = json.loads((build_checkpoint(folder) / "config.json").read_text())["vocab_size"]
    torch.manual_seed(sorted(ARCHITECTURES).index(name))
    hf.AutoModelForCausalLM.from_config(ARCHITECTURES[name](size)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=ARCHITECTURES)
def architecture(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Oracle]:
    folder = build_architecture(tmp_path_factory.mktemp("architecture") / "m", request.param)
    return request.param, folder, Oracle.load(folder)


@law(3)
@given(
    tools=tool_lists(most=3),
    budget=st.builds(Budget, st.integers(1, 9), st.sampled_from((3, 7, 128)), st.booleans(), st.booleans()),
    prompts=st.lists(TOLD, min_size=2, max_size=3),
)
def test_every_architecture_decides_like_whole_sequence_forwards(
    architecture: tuple[str, Path, Oracle], tools: Any, budget: Budget, prompts: list[tuple[str, str]]
) -> None:
    _, folder, oracle = architecture
    decider = build(folder, tools, engine="transformers")
    decider.decoding.core.set_budget(budget)
    assert decider.info()["engine"] == "transformers"
    assert decider.runner is build(folder, [tool("stop")], engine="transformers").runner  # shared
    for situation in prompts:
        expected = oracle.decide(decider.plan, prompt_of(decider, *situation))
        decision = decider.decide(*situation)
        if oracle.margin > MARGIN:
            assert shown(decision) == expected


def test_failed_pass_leaves_the_cache_unchanged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = [tool(n, v=["alpha beta go", "alpha beta stop"], w=[1, 2, 20]) for n in ("go", "stop")]
    decider = build(folder, tools, engine="transformers")
    before = decider.decide("x=1", "go")
    layer: Any = decider.runner.model.model.layers[1]  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:

        def full(*_: Any, **__: Any) -> None:
            raise MemoryError("no room")

        patch.setattr(layer, "forward", full)
        with pytest.raises(MemoryError):
            decider.decide("x=2", "go")
    again = decider.decide("x=1", "go")
    assert again.reused_tokens == 0
    assert (again.call, again.confidence) == (before.call, pytest.approx(before.confidence, abs=1e-4))


def test_sliding_window_beyond_the_trial_is_kept() -> None:
    config = hf.MistralConfig(vocab_size=300, **FEW, sliding_window=100)
    assert hf_runner.checked_runner(hf.MistralForCausalLM(config)).window == 100
    assert config.sliding_window == 100  # the window of the trial is no longer set


def test_model_that_cannot_score_a_tree_is_refused() -> None:
    shape = {"vocab_size": 300, "hidden_size": 48, "num_layers": 2, "num_heads": 4, **BARE}
    windows = (
        hf.GPTNeoConfig(**shape, window_size=16, attention_types=[[["global", "local"], 1]]),  # not a mask
        hf.GPTNeoConfig(**shape, window_size=1025, attention_types=[[["global"], 2]]),  # too long for the trial
    )
    for config in windows:
        with pytest.raises(UserError, match="cannot evaluate a tree.*host.engine=vllm"):
            hf_runner.checked_runner(hf.GPTNeoForCausalLM(config))


def test_checkpoint_that_transformers_cannot_load_is_a_user_error(tmp_path: Path) -> None:
    for changes, message in (
        ({"model_type": "nobodys"}, "transformers cannot load"),
        ({"quantization_config": {"quant_method": "awq"}}, "is quantised, which the engine transformers"),
    ):
        folder = reconfigure(build_checkpoint(tmp_path / message[:4]), **changes)
        with pytest.raises(UserError, match=message) as error:
            build(folder, [tool("go")], engine="transformers")
        assert error.value.remedy
        assert "\n" not in str(error.value)


# Grouped query heads compute what single ones compute.


def test_grouped_query_heads_attend_like_single_ones(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states, masks = [], []
    for cells in (lean.MAX_MASK_CELLS, 0):  # with 0 cells allowed, no mask is grouped
        monkeypatch.setattr(lean, "MAX_MASK_CELLS", cells)
        decider: Any = build(folder, [tool("go", v=["left", "right"])])
        decider.runner.model._masks.clear()
        sequence = decider.decoding.handle
        sequence.start([1, 2, 3, 4, 5], 2)
        nodes = [packed.Node(6, 0, ()), packed.Node(7, 1, (0,))]
        masks.append(sequence.rows(nodes)[2].mask.shape[2])
        states.append(sequence.run(nodes))
    assert masks == [7 * decider.runner.model.group, 7]
    torch.testing.assert_close(states[0], states[1], atol=1e-5, rtol=1e-5)
