"""A GGUF file becomes a base to be trained."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import pytest
import torch
from safetensors.torch import load_file

from rtcontrol.models.errors import UserError
from rtcontrol.models.train.base import adopt_base
from tests.models.small import Oracle, build, plain_base, prompt_of, shown, tool

PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
BASE_TOOLS = [tool(n, v=["left", "green red"]) for n in ("go", "stop")]
WHOLE = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}


def write(folder: Path, path: Path, architecture: str = "qwen2") -> Path:
    """The Qwen2 of a folder, with its vocabulary, as a GGUF file (names and keys as in llama.cpp's documents)."""
    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    added = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    more = [added.get(i, f"<unused{i}>") for i in range(len(vocabulary), config["vocab_size"])]
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*vocabulary, *more])
    writer.add_token_types([gguf.TokenType.NORMAL] * len(vocabulary) + [gguf.TokenType.CONTROL] * len(more))
    writer.add_token_merges([f"{v[0]} {v[1]}" for v in vocabulary if len(v) == 2] or ["a b"])
    writer.add_bos_token_id(len(vocabulary))
    writer.add_eos_token_id(len(vocabulary))
    for name, weight in load_file(folder / "model.safetensors").items():
        if (there := WHOLE.get(name)) is None:
            _, _, layer, part = name.split(".", 3)
            part, _, kind = part.rpartition(".")
            there = f"blk.{layer}.{PARTS[part]}.{kind}"
        writer.add_tensor(there, weight.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_file_becomes_a_base_of_plain_weights_that_both_engines_decide_with_alike(tmp_path: Path) -> None:
    plain = plain_base(tmp_path / "plain", ("<|im_start|>", "<|im_end|>"))
    file = write(plain, tmp_path / "small.gguf")
    made = adopt_base(file, tmp_path / "out")
    assert "quantization_config" not in made.config and made.config["model_type"] == "qwen2"
    before, after = (load_file(folder / "model.safetensors") for folder in (plain, tmp_path / "out"))
    assert before.keys() == after.keys()
    for name, weight in before.items():
        assert torch.equal(after[name][: len(weight)], weight.to(torch.bfloat16)), name
    oracle = Oracle.load(tmp_path / "out")
    for engine in ("torch", "transformers"):
        decider = build(tmp_path / "out", BASE_TOOLS, engine=engine, dtype="fp32")
        expected = oracle.decide(decider.plan, prompt_of(decider, "x=1", "go left"))
        assert oracle.margin < 1e-3 or shown(decider.decide("x=1", "go left")) == expected
    # Other projects' users have met both: a vision model's file, and one whose weights are another file's.
    torn = tmp_path / "torn.gguf"
    torn.write_bytes(file.read_bytes()[:1000])
    other = write(plain, tmp_path / "other.gguf", "clip")
    for source, told in ((torn, "is no GGUF file"), (other, "architecture 'clip'")):
        with pytest.raises(UserError, match=told) as error:
            adopt_base(source, tmp_path / "refused")
        assert error.value.remedy and not (tmp_path / "refused").exists()
