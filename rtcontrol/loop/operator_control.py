"""Execute operators' commands on any thread. A pause or stop blocks the actuator at once, without the loop's thread.

A line that a person types is a command (`TYPED`), `/help`, `/goals`, or an instruction.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rtcontrol.loop.active import Instructions
from rtcontrol.loop.actuator import Actuator
from rtcontrol.loop.actuator_core import ActuatorCore
from rtcontrol.loop.operator import CONTINUED, SUSPENDED, OperatorState, State
from rtcontrol.records import Completion, OperatorCommand, PendingApproval, ShowApproval

TYPED = {"/pause": "pause", "/resume": "resume", "/stop": "stop", "/yes": "confirm", "/no": "deny"}
NUMBERED = ("/yes", "/no")  # commands that accept the number of a tick
HELP, GOALS = "/help", "/goals"
# Ctrl-Z waits HALT_WAIT_S until the safe calls are active, then HALT_SETTLE_S until a remote client has the message.
HALT_WAIT_S, HALT_SETTLE_S = 2.0, 0.05
NOT_HALTED = (
    "Not suspended: the safe call did not become active within {:g} s. The run is paused and retries the safe call. "
    "Press Ctrl-Z again, or end the run with Ctrl-C."
)


class OperatorControl:
    """The object by which operators control a run. Any thread may call `execute_command`; the loop calls the others.

    While the run is paused or stopped, ActuatorCore blocks all calls except the safe calls. Calls that were requested
    before a resume stay blocked after it. `stop` ends the run. `wake` ends the loop's wait for events."""

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
    def pending_approval(self) -> PendingApproval | None:
        """Return the call that waits for approval, if any."""
        return self._operator.pending_approval

    def execute_command(self, word: str, by: str, k: int | None = None) -> str:
        """Execute the command `word`, and return a message about the result. `by`: the person or interface. `k`: the
        tick whose call is confirmed or denied (None: the waiting call). Raises ValueError for an unknown word."""
        with self._lock:
            answer, command = self._operator.apply(OperatorCommand(word, by, time.monotonic_ns(), k))
            if command is None:
                return answer
            if word in ("pause", "stop"):
                self._block_actuator(word)
            elif word == "resume":
                self._actuator.call_core(ActuatorCore.block, None, command.t_ns)
            self._actuator.core.effects.append(command)
        if word == "stop":
            self._stop("stop")
        self._wake()
        return answer

    def show_approval(self, question: ShowApproval) -> None:
        """Set the call that waits for approval, or None."""
        with self._lock:
            self._operator.show_approval(question, time.monotonic_ns())

    def suspend(self, lockstep: bool, collect: Callable[[], None], halt: Callable[[], None]) -> str | None:
        """Suspend the process for Ctrl-Z: pause, call `halt` when the safe calls are active, and then resume. `collect`
        lets the loop handle pending events. Return a message if the process was not suspended, else None."""
        self.execute_command("pause", SUSPENDED)
        self._actuator.disarm_watchdog()  # the watchdog (guard) must not act; the next release arms it again
        # Do not wait for long in lockstep: the world does not step meanwhile, so the safe call cannot become active.
        active = self._actuator.wait_safe(HALT_SETTLE_S if lockstep else HALT_WAIT_S) or lockstep
        collect()
        if not active:
            self.execute_command("pause", "Ctrl-Z")  # now the run counts as paused by a person, who may resume it
            return NOT_HALTED.format(HALT_WAIT_S)
        time.sleep(HALT_SETTLE_S)
        halt()
        time.sleep(HALT_SETTLE_S)  # if a person has paused the run meanwhile, that pause is handled first
        self.execute_command("resume", CONTINUED)
        return None

    def end_control(self) -> None:
        """Set the state to stopped at the end of the run, so that only the safe calls may act."""
        with self._lock:
            self._operator.state = "stopped"
            self._actuator.call_core(ActuatorCore.block, "stopped", 0)

    def _block_actuator(self, why: str) -> None:
        actuator, now = self._actuator, time.monotonic_ns()
        # Block calls before the demand: the environment checks `Command.block_reason` when it starts a queued call.
        actuator.call_core(ActuatorCore.block, self._operator.state, now)
        cleared = actuator.call_core(ActuatorCore.demand_safe_calls, why, actuator.core.guard_emission)
        if cleared is not None:
            actuator.core.effects.append(Completion(cleared.tick, "refused", now, now, False))


def run_typed_command(text: str, by: str, operator: OperatorControl, instructions: Instructions) -> str | None:
    """Execute a typed command (a key of TYPED, `/help` or `/goals`), and return a message about the result. Return None
    if the text is an instruction. `/yes 3` and `/no 3` answer for the call of tick 3."""
    word, _, number = text.partition(" ")
    if word in TYPED and (not number or (word in NUMBERED and number.isdecimal())):
        return operator.execute_command(TYPED[word], by, int(number) if number else None)
    if not text.startswith("/"):
        return None
    goals, words = instructions.goals, ", ".join([*TYPED, HELP, GOALS])
    listed = "The agent has no list of goals, and accepts any text as instruction."
    if goals is not None:
        listed = f"You can say: {'; '.join(goals.examples(len(goals.kinds)))}."
    if text == GOALS:
        return listed
    return (
        f'Active: "{instructions.now}". {listed} Commands: {words}.'
        if text == HELP
        else f"{text[:40]} is not a command: use {words}."
    )
