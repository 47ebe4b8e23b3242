"""`rtcontrol bench`: training, recording, a viewer, and the experiments on what the paper claims."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from rtcontrol.cli.figures import JsonFile, for_people, save
from rtcontrol.models.errors import UserError


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


def experiments(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help="rates, forms, independence, weights, balance, constraint, draft, delay, schemas, places, latency, "
            "drafts (default: all; the last three and half of schemas take models that others trained).",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the runs are kept: what is done is not done again.")] = Path(
        "runs/experiments"
    ),
    seeds: Annotated[int, typer.Option(min=1, help="From so many seeds each arm is trained.")] = 3,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time, one thread each.")] = 2,
    page: Annotated[
        Path | None, typer.Option(help="A page whose tables are put in place of those that it has.", exists=True)
    ] = None,
    results: Annotated[
        Path | None, typer.Option(help="Train nothing: show what a --json file of before has.", exists=True)
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Small models trained from nothing on a made-up corpus, to try what the paper claims (docs/experiments.md): heads
    against JSON at equal training tokens, heads that do not see each other, weights, balance, the constraint, schemas
    and delays drawn in training, drafts. About an hour and a half on two cores; stopped, it goes on where it was.

    Examples:

      rtcontrol bench experiments forms --seeds 1

      rtcontrol bench experiments --page docs/experiments.md --json docs/benchmarks/experiments.json

      rtcontrol bench experiments --results docs/benchmarks/experiments.json --page docs/experiments.md
    """
    from rtcontrol.evaluation.experiments import runs
    from rtcontrol.evaluation.experiments.tables import check_marks, filled, gathered, tables
    from rtcontrol.models.data.row import written_whole

    console = for_people(json_file)
    if page is not None:
        check_marks(page.read_text("utf-8"), names or runs.NAMES)
    if results is not None:
        try:
            found: dict[str, Any] = json.loads(results.read_text("utf-8"))["experiments"]
            wanted = {name: found[name] for name in names or found.keys()}
            shown = dict(tables(wanted))
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            asked = f" of {', '.join(names)}" if names else ""
            raise UserError(f"{results} holds no such results{asked}.", "Give what --json wrote.") from None
    else:
        chosen = names or list(runs.NAMES)
        planned = list(runs.planned(chosen, seeds, out))
        _do([r for r in planned if r.work not in runs.AFTERWARDS], jobs, console)
        _do([r for r in planned if r.work in runs.AFTERWARDS], 1, console)  # beside nothing else
        wanted = gathered(chosen, seeds, out)
        shown = dict(tables(wanted))
    for name, table in shown.items():
        console.print(f"\n{name}: {table.title}", style="bold")
        for row in table.rows:
            told = "; ".join(f"{c} {v}" for c, v in zip(table.columns[1:], row[1:], strict=True) if v).replace("**", "")
            console.print(f"  {row[0]}: {told}", highlight=False, markup=False, soft_wrap=True)
        if table.note:
            console.print(f"  {table.note}", highlight=False, markup=False, soft_wrap=True)
    save(json_file, {"experiments": wanted})
    if page is not None:
        text = filled(page.read_text("utf-8"), wanted)
        with written_whole(page) as lines:
            lines.write(text)


def _do(planned: list[Any], jobs: int, console: Any) -> None:
    from rtcontrol.evaluation.experiments import kept

    left = len({run.folder for run in planned if run.result() is None})
    if not left:
        return
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("runs", total=left)

        def told(says: str, _: Any) -> None:
            console.print(f"done: {says}", highlight=False, markup=False)
            bar.advance(task)

        kept.do_all(planned, jobs, told)


def proxy(
    urls: Annotated[list[str], typer.Argument(metavar="URL...", help="Pages' addresses: http://127.0.0.1:8080.")],
    trips: Annotated[int, typer.Option(min=100, help="Round trips of each kind, by each address.")] = 1000,
    token_file: Annotated[Path | None, typer.Option(help="File of the access token, where one is asked for.")] = None,
    json_file: JsonFile = None,
) -> None:
    """What a proxy costs: the round trip of a session by WebSocket, by a door's own address and by others, such as that
    of Ray Serve's proxy (docs/scaling.md). A ping is answered at once; a call is decided for the lander. In turns.

    Example: rtcontrol bench proxy http://127.0.0.1:8080 http://127.0.0.1:8000 --json proxy.json
    """
    from rtcontrol.bench.addresses import TRIPS, compare
    from rtcontrol.bench.wire import BLOCK
    from rtcontrol.gateway.options import read_token

    if token_file is not None and not token_file.exists():
        raise UserError(f"--token-file {token_file} is not there.", "Give the file of the servers' token.")
    token = None if token_file is None else read_token(token_file)
    console = for_people(json_file)
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("turns", total=len(TRIPS) * (trips // BLOCK))
        found = compare(urls, trips, token, lambda: bar.advance(task))
    table = Table("", title=f"{found['trips']} round trips each, ms ({found['cores']} cores, load {found['load']:g})")
    for trip in TRIPS:
        table.add_column(f"{trip}, p50", justify="right")
        table.add_column("p99", justify="right")
    for url, of in found["ms"].items():
        table.add_row(url, *(f"{of[trip][key]:.2f}" for trip in TRIPS for key in ("p50", "p99")))
    console.print(table)
    save(json_file, found)


COMMANDS = (train, watch, record, proxy, experiments)
