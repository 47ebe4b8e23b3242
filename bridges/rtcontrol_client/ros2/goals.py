"""Actions that a call pursues. Their goal is sent once, followed, and canceled by the safe call or by another goal.

A goal has an id of ours, which separates the action's status and feedback from those of others' goals. A cancellation
is sent again until the status says that the goal has ended: one that overtakes its goal has nothing to cancel.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from rtcontrol_client.ros2.config import Qos
from rtcontrol_client.ros2.mapper import ActionLink, Mapper, Order, StateView, Topic

ANSWER_S = 2.0  # how long an answer is waited for
AGAIN_S = 0.5  # from one cancellation to the next
STATES = {1: "accepted", 2: "executing", 3: "canceling", 4: "succeeded", 5: "canceled", 6: "aborted"}
ENDED = ("succeeded", "canceled", "aborted", "rejected")
LIVE = ("sent", "accepted", "executing", "canceling")
RESULTS = (4, 5, 6)  # codes of goals that have ended
FEEDBACK = Qos(depth=10)
STATUS = Qos(reliability="reliable", durability="transient_local")
ALL_GOALS = bytes(16)  # as an id
REFUSED = 1  # the return code of a cancellation


@dataclass(frozen=True)
class ActionWires:
    """What an action consists of on the wire: three services, and two topics that are read message by message."""

    send: Any
    result: Any
    cancel: Any
    feedback: Any
    status: Any


@dataclass
class _Goal:
    id: bytes
    key: str
    sent_s: float
    state: str = "sent"
    in_status: bool = False
    cancels: bool = False
    cancelled_s: float = 0.0
    requested: bool = False  # its result
    refused: bool = False  # its cancellation
    feedback: Any = None
    result: Any = None

    def problem(self) -> str | None:
        """Return what is wrong with it now."""
        if self.refused and self.state in LIVE:
            return "the cancellation is refused"
        return f"the goal is {self.state}" if self.state in ("rejected", "lost", "aborted") else None


class ActionClient:
    """One action. Its states: `idle`, `no server`, `sent`, `accepted`, `rejected`, `executing`, `canceling`,
    `succeeded`, `canceled`, `aborted`, and `lost` where its end is not known. Thread-safe."""

    def __init__(
        self, link: ActionLink, wires: ActionWires, sweeps: bool = False, now: Callable[[], float] = time.monotonic
    ) -> None:
        """`sweeps`: each cancellation is of all goals, for it knows of none; else the first time alone, for those of a
        bridge before this one."""
        self._link, self._wires, self._sweeps, self._now = link, wires, sweeps, now
        self._lock = threading.Lock()
        self._goal: _Goal | None = None
        self._swept = self._wanted = self._unserved = False
        self._sweep_s: float | None = None  # when all goals were canceled, where that is not answered

    def write(self, order: Order) -> bool:
        """Pursue a goal, or none. False where that is to be tried again: there is no server, or another goal has not
        ended yet."""
        with self._lock:
            self._advance()
            return self._cancel() if order.goal is None else self._pursue(order)

    def readers(self) -> int:
        """Return whether a server is there."""
        return int(self._wires.cancel.ready())

    def advance(self) -> None:
        """Follow the goal; once a tick."""
        with self._lock:
            self._advance()

    def poll(self) -> tuple[StateView, int]:
        """Return what is known of it now."""
        with self._lock:
            goal, view = self._goal, self._link.view
            if goal is None or self._unserved:
                return view("no server" if self._unserved else "idle"), time.monotonic_ns()
            state = "canceling" if goal.cancels and goal.state in LIVE else goal.state
            return view(state, feedback=goal.feedback, result=goal.result), time.monotonic_ns()

    def problem(self) -> str | None:
        """Return what is wrong with it now."""
        why = "no node serves it" if not self._wires.send.ready() else self._goal and self._goal.problem()
        return f"{self._link.name}: {why}." if why else None

    # Under the lock.

    def _pursue(self, order: Order) -> bool:
        goal = self._goal
        if goal is not None and goal.state in LIVE:
            if goal.key == order.key and not goal.cancels:
                return True
            # A server that has one goal at a time cancels the new one with the old.
            self._cancel_goal(goal)
            return False
        if not self._wires.send.ready():
            self._unserved = True
            return False
        # Those of an older bridge are canceled first: a server that reads both at once would cancel this one, too.
        if self._wanted or (self._sweep_s is not None and self._now() < self._sweep_s + ANSWER_S):
            return False
        self._goal = goal = _Goal(uuid.uuid4().bytes, order.key, self._now())
        request = self._link.cls.Impl.SendGoalService.Request()
        request.goal_id.uuid, request.goal = list(goal.id), order.goal
        self._wires.send.write(request)
        self._unserved, self._swept = False, True
        return True

    def _cancel(self) -> bool:
        goal, self._unserved = self._goal, False
        if goal is not None and goal.state not in ENDED:
            self._cancel_goal(goal)
        elif self._sweeps or not self._swept:
            self._wanted = True
            self._sweep()
            return not (self._sweeps and self._wanted)
        return True

    def _sweep(self) -> None:
        if self._wanted and self._send_cancel(ALL_GOALS):
            self._wanted, self._swept, self._sweep_s = False, True, self._now()

    def _cancel_goal(self, goal: _Goal) -> None:
        goal.cancels = True
        if self._now() >= goal.cancelled_s + AGAIN_S and self._send_cancel(goal.id):
            goal.cancelled_s = self._now()

    def _send_cancel(self, id: bytes) -> bool:
        request = self._link.cls.Impl.CancelGoalService.Request()
        request.goal_info.goal_id.uuid = list(id)
        return bool(self._wires.cancel.write(request))

    def _advance(self) -> None:
        wires, goal = self._wires, self._goal
        accepted = [bool(answer.accepted) for answer in wires.send.answers()]
        results, canceled = wires.result.answers(), wires.cancel.answers()
        status, feedback = wires.status.take(), wires.feedback.take()
        served = wires.send.ready()
        self._sweep_s = None if canceled else self._sweep_s
        self._unserved = self._unserved and not served
        self._sweep()
        if goal is None:
            return
        results = results if goal.requested else []  # of the goal before
        for message in feedback:
            if bytes(message.goal_id.uuid) == goal.id:
                goal.feedback = message.feedback
        if accepted and goal.state == "sent":
            goal.state = "accepted" if accepted[-1] else "rejected"
        if status and goal.state not in ENDED:
            self._follow(goal, {bytes(s.goal_info.goal_id.uuid): int(s.status) for s in status[-1].status_list})
        if (goal.state == "sent" and self._now() > goal.sent_s + ANSWER_S) or (goal.state in LIVE and not served):
            self._lose(goal)
        if goal.state in LIVE and goal.cancels:
            goal.refused = goal.refused or any(answer.return_code == REFUSED for answer in canceled)
            self._cancel_goal(goal)
        for answer in results:
            if int(answer.status) in RESULTS:
                goal.result = answer.result
                goal.state = STATES[int(answer.status)] if goal.state in LIVE else goal.state

    def _follow(self, goal: _Goal, codes: dict[bytes, int]) -> None:
        """Take the goal's state from the status of all goals, id -> code."""
        code = codes.get(goal.id)
        if code is None:
            if goal.in_status:  # another server has taken its place
                self._lose(goal)
            return
        goal.in_status = True
        if not goal.requested:  # now: its answer comes with the end, also where the last status is lost
            request = self._link.cls.Impl.GetResultService.Request()
            request.goal_id.uuid = list(goal.id)
            goal.requested = bool(self._wires.result.write(request))
        goal.state = STATES.get(code, goal.state)

    def _lose(self, goal: _Goal) -> None:
        goal.state = "lost"
        self._cancel_goal(goal)  # it may have been accepted, and the answer lost


def action_clients(
    mapper: Mapper, net: Any, names: Collection[str] | None = None, sweeps: bool = False
) -> dict[str, ActionClient]:
    """Return name -> client of each action, or of those named. `sweeps`: a guard's, which cancels all goals."""
    return {
        name: ActionClient(link, _wires(link, net), sweeps)
        for name, link in mapper.actions.items()
        if names is None or name in names
    }


def _wires(link: ActionLink, net: Any) -> ActionWires:
    hidden, impl = f"{link.name}/_action", link.cls.Impl
    feedback = Topic(f"{hidden}/feedback", f"{link.form}_FeedbackMessage", impl.FeedbackMessage, FEEDBACK)
    status = Topic(f"{hidden}/status", "action_msgs/msg/GoalStatusArray", impl.GoalStatusMessage, STATUS)
    return ActionWires(
        net.service(f"{hidden}/send_goal", impl.SendGoalService, False),
        net.service(f"{hidden}/get_result", impl.GetResultService, False),
        net.service(f"{hidden}/cancel_goal", impl.CancelGoalService, False),
        net.input(feedback, False),
        net.input(status, False),
    )
