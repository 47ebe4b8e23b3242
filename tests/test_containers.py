"""Tests of Dockerfile and compose.yaml: their restrictions, and their commands when they are run here."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import rtcontrol
from tests.helpers.processes import ROOT, Program, environment, free_port, until
from tests.rtcontrol.commands import unknown_options

DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def stages() -> dict[str, list[tuple[str, str]]]:
    """Return the instructions of each stage as (word, rest), after those of the stage that it is based on."""
    found: dict[str, list[tuple[str, str]]] = {}
    name = ""
    for line in re.sub(r"\\\n", " ", DOCKERFILE).splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            origin, _, name = rest.partition(" AS ")
            found[name] = [*found.get(origin, ())]
        elif name and word and not word.startswith("#"):
            found[name].append((word, rest.strip()))
    return found


STAGES = stages()


def of(stage: str, word: str) -> list[str]:
    return [rest for name, rest in STAGES[stage] if name == word]


def listed(stage: str, word: str) -> list[str]:
    """Return the words of an instruction in exec form."""
    return json.loads(of(stage, word)[-1])


def probe() -> list[str]:
    return json.loads(of("server", "HEALTHCHECK")[-1].partition("CMD ")[2])


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_is_confined(service: str) -> None:
    told = SERVICES[service]
    assert told["read_only"] and told["cap_drop"] == ["ALL"] and told["init"]
    assert told["security_opt"] == ["no-new-privileges:true"]
    stage = told["build"]["target"]
    assert told["user"] == of(stage, "USER")[-1] and min(map(int, told["user"].split(":"))) > 0
    assert of(stage, "STOPSIGNAL") == ["SIGTERM"] and listed(stage, "ENTRYPOINT")
    assert told["mem_limit"] and told["pids_limit"]
    assert told["image"].split(":") == [f"rtcontrol-{stage}", rtcontrol.__version__]
    assert "privileged" not in told and told.get("network_mode", "none") == "none"
    # makerchecker/MakerChecker#45: a folder that is not there, or is root's, makes a volume that the user cannot write.
    (made,) = re.findall(r"install --directory --owner 10001 --group 10001 --mode 0700 ([/\w ]+)", DOCKERFILE)
    assert {mount.split(":")[1] for mount in told["volumes"]} <= set(made.split())


def test_only_the_page_is_published_on_localhost() -> None:
    assert {name: told["ports"] for name, told in SERVICES.items() if "ports" in told} == {
        "server": ["127.0.0.1:8080:8080"]
    }
    # The robot is given its own secret key, and never the folder with the server's.
    assert "keys" not in {mount.split(":")[0] for mount in SERVICES["robot"]["volumes"]}
    assert SERVICES["server"]["healthcheck"]["test"] == ["CMD", *probe()]


def commands() -> dict[str, list[str]]:
    """Return each `rtcontrol` command that an image or a service runs."""
    assert listed("server", "ENTRYPOINT") == ["rtcontrol"]
    script = SERVICES["keys"]["command"][0]
    keys = [shlex.split(line)[1:] for line in script.splitlines() if line.startswith("rtcontrol ")]
    return {"image": listed("server", "CMD"), "server": SERVICES["server"]["command"], "keys": keys[0]}


@pytest.mark.parametrize("name", ["image", "server", "keys"])
def test_container_commands_exist_with_their_options(name: str) -> None:
    assert unknown_options(commands()[name]) == set()


def ignored(path: str) -> bool:
    """Return whether .dockerignore excludes a path; the last rule for the path or a parent folder decides."""
    found = False
    for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines():
        rule = line.removeprefix("!")
        pattern = re.escape(rule.removeprefix("**/")).replace(r"\*", "[^/]*")
        start = "(?:.*/)?" if rule.startswith("**/") else ""
        if line and line[0] != "#" and re.fullmatch(f"{start}{pattern}(?:/.*)?", path):
            found = line[0] != "!"
    return found


# bytedance/deer-flow#4853: records and secrets of a working copy were copied into the image.
def test_image_context_has_sources_but_no_secrets() -> None:
    copied = [rest.split()[:-1] for rest in [*of("build", "COPY"), *of("server", "COPY"), *of("client", "COPY")]]
    sources = {source for given in copied if not given[0].startswith("--") for source in given}
    folders = {"rtcontrol", "agents", "envs", "models", "bridges"}  # what the package's links point to, too
    assert {*folders, "pyproject.toml", "LICENSE"} <= sources
    done = subprocess.run(["git", "ls-files", *sources], cwd=ROOT, capture_output=True, text=True, check=False)
    files = done.stdout.split() or [str(p.relative_to(ROOT)) for s in sources for p in (ROOT / s).rglob("*.py")]
    left = [path for path in files if ignored(path) and "/." not in path]
    assert len(files) > 100 and {path.rpartition("/")[0] for path in left} <= {"examples/deploy"}  # it is no page
    private = (".git/config", "runs/a/record.mcap", "examples/robot.key_secret", "keys/server.key", "envs/.env")
    assert all(map(ignored, (*private, "examples/token", "docs/index.md", "models/__pycache__/a.pyc", "notes.txt")))


@pytest.fixture
def at_home(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Return local replacements for the containers' folders, network and port."""
    (tmp_path / "bin").mkdir()
    for name, line in (("rtcontrol", f'"{sys.executable}" -m rtcontrol'), ("python", f'"{sys.executable}"')):
        (tmp_path / "bin" / name).write_text(f'#!/bin/sh\nexec {line} "$@"\n')
        (tmp_path / "bin" / name).chmod(0o755)
    for folder in ("data", "keys", "robot"):
        (tmp_path / folder).mkdir(mode=0o700)
    ports = {"0.0.0.0:8080": f"0.0.0.0:{(port := free_port())}", "127.0.0.1:8080": f"127.0.0.1:{port}"}
    ports["0.0.0.0:5555"] = f"127.0.0.1:{free_port()}"
    folders = {f"/{name}": str(tmp_path / name) for name in ("data", "keys", "robot")}
    yield folders | {"/pages": str(ROOT / "examples")} | ports


def here(text: str, at_home: dict[str, str]) -> str:
    places = "|".join(re.escape(there) for there in at_home)
    return re.sub(rf"(?<![\w.])({places})\b", lambda found: at_home[found[1]], text)


def run(words: list[str], at_home: dict[str, str]) -> subprocess.CompletedProcess[str]:
    env = environment(PATH=f"{Path(at_home['/data']).parent / 'bin'}:{os.environ['PATH']}")
    told = [here(word, at_home) for word in words]
    return subprocess.run(told, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("name", ["image", "server"])
def test_container_command_answers_probe_and_stops(name: str, at_home: dict[str, str], tmp_path: Path) -> None:
    script = [*SERVICES["keys"]["entrypoint"], *SERVICES["keys"]["command"]]
    for _ in range(2):  # docker/compose#11808: each `up` starts what runs once again
        made = run(script, at_home)
        assert made.returncode == 0, made.stderr
    assert sorted(path.name for path in (tmp_path / "robot").iterdir()) == ["robot.key_secret", "server.key"]
    assert not (tmp_path / "keys" / "robot.key_secret").exists()
    words = [here(word, at_home) for word in commands()[name]]
    server = Program(["-m", "rtcontrol", *words], tmp_path / "log", cwd=tmp_path / "data")
    try:
        server.says(f"listening on http://{at_home['0.0.0.0:8080']}/")
        until(lambda: run(probe(), at_home).returncode == 0, "not healthy", every=0.2)
        if name == "server":
            given = [*listed("client", "ENTRYPOINT"), *listed("client", "CMD")]
            car = [here(word.replace("server:5555", at_home["0.0.0.0:5555"]), at_home) for word in given]
            assert car[1] == "/opt/client/robot.py" and "COPY examples/robot.py /opt/client/robot.py" in DOCKERFILE
            driven = run([car[0], str(ROOT / "examples" / "robot.py"), *car[2:]], at_home)
            assert driven.returncode == 0 and "instructed 'stop': 0 km/h" in driven.stdout, driven.stderr
        assert server.end(signal.SIGTERM) == 128 + signal.SIGTERM
        assert run(probe(), at_home).returncode != 0
    finally:
        server.kill()
    assert (tmp_path / "data" / "token").stat().st_mode & 0o077 == 0
