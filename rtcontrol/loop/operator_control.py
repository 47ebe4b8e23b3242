"""People's commands from any thread: a pause or stop shuts the actuator at once, the loop learns of it afterwards.

A line that people type, or a page sends, is a command (`TYPED`), a question, or an instruction.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rtcontrol.loop.active import Instructions
from rtcontrol.loop.actuator import Actuator
from rtcontrol.loop.actuator_core import ActuatorCore
from rtcontrol.loop.operator import OperatorState, State
from rtcontrol.records import Completion, OperatorCommand, PendingApproval, Question

TYPED = {"/pause": "pause", "/resume": "resume", "/stop": "stop", "/yes": "confirm", "/no": "deny"}
HELP, GOALS = "/help", "/goals"
# A process is stopped when the safe call is active, and its emission has left for a world elsewhere.
HALT_WAIT_S, HALT_SETTLE_S = 2.0, 0.05
NOT_HALTED = (
    "Not stopped: the safe call is not active within {:g} s. The run is paused and tries on; press Ctrl-Z again, or "
    "end it with Ctrl-C."
)


class OperatorControl:
    """What people may do to a run: `say`, from any thread; the rest is the loop's.

    Where the state is not running, the actuator is shut (`Actuator.bar`): no call acts, as the world checks under its
    lock; the safe call alone does. Nor does one that was requested before a resume. `stop` ends the run, `wake` its
    wait.
    """

    def __init__(
        self, actuator: Actuator, confirm_ns: int, stop: Callable[[str], None], wake: Callable[[], None]
    ) -> None:
        self._operator = OperatorState(confirm_ns)
        self._actuator, self._stop, self._wake = actuator, stop, wake
        self._lock = threading.Lock()

    @property
    def state(self) -> State:
        """Running, paused or stopped."""
        return self._operator.state

    @property
    def asking(self) -> PendingApproval | None:
        """The call that waits for a yes."""
        return self._operator.asking

    def say(self, word: str, by: str, k: int | None = None) -> str:
        """Do it now, and return one sentence about it. A yes or no is for the call of tick `k`, or for the one that
        waits. Raises ValueError for another word."""
        with self._lock:
            answer, command = self._operator.take(OperatorCommand(word, by, time.monotonic_ns(), k))
            if command is None:
                return answer
            if word in ("pause", "stop"):
                self._shut(word)
            elif word == "resume":
                self._actuator.order(ActuatorCore.bar, None, command.t_ns)
            self._actuator.core.effects.append(command)
        if word == "stop":
            self._stop("stop")
        self._wake()
        return answer

    def show(self, question: Question) -> None:
        """This is asked from now on, or the question before is over."""
        with self._lock:
            self._operator.show(question, time.monotonic_ns())

    def suspend(self, lockstep: bool, collect: Callable[[], None], halt: Callable[[], None]) -> str | None:
        """Pause, stop the process (`halt`), as Ctrl-Z does, once the safe call is active, and resume when it is
        continued. Return why it was not stopped, for people. `collect` lets the loop take what happened meanwhile."""
        pauses = self.state == "running"
        if pauses:
            self.say("pause", "SIGTSTP")
        self._actuator.disarm()  # the next release arms it again
        # A world in lockstep is idle while it waits for us, so its step with the safe call is not waited for.
        active = self._actuator.wait_safe(HALT_SETTLE_S if lockstep else HALT_WAIT_S) or lockstep
        collect()
        if not active:
            return NOT_HALTED.format(HALT_WAIT_S)
        time.sleep(HALT_SETTLE_S)
        halt()
        if pauses:
            self.say("resume", "SIGCONT")
        return None

    def end(self) -> None:
        """The run is over: whatever its end is, nothing but the safe call acts from here on."""
        with self._lock:
            self._operator.state = "stopped"
            self._actuator.order(ActuatorCore.bar, "stopped", 0)

    def _shut(self, why: str) -> None:
        actuator, now = self._actuator, time.monotonic_ns()
        # First: a call that waits for the world now meets it under the world's lock.
        actuator.order(ActuatorCore.bar, self._operator.state, now)
        if (cleared := actuator.order(ActuatorCore.demand, why, actuator.core.parting)) is not None:
            actuator.core.effects.append(Completion(cleared.tick, "refused", now, now, False))


def take_word(text: str, by: str, operator: OperatorControl, instructions: Instructions) -> str | None:
    """Do what a typed line says (one of TYPED, `/help`, `/goals`), and return one sentence about it; None for an
    instruction."""
    if text in TYPED:
        return operator.say(TYPED[text], by)
    if not text.startswith("/"):
        return None
    goals, words = instructions.goals, ", ".join([*TYPED, HELP, GOALS])
    listed = "The agent lists no goals: it takes any text as its instruction."
    if goals is not None:
        listed = f"You can say: {'; '.join(goals.examples(len(goals.kinds)))}."
    if text == GOALS:
        return listed
    return (
        f'Active: "{instructions.now}". {listed} Commands: {words}.'
        if text == HELP
        else f"{text[:40]} is none of {words}."
    )
