"""Tables of crowds: what each member got and what it cost."""

from __future__ import annotations

from rtcontrol.telemetry.figure_table import Document, Table


def crowd(document: Document) -> list[Table]:
    """Of `bench crowd`: what each member got, and batches by their size."""
    rows = []
    for name in ("crowd", "door"):
        one = document[name]
        report = one["report"]
        took = report["latency_ms"] or {}
        p50, p99 = (f"{took[part]:.1f}" if took.get(part) is not None else "-" for part in ("p50", "p99"))
        missed = "-" if report["miss_rate"] is None else f"{report['misses']:,} ({report['miss_rate']:.2%})"
        each = "-" if one["calls_a_cpu_second"] is None else f"{one['calls_a_cpu_second']:,.0f}"
        who = f"{one['members']} at {one['hz']:g} Hz, {one['seconds']:.0f} s, {one['model']}"
        rows.append((who, f"{one['calls']:,}", p50, p99, missed, each, f"{one['machine_load']:.1f}"))
    columns = ("members", "calls", "p50 ms", "p99 ms", "misses", "calls a second of the door's core", "load before")
    note = "From a member's release to its call's departure; every member sees something new before each tick."
    note += " `noop` decides nothing: it shows the door."
    return [Table("A crowd by one decoder", columns, tuple(rows), note), _batches(document["batch"])]


def _batches(batch: Document) -> Table:
    rows = [
        (size, f"{took['wall_ms']['p50']:.2f}", f"{took['wall_ms']['p99']:.2f}", f"{took['cpu_ms']['p50']:.2f}")
        for size, took in batch["sizes"].items()
    ]
    ratio = batch["over_one_alone"]
    note = f"A batch of {batch['largest']} takes {ratio['wall']:.1f} times one alone by the clock, {ratio['cpu']:.1f} "
    note += f"by the deciding thread's processor time; {batch['threads']} thread(s), {batch['rounds']} rounds."
    return Table("Members decided together", ("together", "p50 ms", "p99", "processor p50"), tuple(rows), note)
