"""The fault list of the Unity client: `python -m tests.bridges.unity.faults [--only WORD] [--json FILE]`.

Real server (Ray host, bundled model), the shipped C# under Mono with a frame loop in place of the engine; one fault
after another. Times of acts are the game's own, in the frame that carried them out; calls and observations as they pass
a tap between game and server. The exit status is 1 where a call was executed too old.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.bridges.faults import frame
from tests.bridges.faults.frame import STORM_S
from tests.bridges.faults.table import Row
from tests.bridges.unity.mono import MISSING, REASON
from tests.bridges.unity.rig import Rig


def game_killed(rig: Rig) -> Row:
    """SIGKILL; started again after 2 s."""
    assert rig.game is not None
    begin = time.monotonic()
    rig.game.end()
    time.sleep(0.1)
    row = rig.row("game killed -9, started again after 2 s", begin, time.monotonic(), None)
    time.sleep(1.9)
    back = time.monotonic()
    rig.start_game()
    row.recovered_ms = 1e3 * (rig.until_driven(back) - back)
    row.did = "ends with its process"
    row.notes.append("a new session")
    return row


def game_stopped(rig: Rig) -> Row:
    """SIGSTOP for 2 s to the game."""
    row = frame.stopped(rig)
    row.notes.append("nothing of it goes on meanwhile")
    return row


def frame_stalled(rig: Rig) -> Row:
    """A frame of 300 ms, ten times, with a time-to-live of 250 ms."""
    rig.fly(250.0)
    begin = time.monotonic()
    for _ in range(10):
        rig.tell("stall 300")
        time.sleep(random.uniform(0.5, 0.7))
    rig.until_driven(time.monotonic())
    return rig.row("a frame takes 300 ms, ten times", begin, time.monotonic(), begin + 0.3)


def observations_storm(rig: Rig) -> Row:
    """2,000 observations a second."""
    before = rig.stats()["observed"]
    rig.tell("rate 2000")
    row = frame.through(rig, "2,000 observations a second", STORM_S)
    rig.tell("rate 16")
    row.notes.append(f"{(rig.stats()['observed'] - before) / STORM_S:.0f} a second")
    return row


def calls_storm(rig: Rig) -> Row:
    """A server that sends fresh calls as fast as it can for 3 s, each another one, then falls silent."""
    return frame.calls_storm(rig, lambda begin, end: sum(e["event"] == "call" for e in rig.events))


def observations_silent(rig: Rig) -> Row:
    """Nothing is observed for 3 s."""
    return frame.ill(rig, "no observation for 3 s", "rate 0", "rate 16")


def observations_nan(rig: Rig) -> Row:
    """Observations with NaN for 3 s."""
    return frame.ill(rig, "observations with NaN for 3 s", "nan", "text")


FAULTS: list[Callable[[Rig], Row]] = [
    frame.server_stopped,
    frame.decoder_killed,
    game_killed,
    game_stopped,
    frame.stopped_often,
    frame_stalled,
    observations_storm,
    frame.strangers_storm,
    calls_storm,
    observations_silent,
    observations_nan,
    frame.link_stalled,
    frame.server_killed,
]


def run(folder: Path, model: str, host: str, only: str | None = None) -> list[Row]:
    """The rows of the faults whose name or description has the word."""
    return frame.run(Rig(folder, model, host), FAULTS, host, only)


def main() -> int:
    if MISSING and not {"-h", "--help"} & set(sys.argv):
        print(REASON, file=sys.stderr)
        return 2
    return frame.main(__doc__, run)


if __name__ == "__main__":
    sys.exit(main())
