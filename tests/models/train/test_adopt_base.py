"""Any base model becomes a checkpoint of the ST format that the engines load, its other scores as they were."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from rtcontrol.models.checkpoint.checkpoint import Checkpoint
from rtcontrol.models.checkpoint.special_tokens import ST_TOKENS
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.errors import UserError
from rtcontrol.models.train.adopt import INITIAL_WORDS
from rtcontrol.models.train.prepared import adopt_base
from tests.models.small import Oracle, build, build_checkpoint, prompt_of, shown, tool

QWEN = 151_665  # tokens of the base tokenizer
TOOLS = [tool(n, v=["left", "green red"]) for n in ("go", "stop")]
SHAPE: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "initializer_range": 0.3, "max_position_embeddings": 512,
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
}  # fmt: skip


def base(folder: Path, data: Path, kind: str) -> Path:
    """A random model with Qwen's own tokenizer: rows to spare and a tied head, or none and one of its own."""
    torch.manual_seed(1)
    if kind == "qwen2":
        model: Any = hf.Qwen2ForCausalLM(hf.Qwen2Config(vocab_size=151_936, tie_word_embeddings=True, **SHAPE))
    else:
        model = hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=QWEN, tie_word_embeddings=False, **SHAPE))
    model.to(torch.bfloat16).save_pretrained(folder)
    shutil.copy(data / "qwen2_tokenizer" / "tokenizer.json", folder)
    return folder


@pytest.mark.parametrize(("kind", "rows"), [("qwen2", 151_936), ("llama", QWEN + 17)])
def test_a_base_model_becomes_one_that_both_engines_decide_with_alike(
    tmp_path: Path, data: Path, kind: str, rows: int
) -> None:
    source = base(tmp_path / "base", data, kind)
    made = adopt_base(source, tmp_path / "out")
    assert made.tokenizer.special_id("<content>") == QWEN
    assert made.config["vocab_size"] == rows
    before, after = (hf.AutoModelForCausalLM.from_pretrained(f, dtype="auto") for f in (source, tmp_path / "out"))
    assert after.dtype == torch.bfloat16
    for old, new in (
        (before.get_input_embeddings(), after.get_input_embeddings()),
        (before.get_output_embeddings(), after.get_output_embeddings()),
    ):
        assert torch.equal(old.weight[:QWEN], new.weight[:QWEN])
        for token in ST_TOKENS:
            ids = [i for word in INITIAL_WORDS[token] for i in made.tokenizer.encode(word)]
            row = new.weight[made.tokenizer.special_id(token)].float()
            torch.testing.assert_close(row, old.weight[ids].float().mean(0), atol=2e-3, rtol=1e-2)
    assert (after.get_input_embeddings().weight is after.get_output_embeddings().weight) == (kind == "qwen2")
    oracle = Oracle.load(tmp_path / "out")
    for engine in ("torch", "transformers"):
        decider = build(tmp_path / "out", TOOLS, engine=engine, dtype="fp32")
        expected = oracle.decide(decider.plan, prompt_of(decider, "x=1", "go left"))
        assert oracle.margin < 1e-3 or shown(decider.decide("x=1", "go left")) == expected


@pytest.mark.parametrize(
    ("specials", "begin", "end"),
    [
        (("<|start_header_id|>", "<|eot_id|>"), "<|start_header_id|>", "<|eot_id|>"),
        (("<start_of_turn>", "<end_of_turn>", "<bos>"), "<start_of_turn>", "<end_of_turn>"),
        (("[END]",), "[END]", "[END]"),
    ],
)
def test_the_prompts_markers_are_tokens_that_the_base_has(
    tmp_path: Path, specials: tuple[str, ...], begin: str, end: str
) -> None:
    source = plain(tmp_path / "base", specials)
    (source / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": specials[-1]}}))
    made = adopt_base(source, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "st_template.json").read_text())
    assert config["template"] == f"{begin}{{tools}}{end}{{instruction}}{end}{{history}}{end}{{observation}}{begin}"
    assert begin in made.tokenizer.specials
    assert build(tmp_path / "out", TOOLS).decide("x=1", "go").call is not None


def plain(folder: Path, specials: tuple[str, ...]) -> Path:
    """A small model and a tokenizer with no special tokens but these."""
    build_checkpoint(folder)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    first = content["added_tokens"][0]
    size = len(content["model"]["vocab"])
    content["added_tokens"] = [first | {"id": size + i, "content": name} for i, name in enumerate(specials)]
    path.write_text(json.dumps(content))
    (folder / "st_template.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    return folder


def test_what_cannot_be_adopted_is_refused_and_nothing_is_written(folder: Path, tmp_path: Path) -> None:
    nameless = plain(tmp_path / "nameless", ("[X]",))
    quantised = plain(tmp_path / "quantised", ("<s>", "</s>"))
    config = json.loads((quantised / "config.json").read_text())
    (quantised / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "awq"}}))
    torn = plain(tmp_path / "torn", ("<s>", "</s>"))
    (torn / "model.safetensors").write_bytes(b"torn")
    for source, told in (
        (folder, "has ST tokens already"),
        (nameless, "no token that ends a part of the prompt"),
        (quantised, "is quantised"),
        (torn, "transformers cannot load"),
    ):
        with pytest.raises(UserError, match=told) as error:
            adopt_base(source, tmp_path / "out")
        assert error.value.remedy
        assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="is there already"):
        adopt_base(nameless, quantised)


def test_the_tokenizer_of_the_result_is_the_bases_with_seventeen_more(tmp_path: Path) -> None:
    source = plain(tmp_path / "base", ("<s>", "</s>"))
    before = STTokenizer.load(source / "tokenizer.json")
    adopt_base(source, tmp_path / "out")
    after = Checkpoint.open(str(tmp_path / "out")).tokenizer
    assert after.size == before.size + 17
    text = "go left 12.5 <function> zürich"
    assert after.encode(text) == before.encode(text)
