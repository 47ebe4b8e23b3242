"""What becomes of a goal or a request where messages are late, lost or in another order than they were sent: no server
can be made to do that on demand, so the wires are in memory, and so is the clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rtcontrol_client.ros2.goals import ANSWER_S, ActionClient, ActionWires
from rtcontrol_client.ros2.mapper import Order
from tests.bridges.ros2.mapping import linked

NOBODY = bytes(16)


class Wire:
    """A service; `told` is what it was asked."""

    def __init__(self) -> None:
        self.there, self.told, self.said = True, [], []  # type: ignore[var-annotated]

    def ready(self) -> bool:
        return self.there

    def write(self, request: Any) -> bool:
        if not self.there:
            return False
        self.told.append(request)
        self.said.clear()
        return True

    def answers(self) -> list[Any]:
        said, self.said = self.said, []
        return said


class Heard:
    def __init__(self) -> None:
        self.said: list[Any] = []

    def take(self) -> list[Any]:
        said, self.said = self.said, []
        return said


class Counting:
    """The action /count, its server's side of the wires, and the time."""

    def __init__(self, sweeps: bool = False) -> None:
        self.now = 100.0
        self.send, self.ask, self.cancel = Wire(), Wire(), Wire()
        self.feedback, self.status = Heard(), Heard()
        self.mapper = linked()
        link = self.mapper.actions["/count"]
        wires = ActionWires(self.send, self.ask, self.cancel, self.feedback, self.status)
        self.client = ActionClient(link, wires, sweeps, lambda: self.now)

    def want(self, to: int | None) -> bool:
        order = Order() if to is None else self.mapper.publications("count", {"to": to}, 0)[0].message
        return self.client.write(order)

    def id(self, at: int = -1) -> bytes:
        return bytes(self.send.told[at].goal_id.uuid)

    def says(self, **codes: int) -> None:
        """The status: the code of our goal (`ours`) and of others'."""
        ids = {"ours": self.id()} if self.send.told else {}
        self.status.said.append(
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
        """The state then."""
        self.now += seconds
        self.client.advance()
        return self.client.poll()[0].state

    def canceled(self) -> list[bytes]:
        return [bytes(request.goal_info.goal_id.uuid) for request in self.cancel.told]


# ros-navigation/navigation2#6373: a cancellation that comes before its goal finds nothing to cancel.
def test_a_cancellation_that_overtakes_its_goal_is_asked_for_again_until_the_goal_has_ended() -> None:
    one = Counting()
    assert one.want(5) and one.want(None)
    assert one.canceled() == [one.id()]
    one.cancel.said.append(SimpleNamespace(return_code=2))  # an unknown goal
    assert one.after(0.1) == "canceling" and len(one.canceled()) == 1
    one.says(ours=2)
    assert one.after(0.5) == "canceling" and one.canceled() == [one.id()] * 2
    one.says(ours=5)
    assert one.after(0.1) == "canceled"
    assert one.after(5.0) == "canceled" and len(one.canceled()) == 2


# ros-navigation/navigation2#4659: the answer to a goal is lost, and its server goes on with it.
def test_a_goal_whose_acceptance_is_lost_is_told_and_canceled_and_found_again() -> None:
    one = Counting()
    assert one.want(5)
    assert one.after(ANSWER_S - 0.1) == "sent" and one.canceled() == []
    assert one.after(0.2) == "lost" and one.canceled() == [one.id()]
    assert one.client.trouble() == "/count: the goal is lost."
    one.says(ours=2)
    assert one.after(0.5) == "canceling" and one.canceled() == [one.id()] * 2
    one.says(ours=5)
    assert one.after(0.1) == "canceled"


def test_result_that_comes_after_the_last_status_is_shown() -> None:
    one = Counting()
    assert one.want(5)
    one.says(ours=4)
    assert one.after(0.1) == "succeeded" and bytes(one.ask.told[0].goal_id.uuid) == one.id()
    one.ask.said.append(SimpleNamespace(status=0, result=None))  # a goal that is unknown
    assert one.after(0.5) == "succeeded" and "result" not in vars(one.client.poll()[0])
    one.ask.said.append(SimpleNamespace(status=4, result="ours"))
    one.after(0.1)
    assert one.client.poll()[0].result == "ours"


def test_another_goal_waits_until_the_one_before_has_ended() -> None:
    one = Counting()
    assert one.want(5)
    one.says(ours=2)
    one.after(0.1)
    assert one.want(5) and len(one.send.told) == 1
    assert not one.want(6) and one.canceled() == [one.id()]
    assert not one.want(6) and len(one.send.told) == 1
    one.cancel.said.append(SimpleNamespace(return_code=1))
    one.after(0.6)
    assert one.client.trouble() == "/count: the cancellation is refused."
    one.says(ours=5)
    assert one.want(6) and len(one.send.told) == 2
    assert one.client.trouble() is None


def test_a_server_that_is_replaced_has_lost_the_goal() -> None:
    one = Counting()
    assert one.want(5)
    one.says(ours=2)
    one.after(0.1)
    one.says()
    assert one.after(0.1) == "lost"
    assert one.want(6) and len(one.send.told) == 2


def test_the_first_time_all_goals_are_canceled_and_by_a_guard_each_time() -> None:
    one = Counting()
    one.cancel.there = False
    assert one.want(None)  # nobody there: it is made up for
    one.cancel.there = True
    one.after(0.1)
    assert one.want(None) and one.canceled() == [NOBODY]
    guard = Counting(sweeps=True)
    guard.cancel.there = False
    assert not guard.want(None)
    guard.cancel.there = True
    assert guard.want(None)
    before = len(guard.canceled())
    assert guard.want(None) and guard.canceled()[before:] == [NOBODY]


def answer(status: int, result: str = "") -> SimpleNamespace:
    return SimpleNamespace(status=status, result=result)


def test_a_goal_whose_last_status_is_lost_has_ended_as_its_result_says() -> None:
    one = Counting()
    one.want(5)
    one.says(ours=2)
    assert one.after(0.1) == "executing" and len(one.ask.told) == 1
    one.ask.said.append(answer(0))  # of a goal that is unknown
    assert one.after(0.1) == "executing"
    one.ask.said.append(answer(5))
    assert one.after(0.1) == "canceled" and one.client.trouble() is None
    assert one.want(7), "another goal is pursued"


def test_the_result_of_the_goal_before_that_comes_late_does_not_end_the_next_one() -> None:
    one = Counting()
    one.want(5)
    one.says(ours=2)
    one.after(0.1)
    one.says(ours=5)
    assert one.after(0.1) == "canceled" and one.want(7)
    one.ask.said.append(answer(5))  # of the first
    assert one.after(0.1) == "sent"
    one.ask.said.append(answer(5))
    one.says(ours=2)
    assert one.after(0.1) == "executing" and len(one.ask.told) == 2
    assert one.after(0.1) == "executing"
    one.says(ours=4)
    one.ask.said.append(answer(4, "its own"))
    assert one.after(0.1) == "succeeded" and one.client.poll()[0].result == "its own"


@pytest.mark.parametrize("answered", [True, False])
def test_a_goal_waits_until_those_of_an_older_bridge_are_canceled_and_is_not_canceled_with_them(answered: bool) -> None:
    one = Counting()
    one.cancel.there = False  # its services are found one after the other
    one.want(None)
    assert not one.want(5) and not one.send.told
    one.cancel.there = True
    one.after(0.1)
    assert one.canceled() == [NOBODY] and not one.send.told
    assert not one.want(5) and not one.send.told  # its server may read both at once, the goal first
    one.cancel.said += [SimpleNamespace(return_code=2)] * answered
    one.after(0.1 if answered else ANSWER_S)
    assert one.want(5) and len(one.send.told) == 1
    one.after(1.0)
    assert one.canceled() == [NOBODY]
