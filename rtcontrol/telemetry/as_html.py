"""Write the report as one HTML page that needs no network, server or other file.

The page has the tables of the report as text, and the data of all ticks, which its scripts draw.
"""

from __future__ import annotations

import base64
import json
import math
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from rtcontrol.telemetry.causes import CAUSES, NAMES, advice, stylesheet
from rtcontrol.telemetry.recorded import Gate, RecordedRun
from rtcontrol.telemetry.report import INSTRUCTION_COLUMNS, STATISTICS, TIME_TITLES, instruction_rows, lines
from rtcontrol.telemetry.timeline import SPANS, STAGES, TIMES_MS, Timeline
from rtcontrol_client.console import printable, throughout

PAGE = Path(__file__).parent / "page"
# Percentiles of the latency curves, in nines: from 0.3 (50 %) to 4.0 (99.99 %).
NINES = tuple(n / 10 for n in range(3, 41))
# The marks of the charts, by the name of their style in page/report.css.
LEGEND = {
    "on-time": "a tick on time, at its latency",
    "miss": "a missed tick, in the colour of its cause; on the deadline if no call acted",
    "skipped": "skipped releases: the loop itself was late",
    "event": "an event: a person, an instruction, a safe call, the decoder",
    "deadline": "the deadline",
    "selected": "the selected tick",
    "jitter": "the jitter of a tick, in the lower chart",
    "step": "a step of the selected tick",
    "open": "a step that had not ended",
}
# Limits that keep the page small enough for a browser: characters of miss details, and marks of other events.
DETAIL_CHARS, MOST_MARKS = 4_000_000, 5_000


def render(runs: Sequence[RecordedRun], gates: Sequence[Gate]) -> str:
    """Return an HTML page that shows runs side by side."""
    environment = Environment(
        loader=FileSystemLoader(PAGE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    # Also escape characters that change the direction of text: autoescape only escapes markup.
    environment.finalize = lambda value: printable(value) if type(value) is str else value
    environment.filters["number"] = lambda value, digits=2: "–" if value is None else f"{value:,.{digits}f}"
    chars = DETAIL_CHARS // len(runs)
    advices = {name: advice(name) for name in (*CAUSES, *NAMES)}
    shown = [throughout(_run_data(run, chars)) for run in runs]
    data = {"nines": NINES, "stages": STAGES, "advice": advices, "runs": shown}
    # Escape `<`, so that no text of a record can end the script element.
    packed = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return environment.get_template("report.html").render(
        data=packed,
        styles=[_read_asset("uPlot.min.css"), _read_asset("report.css"), stylesheet()],
        scripts=[_read_asset(name) for name in ("uPlot.iife.min.js", "draw.js", "report.js")],
        runs=runs,
        gates=gates,
        lines=lines,
        legend=LEGEND,
        columns=INSTRUCTION_COLUMNS,
        instruction_rows=instruction_rows,
        titles=TIME_TITLES,
        parts=STATISTICS,
    )


def _read_asset(name: str) -> str:
    return (PAGE / name).read_text("utf-8")


def _run_data(run: RecordedRun, chars: int) -> dict[str, Any]:
    """Return the data of a run as columns, in the JSON format that page/draw.js reads."""
    t, times = run.timeline, run.timeline.account.times
    stages = run.stage_times() or {name: times[f"{name}_ms"] for name in ("wake", "decide", "execute")}
    curves = {**stages, "latency": times["latency_ms"], "jitter": times["jitter_ms"]}
    percents = [100 * (1 - 10**-nines) for nines in NINES]
    return {
        "name": run.name,
        "hz": run.report["hz"],
        "deadline_ms": run.report["deadline_ms"],
        "k": _encode_numbers("u4", array("I", t.k)),
        "numbers": {
            name: _encode_numbers("f4", array("f", t.numbers[name]))
            for name in ("t_s", *TIMES_MS, "confidence", "skipped", *SPANS)
            if not all(map(math.isnan, t.numbers[name]))
        },
        "words": {name: _encode_words(column) for name, column in t.words.items()},
        "missed": _miss_details(t, chars),
        "marks": t.marks[:MOST_MARKS],
        "curves": {
            name: [round(max(series.percentile(p), 1e-3), 4) for p in percents]
            for name, series in curves.items()
            if series.count
        },
    }


def _miss_details(t: Timeline, chars: int) -> dict[int, dict[str, Any]]:
    """Return the observation and evidence of missed ticks by row number, in at most `chars` characters."""
    missed: dict[int, dict[str, Any]] = {}
    for row in (row for row, cause in enumerate(t.words["cause"]) if cause):
        more = {**t.details.get(t.k[row], {}), **({"saw": t.saw[t.k[row]]} if t.k[row] in t.saw else {})}
        if (chars := chars - len(str(more))) < 0:
            break
        missed[row] = more
    return missed


def _encode_words(column: Sequence[str]) -> dict[str, Any]:
    """Return the distinct words of a column, and the index of each row's word (0 for an empty cell)."""
    numbers = {word: number for number, word in enumerate(dict.fromkeys(("", *column)))}
    kind, code = ("u1", "B") if len(numbers) <= 1 << 8 else ("u4", "I")
    return {"words": [*numbers], "codes": _encode_numbers(kind, array(code, map(numbers.__getitem__, column)))}


def _encode_numbers(kind: str, values: array[Any]) -> dict[str, str]:
    """Return an array as base64 text of its little-endian bytes, with its number format `kind`."""
    return {"kind": kind, "data": base64.b64encode(values.tobytes()).decode("ascii")}
