"""The control loop: one run of an agent in an environment, from its start to the safe call at its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext

from rtcontrol.envs.base import WorldError
from rtcontrol.loop.phases import broke_down, finish, launch, prepare
from rtcontrol.loop.realtime import SlackCollector
from rtcontrol.loop.running import RunningLoop
from rtcontrol.telemetry.account import Account

LEAVE_S = 10.0  # how long the shutdown waits for the safe call to be active
LEAVE_AT_ONCE_S = 0.5  # the same after the third signal: time enough for a world that is free


class ControlLoop(RunningLoop):
    """Runs one agent in one environment. `host` and `env` are started and closed by `run`.

    Its ticks happen on the thread that calls `run` (`TickShell`), what reaches the environment on the actuator's;
    `instruct` and `stop` any thread (or signal handler) may call.
    """

    # -- for whoever looks on, from any thread ------------------------------------------------------------------------

    @property
    def ended_by(self) -> str | None:
        """Why it ends; None: it does not yet."""
        return self.state.ended_by

    @property
    def phase(self) -> str:
        return self.state.phase

    @property
    def account(self) -> Account:
        return self.recent.account

    def instruct(self, text: str) -> bool:
        """From the next release on, decide (and judge) by `text`, or by what an interpreter makes of it. False where
        the run is over. UserError for one that is too long."""
        if self.interpretation is not None:
            return self.interpretation.hear(text) and self.ended_by is None
        self.put(text)
        return self.ended_by is None

    def suspend(self, halt: Callable[[], None]) -> None:
        """Call `halt`, which stops the process, once the safe call is active; for a signal handler of this thread.
        Before the first tick nothing has acted; a run that ends brings its safe call anyway, and does not stop."""
        if self.phase == "running":
            self.shell.halt = halt
        elif self.phase != "ending":
            halt()

    # -- the run ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """The whole run. On every way out the safe call is executed, whatever it was: `state.failure` says how the
        world broke down, other exceptions pass through. A KeyboardInterrupt while the run is ending leaves at once."""
        state, patience_s = self.state, LEAVE_S
        try:
            prepare(self)
            if state.ended_by is None:
                # Their threads come before `favour`, which is for this thread and the actuator's alone.
                shared = self.options.watch is not None  # by all loops of the process, and garbage is collected for all
                watching = nullcontext() if shared else self._watch
                with watching, nullcontext() if shared else SlackCollector() as collector:
                    launch(self)
                    state.phase = "running"
                    self.shell.run(collector)
        except WorldError as error:
            state.ended_by, state.failure = "error", broke_down(self, error)
            self.tell(state.failure)
        except KeyboardInterrupt:
            patience_s = LEAVE_AT_ONCE_S if state.ended_by is not None else LEAVE_S
            self.stop("SIGINT")
            raise
        except BaseException:
            state.ended_by = "error"
            raise
        finally:
            state.phase, state.t_end_ns = "ending", time.monotonic_ns()
            finish(self, patience_s)
