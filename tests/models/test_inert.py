"""A stranger's checkpoint: nothing that its files name is run, opened or asked for."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rtcontrol.models.checkpoint.checkpoint import ZOO, resolve
from rtcontrol.models.errors import UserError
from tests.helpers.processes import ROOT, environment
from tests.models.small import build_checkpoint

AUTO = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
CASES: list[tuple[str, dict[str, Any], str]] = [
    ("config.json", {"auto_map": AUTO, "model_type": "strange"}, "names code of its own"),
    ("config.json", {"auto_map": AUTO}, "names code of its own"),
    ("config.json", {"vision_config": {"auto_map": {"AutoConfig": "someone/else--evil.Config"}}}, "code of its own"),
    ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": [None, "evil.Tokenizer"]}}, "names code of its own"),
    ("generation_config.json", {"custom_generate": "someone/else"}, "names code of its own"),
    ("config.json", {"attn_implementation": "someone/kernel"}, "names code of a hub"),
    ("config.json", {"_attn_implementation": {"": "someone/kernel:flash"}}, "names code of a hub"),
    ("adapter_config.json", {"base_model_name_or_path": "someone/else"}, "names another model"),
    ("adapter_config.json", {"base_model_name_or_path": "../else"}, "names another model"),
    ("model.safetensors.index.json", {"weight_map": {"a": "../../etc/passwd"}}, "names a file elsewhere"),
    ("model.safetensors.index.json", {"weight_map": {"a": "/etc/passwd"}}, "names a file elsewhere"),
    ("tokenizer_config.json", {"fast_tokenizer_files": ["../../x.json"]}, "names a file elsewhere"),
    ("tokenizer_config.json", {"vocab_file": "/etc/passwd"}, "names a file elsewhere"),
]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checkpoint(tmp_path_factory.mktemp("sound") / "model")


def copied(sound: Path, folder: Path, name: str, told: dict[str, Any]) -> Path:
    """The checkpoint with this in the file, and a program beside it that would leave a trace."""
    folder.mkdir()
    for path in sound.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    old = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
    (folder / name).write_text(json.dumps(old | told))
    trace = f"open({str(folder.parent / 'trace')!r}, 'w').close()\n"
    (folder / "evil.py").write_text(f"{trace}class Config: ...\nclass Model: ...\nclass Tokenizer: ...\n")
    return folder


@pytest.mark.parametrize(("name", "told", "why"), CASES)
def test_what_a_checkpoint_names_is_refused_by_name(
    sound: Path, tmp_path: Path, name: str, told: dict[str, Any], why: str
) -> None:
    folder = copied(sound, tmp_path / "theirs", name, told)
    with pytest.raises(UserError, match=why) as refused:
        resolve(str(folder))
    assert str(folder / name) in refused.value.what and not (tmp_path / "trace").exists()


def test_weights_that_are_a_pickle_are_refused(sound: Path, tmp_path: Path) -> None:
    folder = copied(sound, tmp_path / "theirs", "config.json", {})
    torch.save({}, folder / "pytorch_model.bin")
    assert resolve(str(folder)) == folder, "of both the safetensors are read"
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"a pickle \(pytorch_model.bin\)"):
        resolve(str(folder))


def test_the_bundled_checkpoints_and_those_of_an_older_layout_are_taken(sound: Path, tmp_path: Path) -> None:
    harmless = {"tokenizer_file": "/home/someone/.cache/x", "auto_map": None, "_name_or_path": "someone/else"}
    folder = copied(sound, tmp_path / "theirs", "tokenizer_config.json", harmless)
    assert resolve(str(folder)) == folder
    for zoo in ZOO.glob("*/config.json"):
        assert resolve(str(zoo.parent)) == zoo.parent


COMMANDS = (
    "run --env lander --host inprocess --no-live --duration 1 --engine {engine} --model {folder}",
    "run --env lander --host ray --no-live --duration 1 --engine {engine} --model {folder}",
    "models adopt --base {folder} --out {out}",
)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("engine", ["torch", "transformers"])
def test_nobody_is_asked_on_standard_input_whether_to_run_it(
    sound: Path, tmp_path: Path, engine: str, command: str
) -> None:
    folder = copied(sound, tmp_path / "theirs", "config.json", {"auto_map": AUTO, "model_type": "strange"})
    words = command.format(engine=engine, folder=folder, out=tmp_path / "out").split()
    done = subprocess.run(
        [sys.executable, "-m", "rtcontrol", *words],
        input="y\n" * 20,
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 2 and not (tmp_path / "trace").exists(), done.stderr
    assert "auto_map" in done.stderr and "[y/N]" not in done.stdout + done.stderr


def test_every_call_that_may_load_code_says_that_it_must_not() -> None:
    """Also what is not reached by the name of a model, as in training and benchmarks."""
    found = 0
    for path in [*(ROOT / "rtcontrol").rglob("*.py"), *(ROOT / "models").rglob("*.py")]:
        text = path.read_text("utf-8")
        if "from_pretrained(" not in text and "LLM(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            named = isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", ""))
            if isinstance(node, ast.Call) and named in ("from_pretrained", "LLM"):
                found += 1
                told = ast.get_source_segment(text, node) or ""
                spread = "**safe" in told and '"trust_remote_code": False' in text
                assert "trust_remote_code=False" in told or spread, f"{path}:{node.lineno}"
    assert found >= 8
