"""`rtcontrol bench record` measures both ways at both rates, and what it says of an hour is of ticks alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import call, refused


def test_the_cost_of_recording_is_measured_beside_the_same_loop_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, options = tmp_path / "cost.json", ("--seconds", "0.5", "--rounds", "1", "--model", "expert")
    assert call("bench", "record", *options, "--host", "inprocess", "--json", str(out)) == 0
    assert "MB an hour" in capsys.readouterr().out
    slow, fast = json.loads(out.read_text())["rates"]
    for one in (slow, fast):
        assert one["ticks"] >= 4 and one["lost"] == 0 and one["write_ms"]["p50"] > 0
        assert set(one["latency_ms"]) == {"without", "with"}
        assert all(ms["p50"] is not None for ms in one["latency_ms"].values())
    # Schemas and header, a few kilobytes, are written once an hour and not once a second.
    assert 1e6 < slow["bytes_an_hour"] < 60e6


def test_a_model_for_other_tools_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "trained on other tools" in refused(capsys, "bench", "record", "--model", "paddle")
