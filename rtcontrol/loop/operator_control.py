"""Take operators' commands from any thread. A pause or stop shuts the actuator at once; the loop handles it afterwards.

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
# A process is stopped when the safe call is active, and a remote world has been sent the emission.
HALT_WAIT_S, HALT_SETTLE_S = 2.0, 0.05
NOT_HALTED = (
    "Not stopped: the safe call is not active within {:g} s. The run is paused and tries on; press Ctrl-Z again, or "
    "end it with Ctrl-C."
)


class OperatorControl:
    """The control of operators over a run. Any thread may call `say`; the other methods are for the loop.

    Unless the state is running, the actuator is shut (`Actuator.bar`): only the safe call acts, which the world checks
    under its lock. A call that was requested before a resume does not act, either. `stop` ends the run, `wake` ends a
    wait of the run.
    """

    def __init__(
        self, actuator: Actuator, confirm_ns: int, stop: Callable[[str], None], wake: Callable[[], None]
    ) -> None:
        self._operator = OperatorState(confirm_ns)
        self._actuator, self._stop, self._wake = actuator, stop, wake
        self._lock = threading.Lock()

    @property
    def state(self) -> State:
        """Return the state: running, paused or stopped."""
        return self._operator.state

    @property
    def asking(self) -> PendingApproval | None:
        """Return the call that waits for a yes, if any."""
        return self._operator.asking

    def say(self, word: str, by: str, k: int | None = None) -> str:
        """Execute a command now, and return one sentence about the result. A yes or no answers the call of tick `k`, or
        else the waiting call. Raises ValueError for an unknown word."""
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
        """Show a new question, or None if the previous one is over."""
        with self._lock:
            self._operator.show(question, time.monotonic_ns())

    def suspend(self, lockstep: bool, collect: Callable[[], None], halt: Callable[[], None]) -> str | None:
        """Pause, stop the process (`halt`), as Ctrl-Z does, once the safe call is active, and resume when the process
        continues. Return for people why it was not stopped, if so. `collect` lets the loop handle events meanwhile."""
        pauses = self.state == "running"
        if pauses:
            self.say("pause", "SIGTSTP")
        self._actuator.disarm()  # the next release arms it again
        # A lockstep world does not step while it waits for us, so we do not wait for its step with the safe call.
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
        """End the operator's control when the run is over. From here on only the safe call may act."""
        with self._lock:
            self._operator.state = "stopped"
            self._actuator.order(ActuatorCore.bar, "stopped", 0)

    def _shut(self, why: str) -> None:
        actuator, now = self._actuator, time.monotonic_ns()
        # This comes first, so that a call that waits for the world finds the bar under the world's lock.
        actuator.order(ActuatorCore.bar, self._operator.state, now)
        if (cleared := actuator.order(ActuatorCore.demand, why, actuator.core.parting)) is not None:
            actuator.core.effects.append(Completion(cleared.tick, "refused", now, now, False))


def take_word(text: str, by: str, operator: OperatorControl, instructions: Instructions) -> str | None:
    """Execute a typed command (one of TYPED, `/help`, `/goals`), and return one sentence about the result; None for an
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
