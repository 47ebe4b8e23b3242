"""Goals and requests whose messages are late, lost or reordered. No real server does this on demand, so services,
topics and the clock are simulated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rtcontrol_client.ros2.goals import ANSWER_S, ActionClient, ActionPorts
from rtcontrol_client.ros2.mapper import GoalOrder
from tests.bridges.ros2.mapping import linked

NOBODY = bytes(16)


class Wire:
    """A service in memory; `told` has the requests that it received."""

    def __init__(self) -> None:
        self.there, self.told, self.queued = True, [], []  # type: ignore[var-annotated]

    def ready(self) -> bool:
        return self.there

    def write(self, request: Any) -> bool:
        if not self.there:
            return False
        self.told.append(request)
        self.queued.clear()
        return True

    def answers(self) -> list[Any]:
        queued, self.queued = self.queued, []
        return queued


class Heard:
    def __init__(self) -> None:
        self.queued: list[Any] = []

    def take(self) -> list[Any]:
        queued, self.queued = self.queued, []
        return queued


class Counting:
    """A client of the action /count, with the server's side of its services and topics, and a clock."""

    def __init__(self, cancels_all: bool = False) -> None:
        self.now = 100.0
        self.send, self.ask, self.cancel = Wire(), Wire(), Wire()
        self.feedback, self.status = Heard(), Heard()
        self.mapper = linked()
        link = self.mapper.actions["/count"]
        wires = ActionPorts(self.send, self.ask, self.cancel, self.feedback, self.status)
        self.client = ActionClient(link, wires, cancels_all, lambda: self.now)

    def want(self, to: int | None) -> bool:
        order = GoalOrder() if to is None else self.mapper.publications("count", {"to": to}, 0)[0].message
        return self.client.write(order)

    def id(self, at: int = -1) -> bytes:
        return bytes(self.send.told[at].goal_id.uuid)

    def says(self, **codes: int) -> None:
        """Publish a status with the codes of our goal (`ours`) and of others."""
        ids = {"ours": self.id()} if self.send.told else {}
        self.status.queued.append(
            SimpleNamespace(
                status_list=[
                    SimpleNamespace(
                        goal_info=SimpleNamespace(goal_id=SimpleNamespace(uuid=ids.get(name, name.encode() * 16)[:16])),
                        status=code,
                    )
                    for name, code in codes.items()
                ]
            )
        )

    def after(self, seconds: float) -> str:
        """Advance the clock; return the client's state."""
        self.now += seconds
        self.client.advance()
        return self.client.poll()[0].state

    def canceled(self) -> list[bytes]:
        return [bytes(request.goal_info.goal_id.uuid) for request in self.cancel.told]


def executing() -> Counting:
    """Return a client whose goal 5 is executing."""
    action = Counting()
    assert action.want(5)
    action.says(ours=2)
    assert action.after(0.1) == "executing"
    return action


# ros-navigation/navigation2#6373: a cancellation that arrives before its goal has nothing to cancel.
def test_cancellation_is_repeated_until_the_goal_has_ended() -> None:
    action = Counting()
    assert action.want(5) and action.want(None)
    assert action.canceled() == [action.id()]
    action.cancel.queued.append(SimpleNamespace(return_code=2))  # an unknown goal
    assert action.after(0.1) == "canceling" and len(action.canceled()) == 1
    action.says(ours=2)
    assert action.after(0.5) == "canceling" and action.canceled() == [action.id()] * 2
    action.says(ours=5)
    assert action.after(0.1) == "canceled"
    assert action.after(5.0) == "canceled" and len(action.canceled()) == 2


# ros-navigation/navigation2#4659: the answer to a goal is lost, and the server continues with the goal.
def test_goal_with_lost_acceptance_is_reported_and_canceled() -> None:
    action = Counting()
    assert action.want(5)
    assert action.after(ANSWER_S - 0.1) == "sent" and action.canceled() == []
    assert action.after(0.2) == "lost" and action.canceled() == [action.id()]
    assert action.client.problem() == "/count: the goal is lost."
    action.says(ours=2)
    assert action.after(0.5) == "canceling" and action.canceled() == [action.id()] * 2
    action.says(ours=5)
    assert action.after(0.1) == "canceled"


def test_result_after_the_last_status_is_shown() -> None:
    action = Counting()
    assert action.want(5)
    action.says(ours=4)
    assert action.after(0.1) == "succeeded" and bytes(action.ask.told[0].goal_id.uuid) == action.id()
    action.ask.queued.append(SimpleNamespace(status=0, result=None))  # a goal that is unknown
    assert action.after(0.5) == "succeeded" and "result" not in vars(action.client.poll()[0])
    action.ask.queued.append(SimpleNamespace(status=4, result="ours"))
    action.after(0.1)
    assert action.client.poll()[0].result == "ours"


def test_new_goal_waits_until_the_previous_goal_has_ended() -> None:
    action = executing()
    assert action.want(5) and len(action.send.told) == 1
    assert not action.want(6) and action.canceled() == [action.id()]
    assert not action.want(6) and len(action.send.told) == 1
    action.cancel.queued.append(SimpleNamespace(return_code=1))
    action.after(0.6)
    assert action.client.problem() == "/count: the cancellation is refused."
    action.says(ours=5)
    assert action.want(6) and len(action.send.told) == 2
    assert action.client.problem() is None


def test_goal_is_lost_when_the_server_is_replaced() -> None:
    action = executing()
    action.says()
    assert action.after(0.1) == "lost"
    assert action.want(6) and len(action.send.told) == 2


def test_first_cancellation_and_every_guard_cancellation_is_for_all_goals() -> None:
    action = Counting()
    action.cancel.there = False
    assert action.want(None)  # no server yet: the cancellation is sent later
    action.cancel.there = True
    action.after(0.1)
    assert action.want(None) and action.canceled() == [NOBODY]
    guard = Counting(cancels_all=True)
    guard.cancel.there = False
    assert not guard.want(None)
    guard.cancel.there = True
    assert guard.want(None)
    before = len(guard.canceled())
    assert guard.want(None) and guard.canceled()[before:] == [NOBODY]


def answer(status: int, result: str = "") -> SimpleNamespace:
    return SimpleNamespace(status=status, result=result)


def test_goal_with_lost_last_status_ends_by_its_result() -> None:
    action = executing()
    assert len(action.ask.told) == 1
    action.ask.queued.append(answer(0))  # status 0: the goal is unknown
    assert action.after(0.1) == "executing"
    action.ask.queued.append(answer(5))
    assert action.after(0.1) == "canceled" and action.client.problem() is None
    assert action.want(7), "another goal is pursued"


def test_late_result_of_previous_goal_does_not_end_the_next() -> None:
    action = executing()
    action.says(ours=5)
    assert action.after(0.1) == "canceled" and action.want(7)
    action.ask.queued.append(answer(5))  # the result of the first goal
    assert action.after(0.1) == "sent"
    action.ask.queued.append(answer(5))
    action.says(ours=2)
    assert action.after(0.1) == "executing" and len(action.ask.told) == 2
    assert action.after(0.1) == "executing"
    action.says(ours=4)
    action.ask.queued.append(answer(4, "its own"))
    assert action.after(0.1) == "succeeded" and action.client.poll()[0].result == "its own"


@pytest.mark.parametrize("answered", [True, False])
def test_goal_waits_until_an_earlier_bridges_goals_are_canceled(answered: bool) -> None:
    action = Counting()
    action.cancel.there = False  # the services are discovered one after the other
    action.want(None)
    assert not action.want(5) and not action.send.told
    action.cancel.there = True
    action.after(0.1)
    assert action.canceled() == [NOBODY] and not action.send.told
    assert not action.want(5) and not action.send.told  # the server might read the goal first
    action.cancel.queued += [SimpleNamespace(return_code=2)] * answered
    action.after(0.1 if answered else ANSWER_S)
    assert action.want(5) and len(action.send.told) == 1
    action.after(1.0)
    assert action.canceled() == [NOBODY]
