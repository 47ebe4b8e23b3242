"""The shipped Godot project in a headless engine, on its rig."""

from __future__ import annotations

from typing import Any

from tests.bridges.godot.engine import MISSING, REASON, Engine, quantiles
from tests.bridges.rig import faults as general
from tests.bridges.rig import game
from tests.bridges.rig.tap import Tap, WebSocket
from tests.helpers.processes import free_port


class Rig(game.GameRig):
    """Its server has a WebSocket too, which the tap is at."""

    missing = REASON if MISSING else ""

    def open(self) -> None:
        self._port = free_port()
        self.options = ("--http", f"127.0.0.1:{self._port}", *self.options)
        super().open()
        self.tap.close()
        self.tap = Tap(self._port, WebSocket)

    def begun(self) -> Engine:
        at = f"127.0.0.1:{self._port}" if self.measured else self.tap.endpoint.removeprefix("tcp://")
        return Engine(self.folder, "driver.gd", f"--url=ws://{at}/ws", f"--set=ttl_ms:{self.ttl_ms:.1f}")

    def plain(self, event: dict[str, Any]) -> dict[str, Any]:
        if event["event"] != "acted":
            return event
        kind = "call" if event["cause"] == "call" else "safe"
        return {**event, "event": kind, "name": event["call"]["name"]}

    def land(self) -> None:
        if isinstance(self.game, Engine) and self.game.process.poll() is None:
            stats = self.game.stats()
            for name in ("latency_ms", "age_ms"):
                stats[f"{name} p50 / p99 / max"] = quantiles(stats.pop(name))
            self.tell("quit")
            self.game.process.wait(20)
            self.figures = {"engine": stats, "faults_of_the_scripts": self.game.faults()}
            self.game.end()


Rig.faults = [
    general.server_stopped, general.decoder_killed, game.game_killed, game.game_stopped, general.stopped_often,
    game.frame_stalled, general.strangers_storm, general.link_stalled, general.server_killed,
]  # fmt: skip
