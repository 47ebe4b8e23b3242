"""The faults that a drill injects in real time. `simulation/faults.py` has the faults in simulated time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DrillFault:
    """A fault of a drill. `causes`: the names of misses that the fault explains, separated by spaces. The fault lasts
    `seconds`, and for `rest_s` after it nothing is injected. `felt`: the fault must cost a tick."""

    name: str
    about: str
    causes: str
    seconds: float
    rest_s: float = 2.0
    felt: bool = True


_CPU = "wake.scheduler pause.stall"
_DECODER = "decide.decoder_slow decide.queued decide.decoder_stopped decide.send"
_WORLD = "execute.busy execute.slow stale_observation.frozen stale_observation.late"
_KILLED = f"host.lost host.restarting {_DECODER} {_CPU}"
FAULTS = {
    fault.name: fault
    for fault in (
        DrillFault(
            "busy_core",
            "twice as many busy processes as there are CPUs",
            f"{_CPU} {_DECODER} execute.slow execute.busy",
            2.0,
            felt=False,
        ),
        DrillFault("stop_decoder", "SIGSTOP of the decoder's process", "decide.decoder_stopped decide.queued", 1.0),
        DrillFault("stop_loop", "SIGSTOP of the run's process", "pause.stall", 0.6),
        # With a standby this fault may cost no tick. The new decoder is slow at first, and its start needs processors.
        DrillFault("kill_decoder", "SIGKILL of the decoder's process", _KILLED, 0.0, rest_s=8.0, felt=False),
        DrillFault("hang", "the world's step hangs", _WORLD, 1.5),
    )
}
