"""Published prompt formats are reproduced byte for byte, and any base model becomes a checkpoint in ST format."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from rtcontrol.models.checkpoint.prompt import PromptTemplate
from rtcontrol.models.checkpoint.special_tokens import ST_TOKENS
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.tool_schema import tool_schemas
from rtcontrol.models.train.adopt import adopt, adopt_base
from rtcontrol.models.train.vocabulary import INITIAL_WORDS
from tests.models.small import Oracle, build, prompt_of, qwen, reconfigure, shown, tool
from tests.models.small import plain_base as plain

SHAPE = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
MOVE, SHOOT = ({"name": name, "description": 'Züge – "x"', "parameters": SHAPE} for name in ("move", "shoot"))
TOOLS = [{"type": "function", "function": tool} for tool in (MOVE, SHOOT)]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    return folder


@pytest.fixture(name="qwen")
def qwen_tokenizer(data: Path) -> STTokenizer:
    return qwen(data)


def test_prompt_equals_the_published_servers_byte_for_byte(data: Path, checkpoint: Path, qwen: STTokenizer) -> None:
    source = data / "simpletool_prompt" / "system_template.txt"
    system = source.read_bytes().decode()
    adopt(checkpoint, source)
    template = PromptTemplate.load(checkpoint, qwen)
    history = [f"move({i})" for i in range(8)]
    lines = "\n".join(json.dumps(t, ensure_ascii=False) for t in TOOLS)
    expected = (
        system.replace("{tools_json}", lines)
        + '<|im_start|>user\nenvironment: ["hp=3 \\"é\\""]\n'
        + f"history: [{', '.join(history[-6:])}]\n\nattack the left one<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (template.profile, template.overflow) == ("simpletool-v1", "cut")
    ids = template.prefix_ids(tool_schemas(TOOLS)) + template.suffix_ids("attack the left one", 'hp=3 "é"', history)
    assert qwen.decode(ids) == expected
    # Only system and tools are cached; the template's markers are control tokens.
    assert qwen.decode(template.prefix_ids(tool_schemas(TOOLS))).endswith("<|im_end|>\n<|im_start|>")
    assert {qwen.special_id(mark) for mark in ("<content>", "<arg6>", "<|null|>")} <= set(ids)


def test_python_source_is_parsed_but_never_run(tmp_path: Path, checkpoint: Path) -> None:
    source = tmp_path / "rt_server.py"
    source.write_text(
        "raise SystemExit('was run')\nimport nowhere\nSYSTEM_TEMPLATE = '''<|im_start|>é \\n{tools_json}'''\n",
        "utf-8",
    )
    path = adopt(checkpoint, source)
    assert path == checkpoint / "st_template.json"
    config = json.loads(path.read_text("utf-8"))
    assert config["template"].startswith("<|im_start|>é \n{tools}<|im_start|>user\nenvironment: {environment}")
    assert (config["profile"], config["history_separator"], config["overflow"]) == ("simpletool-v1", ", ", "cut")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "no variable", "has {tools_json} 0 times"),
        ("a.txt", "{tools} {history}", "has {history}, which belongs to the user message"),
        ("a.py", "OTHER = 1", "does not define SYSTEM_TEMPLATE"),
        ("a.py", "SYSTEM_TEMPLATE = open('x').read()", "SYSTEM_TEMPLATE is not a plain string"),
        ("a.py", "SYSTEM_TEMPLATE = (", "is not valid Python"),
        ("a.txt", b"\xff\xfe{tools}", "cannot be read"),
    ],
)
def test_unusable_source_is_refused(
    tmp_path: Path, checkpoint: Path, name: str, content: str | bytes, message: str
) -> None:
    source = tmp_path / name
    source.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(UserError) as error:
        adopt(checkpoint, source)
    assert message in str(error.value)
    assert str(source) in error.value.what
    assert error.value.remedy
    assert not (checkpoint / "st_template.json").exists()


# A server file in the style of the authors' later ones, with other texts.
SERVER = (
    "V2_SYSTEM_TEMPLATE = '<|im_start|>system\\n{system_prompt}\\n\\n{{May}} call:\\n{tools_json}\\n<|im_end|>\\n'\n"
    "V2_USER_TEMPLATE = '<|im_start|>user\\nhistory: [{hist}]\\n\\n{query}<|im_end|>\\n<|im_start|>assistant\\n'\n"
    "V2_DEFAULT_SYSTEM = 'You turn words into calls.'\n"
)  # fmt: skip


@pytest.fixture
def server(tmp_path: Path) -> Path:
    path = tmp_path / "02_server.py"
    path.write_text(SERVER)
    return path


@pytest.mark.parametrize("system", [None, 'You fly. "Züge" {x} <|im_end|>'])
def test_format_v2_equals_the_servers_output_byte_for_byte(
    server: Path, checkpoint: Path, qwen: STTokenizer, system: str | None
) -> None:
    adopt(checkpoint, server, system=system)
    template = PromptTemplate.load(checkpoint, qwen)
    assert (template.profile, template.overflow) == ("simpletool-v2", "cut")
    theirs: dict[str, str] = {}
    exec(SERVER, theirs)
    history = [f"move({i})" for i in range(8)]
    told = {"system_prompt": system or "You turn words into calls.", "hist": ", ".join(history[-6:])}
    told |= {"tools_json": "\n".join(json.dumps(t, ensure_ascii=False) for t in TOOLS), "query": "hp=3\n\nattack"}
    expected = (theirs["V2_SYSTEM_TEMPLATE"] + theirs["V2_USER_TEMPLATE"]).format(**told)
    ids = template.prefix_ids(tool_schemas(TOOLS)) + template.suffix_ids("attack", "hp=3", history)
    assert qwen.decode(ids) == expected


# Any base model becomes an ST checkpoint that the engines load; its other scores stay the same.


QWEN = 151_665  # number of tokens of the base tokenizer
BASE_TOOLS = [tool(n, v=["left", "green red"]) for n in ("go", "stop")]
BASE_SHAPE: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "initializer_range": 0.3, "max_position_embeddings": 512,
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
}  # fmt: skip


def test_adopted_base_decides_alike_in_both_engines(tmp_path: Path, data: Path) -> None:
    """The base is a random model with Qwen's tokenizer, spare embedding rows and a tied head."""
    torch.manual_seed(1)
    source, rows = tmp_path / "base", 151_936
    model = hf.Qwen2ForCausalLM(hf.Qwen2Config(vocab_size=rows, tie_word_embeddings=True, **BASE_SHAPE))
    model.to(torch.bfloat16).save_pretrained(source)
    shutil.copy(data / "qwen2_tokenizer" / "tokenizer.json", source)
    made = adopt_base(source, tmp_path / "out")
    assert made.tokenizer.special_id("<content>") == QWEN
    assert made.config["vocab_size"] == rows
    before, after = (hf.AutoModelForCausalLM.from_pretrained(f, dtype="auto") for f in (source, tmp_path / "out"))
    assert after.dtype == torch.bfloat16
    old, new = before.get_input_embeddings(), after.get_input_embeddings()
    assert torch.equal(old.weight[:QWEN], new.weight[:QWEN])
    for token in ST_TOKENS:
        ids = [i for word in INITIAL_WORDS[token] for i in made.tokenizer.encode(word)]
        row = new.weight[made.tokenizer.special_id(token)].float()
        torch.testing.assert_close(row, old.weight[ids].float().mean(0), atol=2e-3, rtol=1e-2)
    assert new.weight is after.get_output_embeddings().weight
    oracle = Oracle.load(tmp_path / "out")
    for engine in ("torch", "transformers"):
        decider = build(tmp_path / "out", BASE_TOOLS, engine=engine, dtype="fp32")
        expected = oracle.decide(decider.plan, prompt_of(decider, "x=1", "go left"))
        assert oracle.margin < 1e-3 or shown(decider.decide("x=1", "go left")) == expected


@pytest.mark.parametrize(
    ("specials", "begin", "end"),
    [
        (("<|start_header_id|>", "<|eot_id|>"), "<|start_header_id|>", "<|eot_id|>"),
        (("[END]",), "[END]", "[END]"),
    ],
)
def test_prompt_markers_are_tokens_of_the_base(tmp_path: Path, specials: tuple[str, ...], begin: str, end: str) -> None:
    source = plain(tmp_path / "base", specials)
    (source / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": specials[-1]}}))
    made = adopt_base(source, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "st_template.json").read_text())
    assert config["template"] == f"{begin}{{tools}}{end}{{instruction}}{end}{{history}}{end}{{observation}}{begin}"
    assert begin in made.tokenizer.specials
    assert build(tmp_path / "out", BASE_TOOLS).decide("x=1", "go").call is not None


def test_refused_base_leaves_nothing_written(folder: Path, tmp_path: Path) -> None:
    nameless = plain(tmp_path / "nameless", ("[X]",))
    quantised = plain(tmp_path / "quantised", ("<s>", "</s>"))
    reconfigure(quantised, quantization_config={"quant_method": "awq"})
    torn = plain(tmp_path / "torn", ("<s>", "</s>"))
    (torn / "model.safetensors").write_bytes(b"torn")
    for source, told in (
        (folder, "already has ST tokens"),
        (nameless, "no known token that ends a part"),
        (quantised, "is quantised"),
        (torn, "transformers cannot load"),
    ):
        with pytest.raises(UserError, match=told) as error:
            adopt_base(source, tmp_path / "out")
        assert error.value.remedy
        assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="already exists"):
        adopt_base(nameless, quantised)
