"""`rtcontrol bench record`: what recording costs a tick, beside the same loop without a record."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rtcontrol.loop.config import RunConfig
from rtcontrol.loop.loop import ControlLoop
from rtcontrol.run import assembly
from rtcontrol.run.model_compatibility import model_for
from rtcontrol.telemetry.histogram import Series
from rtcontrol.telemetry.recorder import Recorder

WAYS = ("without", "with")


class TimedRecorder(Recorder):
    """Tells what its caller pays: `write_ms` for each tick, all its events together."""

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self.write_ms: list[float] = []
        self.latency_ms: list[float] = []
        self._spent_ns = 0
        super().__init__(path, header)

    def write(self, event: dict[str, Any]) -> None:
        began = time.perf_counter_ns()
        super().write(event)
        self._spent_ns += time.perf_counter_ns() - began
        if "kind" in event:
            self.write_ms.append(self._spent_ns / 1e6)
            self._spent_ns = 0
            if (latency := event.get("latency_ms")) is not None:
                self.latency_ms.append(latency)


class NoRecorder:
    """Stands where a recorder does, and keeps nothing but the latencies."""

    ticks_from = lost = 0

    def __init__(self, header: dict[str, Any]) -> None:
        self.header = header
        self.latency_ms: list[float] = []

    def write(self, event: dict[str, Any]) -> None:
        if (latency := event.get("latency_ms")) is not None and "kind" in event:
            self.latency_ms.append(latency)

    def keep(self) -> None: ...

    def close(self) -> None: ...


def compare(
    hz: float, seconds: float, rounds: int, host: str, model: str, progress: Callable[[], None]
) -> dict[str, Any]:
    """Both ways in turn, `rounds` times `seconds` each, of the bundled lander. UserError for a model or host that is
    none."""
    latency = {way: Series() for way in WAYS}
    write, size, empty, lost, ticks = Series(), 0, 0, 0, 0
    for number in range(rounds):
        # Each way is first every other time.
        for way in WAYS if number % 2 == 0 else WAYS[::-1]:
            with _flight(way, hz, seconds, host, model) as (loop, recorder):
                loop.run()
                recorder.close()
                for ms in recorder.latency_ms:
                    latency[way].add(ms)
                if isinstance(recorder, TimedRecorder):
                    for ms in recorder.write_ms:
                        write.add(ms)
                    ticks += len(recorder.write_ms)
                    lost += recorder.lost
                    size += recorder.size
                    empty = _empty(recorder)
            progress()
    return {
        "hz": hz,
        "host": host,
        "model": model,
        "seconds": seconds * rounds,
        "ticks": ticks,
        "latency_ms": {way: series.summary() for way, series in latency.items()},
        "write_ms": write.summary(),
        "lost": lost,
        "bytes_an_hour": round(empty + 3600 * (size - rounds * empty) / (seconds * rounds)),
    }


@contextmanager
def _flight(way: str, hz: float, seconds: float, host: str, model: str) -> Iterator[tuple[ControlLoop, Any]]:
    agent, env = assembly.agent("lander"), assembly.environment("lander", None)
    chosen = model_for(agent.tools.schemas, model)
    with tempfile.TemporaryDirectory(prefix="rtcontrol-bench-") as folder:
        config = RunConfig(
            env="lander",
            agent="lander",
            model=chosen,
            host=host,
            out=Path(folder),
            hz=hz,
            duration_s=seconds,
            record_observations="yes" if way == "with" else "no",
        )
        header = config.header(agent.fallback.hold_ms, agent)
        recorder: Any = TimedRecorder(config.out / "record.mcap", header) if way == "with" else NoRecorder(header)
        decides = assembly.host(config, assembly.decider(config, agent, chosen), chosen)
        yield ControlLoop(config, agent, env, decides, recorder), recorder


def _empty(recorder: Recorder) -> int:
    """How large a record of no tick is: its schemas, its header, its index."""
    with tempfile.TemporaryDirectory(prefix="rtcontrol-bench-") as folder:
        empty = Recorder(Path(folder) / "record.mcap", recorder.header)
        empty.close()
        return empty.size
