"""The command line, also where torch, Ray and transformers are not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cyclonedds", reason="the ros2 extra (cyclonedds) is not installed")

from tests.bridges.client.worlds import ROOT

BARE = """
import sys
for name in ("torch", "ray", "transformers", "gymnasium", "numpy", "typer", "rosbags"): sys.modules[name] = None
from rtcontrol.bridges.ros2.cli import main
sys.exit(main())
"""


def run(*arguments: str, code: str | None = None) -> subprocess.CompletedProcess[str]:
    program = ["-c", code] if code else ["-m", "rtcontrol", "bridge", "ros2"]
    return subprocess.run(
        [sys.executable, *program, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        check=False,
    )


def test_it_starts_with_nothing_but_the_extra(tmp_path: Path) -> None:
    example = run("--example", code=BARE)
    (tmp_path / "robot.yaml").write_text(example.stdout)
    checked = run("--config", str(tmp_path / "robot.yaml"), "--check", code=BARE)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert "publishes /cmd_vel  geometry_msgs/msg/Twist" in checked.stdout


def test_it_is_a_command_of_rtcontrol(tmp_path: Path) -> None:
    helped = run("--help")
    assert "usage: rtcontrol bridge ros2" in helped.stdout and "--config" in helped.stdout
    wrong = tmp_path / "robot.yaml"
    wrong.write_text("hz: 16\n")
    done = run("--config", str(wrong), "--check")
    assert done.returncode == 2 and done.stderr.startswith(f"{wrong}: instruction is missing. Add it; ")
    assert len(done.stderr.splitlines()) == 1


def test_without_cyclonedds_it_says_what_to_install() -> None:
    code = "import importlib.util as u; find = u.find_spec\n"
    code += "u.find_spec = lambda name, *rest: None if name == 'cyclonedds' else find(name, *rest)\n"
    done = run("--config", "x.yaml", code=code + BARE)
    assert done.returncode == 2
    assert done.stderr == "The ROS 2 bridge needs cyclonedds. Install it: pip install 'rtcontrol[ros2]'.\n"
