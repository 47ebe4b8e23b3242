"""The shipped Godot project in a headless engine, on its rig: it speaks WebSocket, which the tap does not, so that it
has soaks only."""

from __future__ import annotations

import psutil

from tests.bridges.godot.engine import MISSING, REASON, Engine, Served, quantiles
from tests.bridges.rig import base
from tests.bridges.rig.table import Row


class Rig(base.Rig):
    what = "engine"
    missing = REASON if MISSING else ""

    def open(self) -> None:
        self.served = self.server = Served(self.folder, *self.options)
        self.served.start()
        self.engine: Engine | None = None

    def start(self) -> None:
        self.engine = Engine(self.folder, "driver.gd", f"--url={self.served.url}")

    def land(self) -> None:
        if self.engine is not None and self.engine.process.poll() is None:
            stats = self.engine.stats()
            for name in ("latency_ms", "age_ms"):
                stats[f"{name} p50 / p99 / max"] = quantiles(stats.pop(name))
            self.engine.say("quit")
            self.engine.process.wait(20)
            self.figures = {"engine": stats, "faults_of_the_scripts": self.engine.faults()}
            self.engine.end()

    def close(self) -> None:
        self.land()
        self.server.stop()

    def tell(self, line: str) -> None:
        assert self.engine is not None
        self.engine.say(line)

    def process(self) -> psutil.Process:
        assert self.engine is not None
        return psutil.Process(self.engine.process.pid)

    def driven(self, since: float) -> float | None:
        raise NotImplementedError

    def row(self, fault: str, begin: float, end: float, mended: float | None) -> Row:
        raise NotImplementedError
