"""Actions that a call pursues: its goal is sent once, followed, and canceled by the safe call or by another goal.

A goal has an id of ours, by which the action's status and feedback are told from those of others' goals, whoever else
has sent some. A cancellation is asked for again until the status says that the goal has ended: one that overtakes its
goal finds none.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from rtcontrol_client.ros2.definitions import ActionType
from rtcontrol_client.ros2.errors import Unmappable
from rtcontrol_client.ros2.services import Served
from rtcontrol_client.ros2.views import StateView, shown

AGAIN_S = 0.5  # from one cancellation to the next
STATES = {1: "accepted", 2: "executing", 3: "canceling", 4: "succeeded", 5: "canceled", 6: "aborted"}
ENDED = ("succeeded", "canceled", "aborted", "rejected")
RESULTS = (4, 5, 6)  # codes of goals that have ended
MOST_ANSWERS = 8
LIVE = ("sent", "accepted", "executing", "canceling")
NOBODY = bytes(16)  # as an id: all goals


class Heard(Protocol):
    """A topic that is read, message by message."""

    def take(self) -> list[Any]:
        """The messages since the last time, oldest first. Raises Unmappable where they cannot be read."""
        ...


@dataclass(frozen=True)
class Order:
    """A goal that a call wants, or, with `goal` None, that none is pursued. `key` is the same for the same goal,
    whenever it is stamped."""

    goal: Any = None
    key: bytes = b""


@dataclass(frozen=True)
class ActionWires:
    """What an action is made of on the wire."""

    send: Served
    ask: Served
    cancel: Served
    feedback: Heard
    status: Heard


@dataclass
class _Goal:
    id: bytes
    key: bytes
    sent_s: float
    state: str = "sent"
    code: int = 0
    seen: bool = False  # in the status
    refused: bool = False
    cancels: bool = False
    cancelled_s: float = 0.0
    asked: bool = False  # for its result
    ended_s: float = 0.0
    feedback: Any = None
    result: Any = None
    answers: list[Any] = field(default_factory=list)  # results, of which one may be its own


class ActionClient:
    """One action. Its states: `idle`, `no server`, `sent`, `accepted`, `rejected`, `executing`, `canceling`,
    `succeeded`, `canceled`, `aborted`, and `lost` where nobody tells what became of it. Thread-safe."""

    failed = 0

    def __init__(
        self,
        name: str,
        kind: ActionType,
        view: type[StateView],
        wires: ActionWires,
        answer_s: float,
        sweeps: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`answer_s`: so long an answer is waited for. `sweeps`: whoever cancels, cancels all goals each time, for he
        knows of none; else the first time alone, for those of a bridge before this one."""
        self.name, self._kind, self._view, self._wires = name, kind, view, wires
        self._answer_s, self._sweeps, self._now = answer_s, sweeps, now
        self._lock = threading.Lock()
        self._goal: _Goal | None = None
        self._swept = self._wanted = self._homeless = False
        self._sweep_s: float | None = None  # when that was asked, where it is not answered
        self._owed = 0  # results that were asked for and have not come, also of goals before this one
        self._trouble: str | None = None

    def write(self, order: Order) -> bool:
        """Pursue a goal, or none. False where that is to be asked again: no server is there, or another goal has not
        ended yet."""
        with self._lock:
            self._advance()
            return self._cancel() if order.goal is None else self._pursue(order)

    def readers(self) -> int:
        """Whether a server is there."""
        return int(self._wires.cancel.ready())

    def advance(self) -> None:
        """Look what has become of the goal; once a tick."""
        with self._lock:
            self._advance()

    def poll(self) -> tuple[StateView, int]:
        """What is known of it now."""
        with self._lock:
            goal = self._goal
            if goal is None or self._homeless:
                made = shown(self._view, "no server" if self._homeless else "idle")
            else:
                state = "canceling" if goal.cancels and goal.state in LIVE else goal.state
                made = shown(self._view, state, feedback=goal.feedback, result=goal.result)
            return made, time.monotonic_ns()

    def trouble(self) -> str | None:
        """What is wrong with it now."""
        return " ".join(filter(None, (self._trouble, self._wires.send.trouble()))) or None

    # Under the lock.

    def _pursue(self, order: Order) -> bool:
        goal = self._goal
        if goal is not None and goal.state in LIVE:
            if goal.key == order.key and not goal.cancels:
                return True
            # A server that has one goal at a time cancels the new one with the old.
            self._ask_cancel(goal)
            return False
        if not self._wires.send.ready():
            self._homeless = True
            return False
        # Those of an older bridge are canceled first: a server that reads both at once would cancel this one, too.
        if self._wanted or (self._sweep_s is not None and self._now() < self._sweep_s + self._answer_s):
            return False
        made = _Goal(uuid.uuid4().bytes, order.key, self._now())
        request = self._kind.send.request()
        request.goal_id.uuid, request.goal = list(made.id), order.goal
        if not self._wires.send.send(request):
            return False
        self._goal, self._trouble, self._homeless, self._swept = made, None, False, True
        return True

    def _cancel(self) -> bool:
        goal, self._homeless = self._goal, False
        if goal is not None and goal.state not in ENDED:
            goal.cancels = True
            self._ask_cancel(goal)
        elif self._sweeps or not self._swept:
            self._wanted = True
            self._sweep()
            return not (self._sweeps and self._wanted)
        return True

    def _sweep(self) -> None:
        if self._wanted and self._wires.cancel.ready() and self._send_cancel(NOBODY):
            self._wanted, self._swept, self._sweep_s = False, True, self._now()

    def _ask_cancel(self, goal: _Goal) -> None:
        goal.cancels = True
        if self._now() >= goal.cancelled_s + AGAIN_S and self._wires.cancel.ready() and self._send_cancel(goal.id):
            goal.cancelled_s = self._now()

    def _send_cancel(self, id: bytes) -> bool:
        request = self._kind.cancel.request()
        request.goal_info.goal_id.uuid = list(id)
        return self._wires.cancel.send(request)

    def _advance(self) -> None:
        known = self._statuses()
        self._hear_feedback()
        accepted = [bool(answer.accepted) for answer in self._wires.send.answers()]
        results = self._wires.ask.answers()
        ours = self._owed <= 1 and self._wires.ask.exact()
        self._owed = max(0, self._owed - len(results))
        canceled = self._wires.cancel.answers()
        if canceled:
            self._sweep_s = None
        refusals = [answer for answer in canceled if answer.return_code == 1]
        for wire in (self._wires.send, self._wires.ask, self._wires.cancel):
            wire.ready()  # from now on, that is: who looks late waits
        self._homeless = self._homeless and not self._wires.send.ready()
        self._sweep()
        goal, now = self._goal, self._now()
        if goal is None:
            return
        if accepted and goal.state == "sent":
            goal.refused = not any(accepted)
            if self._wires.send.exact():
                self._told(goal, "rejected" if goal.refused else "accepted")
        if known is not None and goal.state not in ENDED:
            self._follow(goal, known)
        if goal.state == "sent" and now > goal.sent_s + self._answer_s:
            self._told(goal, "rejected" if goal.refused else "lost")
        if goal.state in LIVE and not self._wires.send.ready():
            self._told(goal, "lost")
        if goal.state in LIVE and goal.cancels:
            if refusals:
                self._trouble = f"The server of {self.name} refuses to cancel the goal."
            self._ask_cancel(goal)
        self._look_for_result(goal, results, ours)

    def _statuses(self) -> dict[bytes, int] | None:
        """Id -> status of all goals, where there are news of them."""
        try:
            heard = self._wires.status.take()
        except Unmappable:
            return None
        if not heard:
            return None
        return {bytes(one.goal_info.goal_id.uuid): int(one.status) for one in heard[-1].status_list}

    def _hear_feedback(self) -> None:
        try:
            heard = self._wires.feedback.take()
        except Unmappable:
            return
        for message in heard:
            if self._goal is not None and bytes(message.goal_id.uuid) == self._goal.id:
                self._goal.feedback = message.feedback

    def _follow(self, goal: _Goal, known: dict[bytes, int]) -> None:
        code = known.get(goal.id)
        if code is None:
            if goal.seen:  # another server has taken its place
                self._told(goal, "lost")
            return
        goal.seen = True
        if not goal.asked:  # now: its answer comes with the end, also where the status that tells of it is lost
            request = self._kind.ask.request()
            request.goal_id.uuid = list(goal.id)
            goal.asked = self._wires.ask.send(request)
            self._owed += goal.asked
        if code in STATES and STATES[code] != goal.state:
            goal.code = code
            self._told(goal, STATES[code])

    def _look_for_result(self, goal: _Goal, answers: list[Any], ours: bool) -> None:
        """`ours`: these can be of no other goal."""
        if not goal.asked or goal.result is not None:
            return
        goal.answers = [*goal.answers, *(answer for answer in answers if int(answer.status) in RESULTS)][-MOST_ANSWERS:]
        if goal.state in LIVE and goal.answers and ours:
            goal.code = int(goal.answers[-1].status)
            self._told(goal, STATES[goal.code])
        if goal.state not in ENDED:
            return
        for answer in goal.answers:
            if int(answer.status) == goal.code:
                goal.result = answer.result
                return
        if self._now() > goal.ended_s + self._answer_s and self._trouble is None:
            self._trouble = f"The goal of {self.name} has ended ({goal.state}), and its result is lost."

    def _told(self, goal: _Goal, state: str) -> None:
        goal.state = state
        if state in ENDED:
            goal.ended_s = self._now()
        self._trouble = {
            "rejected": f"The server of {self.name} has rejected the goal.",
            "lost": f"What became of the goal of {self.name} is not known: its server is gone, or does not answer.",
            "aborted": f"The server of {self.name} has aborted the goal.",
        }.get(state)
        if state == "lost":
            # It may have been accepted, and the answer lost.
            self._ask_cancel(goal)
