"""`rtcontrol bench load` and `wire` count what clients receive."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import call

from rtcontrol.bench.load import LoadClient
from rtcontrol.bench.wire import Servers, free_port
from rtcontrol.models.errors import UserError
from rtcontrol_client.wire.messages import CallMessage

pytestmark = pytest.mark.integration


def test_clients_of_a_server_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "load.json"
    assert call("bench", "load", "--clients", "2", "--hz", "10", "--seconds", "1", "--json", str(out)) == 0
    assert "2 at 10 Hz, noop, 1 s" in capsys.readouterr().out
    (case,) = json.loads(out.read_text())["cases"]
    assert case["expected"] == 20 and case["calls"] + case["missing"] >= 10
    assert case["way_ms"]["p50"] > 0


def test_ticks_without_a_call_are_missing() -> None:
    client = LoadClient(f"tcp://127.0.0.1:{free_port()}", 10.0)  # no server is there
    assert client.missing() == 0
    for k in (4, 5, 7):
        stamps = {"deadline_ns": 0, "t_server_ns": 0}
        client._take(CallMessage(session="x" * 20, tick=k, epoch=0, status="held", ttl_ms=0, **stamps))
    assert client.missing() == 1
    client.socket.close(0)


def test_a_server_that_ends_is_named() -> None:
    with Servers() as servers, pytest.raises(UserError, match=r"ended: .*no such model"):
        servers.start("-c", "raise SystemExit('no such model')")
        servers.wait_for(free_port())


@pytest.mark.slow
def test_every_transport_is_timed_next_to_a_bare_echo(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "wire.json"
    assert call("bench", "wire", "--trips", "100", "--json", str(out)) == 0
    assert "above the echo" in capsys.readouterr().out
    document = json.loads(out.read_text())
    ways = {"echo", "null_zmq", "null_ws", "model_zmq", "model_ws"}
    assert set(document["ms"]) == ways and document["trips"] == 100
