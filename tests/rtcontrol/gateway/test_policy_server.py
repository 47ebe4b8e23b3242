"""`rtcontrol serve --openpi`: clients of policy servers are answered by the deadline, and told what is safe."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from rtcontrol.hosts.array_message import pack_message, unpack_message
from rtcontrol.hosts.policy_api import PolicySource
from rtcontrol.hosts.protocol import DecisionLost, DecisionRequest
from rtcontrol.telemetry.record_reader import read_record
from tests.helpers.processes import Program, free_port, until
from tests.rtcontrol.commands import refused
from tests.rtcontrol.hosts.policy_standin import actions, policy

TOKEN = "a-token-of-the-tests-0123456789"
STATE = np.array([50, 30, 45, 0, 20, 30], np.float32)
FOREIGN = Path(__file__).with_name("policy_client.py")


class PolicyServed:
    """A server's address, and where its sessions are recorded."""

    def __init__(self, port: int, out: Path, program: Program) -> None:
        self.port, self.out, self.program = port, out, program
        self.url = f"ws://127.0.0.1:{port}"

    def report(self, number: int) -> dict[str, Any]:
        path = self.out / f"openpi-{number:04d}" / "report.json"
        until(path.exists, f"no report of session {number}")
        found: dict[str, Any] = json.loads(path.read_text())
        return found


@contextmanager
def served(tmp_path: Path, *given: str, model: str = "expert", agent: str = "paddle") -> Iterator[PolicyServed]:
    port, out = free_port(), tmp_path / "served"
    line = ["-m", "rtcontrol", "serve", "--agent", agent, "--model", model, "--host", "inprocess"]
    line += ["--bind", "tcp://127.0.0.1:*", "--openpi", f"127.0.0.1:{port}", "--out", str(out), *given]
    program = Program(line, tmp_path / "served.log")
    try:
        program.says("for clients of policy servers")
        yield PolicyServed(port, out, program)
        program.end()
    finally:
        program.kill()


def joined(url: str, **more: Any) -> tuple[ClientConnection, dict[str, Any]]:
    connection = connect(url, compression=None, max_size=None, **more)
    return connection, unpack_message(connection.recv(60))  # type: ignore[arg-type]


def infer(connection: ClientConnection, state: Any = STATE, prompt: Any = "return every ball") -> dict[str, Any]:
    connection.send(pack_message({"observation/state": state, "prompt": prompt}))
    said = connection.recv(60)
    assert isinstance(said, bytes), said
    return dict(unpack_message(said))


def told(connection: ClientConnection, message: bytes | str) -> str:
    """What is said of a wrong question, before the connection is closed."""
    connection.send(message)
    said = connection.recv(60)
    assert isinstance(said, str)
    with pytest.raises(ConnectionClosed) as closed:
        connection.recv(60)
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1011
    return said


@pytest.fixture(scope="module")
def expert(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PolicyServed]:
    with served(tmp_path_factory.mktemp("expert"), "--hz", "4") as made:
        yield made


def test_a_question_is_answered_by_the_agents_call_as_an_action_with_what_stands_behind_it(
    expert: PolicyServed,
) -> None:
    connection, metadata = joined(expert.url)
    with connection:
        assert metadata["agent"] == "paddle" and metadata["action_names"] == ["velocity"]
        assert metadata["safe_action"] == [0.0] and metadata["deadline_ms"] == 250.0
        assert metadata["observation"] == {
            "observation/state": ["ball_x", "ball_y", "ball_vx", "ball_vy", "own_y", "other_y"]
        }
        answer = infer(connection)
        assert answer["status"] == "fresh" and answer["actions"].shape == (1, 1)
        assert answer["call"] == {"name": "move", "arguments": {"velocity": round(float(answer["actions"][0, 0]))}}
        assert answer["confidence"] == 1.0 and answer["ttl_ms"] >= 500 and answer["server_timing"]["infer_ms"] >= 0


def test_each_connection_is_a_session_with_a_record_and_a_report(expert: PolicyServed) -> None:
    connection, metadata = joined(expert.url)
    with connection:
        for own_y in range(10, 30):
            infer(connection, np.array([50, 30, 45, 0, own_y, 30], np.float32))
    number = int(metadata["session"].removeprefix("openpi-"))
    report = expert.report(number)
    assert report["releases"] == 20 and report["wire"]["observations"] == 20
    rows = [event for event in read_record(expert.out / metadata["session"] / "record.mcap") if "data" in event]
    assert [row["data"]["own_y"] for row in rows] == list(range(10, 30))


def test_a_prompt_is_an_instruction_from_its_own_question_on(expert: PolicyServed) -> None:
    connection, metadata = joined(expert.url)
    with connection:
        infer(connection)
        infer(connection, prompt="stay in the middle")
        infer(connection, prompt="stay in the middle")
    expert.report(int(metadata["session"].removeprefix("openpi-")))
    rows = [event for event in read_record(expert.out / metadata["session"] / "record.mcap") if "data" in event]
    assert [row["instruction"] for row in rows] == ["return every ball", "stay in the middle", "stay in the middle"]


WRONG = {
    "three numbers": (pack_message({"observation/state": STATE[:3]}), "it must be 6 numbers"),
    "no state": (pack_message({"state": STATE}), "no 'observation/state'"),
    "not finite": (pack_message({"observation/state": STATE * np.float32("nan")}), "not finite"),
    "a prompt that is none": (pack_message({"observation/state": STATE, "prompt": 3}), "no text"),
    "a ragged list": (pack_message({"observation/state": [[1], [1, 2]]}), "is no array"),
    "text": ("{}", "binary message"),
    "no map": (pack_message([STATE]), "is none"),
    "garbage": (b"\xc1\xff", "no msgpack"),
    "millions of lists": (b"\xdc\x03\xe8" + (b"\xdc\x40\x00" + b"\x90" * (1 << 14)) * 1000, "more than 4096 items"),
}


@pytest.mark.parametrize(("message", "what"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_question_is_told_as_text_and_ends_its_own_connection(
    expert: PolicyServed, message: bytes | str, what: str
) -> None:
    other, _ = joined(expert.url)
    with other:
        connection, _ = joined(expert.url)
        assert what in told(connection, message)
        assert infer(other)["status"] == "fresh"


# Psi0#95, tinynav#238: a robot's client goes on with its last action when nothing is decided; here it is told so.
def test_what_is_not_decided_in_time_is_the_safe_action_by_the_deadline(tmp_path: Path) -> None:
    def second_is_lost(n: int, asked: dict[str, Any]) -> Any:
        return None if n == 2 else actions(2.0)

    with policy(second_is_lost) as made, served(tmp_path, "--hz", "2", model=f"openpi:{made.url}") as at:
        connection, _ = joined(at.url)
        with connection:
            found = [infer(connection) for _ in range(3)]
        report = at.report(1)
    assert [one["status"] for one in found[:2]] == ["fresh", "safe"]
    assert found[0]["actions"].tolist() == [[2.0]] and found[1]["actions"].tolist() == [[0.0]]
    assert found[1]["call"] == {"name": "move", "arguments": {"velocity": 0}} and found[1]["confidence"] is None
    assert found[1]["cause"] and found[1]["server_timing"]["answer_ms"] < 60_000
    assert report["misses"] >= 1 and report["wire"]["calls"]["safe"] >= 1


def test_a_model_that_leaves_the_call_in_force_is_told_as_held(tmp_path: Path) -> None:
    with served(tmp_path, "--hz", "4", model="noop") as at:
        connection, _ = joined(at.url)
        with connection:
            assert infer(connection)["status"] == "safe", "nothing is in force that could go on"


def test_one_rtcontrol_flies_another_and_takes_a_safe_answer_for_a_miss(tmp_path: Path) -> None:
    def silent_at_last(n: int, asked: dict[str, Any]) -> Any:
        return None if asked["observation/state"][0] == 99 else actions(1.0)

    with policy(silent_at_last) as made, served(tmp_path, "--hz", "4", model=f"openpi:{made.url}") as at:
        move = {"name": "move", "parameters": {"properties": {"velocity": {"enum": [-1, 0, 1]}}}}
        decider = PolicySource.parse(f"openpi:{at.url}", [move], 62_500_000).build()
        made_calls: list[Any] = []

        def asked(ball_x: float) -> str:
            """Why nothing was decided; "" where something was."""
            data = {**dict(zip("abcdef", map(float, STATE), strict=True)), "a": ball_x}
            try:
                made_calls.append(decider.decide(DecisionRequest(1, 1, "", "return every ball", data=data)).call)
            except DecisionLost as lost:
                assert lost.loss == "refused", "a server that has nothing says so, and goes on"
                return str(lost)
            return ""

        until(lambda: not asked(50.0), every=0.05)
        assert made_calls[-1].arguments == {"velocity": 1}
        assert "'safe'" in asked(99.0)


def test_health_is_told_to_everybody_and_nothing_else(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    with served(tmp_path, "--token-file", str(token), "--require-token") as at:
        assert httpx.get(f"http://127.0.0.1:{at.port}/healthz").text == "OK\n"
        for headers in ({}, {"Authorization": "Api-Key not-the-token-0123456789"}):
            with pytest.raises(InvalidStatus) as kept_out:
                connect(at.url, additional_headers=headers)
            assert kept_out.value.response.status_code == 401
        for scheme in ("Api-Key", "Bearer"):
            connection, _ = joined(at.url, additional_headers={"Authorization": f"{scheme} {TOKEN}"})
            connection.close()
        with pytest.raises(InvalidStatus) as page:
            connect(
                at.url, origin="https://elsewhere.example", additional_headers={"Authorization": f"Api-Key {TOKEN}"}
            )  # type: ignore[arg-type]
        assert page.value.response.status_code == 403


def test_a_client_that_leaves_while_the_model_is_opened_and_one_that_leaves_in_a_question_cost_nobody_anything(
    tmp_path: Path,
) -> None:
    asked = threading.Event()

    def hanging(n: int, question: dict[str, Any]) -> Any:
        asked.set()
        return actions(1.0) if n > 1 else None

    with policy(hanging) as made, served(tmp_path, "--hz", "2", model=f"openpi:{made.url}") as at:
        for _ in range(4):
            connect(at.url).close()
        connection, _ = joined(at.url)
        connection.send(pack_message({"observation/state": STATE}))
        assert asked.wait(60)
        connection.close()
        other, _ = joined(at.url)
        with other:
            assert infer(other)["actions"].shape == (1, 1)
        until(lambda: at.program.log().count(": over (") >= 2)
        assert "Traceback" not in at.program.log()


def test_a_full_server_says_so_and_serves_those_who_are_in(tmp_path: Path) -> None:
    with served(tmp_path, "--max-sessions", "1") as at:
        first, _ = joined(at.url)
        with first:
            second = connect(at.url)
            said = second.recv(60)
            assert isinstance(said, str) and "no room" in said
            assert infer(first)["actions"].shape == (1, 1)


REFUSED = {
    "no agent": (["--openpi", "127.0.0.1:8000"], "which tool an action is"),
    "an agent of six tools": (["--agent", "driver", "--openpi", "127.0.0.1:8000"], "an action is a call of one tool"),
    "a file alone": (["--agent", "paddle", "--openpi-map", "policy.yaml"], "--openpi-map is for --openpi"),
    "no file": (["--agent", "paddle", "--openpi", "127.0.0.1:8000", "--openpi-map", "none.yaml"], "cannot be read"),
    "everybody": (["--agent", "paddle", "--openpi", "0.0.0.0:8000"], "--openpi 0.0.0.0:8000 can be reached"),
    "no address": (["--agent", "paddle", "--openpi", "8000"], "no HOST:PORT"),
}


@pytest.mark.parametrize(("given", "what"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_served_ends_the_start(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, given: list[str], what: str
) -> None:
    assert what in refused(capsys, "serve", *given, "--out", str(tmp_path / "out"))


def test_openpis_own_client_is_answered_as_by_its_own_servers(tmp_path: Path) -> None:
    python = os.environ.get("RTCONTROL_OPENPI")
    if not python:
        pytest.skip("RTCONTROL_OPENPI names no interpreter that has openpi-client")
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    with served(tmp_path, "--hz", "4", "--token-file", str(token), "--require-token", model="paddle") as at:
        line = [python, str(FOREIGN), str(at.port), "200", TOKEN]
        done = subprocess.run(line, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        report = at.report(1)
    answers = found["answers"]
    assert len(answers) == report["releases"] == 200 and found["metadata"]["action_dim"] == 1
    assert all(one["shape"] == [1, 1] and one["kind"] == "f" and one["action"] in range(-3, 4) for one in answers)
    assert {one["status"] for one in answers} <= {"fresh", "held", "safe"}
    assert sum(one["status"] == "fresh" for one in answers) >= 100
