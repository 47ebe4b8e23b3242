"""An agent whose expert plans ahead and takes longer than a tick: by plans it is in time, by calls it never is."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from commands import call, refused

from rtcontrol.telemetry.record_reader import read_record
from rtcontrol_client.wire.messages import Bye, CallMessage
from tests.helpers.processes import until
from tests.rtcontrol.run.yard import agent_file, world_file
from tests.rtcontrol.serve.conftest import serving

SLOW = ("def expert(data, goal):\n", "def expert(data, goal):\n    import time\n    time.sleep(0.12)\n")
PLAN = (
    'return Call("drive", {"way": "north" if y > 0 else "south" if y < 0 else "stop"})',
    "first = 'north' if y > 0 else 'south' if y < 0 else 'stop'\n"
    '    return [Call("drive", {"way": first})] * 3 + [Call("drive", {"way": "stop"})]',
)
EAST = (
    'return Call("drive", {"way": "east" if x > 0 else "west"})',
    'return [Call("drive", {"way": "east" if x > 0 else "west"})] * 3 + [Call("drive", {"way": "stop"})]',
)


def fly(tmp_path: Path, agent: str, *more: str, out: str) -> dict[str, Any]:
    run = ("run", "--env", world_file(tmp_path), "--agent", agent, "--model", "expert", "--no-live", "--episodes", "40")
    timed = ("--hz", "16", "--duration", "5", "--max-age-ms", "400")
    assert call(*run, *timed, "--out", str(tmp_path / out), *more) == 0
    report: dict[str, Any] = json.loads((tmp_path / out / "report.json").read_text())
    return report


@pytest.mark.realtime
def test_slow_expert_that_plans_is_in_time_and_its_steps_are_in_report_and_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = fly(tmp_path, agent_file(tmp_path, SLOW), out="calls")
    assert slow["on_time"] <= 0.1 * slow["ticks"] and "plans" not in slow
    plans = fly(tmp_path, agent_file(tmp_path, SLOW, PLAN, EAST, name="ahead_agent.py"), out="plans")
    assert plans["on_time"] >= 0.6 * plans["ticks"], plans["misses_by_subcause"]
    told = plans["plans"]
    assert told["in_force"] > 15 and told["ticks"] >= 0.6 * plans["ticks"] and told["steps"]["max"] in (2, 3)
    assert "plans: " in "".join(capsys.readouterr())
    events = list(read_record(tmp_path / "plans" / "record.mcap"))
    steps = [e for e in events if "step" in e and "kind" in e]
    assert steps and all(0 <= e["step"] < e["steps"] == 4 for e in steps)
    # Each tick names the one that its plan was made for, of whose observation it is no older than may be.
    assert all(e["answers"] < e["k"] for e in steps if "answers" in e) and any("answers" in e for e in steps)
    assert all(e["age_ms"] <= 400 + 62.5 + 20 for e in steps if "age_ms" in e)
    assert {e["outcome"] for e in events if "plan" in e} <= {"in_force", "over"}
    quick = agent_file(tmp_path, PLAN, EAST, name="quick_agent.py")
    assert call("replay", str(tmp_path / "plans"), "--agent", quick, "--model", "expert") == 0


@pytest.mark.parametrize("gave", ["[]", "[Call('drive', {'way': 'stop'}), 'drive']", "[Call('drive', {'way': 'up'})]"])
def test_plan_with_anything_in_it_that_is_no_legal_call_is_no_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], gave: str
) -> None:
    agent = agent_file(tmp_path, ("x, y = data", f"return {gave}\n    x, y = data"))
    run = ("run", "--env", world_file(tmp_path), "--agent", agent, "--model", "expert", "--no-live")
    assert "yard_agent.py:15" in refused(capsys, *run, "--out", str(tmp_path / "out"))


@pytest.mark.realtime
def test_client_of_the_wire_is_told_a_step_with_a_time_to_live_of_its_own(tmp_path: Path) -> None:
    agent = agent_file(tmp_path, SLOW, PLAN, EAST, name="served_agent.py")
    data = {"red box": [0, 5], "blue box": [1, 5], "barrel": [2, 5]}
    with serving(tmp_path / "out", agent=agent, model="expert") as made:
        peer = made.enter(agent="served_agent", instruction="visit red box", hz=16, ttl_ms=200, max_age_ms=400)
        seen: dict[int, list[float]] = {}
        for _ in range(60):
            peer.observe(data=data)
            said = peer.expect(CallMessage)
            if said.status == "fresh":
                seen.setdefault(said.seq_obs or 0, []).append(said.ttl_ms)
        peer.send(Bye(session=peer.token))
        path = made.out / "session-0001" / "report.json"
        until(lambda: path.exists() and path.read_text().endswith("}\n"), str(made.said))
    # Steps of one plan answer one observation: a later one is meant for a period later, and lives as much longer.
    apart = [b - a for lives in seen.values() for a, b in pairwise(lives)]
    assert any(apart) and all(ms in (0, 62.5, 125) for ms in apart), seen
    assert all(200 <= ttl_ms <= 200 + 3 * 62.5 for lives in seen.values() for ttl_ms in lives)
    assert json.loads(path.read_text())["plans"]["in_force"] > 5
