"""Services that a call requests, and actions that it pursues. A request is sent once for each new call. The goal of an
action is sent once, followed, and canceled by the safe call or by another goal.

A goal has an id of ours, by which the action's status and feedback are told from those of others' goals. A cancellation
is sent again until the status says that the goal has ended: one that overtakes its goal has nothing to cancel.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from rtcontrol_client.ros2.config import Qos
from rtcontrol_client.ros2.mapper import Mapper, Order, ServedLink, StateView, Topic

AGAIN_S = 0.5  # from one cancellation to the next
STATES = {1: "accepted", 2: "executing", 3: "canceling", 4: "succeeded", 5: "canceled", 6: "aborted"}
ENDED = ("succeeded", "canceled", "aborted", "rejected")
LIVE = ("sent", "accepted", "executing", "canceling")
RESULTS = (4, 5, 6)  # codes of goals that have ended
FEEDBACK = Qos(depth=10)
STATUS = Qos(reliability="reliable", durability="transient_local")
ALL_GOALS = bytes(16)  # as an id
REFUSED = 1  # the return code of a cancellation
TROUBLES = {
    "rejected": "The server of {} has rejected the goal.",
    "lost": "What became of the goal of {} is not known: its server is gone, or does not answer.",
    "aborted": "The server of {} has aborted the goal.",
}


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
    feedback: Any = None
    result: Any = None


class ActionClient:
    """One action. Its states: `idle`, `no server`, `sent`, `accepted`, `rejected`, `executing`, `canceling`,
    `succeeded`, `canceled`, `aborted`, and `lost` where its end is not known. Thread-safe."""

    failed = 0

    def __init__(
        self,
        link: ServedLink,
        wires: ActionWires,
        answer_s: float,
        sweeps: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`answer_s`: how long an answer is waited for. `sweeps`: each cancellation is of all goals, for it knows of
        none; else the first time alone, for those of a bridge before this one."""
        self.name, self._view, self._impl, self._wires = link.name, link.view, link.cls.Impl, wires
        self._answer_s, self._sweeps, self._now = answer_s, sweeps, now
        self._lock = threading.Lock()
        self._goal: _Goal | None = None
        self._swept = self._wanted = self._unserved = False
        self._sweep_s: float | None = None  # when all goals were canceled, where that is not answered
        self._trouble: str | None = None

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
            goal = self._goal
            if goal is None or self._unserved:
                return self._view("no server" if self._unserved else "idle"), time.monotonic_ns()
            state = "canceling" if goal.cancels and goal.state in LIVE else goal.state
            return self._view(state, feedback=goal.feedback, result=goal.result), time.monotonic_ns()

    def trouble(self) -> str | None:
        """Return what is wrong with it now."""
        missing = None if self._wires.send.ready() else unserved(self.name)
        return " ".join(filter(None, (self._trouble, missing))) or None

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
        if self._wanted or (self._sweep_s is not None and self._now() < self._sweep_s + self._answer_s):
            return False
        self._goal = goal = _Goal(uuid.uuid4().bytes, order.key, self._now())
        request = self._impl.SendGoalService.Request()
        request.goal_id.uuid, request.goal = list(goal.id), order.goal
        self._wires.send.send(request)
        self._trouble, self._unserved, self._swept = None, False, True
        return True

    def _cancel(self) -> bool:
        goal, self._unserved = self._goal, False
        if goal is not None and goal.state not in ENDED:
            goal.cancels = True
            self._cancel_goal(goal)
        elif self._sweeps or not self._swept:
            self._wanted = True
            self._sweep()
            return not (self._sweeps and self._wanted)
        return True

    def _sweep(self) -> None:
        if self._wanted and self._wires.cancel.ready():
            self._send_cancel(ALL_GOALS)
            self._wanted, self._swept, self._sweep_s = False, True, self._now()

    def _cancel_goal(self, goal: _Goal) -> None:
        goal.cancels = True
        if self._now() >= goal.cancelled_s + AGAIN_S and self._wires.cancel.ready():
            self._send_cancel(goal.id)
            goal.cancelled_s = self._now()

    def _send_cancel(self, id: bytes) -> None:
        request = self._impl.CancelGoalService.Request()
        request.goal_info.goal_id.uuid = list(id)
        self._wires.cancel.send(request)

    def _advance(self) -> None:
        wires, goal, now = self._wires, self._goal, self._now()
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
            self._set(goal, "accepted" if accepted[-1] else "rejected")
        if status and goal.state not in ENDED:
            self._follow(goal, {bytes(s.goal_info.goal_id.uuid): int(s.status) for s in status[-1].status_list})
        if (goal.state == "sent" and now > goal.sent_s + self._answer_s) or (goal.state in LIVE and not served):
            self._set(goal, "lost")
        if goal.state in LIVE and goal.cancels:
            if any(answer.return_code == REFUSED for answer in canceled):
                self._trouble = f"The server of {self.name} refuses to cancel the goal."
            self._cancel_goal(goal)
        for answer in results:
            if int(answer.status) in RESULTS:
                goal.result = answer.result
                if goal.state in LIVE:
                    self._set(goal, STATES[int(answer.status)])

    def _follow(self, goal: _Goal, codes: dict[bytes, int]) -> None:
        """Take the goal's state from the status of all goals, id -> code."""
        code = codes.get(goal.id)
        if code is None:
            if goal.in_status:  # another server has taken its place
                self._set(goal, "lost")
            return
        goal.in_status = True
        if not goal.requested:  # now: its answer comes with the end, also where the last status is lost
            request = self._impl.GetResultService.Request()
            request.goal_id.uuid = list(goal.id)
            self._wires.result.send(request)
            goal.requested = True
        if code in STATES and STATES[code] != goal.state:
            self._set(goal, STATES[code])

    def _set(self, goal: _Goal, state: str) -> None:
        goal.state = state
        self._trouble = TROUBLES[state].format(self.name) if state in TROUBLES else None
        if state == "lost":
            # It may have been accepted, and the answer lost.
            self._cancel_goal(goal)


class ServiceClient:
    """One service. Its states: `idle`, `no server`, `waiting`, `answered`, `no answer`. Thread-safe."""

    failed = 0

    def __init__(
        self, link: ServedLink, service: Any, answer_s: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        """`answer_s`: how long an answer is waited for."""
        self.name, self._view = link.name, link.view
        self._service, self._answer_s, self._now = service, answer_s, now
        self._lock = threading.Lock()
        self._state, self._response = "idle", None
        self._sent_s = 0.0

    def write(self, request: Any) -> bool:
        """Send a request; False where no server is there yet."""
        with self._lock:
            self._response = None
            if not self._service.ready():
                self._state = "no server"
                return False
            self._service.send(request)
            self._state, self._sent_s = "waiting", self._now()
            return True

    def readers(self) -> int:
        """Return whether a server is there."""
        return int(self._service.ready())

    def advance(self) -> None:
        """Take an answer; once a tick."""
        with self._lock:
            if self._state == "no server" and self._service.ready():
                self._state = "idle"
            for answer in self._service.answers():
                if self._state == "waiting":
                    self._state, self._response = "answered", answer
            if self._state == "waiting" and self._now() > self._sent_s + self._answer_s:
                self._state = "no answer"

    def poll(self) -> tuple[StateView, int]:
        """Return what is known of it now."""
        with self._lock:
            return self._view(self._state, response=self._response), time.monotonic_ns()

    def trouble(self) -> str | None:
        """Return what is wrong with it now."""
        if not self._service.ready():
            return unserved(self.name)
        if self._state == "no answer":
            return f"{self.name} has not answered within {1e3 * self._answer_s:g} ms."
        return None


def unserved(name: str) -> str:
    """Return the problem of a service or an action without a server."""
    return f"No node serves {name}. Start its node, or correct the name, the type or ROS_DOMAIN_ID."


Channel = ActionClient | ServiceClient


def channels(mapper: Mapper, net: Any, names: Iterable[str] | None = None, alone: bool = False) -> dict[str, Channel]:
    """Return name -> client of each service and action, or of those named. `alone`: a guard's, which cancels all."""
    answer_s = mapper.config.answer_ms / 1e3
    clients: dict[str, Channel] = {}
    for name, link in mapper.links.items():
        if names is not None and name not in names:
            continue
        if link.is_action:
            clients[name] = ActionClient(link, _wires(link, net), answer_s, sweeps=alone)
        else:
            clients[name] = ServiceClient(link, net.service(name, link.cls), answer_s)
    return clients


def _wires(link: ServedLink, net: Any) -> ActionWires:
    hidden, impl = f"{link.name}/_action", link.cls.Impl
    feedback = Topic(f"{hidden}/feedback", f"{link.form}_FeedbackMessage", impl.FeedbackMessage, FEEDBACK)
    status = Topic(f"{hidden}/status", "action_msgs/msg/GoalStatusArray", impl.GoalStatusMessage, STATUS)
    return ActionWires(
        net.service(f"{hidden}/send_goal", impl.SendGoalService),
        net.service(f"{hidden}/get_result", impl.GetResultService),
        net.service(f"{hidden}/cancel_goal", impl.CancelGoalService),
        net.feed(feedback),
        net.feed(status),
    )
