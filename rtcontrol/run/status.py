"""What the exit status of a run says. Of several that apply it is the first of: 4, 5, 6, a signal's, 3, 1, 8."""

from __future__ import annotations

from rtcontrol.bridges.shutdown import STATUS

OK, INTERNAL, MISTAKE, MISSED, UNSAFE, HOST, INCOMPLETE = range(7)
ERRED = 8  # 7 is a bridge's, for no server
ERRED_SHARE = 0.1  # of the ticks: so many errors are no accident
HELP = """Exit status: 0; 1 internal error, or a simulator lost for good; 2 mistake in what was given; 3 too many
misses; 4 the safe call was not in force at the end; 5 the decoder was lost for good; 6 record or report incomplete
(disk full); 8 a tenth of the ticks or more ended in an error of code; 129 SIGHUP, 130 Ctrl-C, 143 SIGTERM. The first
signal ends the run in order, a second one changes nothing, a third one leaves whatever hangs.
"""


def mostly_errors(errors: int, ticks: int) -> bool:
    """Whether so many errors dominate so many ticks or decisions."""
    return errors > 0 and errors >= ERRED_SHARE * ticks


def status(
    ended_by: str,
    safe: bool = True,
    complete: bool = True,
    missed: bool = False,
    sound: bool = True,
    erred: bool = False,
) -> int:
    """Of a run that ended so: whether its safe call was in force, record and report are complete, there were too many
    misses, the counts agree, and errors dominated it."""
    if not safe:
        return UNSAFE
    if ended_by == "host":
        return HOST
    if not complete:
        return INCOMPLETE
    return STATUS.get(ended_by) or (MISSED if missed else INTERNAL if not sound else ERRED if erred else OK)
