"""What `models quantize` gives llmcompressor, and what it refuses before it begins."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rtcontrol.models.errors import UserError
from rtcontrol.models.quantize import interpreter, new_folder, quantize, sequences
from tests.models.small import build, prompt_of, tool
from tests.rtcontrol.commands import refused

# Writes what it was given, as llmcompressor writes a checkpoint.
STANDIN = """
import json, os, sys
job = json.load(open(sys.argv[2] if sys.argv[1].endswith("quantizer.py") else sys.argv[1]))
if job["scheme"] == "w8a8":
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
    """An interpreter that runs the stand-in for llmcompressor, whatever program it is given."""
    program, shell = tmp_path / "standin.py", tmp_path / "python"
    program.write_text(STANDIN)
    shell.write_text(f'#!/bin/sh\nexec {sys.executable} {program} "$@"\n')
    shell.chmod(0o755)
    return shell


def test_it_is_calibrated_on_prompts_with_each_head_and_the_value_that_was_chosen(folder: Path) -> None:
    decider = build(folder, [tool("go", v=["left", "red"], w=[1, 2]), tool("stop")])
    asked = [("x=1", "go left"), ("x=2", "stop")]
    found = sequences(decider, asked)
    expected = []
    for told in asked:
        call = decider.decide(*told).call
        for head, text in decider.plan.head_values(call):
            value = [head.null_id] if text is None else [*decider.tokenizer.encode(text), head.end_id]
            expected.append([*prompt_of(decider, *told), head.head_id, *value])
    assert found == expected and len(found) == 2 * len(decider.plan.heads)


def test_the_new_folder_is_whole_or_not_there_and_says_nothing_null(
    folder: Path, tmp_path: Path, standin: Path
) -> None:
    out = tmp_path / "made" / "new"
    quantize(folder, "int8", out, [[1, 2], [3]], standin)
    job = json.loads((out / "model.safetensors").read_text())
    assert (job["ids"], job["scheme"]) == ([[1, 2], [3]], "int8")
    assert (out / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    assert (out / "st_template.json").is_file()
    told = json.loads((out / "config.json").read_text())["quantization_config"]
    assert told == {"config_groups": {"group_0": {"weights": {"num_bits": 4}}}}
    with pytest.raises(UserError, match="out of memory"):
        quantize(folder, "w8a8", out.with_name("other"), [[1]], standin)
    assert sorted(p.name for p in out.parent.iterdir()) == ["new", "other.log"]


def test_what_cannot_be_quantised_is_refused_before_anything_is_done(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Unknown scheme 'fp4'.*Choose awq, gptq"):
        new_folder(folder, "fp4", tmp_path / "new")
    with pytest.raises(UserError, match="48, 64 are no multiples of 32.*w8a8 or int8"):
        new_folder(folder, "awq", tmp_path / "new")
    with pytest.raises(UserError, match="is there already"):
        new_folder(folder, "int8", tmp_path)
    packed = tmp_path / "packed"
    packed.mkdir()
    (packed / "config.json").write_text('{"quantization_config": {"quant_method": "awq"}}')
    with pytest.raises(UserError, match="quantised already"):
        new_folder(packed, "int8", tmp_path / "new")
    (packed / "tokenizer.json").write_text("{}")
    (packed / "chat_template.jinja").write_text("")
    with pytest.raises(UserError, match="packed is a chat model"):
        new_folder(packed, "int8", tmp_path / "new")


def test_without_llmcompressor_the_command_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for python, told in ((Path(sys.executable), "has no llmcompressor"), (tmp_path / "none", "no interpreter")):
        with pytest.raises(UserError, match=f"{told}.*pip install llmcompressor"):
            interpreter(python)
    said = refused(capsys, "models", "quantize", "lander", "--scheme", "gptq", "--out", str(tmp_path / "new"))
    assert "pip install llmcompressor" in said and not (tmp_path / "new").exists()
