"""The lander flown by decision APIs: by a stand-in that knows its expert, with latency and losses, and by our own."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from commands import call

from rtcontrol.gateway import Gateway, GatewayOptions
from rtcontrol.hosts.inprocess import InProcessPool
from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.loop.evidence import PauseWatch
from rtcontrol.models.checkpoint.checkpoint import ZOO
from rtcontrol.run import assembly
from rtcontrol.serve.options import ServeOptions
from rtcontrol.serve.session_manager import SessionManager
from rtcontrol.telemetry.record_reader import read_record

sys.path.insert(0, str(Path(__file__).parents[1] / "hosts"))

from standin_endpoint import standin

FLY = ("run", "--env", "lander", "--host", "inprocess", "--no-live", "--clock", "wall")


def expert(told: str, name: str, options: list[str]) -> str:
    """What the lander's expert does, as an answer to one question."""
    instruction, _, seen = (line.partition(": ")[2] for line in told.split("\n"))
    made = assembly.EXPERTS["lander"](DecisionRequest(0, 0, seen, instruction))
    return str(made.arguments[name.removeprefix("engines.")])


def flown(out: Path, model: str, *more: str) -> dict[str, Any]:
    assert call(*FLY, "--model", model, "--out", str(out), *more) == 0
    report: dict[str, Any] = json.loads((out / "report.json").read_text())
    return report


@pytest.mark.realtime
@pytest.mark.parametrize("api", ["decisions", "systemone"])
def test_losses_are_counted_by_their_causes(tmp_path: Path, api: str) -> None:
    faults = {7: 503, 11: "drop", 13: "garbage", 17: "refuse"}

    def plan(n: int) -> tuple[float, Any]:
        slow = n > 45 and n % 19 == 0
        return (1.0 if slow else 0.003), faults.get(n % 19) if n > 45 else None

    with standin(plan, expert) as made:
        report = flown(tmp_path / "out", f"{api}:{made.url}", "--hz", "10", "--duration", "6")
    asked = len(made.bodies)
    assert asked > 70
    events = [e for e in read_record(tmp_path / "out" / "record.mcap") if e.get("kind") == "miss"]
    told = Counter(e["subcause"] for e in events if e["cause"] == "decide")
    # The last one of all may have been under way at the end.
    sent = Counter(faults[n % 19] for n in range(46, asked - 1) if n % 19 in faults)
    assert (told["http"], told["connection"], told["malformed"], told["refused"]) == (
        sent[503],
        sent["drop"],
        sent["garbage"],
        sent["refuse"],
    )
    assert told["timeout"] >= 1 and report["misses_by_subcause"]["decide.timeout"] == told["timeout"]
    assert report["decide_ms"]["p50"] >= 3, "real latencies"
    assert any("HTTP 503: status 503" in e.get("error", "") for e in events)


def test_an_endpoint_that_decides_as_the_expert_lands(tmp_path: Path) -> None:
    with standin(lambda n: (0.002, None), expert) as made:
        report = flown(
            tmp_path / "out", f"decisions:{made.url}", "--hz", "16", "--episodes", "1", "--clock", "lockstep"
        )
        assert report["outcome"]["episodes"][0]["success"]
        assert made.connections == 1


def test_our_own_endpoint_flies(tmp_path: Path) -> None:
    pool = InProcessPool()
    pool.start()
    with PauseWatch(10_000_000) as watch:
        admission = SessionManager(ServeOptions(out=tmp_path / "serve", model="noop", host="inprocess"), pool, watch)
        gateway = Gateway(admission, pool, GatewayOptions(port=0, model=str(ZOO / "lander")))
        gateway.start()
        try:
            for api in ("decisions", "systemone"):
                out = tmp_path / api
                report = flown(out, f"{api}:{gateway.url}v1", "--hz", "5", "--duration", "1", "--clock", "lockstep")
                assert report["ticks"] >= 4 and report["misses_by_cause"].get("invalid", 0) == 0
                assert not [k for k in report["misses_by_subcause"] if k.split(".")[1] in ("malformed", "refused")]
        finally:
            gateway.close()
            admission.close()
            pool.close()


def test_mistakes_are_told_before_the_first_tick(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(model: str) -> str:
        assert call(*FLY, "--model", model, "--out", str(tmp_path / "out")) == 2
        said = capsys.readouterr().err
        assert "Traceback" not in said and not (tmp_path / "out" / "record.mcap").exists()
        return said

    with standin(lambda n: (0.0, 401)) as made:
        assert "HTTP 401" in refused(f"decisions:{made.url}") and len(made.bodies) <= 45
    assert "its URL is none" in refused("decisions:nowhere")
    said = refused(f"decisions:{made.url}")
    assert "None of" in said and "decisions came" in said
