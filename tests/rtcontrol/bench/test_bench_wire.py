"""`rtcontrol bench load` and `wire` count and time what real servers on loopback give."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from commands import call

from rtcontrol.bench.load import LoadClient
from rtcontrol.bench.wire import NAMED, OVER_DECIDE, QUESTIONS, STATED, free_port
from rtcontrol.bridges.wire.messages import CallMessage, ErrorMessage
from rtcontrol.gateway.decisions import DecisionsRequest
from rtcontrol.gateway.systemone import SystemOneRequest
from rtcontrol.models.errors import UserError


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


def test_what_a_server_refuses_is_told_in_its_words() -> None:
    client = LoadClient(f"tcp://127.0.0.1:{free_port()}", 10.0)  # nobody is there
    with pytest.raises(UserError) as refused:
        client._take(ErrorMessage(code="busy", message="No room for 16 Hz.", remedy="Ask for less.", fatal=True))
    assert str(refused.value) == "The server refused a client: No room for 16 Hz. Ask for less."
    client.socket.close(0)


def test_ticks_of_a_server_that_falls_silent_are_missing() -> None:
    client = LoadClient(f"tcp://127.0.0.1:{free_port()}", 10.0)  # nobody is there

    def come(*ticks: int) -> float:
        for k in ticks:
            stamps = {"deadline_ns": 0, "t_server_ns": 0}
            client._take(CallMessage(session="x" * 20, tick=k, epoch=0, status="held", ttl_ms=0, **stamps))
        return time.monotonic()

    come(0, 1, 2)
    client.forget()
    assert client.missing(time.monotonic() + 3.05) == 29  # none came
    now = come(4, 5, 7)
    assert client.missing(now + 0.1) == 2  # 3 and 6
    assert client.missing(now + 2.05) == 2 + 19
    client.socket.close(0)


def test_both_decision_apis_ask_what_decide_is_asked() -> None:
    for asked in (
        DecisionsRequest(model="", input="", questions=QUESTIONS).typed_questions(),
        SystemOneRequest(state="", questions=NAMED).typed_questions(),
    ):
        assert tuple(one.question() for one in asked) == STATED


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
    assert set(document["raw_over_decide_ms"]) == set(OVER_DECIDE)
    for name, over in document["raw_over_decide_ms"].items():
        assert all(0 < rest < trip for rest, trip in zip(over, document["raw_ms"][name], strict=True))
