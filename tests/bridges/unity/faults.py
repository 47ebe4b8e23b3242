"""The shipped C# under Mono with a frame loop in place of the engine, on its rig."""

from __future__ import annotations

from typing import Any

from tests.bridges.rig import faults as general
from tests.bridges.rig import game
from tests.bridges.rig.base import Row
from tests.bridges.rig.faults import STORM_S
from tests.bridges.unity.mono import HERE, MISSING, REASON, Driver, compile_cs, core_sources
from tests.helpers.processes import until


class Rig(game.GameRig):
    missing = REASON if MISSING else ""

    def open(self) -> None:
        self._exe = self.folder / "driver.exe"
        said = compile_cs(self._exe, core_sources() + list((HERE / "driver").glob("*.cs")))
        assert self._exe.exists(), said
        super().open()

    def begun(self) -> Driver:
        given = ["--endpoint", self.endpoint, "--ttl-ms", f"{self.ttl_ms:g}", "--persist", "1"]
        return Driver(
            self._exe, "run", *given, *(["--hz", "16", "--timed", "1"] if self.measured else ["--wheels", "1"])
        )

    def land(self) -> None:
        if self.game is not None:
            if self.game.process.poll() is None:
                self.figures = {"game": self.stats()}
                self.tell("close")
                self.game.process.wait(20)
            self.game.end()

    def stats(self) -> dict[str, Any]:
        told = sum(e["event"] == "stats" for e in self.heard())
        self.tell("stats")
        until(lambda: sum(e["event"] == "stats" for e in self.heard()) > told, "the game says nothing", 10)
        stats: dict[str, Any] = next(e["stats"] for e in reversed(self.events) if e["event"] == "stats")
        return stats


def observations_storm(rig: Rig) -> Row:
    """2,000 observations a second."""
    before = rig.stats()["observed"]
    rig.tell("rate 2000")
    row = general.through(rig, "2,000 observations a second", STORM_S)
    rig.tell("rate 16")
    row.notes.append(f"{(rig.stats()['observed'] - before) / STORM_S:.0f} a second")
    return row


def calls_storm(rig: Rig) -> Row:
    """A server that sends fresh calls as fast as it can for 3 s, each another one, then falls silent."""
    return general.calls_storm(rig, lambda begin, end: sum(e["event"] == "call" for e in rig.events))


def observations_silent(rig: Rig) -> Row:
    """Nothing is observed for 3 s."""
    return general.ill(rig, "no observation for 3 s", "rate 0", "rate 16")


def observations_nan(rig: Rig) -> Row:
    """Observations with NaN for 3 s."""
    return general.ill(rig, "observations with NaN for 3 s", "nan", "text")


Rig.faults = [
    general.server_stopped, general.decoder_killed, game.game_killed, game.game_stopped, general.stopped_often,
    game.frame_stalled, observations_storm, general.strangers_storm, calls_storm, observations_silent, observations_nan,
    general.link_stalled, general.server_killed,
]  # fmt: skip
