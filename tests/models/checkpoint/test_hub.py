"""Resolve a model's name to a bundled model, a folder or the hub; never run code that a checkpoint names."""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.utils import filter_repo_objects

from rtcontrol.models.checkpoint.checkpoint import ZOO, resolve
from rtcontrol.models.errors import UserError
from tests.helpers.processes import ROOT
from tests.models.small import build_checkpoint

SHA = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "someone/some-models"
WHERE = f"{REPOSITORY}:RT-small-v2"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with two checkpoints in folders, and none in the root."""
    root = tmp_path_factory.mktemp("repository")
    folder = build_checkpoint(root / "RT-small-v2", seed=3)
    shutil.copytree(folder, root / "RT-other")
    (root / "RT-small-v2" / "weights.bin").write_bytes(b"what nobody here reads")
    (root / "README.md").write_text("Models.")
    return root


class Hub:
    """Replaces the hub's library and downloads from `repository`; `got` has the downloaded files."""

    def __init__(self, repository: Path, cache: Path) -> None:
        self.root, self.cache = repository, cache / "snapshots" / SHA
        self.got: list[str] = []
        self.reachable = True

    def download(self, name: str, local_files_only: bool = False, **patterns: Any) -> str:
        files = [] if local_files_only else [str(p.relative_to(self.root)) for p in self.root.rglob("*.*")]
        self.ask(name, local_files_only)
        for file in filter_repo_objects(files, **patterns):
            (self.cache / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.root / file, self.cache / file)
            self.got.append(file)
        return str(self.cache)

    def ask(self, name: str, local_files_only: bool = False) -> None:
        if name != REPOSITORY or not (self.reachable or local_files_only):
            raise OSError("404 Client Error")


@pytest.fixture
def hub(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub(repository, tmp_path)
    files = [SimpleNamespace(rfilename=str(path.relative_to(repository))) for path in repository.rglob("*.*")]

    def info(_: object, name: str) -> SimpleNamespace:
        hub.ask(name)
        return SimpleNamespace(siblings=files)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.download)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", info)
    return hub


def refused(model: str) -> str:
    with pytest.raises(UserError) as error:
        resolve(model)
    return str(error.value)


def test_repository_folder_is_downloaded_alone_and_cached(hub: Hub) -> None:
    folder = resolve(WHERE)
    assert (folder / "model.safetensors").is_file()
    assert hub.got and all(name.startswith("RT-small-v2/") and not name.endswith(".bin") for name in hub.got)
    count, hub.reachable = len(hub.got), False
    assert resolve(WHERE) == folder and len(hub.got) == count
    (folder / "model.safetensors").unlink()  # an incomplete download is repeated
    assert "has no complete copy" in refused(WHERE)
    hub.reachable = True
    assert resolve(WHERE) == folder and (folder / "model.safetensors").is_file()


def test_missing_repository_folder_lists_the_existing_ones(hub: Hub) -> None:
    for model in (REPOSITORY, f"{REPOSITORY}:RT-small"):
        problem = refused(model)
        assert "has no complete checkpoint in" in problem and "RT-other, RT-small-v2" in problem


def test_unreachable_hub_gives_a_hint(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = refused("runs/train-lander")
    assert f"no folder 'runs/train-lander' in {Path.cwd()}, and no bundled model of that name; the cache (" in problem
    assert "failed: " in problem and "hf auth login" in problem
    hub.reachable = False
    assert f"`hf download {REPOSITORY} --include 'RT-other*'`" in refused(f"{REPOSITORY}:RT-other")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "is not used, as HF_HUB_OFFLINE is set" in refused(WHERE)


@pytest.mark.parametrize("model", ["nobody", "a/b/c", "./a/b", "a/b:", "a/b:../c"])
def test_invalid_hub_id_is_not_queried(model: str) -> None:
    with pytest.raises(UserError, match="There is no folder .* it is not a hub id OWNER/NAME") as error:
        resolve(model)
    assert "OWNER/NAME[:SUBFOLDER] of the Hugging Face hub" in error.value.remedy


# Resolving a model's name.


def test_name_of_bundled_model_and_local_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lander").mkdir()
    assert resolve("lander") == ZOO / "lander"  # a folder that holds no model is none of two
    shutil.copy(ZOO / "lander" / "config.json", tmp_path / "lander")
    with pytest.raises(UserError, match="a bundled model and of a checkpoint folder") as refused:
        resolve("lander")
    assert "./lander" in refused.value.remedy
    assert resolve("./lander") == Path("lander")
    with pytest.raises(UserError, match="is not a folder, as checkpoints are. Give the folder: lander"):
        resolve("lander/config.json")
    (tmp_path / REPOSITORY).mkdir(parents=True)
    assert resolve(REPOSITORY) == Path(REPOSITORY), "a folder wins over the hub"


# Nothing that the files of an untrusted checkpoint name is run, opened or downloaded.


AUTO = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
CASES: list[tuple[str, dict[str, Any], str]] = [
    ("config.json", {"auto_map": AUTO, "model_type": "strange"}, "refers to code in the checkpoint"),
    ("config.json", {"vision_config": {"auto_map": {"AutoConfig": "someone/else--evil.Config"}}}, "code in the"),
    ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": [None, "evil.Tokenizer"]}}, "refers to code in the"),
    ("generation_config.json", {"custom_generate": "someone/else"}, "refers to code in the checkpoint"),
    ("config.json", {"attn_implementation": "someone/kernel"}, "refers to code on a hub"),
    ("adapter_config.json", {"base_model_name_or_path": "someone/else"}, "refers to another model"),
    ("model.safetensors.index.json", {"weight_map": {"a": "../../etc/passwd"}}, "refers to a file in another folder"),
    ("tokenizer_config.json", {"fast_tokenizer_files": ["../../x.json"]}, "refers to a file in another folder"),
]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checkpoint(tmp_path_factory.mktemp("sound") / "model")


def copied(sound: Path, folder: Path, name: str, content: dict[str, Any]) -> Path:
    """Copy the checkpoint with this content in a file, and add a program that would leave a trace if it ran."""
    folder.mkdir()
    for path in sound.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    old = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
    (folder / name).write_text(json.dumps(old | content))
    trace = f"open({str(folder.parent / 'trace')!r}, 'w').close()\n"
    (folder / "evil.py").write_text(f"{trace}class Config: ...\nclass Model: ...\nclass Tokenizer: ...\n")
    return folder


@pytest.mark.parametrize(("name", "content", "why"), CASES)
def test_code_named_by_a_checkpoint_is_refused(
    sound: Path, tmp_path: Path, name: str, content: dict[str, Any], why: str
) -> None:
    folder = copied(sound, tmp_path / "theirs", name, content)
    with pytest.raises(UserError, match=why) as refused:
        resolve(str(folder))
    assert str(folder / name) in refused.value.what and not (tmp_path / "trace").exists()


def test_pickled_weights_are_refused(sound: Path, tmp_path: Path) -> None:
    folder = copied(sound, tmp_path / "theirs", "config.json", {})
    torch.save({}, folder / "pytorch_model.bin")
    assert resolve(str(folder)) == folder, "of both the safetensors are read"
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"a pickle \(pytorch_model.bin\)"):
        resolve(str(folder))


def test_bundled_and_older_checkpoints_are_accepted(sound: Path, tmp_path: Path) -> None:
    harmless = {"tokenizer_file": "/home/someone/.cache/x", "auto_map": None, "_name_or_path": "someone/else"}
    folder = copied(sound, tmp_path / "theirs", "tokenizer_config.json", harmless)
    assert resolve(str(folder)) == folder
    for zoo in ZOO.glob("*/config.json"):
        assert resolve(str(zoo.parent)) == zoo.parent


def test_every_loading_call_forbids_remote_code() -> None:
    """This also covers calls that do not start from a model's name, as in training and benchmarks."""
    count = 0
    for path in [*(ROOT / "rtcontrol").rglob("*.py"), *(ROOT / "models").rglob("*.py")]:
        text = path.read_text("utf-8")
        if "from_pretrained(" not in text and "LLM(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            named = isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", ""))
            if isinstance(node, ast.Call) and named in ("from_pretrained", "LLM"):
                count += 1
                source = ast.get_source_segment(text, node) or ""
                assert "trust_remote_code=False" in source, f"{path}:{node.lineno}"
    assert count >= 3
