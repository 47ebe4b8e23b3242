"""What the tests of decoder pools share: sources, requests, and how to wait for replies."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from rtcontrol.hosts.base import DecisionReply, DecisionRequest, Host
from rtcontrol.hosts.deciders import STSource
from rtcontrol.hosts.processes import marked
from rtcontrol.hosts.ray_pool import RayPool
from rtcontrol.models.call import Decision
from tests.models.small import WORDS

TOOLS = [
    {"go": {"to": {"enum": ["left", "right", "stop", "red"]}}},
    {"set_speed": {"v": {"type": "integer", "minimum": 0, "maximum": 9}}, "open": {"door": {"enum": ["red", "green"]}}},
]


def tools(named: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    return tuple(
        {"name": name, "parameters": {"type": "object", "properties": properties, "required": list(properties)}}
        for name, properties in named.items()
    )


def naming(name: str, build: str = "") -> Any:
    """A source whose deciders call the function `name`, made of local classes, which Ray carries by value; `build` is
    seconds to sleep, or "user" or "bug"."""

    from rtcontrol.models.call import Call, Decision
    from rtcontrol.models.errors import UserError

    class Naming:
        def build(self) -> Naming:
            import time

            if build == "user":
                raise UserError("No such checkpoint.", "Give another.")
            if build == "bug":
                raise ZeroDivisionError("oops")
            time.sleep(float(build or 0))
            return self

        def decide(self, request: DecisionRequest) -> Decision:
            import time

            if request.instruction == "fail":
                raise ValueError("cannot")
            if request.instruction.startswith("sleep"):
                time.sleep(float(request.instruction.split()[1]))
            if request.instruction == "odd":
                return Decision(Call(name, {"at": object()}))
            return Decision(Call(name, {"at": request.observation}), {"function": 0.5}, 0.25, 1, 9, 3)

        def info(self) -> dict[str, Any]:
            return {"model": name}

    return Naming()


def request(tick: int, instruction: str = "go") -> DecisionRequest:
    return DecisionRequest(tick, 1, f"x {tick}", instruction, ("push(force=1)",))


def reply_of(host: Host, seconds: float = 10.0) -> DecisionReply:
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        if (reply := host.wait(50_000_000)) is not None:
            return reply
    raise AssertionError("no reply")


def called(host: Host, tick: int, instruction: str = "go") -> str:
    host.submit(request(tick, instruction))
    reply = reply_of(host)
    assert (reply.tick, reply.error) == (tick, None)
    assert reply.decision is not None and reply.decision.call is not None
    return reply.decision.call.text()


def wait_until(true: Callable[[], bool], seconds: float) -> None:
    give_up = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.005)


def asked(tick: int) -> DecisionRequest:
    return DecisionRequest(tick, 1, f"go {WORDS.split()[tick % 20]} {tick % 7}", "turn fast")


def flown(host: Host, ticks: int) -> list[Decision]:
    decisions = []
    for tick in range(ticks):
        host.submit(asked(tick))
        decision = reply_of(host).decision
        assert decision is not None
        decisions.append(decision)
    return decisions


def alone(source: STSource, ticks: int) -> list[Decision]:
    decider = source.build()
    return [decider.decide(asked(tick)) for tick in range(ticks)]


def assert_equal(decisions: list[Decision], expected: list[Decision]) -> None:
    assert [d.call for d in decisions] == [d.call for d in expected]
    for decision, other in zip(decisions, expected, strict=True):
        assert decision.confidence == pytest.approx(other.confidence, abs=1e-3)


def kept_pid(pool: RayPool) -> int:
    assert pool._answer is not None
    pid: int = pool._answer["pid"]
    return pid


def running(folder: str) -> dict[str, int]:
    """What bears the mark of a run's folder: pids by the program's name."""
    found = {}
    for pid, fd, program in marked(folder):
        os.close(fd)
        found[program] = pid
    return found


def folder_of(pool: RayPool) -> str:
    return pool._process._session.folder
