"""`rtcontrol bench`: the command line of the benchmarks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from rtcontrol.models.errors import UserError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="Measure on this machine, side by side with the baselines.",
)

NAMES = {
    "bare_forward": "bare forward (floor)",
    "one_pass": "one packed pass",
    "token_by_token": "token by token",
    "token_by_token_skip_forced": "token by token, forced tokens skipped",
    "hf_json": "Hugging Face generate, JSON call (tokens forced)",
}


def check_writable(path: Path | None) -> Path | None:
    """It; a file that could not be written is refused before anything is measured."""
    try:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.open("a").close()
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}).", "Give another path.") from None
    return path


def save(path: Path | None, document: dict[str, Any]) -> None:
    """Write the figures, and what was measured on, where a file is wanted; says so."""
    if path is not None:
        from rtcontrol.record.machine import describe

        path.write_text(json.dumps({**document, "machine": describe()}, indent=1) + "\n")
        print(f"All figures: {path}")


JsonFile = Annotated[Path | None, typer.Option("--json", help="Write all figures here.", callback=check_writable)]


@app.command()
def decide(
    model: Annotated[str, typer.Option(help="Bundled name or checkpoint folder.")] = "lander",
    decisions: Annotated[int, typer.Option(min=20, help="Decisions to measure for each schema.")] = 300,
    dtype: Annotated[str, typer.Option(help="auto, fp32 or bf16.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads of torch (default: torch's own).")] = None,
    json_file: JsonFile = None,
) -> None:
    """One-pass decisions against their floor, token-by-token decoding and a generated JSON call.

    Schemas: bundled (the lander's), long (20 functions, three enums), and long_arguments: the same, every way held to
    a function with three arguments.

    Examples:

      rtcontrol bench decide

      rtcontrol bench decide --decisions 1000 --json decide.json
    """
    from rtcontrol.bench.decide import WARM_UP, bench_schema
    from rtcontrol.bench.situations import observations, schemas

    texts = observations(decisions + WARM_UP)
    results: dict[str, dict[str, Any]] = {}
    console = Console()
    with Progress(console=console, transient=True) as bar:
        tools = schemas()
        # This model, not trained for `long`, mostly calls functions without arguments there: one that has some, too.
        for name, function in (("bundled", None), ("long", None), ("long_arguments", "land_now")):
            task = bar.add_task(f"schema {name}", total=len(texts))
            step = lambda n, task=task: bar.advance(task, n)  # noqa: E731
            which = tools[name.removesuffix("_arguments")]
            results[name] = bench_schema(model, which, texts, 5, step, function, dtype=dtype, threads=threads)
    for name, result in results.items():
        console.print(_table(name, result))
    bundled = results.pop("bundled")
    ratios = {**bundled["ratios"], **{name: result["ratios"] for name, result in results.items()}}
    save(json_file, {**bundled, **results, "ratios": ratios})


SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


@app.command()
def batch(
    model: Annotated[str, typer.Option(help="Bundled name or checkpoint folder.")] = "lander",
    rounds: Annotated[int, typer.Option(min=2, help="How often each size takes its turn.")] = 30,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of torch.")] = 1,
    json_file: JsonFile = None,
) -> None:
    """1 to 128 decisions together, for as many characters of one kind: beside a decision alone, and beside the bare
    forward of the same tokens (`floor`), taking turns.

    Example: rtcontrol bench batch --json batch.json
    """
    from rtcontrol.bench.batch import bench_batch
    from rtcontrol.bench.situations import observations, schemas

    console = Console()
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("rounds", total=rounds)
        step = lambda: bar.advance(task)  # noqa: E731
        found = bench_batch(model, schemas()["bundled"], observations(max(SIZES)), SIZES, rounds, threads, step)
    one = found["alone_ms"]["p50"]
    table = Table(title=f"{found['tokens_each']} tokens each, {threads} thread(s); one alone: {one:.2f} ms")
    for column in ("together", "p50 ms", "p99 ms", "times one", "floor p50 ms", "times the floor", "decisions/s"):
        table.add_column(column, justify="right")
    for size in SIZES:
        ms, floor = found["ms"]["together"][size], found["ms"]["bare"][size]["p50"]
        row = (f"{ms['p50']:.2f}", f"{ms['p99']:.2f}", f"{ms['p50'] / one:.2f}", f"{floor:.2f}")
        table.add_row(str(size), *row, f"{ms['p50'] / floor:.2f}", f"{1e3 * size / ms['p50']:.0f}")
    console.print(table)
    save(json_file, found)


@app.command()
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


@app.command()
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


@app.command()
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


@app.command()
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


@app.command()
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


def _table(name: str, result: dict[str, Any]) -> Table:
    tokens = result["tokens"]
    table = Table(
        title=f"schema {name}: {result['decisions']} decisions, {result['info']['dtype']}, "
        f"{tokens['uncached_prompt_tokens']:.0f} uncached prompt tokens, {tokens['packed_tokens']:.0f} packed in all",
        caption=f"all ST ways gave the same call in {result['agreement']:.1%} of decisions; budget at load: "
        + ", ".join(f"{k} {v}" for k, v in result["info"]["budget"].items()),
    )
    for column in ("way", "passes", "p50 ms", "p90 ms", "p99 ms", "times one pass"):
        table.add_column(column, justify="left" if column == "way" else "right")
    passes = {
        "bare_forward": 1.0,
        "one_pass": tokens["forward_passes"],
        "token_by_token": tokens["token_by_token_passes"],
        "token_by_token_skip_forced": tokens["token_by_token_skip_forced_passes"],
        "hf_json": tokens["json_tokens"],
    }
    one = result["ms"]["one_pass"]["p50"]
    for way, ms in result["ms"].items():
        figures = [f"{ms[p]:.2f}" for p in ("p50", "p90", "p99")]
        table.add_row(NAMES[way], f"{passes[way]:.0f}", *figures, f"{ms['p50'] / one:.2f}")
    return table
