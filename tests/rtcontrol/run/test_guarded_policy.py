"""`rtcontrol.policy`: in a loop of one's own, each decision is there by its deadline, or it is the safe call."""

from __future__ import annotations

import re
import threading
from typing import Any

import numpy as np
import pytest

import rtcontrol
from rtcontrol.models.errors import UserError
from tests.helpers.processes import ROOT, free_port, until
from tests.rtcontrol.hosts.policy_standin import actions, policy

MOVE = {"name": "move", "parameters": {"properties": {"speed": {"type": "number", "minimum": -1, "maximum": 1}}}}
STOP = rtcontrol.Call("move", {"speed": 0.0})
FREE_MS = 60_000.0


def test_a_decision_is_the_first_call_of_its_plan() -> None:
    with policy(lambda n, asked: actions(0.5, -0.5)) as made:
        guarded = rtcontrol.policy(f"openpi:{made.url}", [MOVE], STOP, step_ms=20)
        decision = guarded.decide({"x": 1.0}, "go", deadline_ms=FREE_MS)
        guarded.close()
    assert decision.call == rtcontrol.Call("move", {"speed": 0.5}) and not decision.missed and decision.loss is None
    assert decision.plan is not None and decision.plan.step_ns == 20_000_000 and len(decision.plan.calls) == 2


# strands-labs/robots#3321: a server that hangs held the calling thread; robocurve/inspect-robots#356: NaN reached it.
WRONG = {
    "illegal": (lambda n, asked: actions(7.0), "invalid"),
    "not finite": (lambda n, asked: actions(float("nan")), "not_finite"),
    "a traceback": (lambda n, asked: "RuntimeError: CUDA", "server_error"),
    "garbage": (lambda n, asked: b"\xc1", "malformed"),
}


@pytest.mark.parametrize(("answer", "loss"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_the_safe_call_with_its_reason(answer: Any, loss: str) -> None:
    with policy(answer) as made:
        decision = rtcontrol.policy(f"openpi:{made.url}", [MOVE], STOP).decide({"x": 1.0}, deadline_ms=FREE_MS)
    assert decision.missed and decision.call == STOP and decision.loss == loss and decision.why


def test_a_server_that_hangs_costs_its_deadline_and_its_old_answer_is_never_taken() -> None:
    goes_on = threading.Event()

    def hanging(n: int, asked: dict[str, Any]) -> Any:
        if n == 2:
            goes_on.wait(60)
        return actions(float(asked["observation/state"][0]) / 10)

    with policy(hanging) as made:
        guarded = rtcontrol.policy(f"openpi:{made.url}", [MOVE], STOP)
        guarded.decide({"x": 1.0}, deadline_ms=FREE_MS)
        late = guarded.decide({"x": 2.0}, deadline_ms=50)
        assert late.missed and late.call == STOP and late.loss == "timeout"
        goes_on.set()
        found: list[Any] = []

        def answered() -> bool:
            found.append(guarded.decide({"x": 5.0}, deadline_ms=FREE_MS))
            return not found[-1].missed

        until(answered)
        assert found[-1].call.arguments["speed"] == float(np.float32(0.5))


def test_nobody_there_is_the_safe_call() -> None:
    guarded = rtcontrol.policy(f"openpi:ws://127.0.0.1:{free_port()}", [MOVE], STOP)
    decision = guarded.decide({"x": 1.0}, deadline_ms=FREE_MS)
    assert decision.missed and decision.loss == "connection" and decision.call == STOP


GIVEN = {
    "no policy": (lambda: rtcontrol.policy("lander", [MOVE]), "no policy server"),
    "an illegal safe call": (lambda: rtcontrol.policy("openpi:ws://h:1", [MOVE], rtcontrol.Call("go")), "safe"),
    "no step": (lambda: rtcontrol.policy("openpi:ws://h:1", [MOVE], step_ms=0), "step_ms"),
    "no deadline": (
        lambda: rtcontrol.policy("openpi:ws://h:1", [MOVE]).decide({"x": 1}, deadline_ms=-1),
        "deadline_ms",
    ),
    "no data": (lambda: rtcontrol.policy("openpi:ws://h:1", [MOVE]).decide("x 1", deadline_ms=9), "observed"),  # type: ignore[arg-type]
    "no numbers": (lambda: rtcontrol.policy("openpi:ws://h:1", [MOVE]).decide({"x": "a"}, deadline_ms=999), "numbers"),
}


@pytest.mark.parametrize(("give", "what"), GIVEN.values(), ids=GIVEN.keys())
def test_what_cannot_be_asked_is_told(give: Any, what: str) -> None:
    with pytest.raises(UserError, match=what):
        give()


def test_the_pages_example_runs_as_it_stands_there(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/policies.md").read_text("utf-8"), re.DOTALL)
    with policy(lambda n, asked: actions(2.0)) as made:
        code = code.replace("ws://127.0.0.1:8000", made.url).replace("deadline_ms=50", "deadline_ms=50_000")
        exec(compile(code, "policies.md", "exec"), {})
    assert capsys.readouterr().out == "move(velocity=2) False None\n"
