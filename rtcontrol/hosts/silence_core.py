"""When a silent process is lost. Silence alone proves little: on a starved machine a live process answers late."""

from __future__ import annotations

from rtcontrol.hosts.processes import GONE, STOPPED, WAITING

PING_EVERY_S = 0.1
# So long it may be silent before the kernel's word counts that it has got nowhere for `STILL_S`; and so long whatever
# the kernel reports.
DOUBT_AFTER_S, STILL_S, DEAD_AFTER_S = 2.0, 1.0, 10.0


class SilenceCore:
    """Counts rounds of PING_EVERY_S, which the watcher saw itself: while it is not run, no one is silent."""

    def __init__(self) -> None:
        self.silent = 0  # rounds without an answer
        self._still = 0  # of these, rounds in which the process got nowhere

    def pinged(self) -> None:
        """A round begins with a ping."""
        self.silent += 1

    def answered(self) -> None:
        """The process answered a ping."""
        self.silent = self._still = 0

    def lost(self, state: str | None) -> bool:
        """Return whether the process is lost at the end of a silent round; `state`: the kernel's word."""
        self._still = self._still + 1 if state in (STOPPED, WAITING) else 0
        silent_s, still_s = self.silent * PING_EVERY_S, self._still * PING_EVERY_S
        hangs = silent_s > DOUBT_AFTER_S and still_s > STILL_S
        return state == GONE or hangs or silent_s > DEAD_AFTER_S
