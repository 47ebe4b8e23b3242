"""Convert reports to an HTML page that needs no network, server or other file.

The page has the tables of the report as text, and the data of all ticks, from which its scripts draw charts.
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

from rtcontrol.telemetry.causes import CAUSES, NAMES, advice, causes_stylesheet
from rtcontrol.telemetry.recorded import Gate, RecordedRun
from rtcontrol.telemetry.report import INSTRUCTION_COLUMNS, STATISTICS, TIME_TITLES, instruction_rows, report_lines
from rtcontrol.telemetry.timeline import SPANS, STAGES, TIMES_MS, Timeline
from rtcontrol_client.console import printable, printable_values

PAGE = Path(__file__).parent / "page"
# Percentiles of the latency curves in nines, n for 1 - 10^-n: from 0.3 (50 %) to 4.0 (99.99 %).
NINES = tuple(n / 10 for n in range(3, 41))
# Legend of the charts. By style name in page/report.css: the meaning of the mark.
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
# Limits on characters of miss details, and on marks of other events. They keep the page small enough for a browser.
DETAIL_CHARS, MOST_MARKS = 4_000_000, 5_000


def render_page(runs: Sequence[RecordedRun], gates: Sequence[Gate]) -> str:
    """Return the HTML text of a page that compares runs."""
    environment = Environment(
        loader=FileSystemLoader(PAGE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    # Escape characters that change the direction of text, because autoescape escapes only markup.
    environment.finalize = lambda value: printable(value) if type(value) is str else value
    environment.filters["number"] = lambda value, digits=2: "–" if value is None else f"{value:,.{digits}f}"
    chars = DETAIL_CHARS // len(runs)
    advices = {name: advice(name) for name in (*CAUSES, *NAMES)}
    runs_data = [printable_values(_run_data(run, chars)) for run in runs]
    data = {"nines": NINES, "stages": STAGES, "advice": advices, "runs": runs_data}
    # Escape `<`, because no text of the record may end the script element.
    packed = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return environment.get_template("report.html").render(
        data=packed,
        styles=[_read_asset("uPlot.min.css"), _read_asset("report.css"), causes_stylesheet()],
        scripts=[_read_asset(name) for name in ("uPlot.iife.min.js", "draw.js", "report.js")],
        runs=runs,
        gates=gates,
        lines=report_lines,
        legend=LEGEND,
        columns=INSTRUCTION_COLUMNS,
        instruction_rows=instruction_rows,
        titles=TIME_TITLES,
        parts=STATISTICS,
    )


def _read_asset(name: str) -> str:
    return (PAGE / name).read_text("utf-8")


def _run_data(run: RecordedRun, chars: int) -> dict[str, Any]:
    """Return the data of a run in columns, in the JSON format that page/draw.js reads."""
    t, times = run.timeline, run.timeline.account.times
    stages = run.stage_histograms() or {name: times[f"{name}_ms"] for name in ("wake", "decide", "execute")}
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
    """Return the observation and evidence of missed ticks by row number, until `chars` characters are used."""
    missed: dict[int, dict[str, Any]] = {}
    for row in (row for row, cause in enumerate(t.words["cause"]) if cause):
        k = t.k[row]
        details = {**t.details.get(k, {}), **({"saw": t.observations[k]} if k in t.observations else {})}
        if (chars := chars - len(str(details))) < 0:
            break
        missed[row] = details
    return missed


def _encode_words(column: Sequence[str]) -> dict[str, Any]:
    """Encode a column of words as the distinct words and, for each row, the index of its word (0: an empty cell)."""
    numbers = {word: number for number, word in enumerate(dict.fromkeys(("", *column)))}
    kind, code = ("u1", "B") if len(numbers) <= 1 << 8 else ("u4", "I")
    return {"words": [*numbers], "codes": _encode_numbers(kind, array(code, map(numbers.__getitem__, column)))}


def _encode_numbers(kind: str, values: array[Any]) -> dict[str, str]:
    """Encode an array as base64 of its bytes. `kind`: the number format, such as `u4` or `f4`."""
    return {"kind": kind, "data": base64.b64encode(values.tobytes()).decode("ascii")}
