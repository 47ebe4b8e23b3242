"""The Python API: a session is told in free words, which are understood off the clock."""

from __future__ import annotations

import gc
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import rtcontrol
from rtcontrol.agents import Goals
from rtcontrol.hosts.process import ProcessHost
from rtcontrol.models.checkpoint.checkpoint import resolve
from rtcontrol.models.errors import UserError
from tests.helpers.processes import until
from tests.rtcontrol.evaluation.chat_server import chat_server, completion

SEEN = "x 0 y 90 vx 0 vy -20 angle 0 spin 0 legs 0 0"
HOVER, NONE = completion(("hover", '{"y": 0.7}')), completion(("not_understood", "{}"))


def test_a_session_decides_by_what_it_was_understood_to_be_told() -> None:
    free = threading.Event()
    with chat_server(lambda body: (free.wait(60), HOVER)[1]) as server:
        session = rtcontrol.load("lander").session(interpreter=f"chat:{server.url}", interpreter_s=60.0)
        with pytest.raises(UserError, match="Nothing was said that is understood"):
            session.decide(SEEN)
        session.instruct("land on the pad")
        assert session.instruction == "land on the pad" and session.understood is not None
        session.instruct("stay up there")
        until(lambda: bool(server.bodies))
        assert session.decide(SEEN).call == session.decide(SEEN, "land on the pad").call
        free.set()
        until(lambda: session.instruction == "hover at 0.7")
        assert session.decide(SEEN).call == session.decide(SEEN, "hover at 0.7").call
        session.close()


def test_an_answer_can_be_waited_for_and_what_is_not_understood_changes_nothing() -> None:
    with chat_server(lambda body: NONE) as server:
        session = rtcontrol.load("lander").session(interpreter=f"chat:{server.url}")
        session.instruct("hover at 0.9")
        found = session.instruct("make me a sandwich", wait=True)
        assert found is not None and (found.text, found.why) == (None, "none")
        assert session.instruction == "hover at 0.9"
        session.close()


def test_goals_of_ones_own_are_given() -> None:
    goals = Goals({"go to {x}": []}, {"x": [0, 1]})
    with chat_server(lambda body: completion(("go_to_x", '{"x": "one"}'))) as server:
        asked = {"interpreter": f"chat:{server.url}", "untrained": True}
        tools = [{"name": "go", "parameters": {"properties": {"x": {"enum": [0, 1]}}}}]
        session = rtcontrol.load("lander").session(tools, goals=goals, **asked)  # type: ignore[arg-type]
        found = session.instruct("over there", wait=True)
        assert found is not None and found.text == session.instruction == "go to 1"
        session.close()
        with pytest.raises(UserError, match="needs goals"):
            rtcontrol.load("lander").session(tools, **asked)  # type: ignore[arg-type]


def test_without_an_interpreter_nobody_is_instructed() -> None:
    session = rtcontrol.load("lander").session()
    with pytest.raises(UserError, match="no interpreter"):
        session.instruct("stay up there")
    with pytest.raises(UserError, match="says nothing"), chat_server(lambda body: NONE) as server:
        rtcontrol.load("lander").session(interpreter=f"chat:{server.url}").instruct(" ")


def test_who_waits_is_given_the_answer_to_what_was_said_and_to_nothing_else() -> None:
    free = threading.Event()
    with chat_server(lambda body: (free.wait(60), HOVER)[1]) as server:
        session = rtcontrol.load("lander").session(interpreter=f"chat:{server.url}", interpreter_s=60.0)
        with ThreadPoolExecutor(2) as pool:
            waits = pool.submit(session.instruct, "stay up there", True)
            until(lambda: bool(server.bodies))
            session.instruct("land on the pad")
            free.set()
            found = waits.result(20)
            assert found is not None and (found.said, found.text, found.why) == ("stay up there", None, "overtaken")
            assert (
                session.understood is not None and session.understood.text == session.instruction == "land on the pad"
            )
            session.close()
            with pytest.raises(UserError, match="closed"):
                session.instruct("hover at 0.9", wait=True)


def test_who_waits_while_the_session_is_closed_is_told() -> None:
    free = threading.Event()
    with chat_server(lambda body: (free.wait(60), HOVER)[1]) as server, ThreadPoolExecutor(1) as pool:
        session = rtcontrol.load("lander").session(interpreter=f"chat:{server.url}", interpreter_s=60.0)
        waits = pool.submit(session.instruct, "stay up there", True)
        until(lambda: bool(server.bodies))
        session.close()
        with pytest.raises(UserError, match="closed"):
            waits.result(20)
        free.set()


def test_a_local_interpreter_is_there_with_the_session_and_ends_with_it_though_it_is_dropped() -> None:
    goals = Goals({"go to {x}": []}, {"x": [0, 1]})
    session = rtcontrol.load("lander").session(interpreter="lander", goals=goals)
    host = session._told._interpretation.interpreter._host  # type: ignore[union-attr]
    assert isinstance(host, ProcessHost) and host.alive()
    process = host._process
    assert process is not None
    del session
    gc.collect()
    until(lambda: process.poll() is not None, seconds=30)


@pytest.mark.integration
def test_an_interpreter_that_cannot_be_started_is_told_when_the_session_is_opened(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(resolve("lander"), broken)
    for weights in broken.glob("*.safetensors"):
        weights.write_bytes(b"none")
    with pytest.raises(UserError):
        rtcontrol.load("lander").session(interpreter=str(broken))
