"""The report as people read it in a terminal, and tables of measured figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from rtcontrol.telemetry.report import (
    causes,
    deciders,
    decoder,
    held,
    instructions_text,
    on_time_share,
    plans_text,
    understood,
    worst_members,
)
from rtcontrol.telemetry.steadiness import steadiness
from rtcontrol_client.console import printable, throughout

ROWS = {
    "latency_ms": "latency (release to effect)",
    "decide_ms": "decide",
    "wake_ms": "wake-up lateness",
    "observation_age_ms": "observation age at effect",
    "execute_ms": "execute",
    "jitter_ms": "jitter",
    "answer_ms": "first decider's answer",
}
# So many different errors are shown.
ERRORS = 5


def show(report: dict[str, Any], console: Console) -> None:
    """Print the run's counts, its times and its episodes."""
    r = throughout(report)
    who = f"[bold]{escape(str(r['env']))}[/] by {escape(str(r['agent']))} ({escape(str(r['model']))}, {r['engine']})"
    share = 100 * on_time_share(r)
    console.print(
        f"{who} on host {r['host']}, {r['hz']:g} Hz, "
        f"deadline {r['deadline_ms']:g} ms, {r['clock']} clock, {r['duration_s']:.1f} s, ended by {r['ended_by']}",
        soft_wrap=True,
    )
    rare = "".join(f", {name.replace('_', ' ')} {r[name]}" for name in ("overtaken", "epoch_over") if r[name])
    console.print(
        f"releases {r['releases']} = ticks {r['ticks']} + skipped {r['skipped_releases']}; "
        f"on time {r['on_time']} ({share:.2f} %), misses {r['misses']}, miss rate {r['miss_rate']:.4f}; "
        f"null {r['null']}, held {r['held']}{rare}",
        soft_wrap=True,
    )
    for line in (instructions_text(r), understood(r), held(r), deciders(r), plans_text(r), steadiness(r)):
        if line:
            console.print(escape(line), soft_wrap=True)
    if r["calls_cut"] or r["calls"]["max"] > 1:
        calls, cut = r["calls"], r["calls_cut"]
        console.print(f"calls {calls['total']}: {calls['mean']:g} a tick, at most {calls['max']}; cut {cut}")
    if r["misses_by_cause"] or r["skipped_by_cause"]:
        console.print(
            f"misses by cause: {causes(r)}; skipped: {causes(r, 'skipped')}; "
            f"longest run {r['longest_miss_run']}, worst {r['worst_window']['m']} in {r['worst_window']['k']}; "
            f"safe calls {r['safe_calls']}, late used {r['late_used']}, late dropped {r['late_dropped']}",
            soft_wrap=True,
        )
        console.print("which ticks, and what each saw: `rtcontrol report FOLDER --format html`", highlight=False)
    elif r["safe_calls"]:
        console.print(f"safe calls {r['safe_calls']}")
    if (crowd := r.get("crowd")) is not None:
        members, kept, rested = crowd["members"], crowd["without_a_miss"], crowd["rested"]
        console.print(f"crowd of {members}: {kept} without a miss; {rested} releases left out where nothing happened")
        for line in worst_members(crowd):
            console.print(f"  {escape(line)}", soft_wrap=True)
    if said := Counter(event["people"] for event in r["people"]):
        console.print(f"people: {', '.join(f'{word} {n}' for word, n in said.items())}")
    if r["acknowledged"]:
        word = ", ".join(f"{status} {n}" for status, n in sorted(r["acknowledged"].items()))
        console.print(f"the client's word of its calls: {word}")
    for error in r["errors"][:ERRORS]:
        where = f" ({error['where']})" if error["where"] else ""
        console.print(f"{error['count']} x {escape(error['cause'])}: {escape(error['error'] + where)}", soft_wrap=True)
    if len(r["errors"]) > ERRORS:
        console.print(f"and {len(r['errors']) - ERRORS} other errors: report.json has them")
    for event in r["host_events"]:
        took = f" after {event['seconds']:.2f} s" if event["event"] == "restarted" else ""
        console.print(f"{decoder(event)} {event['event']} at {event['t_s']:.2f} s{took}")
    table = Table("ms", "p50", "p90", "p99", "p99.9", "max", "mean", box=None, pad_edge=False)
    for name, title in ROWS.items():
        values = r[name]
        if values["p50"] is not None:
            table.add_row(title, *(f"{values[q]:.3f}" for q in ("p50", "p90", "p99", "p99_9", "max", "mean")))
    console.print(table)
    outcome = r["outcome"]
    if outcome["episodes"]:
        judged = f", {outcome['successes']} of {outcome['judged']} succeeded" if outcome["judged"] else ""
        took = sum(episode["seconds"] for episode in outcome["episodes"]) / len(outcome["episodes"])
        console.print(f"{len(outcome['episodes'])} episodes{judged}, {took:.1f} s of their own time on average")
    if r["record"].get("ticks_from"):
        console.print(
            f"the record was full (--record-max): it has ticks from {r['record']['ticks_from']} on",
            soft_wrap=True,
        )
    if r["record"]["lost_lines"]:
        console.print(
            f"[yellow]{r['record']['lost_lines']} lines of the record were lost: the disk took no more.[/]",
            soft_wrap=True,
        )


class Terminal(Console):
    """rich's console. Of what it shows, tables and bars too, control characters stand escaped, but for the ends of
    lines: colours and cursor movements are rich's own alone."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(_escaped(text), **options)

    def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(_escaped(segment.text), segment.style)


def _escaped(text: str) -> str:
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


NOT_MEASURED = "not measured"
Document = dict[str, Any]


@dataclass(frozen=True)
class FigureTable:
    """Cells as text; the first column names the row."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def ms(value: float | None) -> str:
    """Milliseconds with two digits after the point."""
    return NOT_MEASURED if value is None else f"{value:.2f}"


def markdown(shown: Sequence[FigureTable]) -> str:
    """As a page has them."""
    parts = []
    for table in shown:
        lines = [
            *([f"**{table.title}**", ""] if table.title else []),
            _line(table.columns),
            _line(["---"] * len(table.columns)),
        ]
        lines += [_line(row) for row in table.rows]
        parts.append("\n".join([*lines, *(["", table.note] if table.note else [])]))
    return "\n\n".join(parts)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
