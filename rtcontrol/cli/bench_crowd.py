"""`rtcontrol bench crowd`: what a crowd costs, and what each of it gets."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from rtcontrol.cli.figures import JsonFile, for_people, save


def crowd(
    members: Annotated[int, typer.Option(min=1, max=4096, help="Of the crowd that a model decides for.")] = 64,
    hz: Annotated[float, typer.Option(min=0.1, help="Decisions a second of each.")] = 5.0,
    seconds: Annotated[float, typer.Option(min=1, help="Of each run.")] = 60.0,
    model: Annotated[str, typer.Option(help="What decides: one that knows the lander.")] = "lander",
    door: Annotated[int, typer.Option(min=1, max=4096, help="Members of the crowd that nothing is decided for.")] = 500,
    door_hz: Annotated[float, typer.Option(min=0.1, help="And how often a second each is answered.")] = 5.0,
    rounds: Annotated[int, typer.Option(min=3, help="How often each size of batch is decided.")] = 20,
    json_file: JsonFile = None,
) -> None:
    """A crowd by one decoder; the door alone, with a decoder that decides nothing; and a batch of 64 beside one alone.

    Every member sees something new before each of its ticks. Latency is from a member's release to its call's
    departure; the server's processor time is its own process's, without the decoder's.

    Example: rtcontrol bench crowd --members 64 --hz 5 --seconds 60 --json crowd.json
    """
    from rtcontrol.bench import crowd as bench

    console = for_people(json_file)
    found: dict[str, Any] = {"batch": bench.batches(model, rounds)}
    with Progress(TextColumn("{task.description}"), BarColumn(), console=console, transient=True) as bar:
        task = bar.add_task("crowd", total=2 * seconds)
        found["crowd"] = bench.serve(members, hz, seconds, model, 2 * hz, True, lambda s: bar.advance(task, s))
        bar.update(task, description="door")
        found["door"] = bench.serve(door, door_hz, seconds, "noop", door_hz, True, lambda s: bar.advance(task, s))
    table = Table("", title=f"{seconds:g} s each; load of the machine before it in the last column")
    for column in ("members", "Hz", "calls/s", "p99 ms", "misses", "calls a CPU second", "load"):
        table.add_column(column, justify="right")
    for name in ("crowd", "door"):
        one = found[name]
        report, p99 = one["report"], (one["report"]["latency_ms"] or {}).get("p99")
        share = report["miss_rate"]
        shown = ["-" if p99 is None else f"{p99:.1f}", "-" if share is None else f"{100 * share:.2f} %"]
        rate = "-" if one["calls_a_cpu_second"] is None else f"{one['calls_a_cpu_second']:.0f}"
        figures = [str(one["members"]), f"{one['hz']:g}", f"{one['calls_a_second']:.0f}", *shown, rate]
        table.add_row(f"{name} ({one['model']})", *figures, f"{one['machine_load']:.1f}")
    console.print(table)
    batch = found["batch"]
    sizes = ", ".join(f"{n}: {ms['cpu_ms']['p50']:.2f} ms" for n, ms in batch["sizes"].items())
    ratio = batch["over_one_alone"]
    console.print(f"a batch of {batch['largest']} takes {ratio['cpu']:.1f} times one alone ({sizes}, processor time)")
    save(json_file, found)
