"""ROS 2 actions: send a goal once, monitor it, and cancel it for the safe call or for another goal.

The bridge chooses each goal's id, so that it can ignore the status and feedback of other clients' goals. It repeats a
cancellation until the status shows that the goal has ended, since a cancellation may arrive before its goal.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from rtcontrol_client import clock
from rtcontrol_client.ros2.config import Qos
from rtcontrol_client.ros2.mapper import ActionLink, GoalOrder, Mapper, StateView, Topic

ANSWER_S = 2.0  # seconds to wait for an answer of the action server
AGAIN_S = 0.5  # seconds between two requests to cancel
STATES = {1: "accepted", 2: "executing", 3: "canceling", 4: "succeeded", 5: "canceled", 6: "aborted"}
ENDED = ("succeeded", "canceled", "aborted", "rejected")
LIVE = ("sent", "accepted", "executing", "canceling")
RESULTS = (4, 5, 6)  # status codes of ended goals
FEEDBACK = Qos(depth=10)
STATUS = Qos(reliability="reliable", durability="transient_local")
ALL_GOALS = bytes(16)  # in a cancellation, this id means all goals
REFUSED = 1  # the return code of a cancellation that the server refused


@dataclass(frozen=True)
class ActionPorts:
    """The three services and two topics of a ROS 2 action."""

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
    requested: bool = False  # whether the goal's result was requested
    refused: bool = False  # whether the server refused to cancel the goal
    feedback: Any = None
    result: Any = None

    def problem(self) -> str | None:
        """Return the current problem with the goal, or None."""
        if self.refused and self.state in LIVE:
            return "the cancellation is refused"
        return f"the goal is {self.state}" if self.state in ("rejected", "lost", "aborted") else None


class ActionClient:
    """A thread-safe client of one action. Its state is `idle`, `no server`, `sent`, `accepted`, `rejected`,
    `executing`, `canceling`, `succeeded`, `canceled`, `aborted`, or `lost` if the goal's result is unknown."""

    def __init__(
        self, link: ActionLink, wires: ActionPorts, cancels_all: bool = False, now: Callable[[], float] = clock.now_s
    ) -> None:
        """Create a client without a goal. Its first cancellation cancels all goals of the action, to end the goals of
        an earlier bridge; with `cancels_all`, every cancellation does so."""
        self._link, self._wires, self._cancels_all, self._now = link, wires, cancels_all, now
        self._lock = threading.Lock()
        self._goal: _Goal | None = None
        self._all_canceled_once = self._cancel_all_wanted = self._without_server = False
        self._cancel_all_s: float | None = None  # when the unanswered request to cancel all goals was sent

    def write(self, order: GoalOrder) -> bool:
        """Send the goal of an order, or cancel all goals if it has none. Return False if the caller must try again,
        because no server is ready or another goal is still active."""
        with self._lock:
            self._process_messages()
            return self._cancel() if order.goal is None else self._pursue_goal(order)

    def readers(self) -> int:
        """Return 1 if the action has a server, otherwise 0."""
        return int(self._wires.cancel.ready())

    def advance(self) -> None:
        """Process the server's messages about the goal; must be called in each tick."""
        with self._lock:
            self._process_messages()

    def poll(self) -> tuple[StateView, int]:
        """Return the state, feedback and result of the action, and the current time."""
        with self._lock:
            goal, view = self._goal, self._link.view
            if goal is None or self._without_server:
                return view("no server" if self._without_server else "idle"), clock.now_ns()
            state = "canceling" if goal.cancels and goal.state in LIVE else goal.state
            return view(state, feedback=goal.feedback, result=goal.result), clock.now_ns()

    def problem(self) -> str | None:
        """Return the current problem with the action, or None."""
        why = "no node serves this action" if not self._wires.send.ready() else self._goal and self._goal.problem()
        return f"{self._link.name}: {why}." if why else None

    # The methods below run under the lock.

    def _pursue_goal(self, order: GoalOrder) -> bool:
        goal = self._goal
        if goal is not None and goal.state in LIVE:
            if goal.key == order.key and not goal.cancels:
                return True
            # Wait for the end of the old goal: a server with a single goal may cancel a new goal together with it.
            self._cancel_goal(goal)
            return False
        if not self._wires.send.ready():
            self._without_server = True
            return False
        # Wait until an earlier bridge's goals are canceled, because a late cancellation would cancel this goal as well.
        if self._cancel_all_wanted or (self._cancel_all_s is not None and self._now() < self._cancel_all_s + ANSWER_S):
            return False
        self._goal = goal = _Goal(uuid.uuid4().bytes, order.key, self._now())
        request = self._link.cls.Impl.SendGoalService.Request()
        request.goal_id.uuid, request.goal = list(goal.id), order.goal
        self._wires.send.write(request)
        self._without_server, self._all_canceled_once = False, True
        return True

    def _cancel(self) -> bool:
        goal, self._without_server = self._goal, False
        if goal is not None and goal.state not in ENDED:
            self._cancel_goal(goal)
        elif self._cancels_all or not self._all_canceled_once:
            self._cancel_all_wanted = True
            self._cancel_all_goals()
            return not (self._cancels_all and self._cancel_all_wanted)
        return True

    def _cancel_all_goals(self) -> None:
        if self._cancel_all_wanted and self._send_cancel(ALL_GOALS):
            self._cancel_all_wanted, self._all_canceled_once, self._cancel_all_s = False, True, self._now()

    def _cancel_goal(self, goal: _Goal) -> None:
        goal.cancels = True
        if self._now() >= goal.cancelled_s + AGAIN_S and self._send_cancel(goal.id):
            goal.cancelled_s = self._now()

    def _send_cancel(self, id: bytes) -> bool:
        request = self._link.cls.Impl.CancelGoalService.Request()
        request.goal_info.goal_id.uuid = list(id)
        return bool(self._wires.cancel.write(request))

    def _process_messages(self) -> None:
        wires, goal = self._wires, self._goal
        accepted = [bool(answer.accepted) for answer in wires.send.answers()]
        results, canceled = wires.result.answers(), wires.cancel.answers()
        status, feedback = wires.status.take(), wires.feedback.take()
        served = wires.send.ready()
        self._cancel_all_s = None if canceled else self._cancel_all_s
        self._without_server = self._without_server and not served
        self._cancel_all_goals()
        if goal is None:
            return
        results = results if goal.requested else []  # else these belong to the previous goal
        for message in feedback:
            if bytes(message.goal_id.uuid) == goal.id:
                goal.feedback = message.feedback
        if accepted and goal.state == "sent":
            goal.state = "accepted" if accepted[-1] else "rejected"
        if status and goal.state not in ENDED:
            self._update_state(goal, {bytes(s.goal_info.goal_id.uuid): int(s.status) for s in status[-1].status_list})
        if (goal.state == "sent" and self._now() > goal.sent_s + ANSWER_S) or (goal.state in LIVE and not served):
            self._mark_lost(goal)
        if goal.state in LIVE and goal.cancels:
            goal.refused = goal.refused or any(answer.return_code == REFUSED for answer in canceled)
            self._cancel_goal(goal)
        for answer in results:
            if int(answer.status) in RESULTS:
                goal.result = answer.result
                goal.state = STATES[int(answer.status)] if goal.state in LIVE else goal.state

    def _update_state(self, goal: _Goal, codes: dict[bytes, int]) -> None:
        """Update the goal's state from the status codes of all goals (id -> code)."""
        code = codes.get(goal.id)
        if code is None:
            if goal.in_status:  # the goal has disappeared, because another server has replaced the goal's server
                self._mark_lost(goal)
            return
        goal.in_status = True
        if not goal.requested:  # request the result early, so that it arrives even if the last status is lost
            request = self._link.cls.Impl.GetResultService.Request()
            request.goal_id.uuid = list(goal.id)
            goal.requested = bool(self._wires.result.write(request))
        goal.state = STATES.get(code, goal.state)

    def _mark_lost(self, goal: _Goal) -> None:
        goal.state = "lost"
        self._cancel_goal(goal)  # the server may have accepted the goal, and only its answer was lost


def action_clients(
    mapper: Mapper, net: Any, names: Collection[str] | None = None, cancels_all: bool = False
) -> dict[str, ActionClient]:
    """Create clients of all actions, or of the actions in `names`. `cancels_all` (for the guard): see ActionClient."""
    return {
        name: ActionClient(link, _wires(link, net), cancels_all)
        for name, link in mapper.actions.items()
        if names is None or name in names
    }


def _wires(link: ActionLink, net: Any) -> ActionPorts:
    hidden, impl = f"{link.name}/_action", link.cls.Impl
    feedback = Topic(f"{hidden}/feedback", f"{link.form}_FeedbackMessage", impl.FeedbackMessage, FEEDBACK)
    status = Topic(f"{hidden}/status", "action_msgs/msg/GoalStatusArray", impl.GoalStatusMessage, STATUS)
    return ActionPorts(
        net.service(f"{hidden}/send_goal", impl.SendGoalService, False),
        net.service(f"{hidden}/get_result", impl.GetResultService, False),
        net.service(f"{hidden}/cancel_goal", impl.CancelGoalService, False),
        net.input(feedback, False),
        net.input(status, False),
    )
