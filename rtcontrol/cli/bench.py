"""`rtcontrol bench`: the command line of the benchmarks; here, those of decisions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from rtcontrol.bench.options import BenchOptions, Threads
from rtcontrol.cli import bench_loop, bench_pretrained, bench_scaling
from rtcontrol.cli.bench_group import Document, app, measures
from rtcontrol.cli.figures import Shown
from rtcontrol.envs.registry import agent_names
from rtcontrol.models.errors import UserError
from rtcontrol.run.options import Without
from rtcontrol.telemetry.table import Terminal

Decisions = Annotated[int, typer.Option(min=1, help="Decisions by each way, in turns.")]
QUICKER = "default: one or all, whichever is quicker now"
Folder = Annotated[Path, typer.Option("--out", help="Folder of the JSON files; the page stands beside it.")]
PAGES = Path("docs/benchmarks")


@measures
def decide(
    shown: Shown,
    options: BenchOptions,
    decisions: Annotated[int, typer.Option(min=20, help="Decisions of each schema in all ways.")] = 300,
    worst: Annotated[
        int | None,
        typer.Option(
            min=20,
            help="Decisions by one pass and its floor: how bad is the worst? (default: ten for three of --decisions)",
        ),
    ] = None,
) -> Document:
    """One-pass decisions against their floor, token-by-token decoding and generated JSON calls.

    Schemas: the agent's own tools; of the lander also long (20 functions, three enums), and long with every way held
    to a function of three arguments. The worst decision is told as a multiple of the median, by the clock and by own
    compute.

    Examples:

      rtcontrol bench decide

      rtcontrol bench decide --decisions 1000 --dtype bf16 --json decide.json
    """
    from rtcontrol.bench import everything

    most = 10 * decisions // 3 if worst is None else worst
    return everything.decide(options, decisions, most, shown, shown.ready)


@measures
def sizes(
    shown: Shown,
    options: Annotated[BenchOptions, Without(("model", "agent"))],
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="qwen2.5-0.5b, qwen2.5-1.5b, qwen2.5-3b.")
    ] = None,
    decisions: Annotated[int, typer.Option(min=1, help="Decisions of each shape, by each way in turns.")] = 30,
) -> Document:
    """One decision by random weights of sizes that people deploy: one pass, without graphs, and all other ways. Without
    names, of all of them, on a GPU.

    Example: rtcontrol bench sizes qwen2.5-0.5b --json sizes.json
    """
    from rtcontrol.bench import everything

    return everything.sizes(options, tuple(names or ()), decisions, shown)


@measures
def batch(
    shown: Shown,
    options: BenchOptions,
    rounds: Annotated[int, typer.Option(min=2, help="How often each size takes its turn.")] = 30,
) -> Document:
    """1 to 128 sessions' decisions together: beside one alone, the bare forward of the same tokens (the floor), as many
    situations of one session, and the paper's table of batch scaling, taking turns.

    Example: rtcontrol bench batch --json batch.json
    """
    from rtcontrol.bench import everything

    return everything.batch(options, rounds, shown)


@measures
def heads(
    shown: Shown,
    options: BenchOptions,
    rounds: Annotated[int, typer.Option(min=2, help="How often each number of heads takes its turn.")] = 100,
) -> Document:
    """The same values shared out over 1 to 8 heads: one packed pass beside a sequence of its own for each head.

    Example: rtcontrol bench heads --json heads.json
    """
    from rtcontrol.bench import everything

    return everything.heads(options, rounds, shown)


@measures
def prefix(
    shown: Shown,
    options: BenchOptions,
    rounds: Annotated[int, typer.Option(min=2, help="How often each case takes its turn.")] = 20,
) -> Document:
    """Opening a session and deciding with the prefix computed, restored from disk, cached, and with nothing cached.

    Example: rtcontrol bench prefix --json prefix.json
    """
    from rtcontrol.bench import everything

    return everything.prefix(options, rounds, shown)


@measures
def memory(
    shown: Shown,
    options: Annotated[BenchOptions, Without(("dtype", "threads"))],
    sessions: Annotated[int, typer.Option(min=1, help="Further sessions to open.")] = 20,
) -> Document:
    """Memory (RSS, USS) of a model, its first session and each further one; with $RTCONTROL_DATA also with Qwen2's
    tokenizer.

    Example: rtcontrol bench memory --sessions 50
    """
    from rtcontrol.bench import everything

    return everything.memory(options, sessions, shown)


@measures
def dtype(
    shown: Shown,
    options: Annotated[BenchOptions, Without(("dtype",))],
    decisions: Annotated[int, typer.Option(min=1, help="Situations of each agent and schema.")] = 300,
) -> Document:
    """How often bf16 calls what fp32 calls, and what it calls itself token by token or with many together; near-ties.

    Example: rtcontrol bench dtype --decisions 1000
    """
    from rtcontrol.bench import everything

    return everything.dtype(options, decisions, shown)


@measures
def engines(
    shown: Shown,
    options: BenchOptions,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[ENGINE]...", help="Default: all that are installed.")
    ] = None,
    decisions: Annotated[int, typer.Option(min=1, help="Situations that each engine decides.")] = 500,
) -> Document:
    """Whether engines call what the first one calls, near-ties told apart; passes and milliseconds, in turns.

    Examples:

      rtcontrol bench engines

      rtcontrol bench engines torch transformers vllm --model runs/my-model/checkpoint --json engines.json
    """
    from rtcontrol.bench import everything
    from rtcontrol.models.runners import registry

    for name in names or ():
        registry.check(name)
    return everything.engines(options, names or (), decisions, shown)


@measures
def serving(
    shown: Shown,
    cases: Annotated[list[str] | None, typer.Argument(metavar="[CASE]...", help="late, early, lander.")] = None,
    decisions: Decisions = 100,
    dtype: Annotated[str | None, typer.Option(help="fp32 or bf16 (default: both).")] = None,
    python: Annotated[Path | None, typer.Option(help="The interpreter that has vLLM.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help=f"Of ours ({QUICKER}).")] = None,
    vllm_threads: Annotated[int | None, typer.Option(min=1, help=f"Of vLLM in the same process ({QUICKER}).")] = None,
    backend: Annotated[str, typer.Option(help="vLLM's grammar: xgrammar or guidance.")] = "xgrammar",
) -> Document:
    """One packed pass beside vLLM on the same weights: SimpleTool's way, its best form, and JSON under a grammar.

    `late` and `early`: random weights of 15 M parameters, four heads whose values have 8 tokens and are told apart by
    the last or the first of them, prompts of 365 tokens. `lander`: the bundled model on its own prompts. Text to typed
    call, in turns, in a process for each case.

    Examples:

      rtcontrol bench serving --python fleet/bin/python

      rtcontrol bench serving lander --dtype fp32 --threads 1 --json serving.json
    """
    from rtcontrol.bench import everything
    from rtcontrol.bench.serving import CASES, DTYPES, ServingOptions, python_with_vllm

    dtypes = (dtype,) if dtype else DTYPES
    options = ServingOptions(tuple(cases or CASES), dtypes, threads, vllm_threads, backend)
    return everything.serving(options, decisions, python_with_vllm(python), shown)


@measures
def chat(
    shown: Shown,
    agents: Annotated[
        list[str] | None, typer.Argument(metavar="[AGENT]...", help=f"{', '.join(agent_names())}.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A chat checkpoint (default: random weights, Qwen's tokenizer).")
    ] = None,
    decisions: Decisions = 60,
    threads: Threads = None,
) -> Document:
    """Passes of a chat model's calls, arguments in sequence and in parallel, beside JSON token by token and JSON with
    forced tokens skipped. The random weights need $RTCONTROL_DATA with Qwen's tokenizer.

    Examples:

      rtcontrol bench chat

      rtcontrol bench chat lander --model path/to/Qwen2.5-0.5B-Instruct --json chat.json
    """
    from rtcontrol.bench import everything
    from rtcontrol.bench.situations import agent_of

    chosen = tuple(agent_of("", agent) for agent in agents or ())
    return everything.chat(model, chosen, decisions, threads, shown)


@measures
def speculative(
    shown: Shown,
    decisions: Decisions = 60,
    threads: Threads = None,
) -> Document:
    """What guesses of a free value save: the prompt's text, or a smaller model's call, of whose tokens a pass verifies
    2, 3, 4 or all. Random weights that write given values: the mechanism's passes, tokens and milliseconds.

    Example: rtcontrol bench speculative --decisions 200 --json speculative.json
    """
    from rtcontrol.bench import everything

    return everything.speculative(decisions, threads, shown)


@measures
def wire(
    shown: Shown,
    trips: Annotated[int, typer.Option(min=100, help="Round trips to measure each way.")] = 5000,
    model: Annotated[str, typer.Option(help="Bundled name or checkpoint folder.")] = "lander",
) -> Document:
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

    return everything.wire(BenchOptions(model), trips, shown)


@measures
def load(
    shown: Shown,
    clients: Annotated[int, typer.Option(min=1, max=500, help="Server-paced clients at once.")] = 8,
    hz: Annotated[float, typer.Option(min=0.1, max=1000, help="Rate of each client's loop.")] = 16.0,
    seconds: Annotated[float, typer.Option(min=1, help="How long to count, after 2 s of warm-up.")] = 30.0,
    model: Annotated[str, typer.Option(help="noop (the null decoder), random, or a checkpoint.")] = "noop",
    http: Annotated[
        bool, typer.Option("--http", help="Beside one HTTP client with new tools and long prompts.")
    ] = False,
) -> Document:
    """Many clients of one server: every tick's call is counted, those that never came, and the misses by cause.

    Examples:

      rtcontrol bench load --clients 50 --hz 2

      rtcontrol bench load --clients 8 --hz 16 --model lander

      rtcontrol bench load --clients 1 --hz 30 --seconds 8 --model lander --http
    """
    from rtcontrol.bench import everything

    return everything.load(seconds, shown, ((clients, hz, model, http),))


@app.command("all")
def everything_there_is(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Of the files (default: all).")] = None,
    folder: Folder = PAGES,
    again: Annotated[bool, typer.Option("--again", help="Also what is measured already.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A few of each, to see that it works.")] = False,
) -> None:
    """Measure what docs/benchmarks.md shows, one JSON file each, and write the page: about half an hour on two cores.

    What has a file is not measured again, so that an interrupted run goes on: begin with --again, go on without. What
    needs something that is not here (vLLM, Qwen's tokenizer) is told, and keeps the file that it has.

    Examples:

      rtcontrol bench all --again

      rtcontrol bench all decide batch --again
    """
    from rtcontrol.bench import everything

    wanted = names or list(everything.MEASURES)
    if unknown := [name for name in wanted if name not in everything.MEASURES]:
        raise UserError(f"Nothing is called {unknown[0]!r}.", f"Choose {', '.join(everything.MEASURES)}.")
    absent = {name: why for name in wanted if (why := everything.missing(name)) is not None}
    for name, why in absent.items():
        print(f"{name}: stays as it is. {why}")
    wanted = [name for name in wanted if name not in absent]
    for name in wanted if again else ():
        everything.path_of(folder, name).unlink(missing_ok=True)
    options = BenchOptions(quick=quick)
    for name in wanted:
        with Progress(console=Terminal(stderr=True), transient=True) as bar:
            task = bar.add_task(name)
            step = lambda done, total, task=task, bar=bar: bar.update(task, completed=done, total=total)  # noqa: E731
            new = everything.measure(name, options, folder, step)
        print(f"{name}: {'measured' if new else 'was measured already (--again measures anew)'}")
    tables(folder)


@app.command(hidden=True)
def tables(folder: Folder = PAGES) -> None:
    """Write docs/benchmarks.md, docs/experiments.md's tables and the README's results from the folder's files.

    Example: rtcontrol bench tables
    """
    from rtcontrol.bench.page import write
    from rtcontrol.evaluation.experiments.tables import write_tables

    if not folder.is_dir():
        raise UserError(f"{folder} is no folder.", "Run it in the repository, or give --out.")
    for path in (*write(folder), *write_tables(folder)):
        print(f"Written: {path}")


for bench in (*bench_pretrained.BENCHES, *bench_scaling.BENCHES):
    measures(bench)
for command in bench_loop.COMMANDS:
    app.command()(command)
