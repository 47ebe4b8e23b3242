"""`--model OWNER/NAME[:SUBFOLDER]`: from the hub's cache, or downloaded. The hub is a server here that speaks its
routes, and every run a process of its own (the library reads its settings when it is imported)."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rtcontrol.models.checkpoint.checkpoint import resolve
from rtcontrol.models.errors import UserError
from tests.helpers.processes import cli, free_port, python
from tests.models.small import build_checkpoint, tool

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

    def __init__(self, root: Path, kind: str = "models") -> None:
        at = "" if kind == "models" else f"/{kind}"
        self.got: list[str] = []
        self.asked = 0
        hub, files = self, {str(p.relative_to(root)): p for p in root.rglob("*") if p.is_file()}

        class Routes(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.asked += 1
                path = self.path.partition("?")[0]
                name = path.removeprefix(f"{at}/{REPOSITORY}/resolve/{SHA}/")
                if name in files:
                    data = files[name].read_bytes()
                    self._answer(data, {"X-Repo-Commit": SHA, "ETag": f'"{hashlib.sha1(data).hexdigest()}"'})
                    if self.command == "GET":
                        hub.got.append(name)
                elif path.startswith(f"/api/{kind}/{REPOSITORY}/tree/"):
                    listed = [
                        {
                            "type": "file",
                            "path": n,
                            "size": p.stat().st_size,
                            "oid": hashlib.sha1(n.encode()).hexdigest(),
                        }
                        for n, p in files.items()
                    ]
                    self._answer(json.dumps(listed).encode(), {})
                elif path.startswith(f"/api/{kind}/{REPOSITORY}"):
                    siblings = [{"rfilename": n} for n in files]
                    told = {"id": REPOSITORY, "modelId": REPOSITORY, "sha": SHA, "siblings": siblings}
                    self._answer(json.dumps(told | {"private": False, "tags": [], "downloads": 0}).encode(), {})
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
    made = Hub(repository)
    yield made
    made.close()


def found(model: str, cache: Path, **env: str) -> tuple[int, str, str]:
    """(status, folder, what is said on stderr), as the command line has them."""
    code = (
        "import sys\nfrom rtcontrol.models.checkpoint.checkpoint import resolve\n"
        "from rtcontrol.models.errors import UserError\n"
        "try: print(resolve(sys.argv[1]))\nexcept UserError as error: sys.exit(str(error))\n"
    )
    done = python("-c", code, model, env={"HF_HUB_CACHE": str(cache), "HF_HUB_DISABLE_XET": "1", **env})
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout.strip(), " ".join(done.stderr.split())


def test_a_folder_of_a_repository_is_downloaded_alone_and_then_needs_no_network(hub: Hub, tmp_path: Path) -> None:
    status, out, err = found(WHERE, tmp_path, HF_ENDPOINT=hub.url)
    assert status == 0, err
    assert (Path(out) / "model.safetensors").is_file()
    assert "Fetching" in err  # progress
    assert hub.got and all(name.startswith("RT-small-v2/") and not name.endswith(".bin") for name in hub.got)
    asked = hub.asked
    assert found(WHERE, tmp_path, HF_ENDPOINT=hub.url) == (0, out, "")
    assert hub.asked == asked


def test_what_was_cut_short_is_downloaded_again(hub: Hub, tmp_path: Path) -> None:
    assert found(WHERE, tmp_path, HF_ENDPOINT=hub.url)[0] == 0
    (weights,) = tmp_path.rglob("model.safetensors")
    weights.unlink()
    assert found(WHERE, tmp_path, HF_ENDPOINT=hub.url)[0] == 0
    assert hub.got.count("RT-small-v2/model.safetensors") >= 1
    assert [*tmp_path.rglob("model.safetensors")]


def test_a_repository_without_that_folder_lists_those_that_it_has(hub: Hub, tmp_path: Path) -> None:
    for model in (REPOSITORY, f"{REPOSITORY}:RT-small"):
        status, _, err = found(model, tmp_path, HF_ENDPOINT=hub.url)
        assert status == 1
        assert "has no whole checkpoint in" in err
        assert "RT-other, RT-small-v2" in err


def test_a_repository_that_the_hub_does_not_have_names_all_three_ways(hub: Hub, tmp_path: Path) -> None:
    status, _, err = found("runs/train-lander", tmp_path, HF_ENDPOINT=hub.url)
    assert status == 1
    assert "neither a bundled name nor a folder, and the hub has no runs/train-lander" in err
    assert "Bundled: base, driver, lander, paddle, simpletool-games. Or give the path of a checkpoint folder" in err


def test_without_a_network_the_cache_is_enough_and_else_it_is_said_what_to_do(repository: Path, tmp_path: Path) -> None:
    cache = tmp_path / "models--someone--some-models"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text(SHA)
    shutil.copytree(repository / "RT-small-v2", cache / "snapshots" / SHA / "RT-small-v2")
    status, folder, _ = found(WHERE, tmp_path, HF_HUB_OFFLINE="1")
    assert status == 0
    (Path(folder) / "model.safetensors").unlink()  # not all was copied
    said = found(WHERE, tmp_path, HF_HUB_OFFLINE="1")[2]
    assert f"the hub is not asked, as HF_HUB_OFFLINE is set, nor is it whole in the cache ({tmp_path})" in said
    nowhere = f"http://127.0.0.1:{free_port()}"
    env = {"HF_HUB_CACHE": str(tmp_path), "HF_ENDPOINT": nowhere}
    done = cli("models", "info", f"{REPOSITORY}:RT-other", env=env)
    err = " ".join(done.stderr.split())
    assert (done.returncode, "Traceback" in err) == (2, False)
    assert f"the hub cannot be reached ({nowhere}: " in err and f"nor is it whole in the cache ({tmp_path})" in err
    assert f"`hf download {REPOSITORY} --include 'RT-other*'`" in err


@pytest.mark.parametrize("network", [{"HF_HUB_OFFLINE": "1"}, {}])
@pytest.mark.parametrize("command", ["train", "eval"])
def test_every_command_that_takes_a_model_says_so_in_one_paragraph(
    command: str, network: dict[str, str], tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    one = {"instruction": "go", "observation": "", "tools": [tool("go")], "call": {"name": "go", "arguments": {}}}
    rows.write_text(json.dumps({**one, "history": [], "source": "test"}) + "\n")
    train = ("models", "train", "--base", REPOSITORY, "--rows", str(rows), "--out", str(tmp_path / "out"))
    evaluate = ("eval", str(rows), "--model", REPOSITORY, "--out", str(tmp_path / "answers.jsonl"))
    env = {"HF_HUB_CACHE": str(tmp_path / "cache"), "HF_ENDPOINT": f"http://127.0.0.1:{free_port()}", **network}
    done = cli(*(train if command == "train" else evaluate), env=env)
    err = done.stderr.strip()
    assert (done.returncode, done.stdout, "Traceback" in err) == (2, "", False)
    assert err.startswith(f"No model {REPOSITORY!r}: neither a bundled name nor a folder, and the hub ")
    assert len(err.splitlines()) == 1 and f"`hf download {REPOSITORY}`" in err
    assert not (tmp_path / "out").exists() and not (tmp_path / "answers.jsonl").exists()


def test_a_folder_wins_over_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    here = Path("someone") / "some-models"
    here.mkdir(parents=True)
    assert resolve(REPOSITORY) == here


@pytest.mark.parametrize("model", ["nobody", "a/b/c", "./a/b", "/a/b", "a/b:", "a/b:../c", "a b/c", "~/b"])
def test_what_is_no_hub_id_is_not_looked_for_there(model: str) -> None:
    with pytest.raises(UserError, match="neither a bundled name nor a folder, nor a hub's OWNER/NAME") as error:
        resolve(model)
    assert "OWNER/NAME[:SUBFOLDER] of the Hugging Face hub" in error.value.remedy
