"""`rtcontrol drill --simulate`: its table, and the command that replays a seed."""

from __future__ import annotations

import re

import pytest
from commands import call

from rtcontrol.loop.actuator_core import ActuatorCore


def test_simulated_drill_prints_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("drill", "--simulate", "--set", "drill.seeds=[0, 3]", "--set", 'drill.only=["frozen", "hang"]') == 0
    shown = capsys.readouterr().out
    assert "laws broken by 0 seeds" in shown
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
