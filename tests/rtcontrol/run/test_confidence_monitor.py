"""Tests of a checkpoint's confidence gate in a run, with a model that is really unsure."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from commands import call

from rtcontrol.models.checkpoint.checkpoint import ZOO
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.run import assembly
from rtcontrol.run.model_compatibility import shown

GATE = 0.95
RUN = ("run", "--env", "road", "--clock", "lockstep", "--host", "inprocess", "--no-live", "--duration", "1")


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """Return a copy of the bundled driver whose checkpoint has a gate."""
    made = Path(shutil.copytree(ZOO / "driver", tmp_path / "driver"))
    learnt = TrainingMetadata.of(made)
    assert learnt is not None
    replace(learnt, gate=GATE, allow_null=False).write(made)
    return made


def fly(driver: Path, told: str, *more: str) -> dict[str, int]:
    out = driver.parent / "run"
    assert (
        call(
            *RUN, "--model", str(driver), "--instruct", told, "--out", str(out), "--set", "record.overwrite=true", *more
        )
        == 0
    )
    report: dict[str, int] = json.loads((out / "report.json").read_text())
    return report


def test_run_uses_the_gate_of_its_checkpoint(driver: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = fly(driver, "make tea", "--hz", "2", "--duration", "8")  # slow enough for any machine
    said = capsys.readouterr()
    assert (said.out + said.err).count('"make tea" is not understood') == 1
    assert report["held"] > 0.5 * report["ticks"]
    report = fly(driver, "drive at 60", "--hz", "8")
    said = "".join(capsys.readouterr())
    assert "not understood" not in said and report["held"] < 0.1 * report["ticks"]
    assert "The model driver was trained at 16 Hz, but this run has 8 Hz" in said
    assert fly(driver, "make tea", "--set", "loop.min_confidence=0")["held"] == 0  # the option overrides the checkpoint


def test_null_of_a_gated_checkpoint_means_not_understood(driver: Path) -> None:
    learnt, agent = TrainingMetadata.of(driver), assembly.agent("driver")
    assert learnt is not None and not shown(agent, str(driver)).allow_null
    replace(learnt, allow_null=True).write(driver)
    asked = shown(agent, str(driver))
    assert asked.allow_null and asked.null_is_doubt
    assert not shown(assembly.agent("lander"), str(driver)).allow_null  # null has no meaning for other tools
    own = shown(replace(agent, allow_null=True), str(driver))
    assert own.allow_null and not own.null_is_doubt
