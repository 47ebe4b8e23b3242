"""Evaluations side by side as one HTML page that needs nothing else; its charts are drawn as the deadline report's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from rtcontrol.evaluation.row_tables import interval, percent, tables
from rtcontrol.telemetry.as_html import PAGE as REPORT
from rtcontrol.telemetry.causes import stylesheet

PAGE = Path(__file__).parent / "page"
INKS = ("accent", "decide", "execute", "pause", "wake", "no_observation")  # of the runs, in the report's colours


def render(documents: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """The page of (name, document); two of one name are told apart by a number."""
    environment = Environment(
        loader=FileSystemLoader(PAGE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["percent"], environment.filters["interval"] = percent, interval
    runs: dict[str, Mapping[str, Any]] = {}
    for name, document in documents:
        n, own = 1, name
        while own in runs:
            n += 1
            own = f"{name} {n}"
        runs[own] = document
    sources = list(dict.fromkeys(source for one in runs.values() for source in one["by_source"]))
    heads = list(dict.fromkeys(head for one in runs.values() for head in one["by_head"]))
    inks = {name: INKS[k % len(INKS)] for k, name in enumerate(runs)}
    data = [
        {
            "name": name,
            "ink": inks[name],
            "calibration": one["calibration"]["call"]["bins"],
            "latency": one["latency_curve"],
        }
        for name, one in runs.items()
    ]
    # No text of a row may end the element that holds it.
    packed = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    styles = [
        (REPORT / "uPlot.min.css").read_text("utf-8"),
        (REPORT / "report.css").read_text("utf-8"),
        stylesheet(),
        (PAGE / "eval.css").read_text("utf-8"),
    ]
    scripts = [
        (REPORT / "uPlot.iife.min.js").read_text("utf-8"),
        (REPORT / "draw.js").read_text("utf-8"),
        (PAGE / "eval.js").read_text("utf-8"),
    ]
    return environment.get_template("eval.html").render(
        runs=runs,
        sources=sources,
        heads=heads,
        inks=inks,
        tables={name: tables(one) for name, one in runs.items()},
        data=packed,
        styles=styles,
        scripts=scripts,
    )
