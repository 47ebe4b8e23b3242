"""Stop the process of a run, as Ctrl-Z does, and resume: not before the safe call is active."""

from __future__ import annotations

import time
from collections.abc import Callable

from rtcontrol.loop.ports import Ports

# A process is stopped when the safe call is active, and what tells a world elsewhere of it has left.
HALT_WAIT_S, HALT_SETTLE_S = 2.0, 0.05
NOT_HALTED = (
    "Not stopped: the safe call is not active within {:g} s. The run is paused and tries on; press Ctrl-Z again, or "
    "end it with Ctrl-C."
)


def suspend(ports: Ports, lockstep: bool, collect: Callable[[], None], halt: Callable[[], None]) -> None:
    """Pause, stop the process (`halt`) once the safe call is active, and resume when it is continued.

    `collect` lets the loop take what happened meanwhile.
    """
    actuator, operator = ports.actuator, ports.operator
    pauses = operator.state == "running"
    if pauses:
        operator.say("pause", "SIGTSTP")
    actuator.disarm()  # the next release arms it again
    # A world in lockstep is idle while it waits for us, so its step with the safe call is not waited for.
    active = actuator.wait_safe(HALT_SETTLE_S if lockstep else HALT_WAIT_S) or lockstep
    collect()
    if not active:
        ports.notify(NOT_HALTED.format(HALT_WAIT_S))
        return
    time.sleep(HALT_SETTLE_S)
    halt()
    if pauses:
        operator.say("resume", "SIGCONT")
