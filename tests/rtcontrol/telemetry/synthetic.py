"""Make the events of synthetic runs from the given working time of each decision."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from rtcontrol.telemetry.recorded import RecordedRun, load_runs
from rtcontrol.telemetry.recorder import Recorder, RecordFile
from rtcontrol.telemetry.timeline import Timeline
from tests.helpers.processes import until

WAKE, OBSERVE, SUBMIT, SEND, REPLY, ORDER, EXECUTE = 0.1, 0.2, 0.1, 0.3, 0.3, 0.1, 0.4


def two_humps(seed: int, block: int = 50) -> Callable[[int], float]:
    """Work that is mostly quick and one time in five slow: misses between 5 and 60 % at 10 to 30 Hz. Each block has
    the whole distribution in an order of its own, so that short runs differ by their law and not by their luck."""
    draw, left = random.Random(seed), list[float]()

    def took(k: int) -> float:
        if not left:
            left.extend((i + draw.random()) / block for i in range(block))
            draw.shuffle(left)
        u = left.pop()
        return 8 + 25 * u if u < 0.8 else 40 + 500 * (u - 0.8)

    return took


def header(hz: float, **more: Any) -> dict[str, Any]:
    known = dict.fromkeys(["agent", "model", "engine", "host", "seed", "max_age_ms", "on_miss", "hold_ms", "late"])
    known |= {"instruction": "go to 0", "machine": None}
    known |= {"env": "cart", "clock": "wall", "hz": hz, "period_ms": 1e3 / hz, "deadline_ms": 1e3 / hz, "pipeline": 1}
    return {**known, "started_at": "2026-08-01T12:00:00+00:00", **more}


def synthetic(
    hz: float,
    seconds: float,
    took: Callable[[int], float],
    spans: bool = True,
    saw: Callable[[int], str] = lambda k: f"x {k}",
    **more: Any,
) -> Iterator[dict[str, Any]]:
    """Return the events of a run, starting with the header. `took` returns the ms of a decision by its tick."""
    period, free, last = 1e3 / hz, 0.0, 0.0
    yield {"header": header(hz, **more), "schema_version": 2}
    for k in range(int(seconds * hz)):
        r, deadline = k * period, (k + 1) * period
        yield {"observation": saw(k), "instruction": "go to 0", "history": [], "k": k, "seq": k, "epoch": 0}
        stamps = {"captured": -2.0, "woke": WAKE, "text": WAKE + OBSERVE, "submitted": WAKE + OBSERVE + SUBMIT}
        tick = {"k": k, "t_s": round(r / 1e3, 6), "wake_ms": WAKE, "epoch": 0, "seq": k, "superseded": 0}
        late = None
        received = r + stamps["submitted"] + SEND
        if (begun := max(received, free)) >= deadline:
            tick |= {"kind": "miss", "cause": "decide", "subcause": "queued", "action": "hold"}
        else:
            decide = took(k)
            free = decided = begun + decide
            replied = decided + REPLY
            full = {"received": received - r, "begun": begun - r, "decided": decided - r, "replied": replied - r}
            executed = replied + ORDER + EXECUTE
            if executed <= deadline:
                full |= {"executing": replied + ORDER - r, "executed": executed - r}
                stamps |= full
                tick |= {"kind": "call", "call": f"push(force={k % 3})", "execute_ms": EXECUTE, "decide_ms": decide}
                tick |= {"latency_ms": executed - r, "age_ms": executed - r + 2, "confidence": 0.9}
                tick |= {"passes": 1, "tokens": 20, "jitter_ms": abs(executed - last - period)} if last else {}
                last = executed
                acted = {"called": "push", "arguments": {"force": k % 3}, "k": k, "why": "fresh"}
                yield {**acted, "epoch": 0, "t_s": round(executed / 1e3, 6)}
            else:
                tick |= {"kind": "miss", "cause": "decide", "subcause": "decoder_slow", "action": "hold"}
                tick["evidence"] = {"decide_ms": round(decide, 3)}
                late = {"late": k, "used": False, "decide_ms": decide, "latency_ms": replied - r}
                late |= {"spans_ms": full} if spans else {}
        if spans:
            tick["spans_ms"] = {name: round(ms, 4) for name, ms in stamps.items()}
        yield tick
        if late is not None:
            yield late
    yield {"end": "duration", "t_s": seconds, "open": 0, "safe_in_force": True}


def timeline_of(events: Iterable[dict[str, Any]]) -> Timeline:
    timeline = Timeline()
    for event in events:
        timeline.add(event)
    timeline.account.assert_consistent()
    return timeline.finish()


def kept(path: Path, most: int = 10**9) -> RecordFile:
    """Return the record file of a run that has started."""
    file = RecordFile(path, most)
    file.start_writing()
    return file


def written(folder: Path, events: Iterator[dict[str, Any]], most: int = 10**9) -> Path:
    """Return the folder of a run, with a record of at most so many bytes."""
    recorder = Recorder(kept(folder / "record.mcap", most), next(events)["header"], patient=True)
    for i, event in enumerate(events):
        recorder.write(event)
        if most < 10**9 and i % 500 == 0:  # a part ends where all that came is written
            recorder._wake.set()
            until(lambda: not recorder._queue and not recorder.file.unwritten)
    recorder.close()
    return folder


def recorded(folder: Path, hz: float = 16, seconds: float = 20, seed: int = 1, **more: Any) -> RecordedRun:
    return load_runs([written(folder, synthetic(hz, seconds, two_humps(seed), **more))])[0]
