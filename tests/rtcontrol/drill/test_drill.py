"""Short drills of real runs, and drills in simulated time."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from commands import call, refused, report_in

from rtcontrol.loop.actuator_core import ActuatorCore
from tests.helpers.processes import Program, cli


def drilled(tmp_path: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    file = tmp_path / "drill" / "drill.json"
    done = cli("drill", "--set", f"drill.out={file.parent}", *arguments, timeout=250.0)
    assert file.is_file(), done.stdout + done.stderr
    result = json.loads(file.read_text())
    clean = result["attributed"] == result["injected"] and not result["unknown"] + result["invariants_violated"]
    assert done.returncode == (0 if clean else 3), done.stdout + done.stderr
    return result, done.stdout


@pytest.mark.realtime
@pytest.mark.slow
def test_drill_attributes_injected_faults(tmp_path: Path) -> None:
    result, shown = drilled(tmp_path, "--seed", "3", "--set", 'drill.only=["stop_decoder", "stop_loop", "hang"]')
    assert result["injected"] == result["attributed"] == 9 and result["seed"] == 3, shown
    assert not (result["unknown"] or result["uninjected"] or result["invariants_violated"]), shown


@pytest.mark.realtime
@pytest.mark.slow
def test_standby_takes_over_within_half_a_second(tmp_path: Path) -> None:
    result, shown = drilled(tmp_path, "--set", "drill.standby=true", "--set", "drill.only=kill_decoder")
    assert result["attributed"] == result["injected"] == 3, shown
    assert max(fault["recovered_s"] for fault in result["faults"]) < 0.5, shown


@pytest.mark.realtime
def test_interrupted_drill_judges_its_injected_faults(tmp_path: Path) -> None:
    out = tmp_path / "drill"
    arguments = ["-m", "rtcontrol", "drill", "--set", 'drill.only=["hang", "stop_loop"]', "--set", "drill.model=expert"]
    program = Program([*arguments, "--set", "drill.rounds=50", "--set", f"drill.out={out}"], tmp_path / "log")
    try:
        program.says("hang: the world's step hangs")
        program.says("stop_loop: ", 30.0)
        assert program.end(signal.SIGINT) == 130, program.log()
    finally:
        program.kill()
    result = json.loads((out / "drill.json").read_text())
    assert result["injected"] >= 2 and result["invariants_violated"] == 0, program.log()
    assert report_in(out)["ended_by"] == "SIGTERM"
    # Nothing that it started is left.
    left = subprocess.run(["pgrep", "-f", str(out)], capture_output=True, text=True, check=False).stdout
    assert left == ""


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--set", 'drill.only=["hang", "earthquake"]'], "earthquake: there is no such fault"),
        (["--simulate", "--set", "drill.env=paddle"], "--simulate cannot be used with drill.env"),
        (["--set", "drill.seeds=[0, 9]"], "Add --simulate."),
    ],
)
def test_wrong_option_is_refused(
    arguments: list[str],
    error: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert error in refused(capsys, "drill", *arguments)
    assert not list(tmp_path.rglob("*.*"))


def test_simulated_drill_prints_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("drill", "--simulate", "--set", "drill.seeds=[0, 3]", "--set", 'drill.only=["frozen", "hang"]') == 0
    shown = capsys.readouterr().out
    assert "rules violated by 0 seeds" in shown
    assert re.search(r"^frozen +[1-9]", shown, re.MULTILINE) and not re.search(r"^gc +[1-9]", shown, re.MULTILINE)


def test_failing_seed_prints_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ActuatorCore, "block", lambda core, why, now_ns: None)  # a pause shuts nothing
    assert call("drill", "--simulate", "--set", "drill.only=pause", "--set", "drill.ticks=100") == 3
    failed, command = re.findall(
        r"^(seed .*)\n  rtcontrol (drill --simulate --seed .*)$", capsys.readouterr().out, re.M
    )[0]
    assert command.endswith("--set drill.trace=true")
    assert call(*command.split()) == 3
    shown = capsys.readouterr().out
    assert failed in shown and "'kind': 'call'" in shown
