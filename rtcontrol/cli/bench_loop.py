"""`rtcontrol bench`: training, wire, recording and what else is around a decision."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.progress import Progress
from rich.table import Table

from rtcontrol.cli.figures import JsonFile, for_people, save, show


def train(
    rows: Annotated[
        int | None, typer.Option(min=4, help="Training samples to run each way. (default: 64; of the Qwen shape, 4)")
    ] = None,
    shape: Annotated[
        str, typer.Option(help="bundled, or qwen2.5-0.5b: two layers of it under the paper's LoRA, prompts all unlike.")
    ] = "bundled",
    json_file: JsonFile = None,
) -> None:
    """Packed-tree training against one sequence a head (length-sorted, at its best batch size): samples a second.

    Prompts of 300 tokens (of the Qwen shape, 200 to 400), eight heads, values of 1 to 8 tokens, random ids, fp32
    (of the Qwen shape on a GPU: all its layers, in bf16).

    Examples:

      rtcontrol bench train --rows 64

      rtcontrol bench train --shape qwen2.5-0.5b
    """
    from rtcontrol.models.errors import UserError

    if shape not in ("bundled", "qwen2.5-0.5b"):
        raise UserError(f"There is no shape {shape!r}.", "Choose bundled or qwen2.5-0.5b.")
    if shape == "bundled" and (rows or 64) < 32:
        raise UserError(f"{rows} samples are too few to share a prefix.", "Give --rows 32 or more.")
    console = for_people(json_file)
    with console.status("training") as status:
        if shape == "bundled":
            from rtcontrol.bench.train import compare
            from rtcontrol.models.train.scratch import ModelShape

            found = compare(rows or 64, ModelShape(), status.update)
        else:
            from rtcontrol.bench import train_groups
            from rtcontrol.models.train.finetune import config

            config.check_extras()
            found = train_groups.compare(rows, status.update)
    count = rows or found.get("groups", 64)
    table = Table("way", "samples/s", title=f"{count} samples each way, forward and backward")
    for way, speed in found["samples_per_s"].items():
        table.add_row(way, f"{speed:.3f}" if speed < 1 else f"{speed:.2f}")
    for way in found.get("too_large", ()):
        table.add_row(way, "out of memory")
    console.print(table)
    for name, ratio in found["ratios"].items():
        console.print(f"{name}: {ratio:.2f}")
    save(json_file, found)


def wire(
    trips: Annotated[int, typer.Option(min=100, help="Round trips to measure each way.")] = 5000,
    model: Annotated[str, typer.Option(help="Bundled name or checkpoint folder.")] = "lander",
    json_file: JsonFile = None,
) -> None:
    """Observation out to call in, over each transport, beside a bare echo of the same bytes and openpi's client.

    Client-paced, one client at a time, loopback, a 300-byte observation; servers in processes of their own. The ways
    take turns in blocks of 20. Three questions go to /v1/decisions and /v1/systemone, and to `decide` behind a bare
    socket: what the endpoints take beyond that is the server's. openpi's client is measured where it is installed
    (`pip install --no-deps openpi-client`).

    Examples:

      rtcontrol bench wire

      rtcontrol bench wire --trips 20000 --json wire.json
    """
    from rtcontrol.bench import everything

    show(lambda p: everything.wire(everything.BenchOptions(model), trips, p), json_file)


def watch(
    seconds: Annotated[float, typer.Option(min=2, help="Of each run.")] = 60.0,
    pairs: Annotated[int, typer.Option(min=1, help="So many runs each way, in turns.")] = 5,
    host: Annotated[str, typer.Option(help="Where it decides: ray or inprocess.")] = "ray",
    model: Annotated[str, typer.Option(help="What decides.")] = "lander",
    json_file: JsonFile = None,
) -> None:
    """What a viewer costs a run: the lander at 16 Hz with `--view` and somebody who looks on, and without, in turns.

    Example: rtcontrol bench watch --seconds 60 --pairs 5 --json watch.json
    """
    from rtcontrol.bench.watch import NAMES, WAYS, compare

    console = for_people(json_file)
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("runs", total=len(WAYS) * pairs)
        found = compare(seconds, pairs, host, model, lambda: bar.advance(task))
    table = Table("", title=f"{pairs} pairs of {seconds:g} s, latency in ms (misses)")
    for column in (*(f"{way} {name}" for name in NAMES for way in WAYS), "p99 changes"):
        table.add_column(column, justify="right")
    for pair in range(pairs):
        one = {way: found["runs"][way][pair] for way in WAYS}
        figures = [f"{one[way][name]:.3f}" for name in NAMES for way in WAYS]
        figures[2:] = [f"{ms} ({one[way]['misses']})" for ms, way in zip(figures[2:], WAYS, strict=True)]
        table.add_row(f"pair {pair + 1}", *figures, f"{one['watched']['p99'] / one['unwatched']['p99'] - 1:+.1%}")
    for label, key in (("median of the runs", "median"), ("all ticks together", "together")):
        figures = [f"{found[key][way][name]:.3f}" for name in NAMES for way in WAYS]
        table.add_row(label, *figures, f"{found[key]['change']['p99']:+.1%}")
    console.print(table)
    save(json_file, found)


def load(
    clients: Annotated[int, typer.Option(min=1, max=500, help="Server-paced clients at once.")] = 8,
    hz: Annotated[float, typer.Option(min=0.1, max=1000, help="Rate of each client's loop.")] = 16.0,
    seconds: Annotated[float, typer.Option(min=1, help="How long to count, after 2 s of warm-up.")] = 30.0,
    model: Annotated[str, typer.Option(help="noop (the null decoder), random, or a checkpoint.")] = "noop",
    http: Annotated[
        bool, typer.Option("--http", help="Beside one HTTP client with new tools and long prompts.")
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Many clients of one server: every tick's call is counted, those that never came, and the misses by cause.

    Examples:

      rtcontrol bench load --clients 50 --hz 2

      rtcontrol bench load --clients 8 --hz 16 --model lander

      rtcontrol bench load --clients 1 --hz 30 --seconds 8 --model lander --http
    """
    from rtcontrol.bench import everything

    cases = ((clients, hz, model, http),)
    show(lambda p: everything.load(seconds, p, cases), json_file)


def record(
    seconds: Annotated[float, typer.Option(min=0.5, help="Of each round, each way, at each rate.")] = 10.0,
    rounds: Annotated[int, typer.Option(min=1, help="How often the two ways take turns.")] = 3,
    host: Annotated[str, typer.Option(help="Where it decides: ray or inprocess.")] = "ray",
    model: Annotated[str, typer.Option(help="What decides.")] = "lander",
    json_file: JsonFile = None,
) -> None:
    """What recording costs a tick, at 16 and 100 Hz: the same loop with and without a record, in turns.

    The bundled lander. `write`: what the events of a tick (observation, call, tick) cost the loop's thread; latency is
    from release to effect; MB an hour are the file's, from the bytes of all ticks.

    Examples:

      rtcontrol bench record

      rtcontrol bench record --seconds 60 --model expert --host inprocess --json record.json
    """
    from rtcontrol.bench.record import WAYS, compare

    console = for_people(json_file)
    found: list[dict[str, Any]] = []
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("rounds", total=4 * rounds)
        for hz in (16.0, 100.0):
            found.append(compare(hz, seconds, rounds, host, model, lambda: bar.advance(task)))
    table = Table("Hz", title=f"{rounds} rounds of {seconds:g} s each way")
    for column in ("latency p50 / p99 without", "with", "write p50 / p99 / max", "lost", "MB an hour"):
        table.add_column(column, justify="right")
    for one in found:
        shown = [f"{ms['p50']:.3f} / {ms['p99']:.3f}" for ms in (one["latency_ms"][way] for way in WAYS)]
        write = " / ".join(f"{one['write_ms'][p]:.3f}" for p in ("p50", "p99", "max"))
        table.add_row(f"{one['hz']:g}", *shown, write, str(one["lost"]), f"{one['bytes_an_hour'] / 1e6:.1f}")
    console.print(table)
    save(json_file, {"rates": found})


COMMANDS = (train, wire, watch, load, record)
