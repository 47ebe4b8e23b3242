"""Install the client's distribution alone, in an empty Python environment."""

from __future__ import annotations

import json
import os
import subprocess
import venv
from pathlib import Path

import pytest

from tests.bridges.client.worlds import Process
from tests.helpers.processes import ROOT

NEEDS = {"rtcontrol-client", "pyzmq", "msgpack", "pydantic"}
AND_THESE = {"pydantic-core", "annotated-types", "typing-extensions", "typing-inspection", "pip", "setuptools"}
# The example in the distribution's README.md, as a user types it.
EXAMPLE = (ROOT / "bridges" / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
ADDRESS = "tcp://127.0.0.1:5555"


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new Python environment with only the client, installed from the tree, and its dependencies."""
    folder = tmp_path_factory.mktemp("light")
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / "bin" / "python"
    config = folder / "build.cfg"
    config.write_text(f"[build]\nbuild_base = {folder / 'build'}\n")
    command = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", ROOT / "bridges"]
    done = run(folder, *command, DIST_EXTRA_CONFIG=str(config))
    if done.returncode and ("No matching distribution" in done.stderr or "Could not find a version" in done.stderr):
        pytest.skip("no package index can be reached from here")
    assert done.returncode == 0, done.stderr
    return python


def run(cwd: Path, *command: object, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command without this tree in PYTHONPATH."""
    given = {"capture_output": True, "text": True, "timeout": 200, "check": False}
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run([*map(str, command)], cwd=cwd, env={**kept, **env}, **given)


def test_client_installs_only_four_packages_and_their_dependencies(clean: Path) -> None:
    listed = run(clean.parent, clean, "-m", "pip", "list", "--format", "json", "--disable-pip-version-check")
    names = {entry["name"].lower().replace("_", "-") for entry in json.loads(listed.stdout)}
    assert NEEDS <= names <= NEEDS | AND_THESE


def test_readme_example_receives_calls_from_a_real_server(clean: Path, server: Process, tmp_path: Path) -> None:
    assert ADDRESS in EXAMPLE
    done = run(tmp_path, clean, "-c", EXAMPLE.replace(ADDRESS, server.endpoint))
    assert done.returncode == 0, done.stderr
    assert {line.split()[0] for line in done.stdout.splitlines()} <= {"go", "stop"}
    assert len(done.stdout.splitlines()) == 3


@pytest.mark.parametrize("bridge", ["ros2", "carla"])
def test_bridge_without_its_extra_names_the_missing_install(clean: Path, tmp_path: Path, bridge: str) -> None:
    (tmp_path / "robot.yaml").write_text("hz: 16\n")
    done = run(
        tmp_path, clean, "-m", f"rtcontrol_client.{bridge}", *["--config", "robot.yaml"][: 2 * (bridge == "ros2")]
    )
    assert done.returncode == 2
    assert f"pip install 'rtcontrol-client[{bridge}]'" in done.stderr
    assert "Traceback" not in done.stderr
