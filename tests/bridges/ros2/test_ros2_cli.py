"""The command line, also where torch, Ray and transformers are not installed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytest.importorskip("cyclonedds", reason="the ros2 extra (cyclonedds) is not installed")

from rtcontrol.bridges.ros2 import EXAMPLE, cli
from rtcontrol.bridges.ros2.cli import main
from tests.helpers.processes import python

BARE = """
import sys
for name in "torch ray transformers gymnasium numpy typer rosbags".split(): sys.modules[name] = None
from rtcontrol.bridges.ros2.cli import main
sys.exit(main())
"""
WITHOUT_EXTRA = BARE.replace("rosbags", "rosbags cyclonedds yaml")
ROBOT = str(EXAMPLE)


def run(*arguments: str, code: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    program = ["-c", code] if code else ["-m", "rtcontrol", "bridge", "ros2"]
    return python(*program, *arguments, env={"COLUMNS": "200", **environment})


def test_its_example_needs_no_extra_and_it_starts_with_nothing_but_that(tmp_path: Path) -> None:
    example = run("--example", code=WITHOUT_EXTRA)
    (tmp_path / "robot.yaml").write_text(example.stdout)
    checked = run("--config", str(tmp_path / "robot.yaml"), "--check", code=BARE)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert "publishes /cmd_vel  geometry_msgs/msg/Twist" in checked.stdout
    assert "reads     /rtcontrol/instruction  std_msgs/msg/String  -> the instruction" in checked.stdout
    assert "publishes /diagnostics  diagnostic_msgs/msg/DiagnosticArray" in checked.stdout


def test_it_is_a_command_of_rtcontrol(tmp_path: Path) -> None:
    helped = run("--help")
    assert "usage: rtcontrol bridge ros2" in helped.stdout and "--config" in helped.stdout
    wrong = tmp_path / "robot.yaml"
    wrong.write_text("hz: 16\n")
    done = run("--config", str(wrong), "--check")
    assert done.returncode == 2 and done.stderr.startswith(f"{wrong}: instruction is missing. Add it; ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--hz", "nan"], "--hz nan is out of range. Give 0.1 to 200."),
        (["--connect-timeout", "-1"], "--connect-timeout -1 is out of range."),
        (["--duration", "nan"], "--duration nan is out of range."),
        (["--server-key", "server.key"], "--server-key is given without --keys."),
        (["--report", "/nowhere/report.json"], "The report /nowhere/report.json cannot be written (No such file"),
        (["--instruct", "x" * 70_000], "instruction: a string of 70000 characters: above the limit"),
    ],
)
def test_a_mistake_is_told_before_anything_is_connected(
    given: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--config", ROBOT, *given, "--check"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(says) and len(told.splitlines()) == 1, told


def test_a_peer_that_nobody_knows_is_a_mistake_and_not_the_end_of_the_process() -> None:
    done = run("--config", ROBOT, ROS_STATIC_PEERS="no.such.host.invalid", ROS_LOCALHOST_ONLY="0", ROS_DOMAIN_ID="97")
    assert done.returncode == 2, done
    assert done.stderr.startswith("The host 'no.such.host.invalid' of ROS_STATIC_PEERS is unknown")


def test_ctrl_c_while_it_starts_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "run", interrupted)
    assert main(["--config", ROBOT]) == 130


def test_without_cyclonedds_it_says_what_to_install() -> None:
    done = run("--config", "x.yaml", code=WITHOUT_EXTRA)
    assert done.returncode == 2
    assert done.stderr == "The ROS 2 bridge needs cyclonedds. Install it: pip install 'rtcontrol[ros2]'.\n"
