"""`rtcontrol bench load` and `wire` count and time what real servers on loopback give."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import call


def test_clients_of_a_server_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "load.json"
    assert call("bench", "load", "--clients", "2", "--hz", "10", "--seconds", "1", "--json", str(out)) == 0
    assert "2 at 10 Hz, noop, 1 s" in capsys.readouterr().out
    (case,) = json.loads(out.read_text())["cases"]
    assert case["expected"] == 20 and case["calls"] + case["missing"] >= 10
    assert case["way_ms"]["p50"] > 0 and len(case["raw_way_ms"]) == case["calls"] and case["http"] is None


@pytest.mark.slow
def test_every_transport_is_timed_beside_a_bare_echo(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "wire.json"
    assert call("bench", "wire", "--trips", "100", "--json", str(out)) == 0
    assert "above the echo" in " ".join(capsys.readouterr().out.split())
    document = json.loads(out.read_text())
    assert document["ms"]["echo"]["p50"] < document["ms"]["model_http"]["p50"]
    assert all(len(raw) >= 100 for raw in document["raw_ms"].values())
