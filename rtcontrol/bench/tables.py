"""Make tables from benchmark documents, for the terminal and for docs/benchmarks.md, which explains the methods."""

from __future__ import annotations

from collections.abc import Callable

from rtcontrol.telemetry.table import Document, FigureTable, ms_text


def label(way: str) -> str:
    """Return the display name of a method."""
    return way.replace("_", " ")


def decide(document: Document) -> list[FigureTable]:
    """Return a table with a row for each method, and three columns for each list of tools."""
    columns, notes = ["way"], []
    results = document["schemas"].values()
    rows = {way: [label(way)] for way in dict.fromkeys(way for result in results for way in result["ms"])}
    for name, result in document["schemas"].items():
        columns += [f"{label(name)}: passes", "p50 ms", "p99"]
        tokens, info = result["tokens"], result["info"]
        for way, cells in rows.items():
            passes, times = tokens.get(f"{way}_passes"), result["ms"].get(way, {})
            cells += ["-" if passes is None else f"{passes:.0f}", *(ms_text(times.get(p)) for p in ("p50", "p99"))]
        notes.append(
            f"{label(name)}: {result['decisions']} decisions, {result['agreement']:.1%} alike by all ways, "
            f"{tokens['packed_tokens']:.0f} tokens in one pass, {tokens['floor_tokens']:.0f} in the floor"
        )
    note = f"{'; '.join(notes)}. {info['dtype']} on {info['device']}, {result['threads']} thread(s)."
    return [FigureTable(document["agent"], tuple(columns), tuple(map(tuple, rows.values())), note)]


def serving(document: Document) -> list[FigureTable]:
    """Return a table for each combination of model and dtype."""
    tables = []
    for name, result in document["cases"].items():
        counts, one, rows = result["counts"], result["ms"]["one_pass"]["p50"], []
        for way, times in result["ms"].items():
            passes = counts.get(f"{way}_steps")
            legal, equal = (counts.get(f"{way}_{word}") for word in ("legal", "equal"))
            last = "-" if legal is None else f"{legal:.0%}, {equal:.0%}"
            cells = ("-" if passes is None else f"{passes:.1f}", ms_text(times["p50"]), ms_text(times["p99"]))
            rows.append((label(way), *cells, f"{times['p50'] / one:.2f}", last))
        note = (
            f"{result['decisions']} decisions; {result['prompt_tokens']} tokens, {result['heads']} heads; threads: "
            f"{result['threads']['ours']}, vLLM {result['threads']['vllm']}."
        )
        columns = ("way", "passes", "p50 ms", "p99", "times one pass", "legal, equal to ours")
        tables.append(FigureTable(name, columns, tuple(rows), note))
    return tables


def wire(document: Document) -> list[FigureTable]:
    """Return a table of round-trip times, compared with the times of a bare echo of the same bytes."""
    floor, rows = document["ms"]["echo"]["p50"], []
    for way, times in document["ms"].items():
        cells = (f"{times[p]:.3f}" for p in ("p50", "p99", "max"))
        rows.append((label(way), *cells, f"{times['p50'] - floor:+.3f}"))
    note = f"{document['trips']} round trips each, {document['bytes']} bytes out; the model is {document['model']}."
    columns = ("way", "p50 ms", "p99", "max", "p50 above the echo")
    return [FigureTable("Observation out to call in", columns, tuple(rows), note)]


def load(document: Document) -> list[FigureTable]:
    """Return a table with counts and latencies of the calls that many clients of one server received."""
    rows = []
    for case in document["cases"]:
        times = case["way_ms"]
        causes = ", ".join(f"{cause} {n}" for cause, n in case["misses_by_cause"].items()) or "none"
        name = f"{case['clients']} at {case['hz']:g} Hz, {case['model']}, {case['seconds']:g} s"
        counts = (f"{case['calls']} of about {case['expected']}", str(case["missing"]), causes)
        rows.append((name, *counts, ms_text(times["p50"]), ms_text(times["p99"])))
    columns = ("clients", "calls", "never came", "misses", "sent to received, p50 ms", "p99")
    return [FigureTable("Many clients of one server", columns, tuple(rows))]


def train(document: Document) -> list[FigureTable]:
    """Return a table of samples per second for each method."""
    rows = [(way, f"{speed:.3f}") for way, speed in document["samples_per_s"].items()]
    note = f"{document['samples']} samples on {document['device']}."
    return [FigureTable("Forward and backward", ("way", "samples/s"), tuple(rows), note)]


# By name in the field `bench` of a document: the function that returns the tables.
TABLES: dict[str, Callable[[Document], list[FigureTable]]] = {
    table.__name__: table for table in (decide, serving, wire, load, train)
}
