"""List the faults that a drill injects into a real run. `simulation/faults.py` has those of simulated runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DrillFault:
    """A kind of fault, which lasts for `seconds`. `causes`: the causes of misses that it explains, separated by spaces.

    `recovery_s`: minimum pause before the next fault. `must_miss`: whether the fault must cause at least one miss."""

    name: str
    description: str
    causes: str
    seconds: float
    recovery_s: float = 2.0
    must_miss: bool = True


_CPU = "wake.scheduler pause.starved pause.stall pause.stopped"
_DECODER = "decide.decoder_slow decide.queued decide.decoder_starved decide.decoder_stopped decide.send"
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
            must_miss=False,
        ),
        DrillFault("stop_decoder", "SIGSTOP of the decoder's process", "decide.decoder_stopped decide.queued", 1.0),
        DrillFault("stop_loop", "SIGSTOP of the run's process", "pause.stopped", 0.6),
        # With a standby decoder, this may cause no miss. The new decoder is slow, and its start delays other threads.
        DrillFault("kill_decoder", "SIGKILL of the decoder's process", _KILLED, 0.0, recovery_s=8.0, must_miss=False),
        DrillFault("hang", "the world's step hangs", _WORLD, 1.5),
    )
}
