"""Write the report as one HTML page that needs no network, server or other file.

The page contains the tables as text, and every tick in columns, which the page's scripts draw.
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

from rtcontrol.telemetry.causes import stylesheet
from rtcontrol.telemetry.recorded import Gate, Recorded
from rtcontrol.telemetry.report import PARTS, TITLES, lines
from rtcontrol.telemetry.timeline import SPANS, STAGES, TIMES_MS, Timeline
from rtcontrol_client.console import printable, throughout

PAGE = Path(__file__).parent / "page"
# Curves go from the median (0.3 nines) to four nines: 99.99 per cent.
NINES = tuple(n / 10 for n in range(3, 41))
# The most characters for observations and evidence of misses, so that a browser can open the page.
DETAIL_CHARS, MOST_MARKS = 4_000_000, 5_000


def render(runs: Sequence[Recorded], gates: Sequence[Gate]) -> str:
    """Return an HTML page that shows runs side by side."""
    environment = Environment(
        loader=FileSystemLoader(PAGE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    # Escape characters that change the direction of text, since they are not markup.
    environment.finalize = lambda value: printable(value) if type(value) is str else value
    environment.filters["number"] = lambda value, digits=2: "–" if value is None else f"{value:,.{digits}f}"
    chars = DETAIL_CHARS // len(runs)
    data = {"nines": NINES, "stages": STAGES, "runs": [throughout(_data(run, chars)) for run in runs]}
    # No text of a record may end the element that contains it.
    packed = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return environment.get_template("report.html").render(
        data=packed,
        styles=[_file("uPlot.min.css"), _file("report.css"), stylesheet()],
        scripts=[_file(name) for name in ("uPlot.iife.min.js", "draw.js", "report.js")],
        runs=runs,
        gates=gates,
        lines=lines,
        titles=TITLES,
        parts=PARTS,
    )


def _file(name: str) -> str:
    return (PAGE / name).read_text("utf-8")


def _data(run: Recorded, chars: int) -> dict[str, Any]:
    """Return the ticks of a run in columns, in the format that draw.js reads."""
    t, times = run.timeline, run.timeline.account.times
    stages = run.stages() or {name: times[f"{name}_ms"] for name in ("wake", "decide", "execute")}
    curves = {**stages, "latency": times["latency_ms"], "jitter": times["jitter_ms"]}
    percents = [100 * (1 - 10**-nines) for nines in NINES]
    return {
        "name": run.name,
        "hz": run.report["hz"],
        "deadline_ms": run.report["deadline_ms"],
        "k": _packed("u4", array("I", t.k)),
        "numbers": {
            name: _packed("f4", array("f", t.numbers[name]))
            for name in ("t_s", *TIMES_MS, "confidence", "skipped", *SPANS)
            if not all(map(math.isnan, t.numbers[name]))
        },
        "words": {name: _coded(column) for name, column in t.words.items()},
        "missed": _missed(t, chars),
        "marks": t.marks[:MOST_MARKS],
        "curves": {
            name: [round(max(series.percentile(p), 1e-3), 4) for p in percents]
            for name, series in curves.items()
            if series.count
        },
    }


def _missed(t: Timeline, chars: int) -> dict[int, dict[str, Any]]:
    """Return the observation and further details of each miss by row."""
    missed: dict[int, dict[str, Any]] = {}
    for row in (row for row, cause in enumerate(t.words["cause"]) if cause):
        more = {**t.details.get(t.k[row], {}), **({"saw": t.saw[t.k[row]]} if t.k[row] in t.saw else {})}
        if (chars := chars - len(str(more))) < 0:
            break
        missed[row] = more
    return missed


def _coded(column: Sequence[str]) -> dict[str, Any]:
    """Return the different words, and for each row the number of its word; 0 is no word."""
    numbers = {word: number for number, word in enumerate(dict.fromkeys(("", *column)))}
    kind, code = ("u1", "B") if len(numbers) <= 1 << 8 else ("u4", "I")
    return {"words": [*numbers], "codes": _packed(kind, array(code, map(numbers.__getitem__, column)))}


def _packed(kind: str, values: array[Any]) -> dict[str, str]:
    """Return values as base64 text of their bytes, in little-endian order as browsers use."""
    return {"kind": kind, "data": base64.b64encode(values.tobytes()).decode("ascii")}
