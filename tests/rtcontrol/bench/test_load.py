"""`rtcontrol bench load` and `wire` count what clients receive."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import call

pytestmark = pytest.mark.integration
CLIENTS = ("--set", "bench.clients=2", "--set", "bench.hz=10", "--set", "bench.seconds=1")


def test_clients_of_a_server_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "load.json"
    assert call("bench", "load", *CLIENTS, "--json", str(out)) == 0
    assert "2 at 10 Hz, noop, 1 s" in capsys.readouterr().out
    (case,) = json.loads(out.read_text())["cases"]
    assert case["expected"] == 20 and case["calls"] + case["missing"] >= 10
    assert case["way_ms"]["p50"] > 0


@pytest.mark.slow
def test_every_transport_is_timed_next_to_a_bare_echo(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "wire.json"
    assert call("bench", "wire", "--set", "bench.trips=100", "--json", str(out)) == 0
    assert "above the echo" in capsys.readouterr().out
    document = json.loads(out.read_text())
    ways = {"echo", "null_zmq", "null_ws", "model_zmq", "model_ws"}
    assert set(document["ms"]) == ways and document["trips"] == 100
