"""A checkpoint's gate, with a model that is really unsure: in a run, in a server's session, over the wire."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from commands import call

from rtcontrol.agents.road import tools as road
from rtcontrol.envs.road.world import Road
from rtcontrol.loop.instructions import TRIALS
from rtcontrol.models.checkpoint.checkpoint import ZOO
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.run import assembly
from rtcontrol.run.model_compatibility import shown
from rtcontrol_client.wire.messages import CallMessage, ErrorMessage, Instruct
from tests.rtcontrol.serve.conftest import serving

GATE = 0.95
RUN = ("run", "--env", "road", "--clock", "lockstep", "--host", "inprocess", "--no-live", "--duration", "1")


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """The bundled driver, whose checkpoint has a gate."""
    made = Path(shutil.copytree(ZOO / "driver", tmp_path / "driver"))
    learnt = TrainingMetadata.of(made)
    assert learnt is not None
    replace(learnt, gate=GATE, allow_null=False).write(made)
    return made


def fly(driver: Path, told: str, *more: str) -> dict[str, int]:
    out = driver.parent / "run"
    assert call(*RUN, "--model", str(driver), "--instruct", told, "--out", str(out), "--overwrite", *more) == 0
    report: dict[str, int] = json.loads((out / "report.json").read_text())
    return report


def test_a_run_is_gated_as_its_checkpoint_says_and_tells_what_is_not_understood(
    driver: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = fly(driver, "make tea")
    said = capsys.readouterr()
    assert (said.out + said.err).count('"make tea" is not understood') == 1
    assert report["held"] > 0.5 * report["ticks"]
    report = fly(driver, "drive at 60")
    said = capsys.readouterr()
    assert "not understood" not in said.out + said.err and report["held"] < 0.1 * report["ticks"]
    assert fly(driver, "make tea", "--min-confidence", "0")["held"] == 0  # what is asked for wins


def test_a_sentence_with_words_that_it_was_never_taught_is_held_however_sure_it_is_and_they_are_named(
    driver: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learnt = TrainingMetadata.of(driver)
    assert learnt is not None and learnt.words is not None
    replace(learnt, gate=0.5, allow_null=False, unknown_words=0).write(driver)
    report = fly(driver, "drive at 60 zqorgle")  # as sure of it as of what it was taught
    said = capsys.readouterr()
    assert report["held"] == report["ticks"]
    assert '"zqorgle" is a word that it was never taught; its calls are unsure, and held back.' in said.out + said.err
    replace(learnt, gate=0.5, allow_null=False, unknown_words=2).write(driver)
    assert fly(driver, "drive at 60 zqorgle")["held"] < 0.1 * report["ticks"]


def test_instruction_not_understood_leaves_the_one_before_active_for_a_client(driver: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "out", model=str(driver)) as made:
        peer = made.enter(agent="driver", instruction="drive at 60", pacing="client")
        seen, errors, held = road.observe(Road(1).observe()), list[ErrorMessage](), list[int]()
        for tick in range(60):
            if tick == 10:
                peer.send(Instruct(session=peer.welcome.session, instruction="make tea"))  # type: ignore[union-attr]
            peer.observe(seen)
            if peer.expect(CallMessage).status == "held":
                held.append(tick)
            errors += [one for one in peer.inbox if isinstance(one, ErrorMessage)]
            peer.inbox.clear()
        assert [(one.code, one.field, one.fatal) for one in errors] == [("instruction", "instruction", False)]
        assert '"make tea" is not understood, continuing with "drive at 60". You can say: ' in errors[0].message
        assert 1 <= len(held) <= TRIALS and held[0] >= 10, held
        assert sum("make tea" in line and "not understood" in line for line in made.said) == 1


def test_a_null_function_that_was_learnt_beside_a_gate_says_that_it_does_not_understand(driver: Path) -> None:
    learnt, agent = TrainingMetadata.of(driver), assembly.agent("driver")
    assert learnt is not None and not shown(agent, str(driver)).allow_null
    replace(learnt, allow_null=True).write(driver)
    asked = shown(agent, str(driver))
    assert asked.allow_null and asked.null_is_doubt
    assert not shown(assembly.agent("lander"), str(driver)).allow_null  # of other tools it learnt nothing
    own = shown(replace(agent, allow_null=True), str(driver))
    assert own.allow_null and not own.null_is_doubt


def test_a_model_that_flies_at_another_rate_than_it_was_trained_at_is_told(
    driver: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fly(driver, "drive at 30")
    assert "was trained at" not in "".join(capsys.readouterr())
    fly(driver, "drive at 30", "--hz", "8")
    assert "The model driver was trained at 16 Hz, and decides at 8 here" in "".join(capsys.readouterr())
