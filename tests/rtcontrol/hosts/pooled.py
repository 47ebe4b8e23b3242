"""Helpers for tests of decoder pools: sources, requests, and functions that wait for replies."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest

from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest, Host
from rtcontrol.hosts.ray_pool import RayPool
from rtcontrol.models.call import Decision
from tests.helpers.processes import until
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
    """Return a source whose deciders call the function `name`. The classes are local, so Ray sends them by value.
    `build`: seconds to sleep in `build`, or the error there ("user" or "bug")."""

    from rtcontrol.models.call import Call, Decision
    from rtcontrol.models.errors import UserError

    class Naming:
        def build(self) -> Naming:

            if build == "user":
                raise UserError("No such checkpoint.", "Give another.")
            if build == "bug":
                raise ZeroDivisionError("oops")
            time.sleep(float(build or 0))
            return self

        def decide(self, request: DecisionRequest) -> Decision:

            if request.instruction.startswith("sleep"):
                time.sleep(float(request.instruction.split()[1]))
            return Decision(Call(name, {"at": request.observation}), {"function": 0.5}, 1, 9, 3)

        def decide_in_steps(self, request: DecisionRequest) -> Any:

            if request.instruction.startswith("steps"):
                for _ in range(int(request.instruction.split()[1])):
                    time.sleep(0.05)
                    yield
            return self.decide(request)

        def info(self) -> dict[str, Any]:
            return {"model": name}

    return Naming()


def request(tick: int, instruction: str = "go") -> DecisionRequest:
    return DecisionRequest(tick, 1, f"x {tick}", instruction, ("push(force=1)",))


def reply_of(host: Host, seconds: float = 10.0) -> DecisionReply:
    replies: list[DecisionReply | None] = [None]
    until(lambda: replies.append(host.wait(50_000_000)) or replies[-1], "no reply", seconds, every=0.0)
    assert replies[-1] is not None
    return replies[-1]


def called(host: Host, tick: int, instruction: str = "go") -> str:
    host.submit(request(tick, instruction))
    reply = reply_of(host)
    assert (reply.tick, reply.error) == (tick, None)
    assert reply.decision is not None and reply.decision.call is not None
    return reply.decision.call.text()


@contextmanager
def sessions_closed(pool: Any) -> Iterator[Any]:
    """Yield a function that opens sessions of the pool, and close them all at the end."""
    opened: list[Host] = []

    def open_(name: str, source: Any) -> Host:
        opened.append(type(pool).open(pool, name, source))
        return opened[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "open", open_)
        yield pool
    for host in opened:
        host.close()


def st_request(tick: int) -> DecisionRequest:
    return DecisionRequest(tick, 1, f"go {WORDS.split()[tick % 20]} {tick % 7}", "turn fast")


def run_ticks(host: Host, ticks: int) -> list[Any]:
    def decision(tick: int) -> Decision | None:
        host.submit(st_request(tick))
        return reply_of(host).decision

    return [decision(tick) for tick in range(ticks)]


def assert_equal(decisions: list[Decision], expected: list[Decision]) -> None:
    assert [d.call for d in decisions] == [d.call for d in expected]
    for decision, other in zip(decisions, expected, strict=True):
        assert decision.confidence == pytest.approx(other.confidence, abs=1e-3)


def kept_pid(pool: Any) -> int:
    return int(pool.process_info["pid"])


def running(parent: int | None = None) -> dict[str, int]:
    """Return the processes that Ray started for a process (by default this one), as pids by program name."""
    children = psutil.Process(parent).children(recursive=True)
    named = {child.name(): child.pid for child in children if child.status() != psutil.STATUS_ZOMBIE}
    return {name: pid for name, pid in named.items() if name in ("gcs_server", "raylet") or name.startswith("ray::")}


def folder_of(pool: RayPool) -> str:
    return pool.process.ray.folder
