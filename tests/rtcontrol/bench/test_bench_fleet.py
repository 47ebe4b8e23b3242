"""`rtcontrol bench fleet`: both ways are measured, by as many sessions, and the ratio is of what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers.processes import cli

pytestmark = pytest.mark.serial


def test_two_decoders_are_measured_beside_one_in_turns(tmp_path: Path) -> None:
    out = tmp_path / "fleet.json"
    given = ("--sessions", "2", "--seconds", "0.5", "--rounds", "3", "--model", "lander", "--json", str(out))
    done = cli("bench", "fleet", *given)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert set(found["decisions_per_s"]) == {"one", "two"}
    for way, rates in found["decisions_per_s"].items():
        assert len(rates) == len(found["processor_ms"][way]) == 3 and min(rates) > 0
        assert found["median"][way] == sorted(rates)[1]
    assert found["ratio"] == pytest.approx(found["median"]["two"] / found["median"]["one"], abs=1e-3)
    assert cli("bench", "fleet", "--sessions", "1").returncode == 2
