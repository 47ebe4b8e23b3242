"""`rtcontrol bench`: training, wire, recording and what else is around a decision."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from rtcontrol.cli.figures import JsonFile, save


def train(
    rows: Annotated[int, typer.Option(min=32, help="Training samples to run each way.")] = 64,
    json_file: JsonFile = None,
) -> None:
    """Packed-tree training against one sequence a head (length-sorted, at its best batch size): samples a second.

    Prompts of 300 tokens, eight heads, values of 1 to 8 tokens, random ids, the bundled model's shape.

    Example: rtcontrol bench train --rows 64
    """
    from rtcontrol.bench.train import compare
    from rtcontrol.models.train.scratch import ModelShape

    console = Console()
    with console.status("training") as status:
        found = compare(rows, ModelShape(), lambda what: status.update(what))
    table = Table("way", "samples/s", title=f"{rows} samples each way, forward and backward")
    for way, speed in found["samples_per_s"].items():
        table.add_row(way, f"{speed:.2f}")
    console.print(table)
    for name, ratio in found["ratios"].items():
        console.print(f"{name}: {ratio:.2f}")
    save(json_file, found)


WAYS = {
    "echo": "bare pyzmq echo of the same bytes (floor)",
    "null_zmq": "msgpack over ZeroMQ, null decoder",
    "null_ws": "JSON over WebSocket, null decoder",
    "model_zmq": "msgpack over ZeroMQ, {model}",
    "model_ws": "JSON over WebSocket, {model}",
    "model_http": "POST /v1/function_call, {model}",
    "openpi_echo": "openpi's client, echo server",
}


def wire(
    trips: Annotated[int, typer.Option(min=100, help="Round trips to measure each way.")] = 5000,
    model: Annotated[str, typer.Option(help="Bundled name or checkpoint folder.")] = "lander",
    json_file: JsonFile = None,
) -> None:
    """Observation out to call in, over each transport, beside a bare echo of the same bytes and openpi's client.

    Client-paced, one client at a time, loopback, a 300-byte observation; servers in processes of their own. The ways
    take turns in blocks of 50. openpi's client is measured where it is installed (`pip install --no-deps
    openpi-client`).

    Examples:

      rtcontrol bench wire

      rtcontrol bench wire --trips 20000 --json wire.json
    """
    from rtcontrol.bench.wire import bench as bench_wire
    from rtcontrol.report.series import Series

    console = Console()
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("round trips", total=trips)
        found = bench_wire(trips, model, lambda n: bar.advance(task, n))
    figures = {name: Series(raw).summary() for name, raw in found["ms"].items()}
    floor = figures["echo"]["p50"] or 0.0
    table = Table("way", title=f"{trips} round trips each, {found['bytes']} bytes out")
    for column in ("p50 ms", "p99 ms", "p99.9 ms", "max ms", "p50 above echo"):
        table.add_column(column, justify="right")
    for name in (way for way in WAYS if way in figures):
        ms = figures[name]
        times = [f"{ms[p] or 0:.3f}" for p in ("p50", "p99", "p99_9", "max")]
        table.add_row(WAYS[name].format(model=model), *times, f"{(ms['p50'] or 0) - floor:+.3f}")
    console.print(table)
    if "openpi_echo" not in figures:
        console.print("openpi's client: not measured (it is not installed)")
    overhead = {name: round((ms["p50"] or 0) - floor, 4) for name, ms in figures.items()}
    save(json_file, {**found, "figures": figures, "p50_above_echo_ms": overhead})


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

    console = Console()
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
    from rtcontrol.bench.load import load as bench_load
    from rtcontrol.report.series import Series

    console = Console()
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(f"{clients} clients at {hz:g} Hz", total=seconds)
        found = bench_load(clients, hz, seconds, model, lambda s: bar.advance(task, s), http)
    way = Series(found["way_ms"]).summary()
    console.print(
        f"{clients} clients at {hz:g} Hz for {seconds:g} s, {model}: {found['calls']} calls "
        f"(about {found['expected']} due), {found['missing']} never came (lost, or the release skipped)"
    )
    console.print(f"status {found['status']}, misses by cause {found['misses_by_cause'] or 'none'}")
    if http:
        took = Series(found["http_s"]).summary()
        console.print(f"HTTP: {len(found['http_s'])} answers, seconds p50 {took['p50']}, max {took['max']}")
    console.print(f"call sent to call received: p50 {way['p50']} ms, p99 {way['p99']}, max {way['max']}")
    save(json_file, {**found, "figures": way})


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

    console = Console()
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
