"""The deadline-miss report: what a run's record comes to, as JSON and as a table."""

from __future__ import annotations

import contextlib
import json
import os
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from rtcontrol.models.errors import UserError
from rtcontrol.record.record import SCHEMA_VERSION, Recorder, read_record

TIMES = {
    "latency_ms": "latency_ms",
    "decide_ms": "decide_ms",
    "wake_ms": "wake_ms",
    "observation_age_ms": "age_ms",
    "execute_ms": "execute_ms",
    "jitter_ms": "jitter_ms",
}
# What the ledger counts and the record's ticks repeat.
KINDS = ("null", "held", "overtaken", "epoch_over")
OTHERS = ("late_used", "late_dropped", "safe_calls", "fallback_errors", "superseded")
# So many different errors are listed.
MAX_ERRORS = 64


def percentiles(values: Iterable[float]) -> dict[str, float | None]:
    """p50, p90, p99, p99_9, max and mean; all None of nothing."""
    a = np.asarray(values, dtype=float)
    names = ("p50", "p90", "p99", "p99_9", "max", "mean")
    if a.size == 0:
        return dict.fromkeys(names)
    numbers = [*np.percentile(a, [50, 90, 99, 99.9]), a.max(), a.mean()]
    return {name: round(float(v), 4) for name, v in zip(names, numbers, strict=True)}


def runs_and_window(bad: Iterable[int], releases: int, k: int) -> tuple[int, int]:
    """(longest run of misses, most misses among any `k` releases in a row); `bad` are the missed releases' indices."""
    missed = np.zeros(max(releases, 1), dtype=np.int64)
    missed[[i for i in bad if i < releases]] = 1
    longest = run = 0
    for m in missed:
        run = run + 1 if m else 0
        longest = max(longest, run)
    total = np.concatenate([[0], np.cumsum(missed)])
    k = min(k, len(missed))
    return longest, int((total[k:] - total[:-k]).max())


class Tally:
    """Reads a record line by line; its memory is a few numbers a tick."""

    def __init__(self) -> None:
        self.header: dict[str, Any] = {}
        self.start: dict[str, Any] = {}
        self.end: dict[str, Any] = {}
        self.counts: Counter[str] = Counter()
        self.misses_by_cause: Counter[str] = Counter()
        self.skipped_by_cause: Counter[str] = Counter()
        self.times: dict[str, array[float]] = {name: array("d") for name in TIMES}
        self.passes, self.tokens = array("q"), array("q")
        self.bad = array("q")
        self.last_k = -1
        self.last_t_s = 0.0
        self.episodes: list[dict[str, Any]] = []
        self.host_events: list[dict[str, Any]] = []
        self.instructions: list[dict[str, Any]] = []
        self.errors: dict[tuple[str | None, str], dict[str, Any]] = {}

    def add(self, line: dict[str, Any]) -> None:
        if "error" in line:
            self._error(line)
        if "kind" in line:
            self._tick(line)
        elif "late" in line:
            self.counts["late_used" if line["used"] else "late_dropped"] += 1
            self._times(line)
        elif "overran" in line:
            self._times(line)
        elif "safe" in line:
            self.counts["safe_calls"] += line["why"] != "exit" and line.get("in_force", True)
            self.counts["fallback_errors"] += "error" in line
        elif "episode" in line:
            self.episodes.append(line["episode"])
        elif "host_event" in line:
            self.host_events.append(line["host_event"])
        elif "instruction" in line:
            self.instructions.append(line)
        elif "header" in line:
            self.header = line["header"]
        elif "start" in line:
            self.start = line["start"]
        elif "end" in line:
            self.end = line

    def _tick(self, line: dict[str, Any]) -> None:
        k = line["k"]
        self.last_k, self.last_t_s = max(self.last_k, k), max(self.last_t_s, line["t_s"])
        self.counts["ticks"] += 1
        self.counts["superseded"] += line["superseded"]
        if "cause" in line:
            self.counts["misses"] += 1
            self.misses_by_cause[line["cause"]] += 1
            self.bad.append(k)
        else:
            self.counts["on_time"] += 1
            if line["kind"] in KINDS:
                self.counts[line["kind"]] += 1
        if skipped := line.get("skipped", 0):
            self.counts["skipped_releases"] += skipped
            self.skipped_by_cause[line["skip_cause"]] += skipped
            self.bad.extend(range(k - skipped, k))
        if "passes" in line:
            self.passes.append(line["passes"])
            self.tokens.append(line["tokens"])
        self._times(line)

    def _error(self, line: dict[str, Any]) -> None:
        """One entry for each place and type of error (or text, where it came from elsewhere)."""
        where, error = line.get("where"), str(line["error"])
        entry = self.errors.get(key := (where, error.split(":")[0] if where else error))
        if entry is None and len(self.errors) < MAX_ERRORS:
            kinds = (name for name in ("safe", "late", "overran") if name in line)
            cause = line.get("cause") or line.get("fault") or next(kinds, "")
            entry = {"where": where, "error": error, "cause": cause, "count": 0, "first_t_s": line.get("t_s")}
            self.errors[key] = entry
        if entry is not None:
            entry["count"] += 1

    def _times(self, line: dict[str, Any]) -> None:
        for name, key in TIMES.items():
            if key in line:
                self.times[name].append(line[key])


def build(
    record: Path, ledger: Mapping[str, Any] | None = None, recorder: Recorder | None = None, ended_by: str | None = None
) -> dict[str, Any]:
    """The report of a record, complete or cut short: `ended_by` is then why, by SIGKILL where nobody knows.

    Of a live run: what its `recorder` could not write is counted too, and its `ledger` decides where not even that is
    all there was. The invariants:
    releases == ticks + skipped_releases, ticks == on_time + misses,
    miss_rate == (misses + skipped_releases) / releases. UserError where there is no record of a run.
    """
    tally = Tally()
    lost_lines = 0 if recorder is None else recorder.lost
    for line in chain(read_record(record), () if recorder is None else recorder.unwritten()):
        tally.add(line)
    if not tally.header and ledger is None:
        raise UserError(f"{record} does not begin with a run's header.", "Give the folder of a run.")
    counts = {name: tally.counts[name] for name in ("ticks", "on_time", "misses", "skipped_releases", *KINDS)}
    others = {name: tally.counts[name] for name in OTHERS}
    misses, skipped = tally.misses_by_cause, tally.skipped_by_cause
    if ledger is not None:
        others |= {name: ledger[name] for name in others}
        if lost_lines:
            counts = {name: ledger[name] for name in counts}
            misses, skipped = ledger["misses_by_cause"], ledger["skipped_by_cause"]
    releases = counts["ticks"] + counts["skipped_releases"]
    config, info = tally.header, tally.start.get("host_info", {})
    k = max(2, round(config.get("hz", 16)))
    longest, worst = runs_and_window(tally.bad, tally.last_k + 1, k)
    superseded = others.pop("superseded")
    return {
        "schema_version": SCHEMA_VERSION,
        **{name: config.get(name) for name in ("env", "agent", "model", "engine", "host", "clock", "hz")},
        **({"engine": info["engine"]} if "engine" in info else {}),
        **{name: config.get(name) for name in ("period_ms", "deadline_ms", "max_age_ms", "pipeline", "seed")},
        **{name: config.get(name) for name in ("on_miss", "hold_ms", "late", "instruction")},
        "instruction_changes": tally.instructions,
        "started_at": config.get("started_at"),
        "duration_s": tally.end.get("t_s", tally.last_t_s),
        "ended_by": tally.end.get("end") or ended_by or "killed",
        "releases": releases,
        **counts,
        "miss_rate": (counts["misses"] + counts["skipped_releases"]) / releases if releases else 0.0,
        "misses_by_cause": dict(misses),
        "skipped_by_cause": dict(skipped),
        **others,
        "errors": list(tally.errors.values()),
        "longest_miss_run": max(longest, ledger["longest_miss_run"]) if ledger is not None and lost_lines else longest,
        "worst_window": {"m": worst, "k": k},
        "superseded_observations": superseded,
        **{name: percentiles(values) for name, values in tally.times.items()},
        "forward_passes": _total(tally.passes),
        "tokens": _total(tally.tokens),
        "warmup": tally.start.get("warmup", {}),
        "host_events": tally.host_events,
        "host_info": info,
        "machine": config.get("machine"),
        "record": {"file": record.name, "lost_lines": lost_lines},
        "outcome": {"episodes": tally.episodes, **_successes(tally.episodes)},
    }


def _total(values: array[int]) -> dict[str, float]:
    a = np.asarray(values)
    return {"total": int(a.sum()), "mean": round(float(a.mean()), 2) if a.size else 0.0, "max": int(a.max(initial=0))}


def _successes(episodes: list[dict[str, Any]]) -> dict[str, int]:
    judged = [e["success"] for e in episodes if e["success"] is not None]
    return {"successes": sum(judged), "judged": len(judged)}


def write(report: dict[str, Any], path: Path) -> str | None:
    """Write report.json, whole or not at all; the reason when the disk refused."""
    new = path.with_name(path.name + ".part")
    try:
        new.write_text(json.dumps(report, indent=2, default=str) + "\n")
        os.replace(new, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            new.unlink()
        return error.strerror or str(error)
    return None


def richer(path: Path, made: dict[str, Any]) -> tuple[dict[str, Any], str] | None:
    """The report that lies at `path`, and why it says more of the same run than `made`; None where it does not."""
    try:
        old = json.loads(path.read_text("utf-8"))
        if old["schema_version"] != made["schema_version"] or old["started_at"] != made["started_at"]:
            return None
        if old["releases"] > made["releases"]:
            return old, f"it counts {old['releases']} releases, and the record only {made['releases']}"
        if made["ended_by"] == "killed" != old["ended_by"]:
            return old, f"it says how the run ended ({old['ended_by']}), and the record does not"
    except (OSError, ValueError, LookupError, TypeError):
        pass
    return None
