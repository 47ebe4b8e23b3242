"""Where a model's name leads: a bundled one, a folder, the hub; and nothing that a checkpoint names is run."""

from __future__ import annotations

import ast
import hashlib
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants

from rtcontrol.models.checkpoint.checkpoint import ZOO, resolve
from rtcontrol.models.errors import UserError
from tests.helpers.processes import ROOT, free_port, python
from tests.models.small import build_checkpoint

SHA = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "someone/some-models"
WHERE = f"{REPOSITORY}:RT-small-v2"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints in folders of their own, and none in the root."""
    root = tmp_path_factory.mktemp("repository")
    folder = build_checkpoint(root / "RT-small-v2", seed=3)
    shutil.copytree(folder, root / "RT-other")
    (root / "RT-small-v2" / "weights.bin").write_bytes(b"what nobody here reads")
    (root / "README.md").write_text("Models.")
    return root


class Hub:
    """What of the hub's routes a download asks for; `got`: the files that were given away, `asked`: all requests."""

    def __init__(self, root: Path) -> None:
        self.got: list[str] = []
        self.asked = 0
        hub, files = self, {str(p.relative_to(root)): p for p in root.rglob("*") if p.is_file()}

        class Routes(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.asked += 1
                path = self.path.partition("?")[0]
                name = path.removeprefix(f"/{REPOSITORY}/resolve/{SHA}/")
                if name in files:
                    data = files[name].read_bytes()
                    self._answer(data, {"X-Repo-Commit": SHA, "ETag": f'"{hashlib.sha1(data).hexdigest()}"'})
                    if self.command == "GET":
                        hub.got.append(name)
                elif path.startswith(f"/api/models/{REPOSITORY}/tree/"):
                    sizes = {n: p.stat().st_size for n, p in files.items()}
                    listed = [{"type": "file", "path": n, "size": size, "oid": n} for n, size in sizes.items()]
                    self._answer(json.dumps(listed).encode(), {})
                elif path.startswith(f"/api/models/{REPOSITORY}"):
                    siblings = [{"rfilename": n} for n in files]
                    described = {"id": REPOSITORY, "modelId": REPOSITORY, "sha": SHA, "siblings": siblings}
                    self._answer(json.dumps(described | {"private": False, "tags": [], "downloads": 0}).encode(), {})
                else:
                    self._answer(b"{}", {"X-Error-Code": "RepoNotFound"}, 404)

            do_HEAD = do_GET  # noqa: N815

            def _answer(self, data: bytes, headers: dict[str, str], status: int = 200) -> None:
                self.send_response(status)
                for key, value in ({"Content-Length": str(len(data))} | headers).items():
                    self.send_header(key, value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Routes)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def hub(repository: Path) -> Iterator[Hub]:
    hub = Hub(repository)
    yield hub
    hub.close()


Find = Callable[..., tuple[int, str, str]]


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Find:
    """(status, folder, what is said on stderr or why it is refused), with a cache and an endpoint."""

    def find(model: str, endpoint: str, offline: bool = False) -> tuple[int, str, str]:
        # What the hub's library reads from the environment where it is imported.
        template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        capsys.readouterr()
        try:
            folder = resolve(model)
        except UserError as error:
            return 1, "", " ".join(str(error).split())
        return 0, str(folder), " ".join(capsys.readouterr().err.split())

    return find


def test_a_folder_of_a_repository_is_downloaded_alone_and_then_needs_no_network(
    hub: Hub, tmp_path: Path, found: Find
) -> None:
    # In a process of its own, whose environment says where the hub is.
    code = "import sys\nfrom rtcontrol.models.checkpoint.checkpoint import resolve\nprint(resolve(sys.argv[1]))"
    env = {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_DISABLE_XET": "1", "HF_ENDPOINT": hub.url}
    done = python("-c", code, WHERE, env=env)
    out = done.stdout.strip()
    assert done.returncode == 0, done.stderr
    assert (Path(out) / "model.safetensors").is_file()
    assert "Fetching" in done.stderr  # progress
    assert hub.got and all(name.startswith("RT-small-v2/") and not name.endswith(".bin") for name in hub.got)
    count = hub.asked
    assert found(WHERE, hub.url) == (0, out, "")
    assert hub.asked == count
    (Path(out) / "model.safetensors").unlink()  # what was cut short is downloaded again
    assert found(WHERE, hub.url)[0] == 0 and (Path(out) / "model.safetensors").is_file()


def test_a_repository_without_that_folder_lists_those_that_it_has(hub: Hub, found: Find) -> None:
    for model in (REPOSITORY, f"{REPOSITORY}:RT-small"):
        status, _, err = found(model, hub.url)
        assert status == 1
        assert "has no whole checkpoint in" in err
        assert "RT-other, RT-small-v2" in err
    err = found("runs/train-lander", hub.url)[2]
    assert f"no folder 'runs/train-lander' in {Path.cwd()}, and no bundled model of that name; the hub (" in err
    assert "does not give it" in err and "hf auth login" in err


def test_without_a_network_the_cache_is_enough_and_else_it_is_said_what_to_do(
    repository: Path, tmp_path: Path, found: Find
) -> None:
    cache = tmp_path / "models--someone--some-models"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text(SHA)
    shutil.copytree(repository / "RT-small-v2", cache / "snapshots" / SHA / "RT-small-v2")
    nowhere = f"http://127.0.0.1:{free_port()}"
    status, folder, _ = found(WHERE, nowhere, offline=True)
    assert status == 0
    (Path(folder) / "model.safetensors").unlink()  # not all was copied
    problem = found(WHERE, nowhere, offline=True)[2]
    assert (
        "is not asked, as HF_HUB_OFFLINE is set" in problem and f"nor is it whole in the cache ({tmp_path})" in problem
    )
    err = found(f"{REPOSITORY}:RT-other", nowhere)[2]
    assert f"the hub ({nowhere}) does not give it" in err and f"nor is it whole in the cache ({tmp_path})" in err
    assert f"`hf download {REPOSITORY} --include 'RT-other*'`" in err


@pytest.mark.parametrize("model", ["nobody", "a/b/c", "./a/b", "a/b:", "a/b:../c"])
def test_what_is_no_hub_id_is_not_looked_for_there(model: str) -> None:
    with pytest.raises(UserError, match="There is no folder .* it is not a hub's OWNER/NAME") as error:
        resolve(model)
    assert "OWNER/NAME[:SUBFOLDER] of the Hugging Face hub" in error.value.remedy


# Where a model's name leads.


def test_a_name_that_is_a_bundled_model_and_a_folder_here_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lander").mkdir()
    assert resolve("lander") == ZOO / "lander"  # a folder that holds no model is none of two
    shutil.copy(ZOO / "lander" / "config.json", tmp_path / "lander")
    with pytest.raises(UserError, match="a bundled model, and a folder here") as refused:
        resolve("lander")
    assert "./lander" in refused.value.remedy
    assert resolve("./lander") == Path("lander")
    with pytest.raises(UserError, match="is a file, no checkpoint folder. Give the folder that it is in: lander"):
        resolve("lander/config.json")
    (tmp_path / REPOSITORY).mkdir(parents=True)
    assert resolve(REPOSITORY) == Path(REPOSITORY), "a folder wins over the hub"


# A stranger's checkpoint: nothing that its files name is run, opened or asked for.


AUTO = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
CASES: list[tuple[str, dict[str, Any], str]] = [
    ("config.json", {"auto_map": AUTO, "model_type": "strange"}, "names code of its own"),
    ("config.json", {"vision_config": {"auto_map": {"AutoConfig": "someone/else--evil.Config"}}}, "code of its own"),
    ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": [None, "evil.Tokenizer"]}}, "names code of its own"),
    ("generation_config.json", {"custom_generate": "someone/else"}, "names code of its own"),
    ("config.json", {"attn_implementation": "someone/kernel"}, "names code of a hub"),
    ("adapter_config.json", {"base_model_name_or_path": "someone/else"}, "names another model"),
    ("model.safetensors.index.json", {"weight_map": {"a": "../../etc/passwd"}}, "names a file elsewhere"),
    ("tokenizer_config.json", {"fast_tokenizer_files": ["../../x.json"]}, "names a file elsewhere"),
]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checkpoint(tmp_path_factory.mktemp("sound") / "model")


def copied(sound: Path, folder: Path, name: str, content: dict[str, Any]) -> Path:
    """The checkpoint with this in the file, and a program beside it that would leave a trace."""
    folder.mkdir()
    for path in sound.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    old = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
    (folder / name).write_text(json.dumps(old | content))
    trace = f"open({str(folder.parent / 'trace')!r}, 'w').close()\n"
    (folder / "evil.py").write_text(f"{trace}class Config: ...\nclass Model: ...\nclass Tokenizer: ...\n")
    return folder


@pytest.mark.parametrize(("name", "content", "why"), CASES)
def test_what_a_checkpoint_names_is_refused_by_name(
    sound: Path, tmp_path: Path, name: str, content: dict[str, Any], why: str
) -> None:
    folder = copied(sound, tmp_path / "theirs", name, content)
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


def test_every_call_that_may_load_code_says_that_it_must_not() -> None:
    """Also what is not reached by the name of a model, as in training and benchmarks."""
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
