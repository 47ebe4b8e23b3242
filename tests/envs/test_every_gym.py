"""Every id of Gymnasium, Gymnasium-Robotics, MiniGrid, highway-env and ALE is flown, or refused by name."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

from tests.envs.every_gym import PACKAGES, ROOT, written

NEEDS = "gymnasium-robotics 'mujoco>=3.3,<3.12' minigrid highway-env ale-py"


@pytest.fixture(scope="module")
def python() -> str:
    """A Python that has them all, and what rtcontrol needs."""
    if named := os.environ.get("RTCONTROL_GYM"):
        return named
    if missing := [name for name in PACKAGES if importlib.util.find_spec(name) is None]:
        pytest.skip(f"no {', '.join(missing)} here: `pip install {NEEDS}`, or name a Python by RTCONTROL_GYM")
    return sys.executable


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("module", PACKAGES)
def test_every_id_is_made_reset_stepped_and_closed_once_or_refused_by_name(
    module: str, python: str, pytestconfig: pytest.Config
) -> None:
    """What was done before an interruption is not done again, unless our code or a package is another."""
    folder = pytestconfig.cache.mkdir("every_gym") / module  # type: ignore[union-attr]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    line = [python, "-W", "ignore", "-m", "tests.envs.every_gym", str(folder), f"--only={module}"]
    assert subprocess.run(line, env={**os.environ, "PYTHONPATH": path}).returncode == 0
    (folder / "results.jsonl").unlink()
    package, found = f"| {PACKAGES[module]} ", (folder / "table.md").read_text("utf-8").splitlines()
    page = written().splitlines()
    same = found[-1] == page[-1] and found[2].split(" | ")[0] in {line.split(" | ")[0] for line in page}
    if same:  # the same versions as the page's
        rows = [[line for line in table if line.startswith(package)] for table in (found, page)]
        assert rows[0] == rows[1], "run `python -m tests.envs.every_gym FOLDER --write`"
