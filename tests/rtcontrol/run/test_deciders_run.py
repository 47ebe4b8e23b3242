"""Who decides in a run: two deciders, plans, a policy server, an interpreter of what is typed."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import EXPERT, call, refused, spawn, wait_for_ticks

from rtcontrol.hosts.backup_core import BACKUP, FIRST, Handover
from rtcontrol.hosts.failover import BackupHost
from rtcontrol.hosts.host_core import HostMailbox
from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.hosts.standby import two_hosts
from rtcontrol.models.call import Call
from rtcontrol.run import assembly
from rtcontrol.telemetry.record_reader import read_record
from rtcontrol_client.wire.messages import Bye, CallMessage
from tests.helpers.processes import ROOT, Program, free_port, until
from tests.rtcontrol.evaluation.chat_server import ChatServer, chat_server, completion
from tests.rtcontrol.hosts.policy_standin import actions, policy
from tests.rtcontrol.hosts.pooled import naming, reply_of
from tests.rtcontrol.hosts.standin_endpoint import standin
from tests.rtcontrol.run.yard import agent_file, world_file
from tests.rtcontrol.serve.conftest import serving


@pytest.mark.integration
def test_a_run_with_a_backup_says_who_decided_and_its_answers_are_rows_to_train_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, lines = tmp_path / "out", tmp_path / "rows.jsonl"
    assert call(*EXPERT, "--backup", "noop", "--duration", "2", "--out", str(out)) == 0
    report = json.loads((out / "report.json").read_text())
    assert report["backup"] == "noop" and report["host_info"]["backup"]["model"] == "noop"
    assert report["decided_by"]["first"] >= 0.8 * report["ticks"] - 5
    assert sum(report["first_answers"].values()) >= report["decided_by"]["first"]
    assert "decided by the first one" in capsys.readouterr().out
    assert call("data", "from-recording", str(out), "--teacher", "--out", str(lines)) == 0
    made = [json.loads(line) for line in lines.read_text().splitlines()]
    assert len(made) == report["first_answers"]["in_time"] + report["first_answers"]["late"] >= 20
    assert {row["source"] for row in made} == {"teacher:expert"}
    expert = assembly.EXPERTS["lander"]
    asked = [DecisionRequest(0, 0, row["observation"], row["instruction"]) for row in made]
    assert [Call.from_dict(row["call"]) for row in made] == [expert(request) for request in asked]
    assert call("data", "from-recording", str(out), str(out), "--out", str(lines)) == 0
    assert len(lines.read_text().splitlines()) % 2 == 0, "several records, one after the other"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--backup", "paddle"), "trained on other tools"),
        (("--backup", "nowhere"), "nowhere"),
    ],
)
def test_terms_that_are_none_are_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    assert said in refused(capsys, *EXPERT, *options, "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_standby_of_two_local_models_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("run", "--env", "lander", "--backup", "lander", "--standby", "--no-live", "--out", str(tmp_path / "o"))
    assert "--standby is for one local model" in refused(capsys, *words)


@pytest.mark.serial
def test_two_local_models_decide_in_processes_of_their_own_and_either_may_be_lost() -> None:
    host = BackupHost(*two_hosts(naming("left"), naming("right")), Handover(0.5, 50_000_000, 1))
    assert isinstance(host.listener, HostMailbox)
    first, backup, told = host.inner[FIRST], host.inner[BACKUP], host.listener.waiting

    def decided(tick: int) -> str:
        host.submit(DecisionRequest(tick, 1, "x", "go", within_ns=2_000_000_000))
        reply = reply_of(host)
        assert reply.tick == tick
        return reply.by

    try:
        info = host.start()
        assert info["pid"] != info["backup"]["pid"]
        assert decided(0) == "first"
        os.kill(int(info["pid"]), signal.SIGKILL)
        until(lambda: not first.alive(), seconds=5.0, every=0.001)
        began = time.monotonic()
        assert [decided(tick) for tick in range(1, 5)] == ["backup"] * 4
        assert time.monotonic() - began < 2.0 and host.alive() and host.incarnation == 0
        assert {(event.decider, event.event) for event in host.events} == {("first", "lost")}
        until(first.alive, seconds=60.0)
        until(lambda: decided(5 + len(told)) == "first", seconds=30.0)
        os.kill(int(info["backup"]["pid"]), signal.SIGKILL)
        until(lambda: not backup.alive(), seconds=5.0, every=0.001)
        assert decided(1000) == "first" and host.alive()
        until(backup.alive, seconds=60.0)
        assert decided(1001) in ("first", "backup") and host.incarnation == 1
        assert ("backup", "restarted") in {(event.decider, event.event) for event in host.events}
    finally:
        host.close()


def test_a_session_whose_model_is_elsewhere_has_the_servers_backup_and_a_local_one_has_none(tmp_path: Path) -> None:
    with serving(tmp_path / "out", model="random", backup="expert") as made:
        peer = made.enter(pacing="client")
        assert [peer.ask().status for _ in range(5)] == ["fresh"] * 5
        peer.send(Bye(session=peer.token))
        path = made.out / "session-0001" / "report.json"
        until(lambda: path.exists() and path.read_text().endswith("}\n"), made.said)
        report = json.loads(path.read_text())
        assert report["backup"] == "expert" and sum(report["decided_by"].values()) == report["ticks"] == 5
        totals = made.admission.totals().counts
        assert totals["decided_by_first"] + totals["decided_by_backup"] == 5
        local = made.enter(model="lander", pacing="client")
        assert isinstance(local.ask(), CallMessage)
        local.send(Bye(session=local.token))
        path = made.out / "session-0002" / "report.json"
        until(lambda: path.exists() and path.read_text().endswith("}\n"), made.said)
        assert json.loads(path.read_text())["backup"] is None


FLY = ("run", "--env", "lander", "--host", "inprocess", "--no-live", "--hz", "16")
DECIDES = assembly.EXPERTS["lander"]


def expert(told: str, name: str, options: list[str]) -> str:
    """What the lander's expert does, as an answer to one question."""
    instruction, _, seen = (line.partition(": ")[2] for line in told.split("\n"))
    return str(DECIDES(DecisionRequest(0, 0, seen, instruction)).arguments[name.removeprefix("engines.")])


def far_away(n: int) -> tuple[float, Any]:
    """110 to 430 ms; one of twenty is lost."""
    chance = random.Random(n)
    return chance.uniform(0.11, 0.43), chance.choice([503, "drop"]) if chance.random() < 0.05 else None


@pytest.mark.realtime
def test_a_slow_endpoint_that_loses_answers_flies_with_a_backup_and_teaches_it(tmp_path: Path) -> None:
    out, lines = tmp_path / "out", tmp_path / "rows.jsonl"
    with standin(far_away, expert) as made:
        words = ("--model", f"decisions:{made.url}", "--backup", "expert", "--duration", "5", "--out", str(out))
        assert call(*FLY, *words) == 0
    report = json.loads((out / "report.json").read_text())
    assert report["decided_by"]["first"] <= 1 and report["decided_by"]["backup"] >= 0.9 * report["ticks"]
    answers = report["first_answers"]
    assert answers["late"] >= 30 and answers["in_time"] <= 1 and answers["lost"] == answers["unsure"] == 0
    events = [event for event in read_record(out / "record.mcap") if "first" in event]
    losses = Counter(event["loss"] for event in events if "loss" in event)
    assert losses.total() == answers["failed"] >= 1 and report["first_losses"] == dict(losses)
    assert set(losses) <= {"http", "connection"}
    assert report["answer_ms"]["p50"] >= 110
    assert call("data", "from-recording", str(out), "--teacher", "--out", str(lines)) == 0
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert len(rows) == answers["late"] + answers["in_time"]
    for row in rows:
        decided = DECIDES(DecisionRequest(0, 0, row["observation"], row["instruction"]))
        assert row["call"] == decided.to_dict(), "what it saw, not what was to be seen when it answered"


FLY_AT_ONCE = ("run", "--env", "lander", "--host", "inprocess", "--no-live", "--clock", "wall")


def flown(out: Path, model: str, *more: str) -> dict[str, Any]:
    assert call(*FLY_AT_ONCE, "--model", model, "--out", str(out), *more) == 0
    report: dict[str, Any] = json.loads((out / "report.json").read_text())
    return report


@pytest.mark.realtime
def test_losses_are_counted_by_their_causes(tmp_path: Path) -> None:
    faults = {7: 503, 11: "drop", 13: "garbage", 17: "refuse"}

    def plan(n: int) -> tuple[float, Any]:
        slow = n > 45 and n % 19 == 0
        return (1.0 if slow else 0.003), faults.get(n % 19) if n > 45 else None

    with standin(plan, expert) as made:
        report = flown(tmp_path / "out", f"decisions:{made.url}", "--hz", "5", "--duration", "8")
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


def test_mistakes_are_told_before_the_first_tick(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(model: str) -> str:
        assert call(*FLY_AT_ONCE, "--model", model, "--out", str(tmp_path / "out")) == 2
        said = capsys.readouterr().err
        assert "Traceback" not in said and not (tmp_path / "out" / "record.mcap").exists()
        return said

    with standin(lambda n: (0.0, 401)) as made:
        assert "HTTP 401" in refused(f"decisions:{made.url}") and len(made.bodies) <= 45
    assert "its URL is none" in refused("decisions:nowhere")
    said = refused(f"decisions:{made.url}")
    assert "None of" in said and "decisions came" in said


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


PADDLE = ("--env", "paddle", "--no-live")


def report_of(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "report.json").read_text())
    return found


def test_a_run_by_a_policy_has_a_record_and_a_report_that_say_who_decided(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with policy(lambda n, asked: actions(1.0, 2.0)) as made:
        model = f"openpi:{made.url}"
        line = ("run", *PADDLE, "--model", model, "--clock", "lockstep", "--duration", "2", "--out", str(out))
        assert call(*line) == 0
        asked = made.questions
    report = report_of(out)
    assert report["host_info"]["engine"] == "openpi" and report["host_info"]["actions"] == ["velocity"]
    assert report["calls"]["total"] == report["ticks"] and report["model"] == model
    rows = [event for event in read_record(out / "record.mcap") if "data" in event]
    flown = asked[-len(rows) :]
    fields = ("ball_x", "ball_y", "ball_vx", "ball_vy", "own_y", "other_y")
    assert [q["observation/state"].tolist() for q in flown] == [
        [float(np.float32(row["data"][name])) for name in fields] for row in rows
    ]


def test_a_run_does_not_begin_without_its_policy_or_with_one_that_does_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = f"openpi:ws://127.0.0.1:{free_port()}"
    told = refused(capsys, "run", *PADDLE, "--model", gone, "--out", str(tmp_path / "a"))
    assert "cannot be reached" in told.replace("\n", " ") and "docs/policies.md" in told
    with policy(lambda n, asked: {"actions": np.zeros((8, 7), np.float32)}) as made:
        told = refused(capsys, "run", *PADDLE, "--model", f"openpi:{made.url}", "--out", str(tmp_path / "b"))
    assert "does not fit the agent" in told and "(8, 7)" in told


def test_a_policy_that_goes_away_costs_ticks_and_the_run_goes_on_when_it_is_back(tmp_path: Path) -> None:
    example, port, out = ROOT / "examples" / "policy_server.py", free_port(), tmp_path / "out"
    line = ["-m", "rtcontrol", "run", *PADDLE, "--model", f"openpi:ws://127.0.0.1:{port}", "--hold-ms", "200"]
    first = Program([str(example), str(port)], tmp_path / "first.log")
    run = second = None
    kinds = lambda: [e for e in read_record(out / "record.mcap") if "kind" in e] if out.exists() else []  # noqa: E731
    try:
        first.says("a policy at")
        run = Program([*line, "--duration", "280", "--out", str(out)], tmp_path / "run.log")
        until(
            lambda: (out / "record.mcap").exists() and sum(e["kind"] == "call" for e in kinds()) >= 8,
            seconds=90,
            every=0.1,
        )
        first.kill()
        until(lambda: any(e.get("subcause") == "connection" for e in kinds()), seconds=90, every=0.1)
        lost = len(kinds())
        second = Program([str(example), str(port)], tmp_path / "second.log")
        until(lambda: sum(e["kind"] == "call" for e in kinds()[lost:]) >= 8, seconds=90, every=0.1)
        assert run.end() == 143
    finally:
        for program in filter(None, (first, second, run)):
            program.kill()
    events = list(read_record(out / "record.mcap"))
    assert any(e.get("why") == "miss" for e in events if "safe" in e), "the safe call acted meanwhile"
    assert report_of(out)["misses_by_subcause"].get("decide.connection", 0) >= 1


@pytest.mark.realtime
def test_a_local_backup_decides_while_the_policy_says_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    at_rest = lambda asked: asked["observation/state"][2] == 0  # noqa: E731 (as in the warm-up, and before each serve)
    with policy(lambda n, asked: actions(1.0) if at_rest(asked) else None) as made:
        given = ("--model", f"openpi:{made.url}", "--backup", "expert", "--host", "inprocess", "--duration", "4")
        assert call("run", *PADDLE, *given, "--out", str(out)) == 0
    decided = report_of(out)["decided_by"]
    assert decided["first"] >= 1 and decided["backup"] >= 10


ANSWERS = {
    "about seventy up please": completion(("hover", '{"y": 0.7}')),
    "go to the left": completion(("land_left", "{}")),
}
NONE = completion(("not_understood", "{}"))


@pytest.fixture
def chat() -> Iterator[ChatServer]:
    with chat_server(lambda body: ANSWERS.get(body["messages"][-1]["content"], NONE)) as server:
        yield server


def events(out: Path, key: str) -> list[dict[str, Any]]:
    return [event for event in read_record(out / "record.mcap") if key in event and "observation" not in event]


def test_typed_words_are_understood_and_told_in_record_and_report(chat: ChatServer, tmp_path: Path) -> None:
    out = tmp_path / "run"
    told = ("--interpreter", f"chat:{chat.url}#small", "--stdin", "--out", str(out))
    run = spawn(*EXPERT, *told, "--duration", "120", "--hz", "20")
    assert run.stdin is not None
    wait_for_ticks(out, 5)
    run.stdin.write("about seventy up please\n")
    run.stdin.flush()
    until(lambda: len(events(out, "understood")) == 2, seconds=30)
    run.stdin.write("make me a sandwich\n")
    run.stdin.flush()
    until(lambda: len(events(out, "understood")) == 3, seconds=30)
    run.stdin.write("/stop\n")
    run.stdin.flush()
    said, complaint = run.communicate(timeout=60)
    assert run.returncode == 0, complaint
    assert '"about seventy up please" is understood as: hover at 0.7 (chat:small, ' in complaint
    assert '"make me a sandwich" is not understood: it asks for none of the goals.' in complaint
    assert "understood 1 of 2 said, not understood 1 (none 1)" in said
    report = json.loads((out / "report.json").read_text())
    assert [one["understood"] for one in report["understood"]] == ["land on the pad", "hover at 0.7", None]
    assert report["interpreter"] == f"chat:{chat.url}#small"
    assert [event["instruction"] for event in events(out, "instruction")] == ["hover at 0.7"]
    assert report["skipped_releases"] == 0 or report["misses_by_cause"] == {}


def test_a_first_instruction_that_nobody_understands_is_a_mistake(
    chat: ChatServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = (*EXPERT, "--interpreter", f"chat:{chat.url}", "--out", str(tmp_path / "run"))
    assert call(*asked, "--instruct", "make me a sandwich") == 2
    said = capsys.readouterr().err.splitlines()[-1]  # a busy machine says before it that it waits
    assert '"make me a sandwich" is not understood' in said and "land on the left side of the pad" in said
    assert not (tmp_path / "run" / "record.mcap").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--interpreter", "noop"), "understands nothing"),
        (("--interpreter", "chat:nowhere"), "its URL is none"),
        (("--interpreter", "/nowhere/at/all"), "/nowhere/at/all"),
        (("--interpreter", "decisions:http://127.0.0.1:1/v1"), "understands nothing"),
    ],
)
def test_mistakes_are_told(options: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in refused(capsys, *EXPERT, *options)
