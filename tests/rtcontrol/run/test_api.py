"""Tests of decisions from Python: load a model, open a session, decide."""

from __future__ import annotations

import threading
import time
from concurrent.futures import wait
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import pytest

import rtcontrol
from rtcontrol.agents import InvalidCall, OneOf, Tools, tool
from rtcontrol.agents.lander import agent
from rtcontrol.models.errors import UserError
from rtcontrol.run import api
from rtcontrol.run.api import DeadlineWorker
from rtcontrol.run.model_compatibility import training_notice
from tests.models.chat.families import checkpoint

SEEN = "x 10 y 90 vx 0 vy -20 angle 0 spin 0 legs 0 0"
moved: list[int] = []


@tool
def move(speed: Annotated[int, OneOf(-1, 0, 1)]) -> None:
    """Move."""
    moved.append(speed)


def test_bundled_model_decides_with_its_own_tools() -> None:
    session = rtcontrol.load("lander").session()
    decision = session.decide(SEEN, "land on the pad")
    assert decision.call is not None
    assert session.tools.validate(decision.call) == decision.call
    given = rtcontrol.load("lander").session(agent.tools)
    assert given.decide(SEEN, "land on the pad").call == decision.call
    assert session.info()["engine"] == "torch"


def test_untrained_tools_are_refused_without_an_option() -> None:
    model = rtcontrol.load("lander")
    with pytest.raises(UserError, match="untrained=True"):
        model.session([move])
    session = model.session([move], untrained=True)
    decision = session.decide("x 1", "go", ["move(speed=1)"])
    assert decision.call is not None and decision.call.name == "move"
    session.execute(decision.call)
    assert moved == [decision.call.arguments["speed"]]


def test_chat_model_takes_any_tools_with_a_notice(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "chat", "hermes")
    session = rtcontrol.load(str(folder)).session([move])
    decision = session.decide("x 1", "go", ["move(speed=1)"])
    assert decision.call is not None and session.tools.validate(decision.call) == decision.call
    assert session.info()["profile"] == "chat" and 0 < decision.confidence["speed"] <= 1
    told = training_notice(session.tools.schemas, str(folder))
    assert told is not None and "chat is a chat model, not trained on these tools" in told


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: rtcontrol.load("landr"), "Bundled: base, driver, lander"),
        (lambda: rtcontrol.load("decisions:http://127.0.0.1:9/v1"), "`rtcontrol run --model decisions:"),
        (lambda: rtcontrol.load("lander", dtype="fp8"), "dtype"),
        (lambda: rtcontrol.load("lander", device="xyz"), "cpu, cuda"),
        (lambda: rtcontrol.load("lander", threads=0), "1 or more"),
        (lambda: rtcontrol.load("base").session(), "Give session(tools)"),
        (lambda: rtcontrol.load("lander").session(min_confidence=7.0), "from 0 (no minimum) to 1"),
        (lambda: rtcontrol.load("lander").session(min_confidence={"mian": 0.5}), "arg1, arg2, function, main, side"),
        (lambda: rtcontrol.load("lander").session(safe_call=rtcontrol.Call("hover")), "unknown tool 'hover'"),
        (lambda: rtcontrol.load("lander").session().decide(SEEN, "land", deadline_ms=0), "above 0"),
    ],
)
def test_wrong_arguments_are_refused_with_a_hint(wrong: Any, says: str) -> None:
    with pytest.raises(UserError) as error:
        wrong()
    assert says in f"{error.value.what} {error.value.remedy}"


OFF = rtcontrol.Call("engines", {"main": 0, "side": 0})


def test_session_holds_decision_on_nonsense_instruction() -> None:
    model = rtcontrol.load("lander")
    gated, safe, off = model.session(), model.session(safe_call=OFF), model.session(min_confidence=0)
    understood = gated.decide(SEEN, "land on the pad")
    assert understood.held is None and understood.call is not None
    assert understood.confidence.keys() == {"function", *understood.call.arguments}
    for session, expected in ((gated, None), (safe, OFF)):
        held = session.decide(SEEN, "qzx vbk wopf")
        assert held.held is not None and "not understood" in held.held and held.call == expected and not held.missed
    assert off.decide(SEEN, "qzx vbk wopf").held is None
    unsure = model.session(min_confidence={"main": 1.0}).decide(SEEN, "land on the pad")
    assert unsure.held is not None and "confidence of main is 0." in unsure.held and "at least 1.000" in unsure.held
    assert unsure.call is None and unsure.unsure == understood.call


def test_late_decision_is_missed_and_never_returned_later() -> None:
    model = rtcontrol.load("lander")
    session, alone = model.session(safe_call=OFF), model.session()
    right = alone.decide(SEEN, "land on the pad").call
    for _ in range(3):
        for told in ("hover at 0.7", "land on the pad"):
            missed = session.decide(SEEN, told, deadline_ms=0.001)
            assert missed.missed and missed.call == OFF and missed.held is None and missed.confidence == {}
        in_time = session.decide(SEEN, "land on the pad", deadline_ms=60_000)
        assert (in_time.call, in_time.missed) == (right, False)
    assert model.session().decide(SEEN, "land on the pad", deadline_ms=0.001).call is None
    with pytest.raises(UserError, match="context"):
        session.decide(SEEN, "land " * 20_000, deadline_ms=60_000)


def test_result_after_the_deadline_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "wait", lambda futures, timeout: wait(futures))
    assert DeadlineWorker().run_until(time.monotonic() - 1, lambda: "too late", lambda: None) == []


def test_work_queued_after_late_work_keeps_deadline() -> None:
    one, going, done = DeadlineWorker(), threading.Event(), list[str]()

    def work(name: str) -> str:
        going.wait()
        done.append(name)
        return name

    def soon() -> float:
        return time.monotonic() + 0.05

    assert one.run_until(soon(), lambda: work("late"), lambda: done.append("told")) == []
    assert done == ["told"]
    assert one.run_until(soon(), lambda: work("behind"), lambda: done.append("told")) == []  # not started
    assert done == ["told"]
    going.set()
    one.wait_until_idle()
    assert one.run_until(time.monotonic() + 60, lambda: work("next"), lambda: None) == ["next"]
    assert done == ["told", "late", "next"]


def test_tool_without_function_is_refused_with_a_hint() -> None:
    class Drive(pydantic.BaseModel):
        speed: Literal[0, 1]

    session = rtcontrol.load("lander").session([Drive], untrained=True)
    call = session.decide("x 1", "go").call
    assert call is not None and Drive(**call.arguments).speed in (0, 1)
    with pytest.raises(UserError, match=r"bind\(Drive=function\).*Drive\(\*\*call.arguments\)"):
        session.execute(call)
    driven: list[int] = []
    tools = Tools([Drive]).bind(Drive=lambda speed: driven.append(speed))
    session = rtcontrol.load("lander").session(tools, untrained=True)
    session.execute(call)
    assert driven == [call.arguments["speed"]]
    with pytest.raises(InvalidCall, match="speed=7"):
        session.execute(rtcontrol.Call("Drive", {"speed": 7}))
