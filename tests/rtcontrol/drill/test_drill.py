"""Short drills of real runs."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from commands import refused

from tests.helpers.processes import Program, cli

pytestmark = pytest.mark.realtime
COUNTS = ("injected", "attributed", "unknown", "uninjected", "invariants_violated")


def drilled(tmp_path: Path, *arguments: str, timeout: float = 250.0) -> tuple[dict[str, Any], str]:
    file = tmp_path / "drill" / "drill.json"
    done = cli("drill", "--out", str(file.parent), *arguments, timeout=timeout)
    assert file.is_file(), done.stdout + done.stderr
    result = json.loads(file.read_text())
    clean = result["attributed"] == result["injected"] and not result["unknown"] + result["invariants_violated"]
    assert done.returncode == (0 if clean else 3), done.stdout + done.stderr
    return result, done.stdout


def only(*names: str) -> list[str]:
    return [part for name in names for part in ("--only", name)]


@pytest.mark.slow
def test_a_drill_of_half_a_minute_attributes_what_it_injects(tmp_path: Path) -> None:
    result, said = drilled(tmp_path, "--minutes", "0.6", "--seed", "3", *only("stop_decoder", "slow_text", "frozen"))
    assert {name: result[name] for name in COUNTS[1:]} == {
        "attributed": result["injected"],
        "unknown": 0,
        "uninjected": 0,
        "invariants_violated": 0,
    }, said
    assert result["injected"] >= 9 and result["seed"] == 3


@pytest.mark.slow
def test_a_killed_decoder_is_on_time_again_within_half_a_second_by_a_standby(tmp_path: Path) -> None:
    result, said = drilled(tmp_path, "--minutes", "0.8", "--standby", *only("kill_decoder"))
    assert result["attributed"] == result["injected"] >= 3, said
    assert max(fault["recovered_s"] for fault in result["faults"]) < 0.5, said


def test_a_drill_ends_in_order_by_ctrl_c_and_judges_what_was_injected(tmp_path: Path) -> None:
    out = tmp_path / "drill"
    arguments = ["-m", "rtcontrol", "drill", "--model", "expert", "--minutes", "5"]
    program = Program([*arguments, "--out", str(out), *only("execute_raises", "observe_raises")], tmp_path / "log")
    try:
        program.says("execute_raises: each call raises")
        program.says("observe_raises: ", 30.0)
        assert program.end(signal.SIGINT) == 130, program.log()
    finally:
        program.kill()
    result = json.loads((out / "drill.json").read_text())
    assert result["injected"] >= 2 and result["invariants_violated"] == 0, program.log()
    assert json.loads((out / "report.json").read_text())["ended_by"] == "SIGTERM"
    # Nothing that it started is left.
    left = subprocess.run(["pgrep", "-f", str(out)], capture_output=True, text=True, check=False).stdout
    assert left == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "earthquake"], "there is no such fault"),
        (["--minutes", "1"], "Give --minutes 2."),
        (["--minutes", "nan"], "is no length of a drill"),
        (["--only", "frozen,earthquake"], "earthquake: there is no such fault"),
        (["--simulate", "--only", "earthquake"], "there is no such simulated fault"),
        (["--simulate", "--env", "paddle"], "--env is of a drill in real time."),
        (["--simulate", "--seeds", "9", "9"], "That is no range of seeds."),
        (["--seeds", "0", "9"], "Give --simulate with them."),
        (["--env", "lnder"], "There is no environment called 'lnder'"),
    ],
)
def test_a_mistake_is_told_in_a_paragraph(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refused(capsys, "drill", *arguments)
    assert not list(tmp_path.rglob("*.*"))
