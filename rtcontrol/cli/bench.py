"""`rtcontrol bench`: the command line of the benchmarks; here, those of decisions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress

from rtcontrol.cli import bench_baselines, bench_loop
from rtcontrol.cli.bench_experiments import experiments
from rtcontrol.cli.figures import JsonFile, show
from rtcontrol.envs.registry import agent_names
from rtcontrol.models.errors import UserError
from rtcontrol.telemetry.table import Terminal

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="Measure on this machine, side by side with the baselines.",
)

Model = Annotated[str, typer.Option(help="Bundled name, folder or hub id.")]
AgentName = Annotated[
    str | None,
    typer.Option("--agent", help=f"Whose situations: {', '.join(agent_names())} (default: MODEL's, or lander's)."),
]
Dtype = Annotated[str, typer.Option(help="auto, fp32 or bf16.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads of torch (default: the model's own).")]
Folder = Annotated[Path, typer.Option("--out", help="Folder of the JSON files; the page stands beside it.")]
PAGES = Path("docs/benchmarks")


@app.command()
def decide(
    model: Model = "lander",
    agent: AgentName = None,
    decisions: Annotated[int, typer.Option(min=20, help="Decisions of each schema in all ways.")] = 300,
    worst: Annotated[
        int | None,
        typer.Option(
            min=20,
            help="Decisions by one pass and its floor: how bad is the worst? (default: ten for three of --decisions)",
        ),
    ] = None,
    dtype: Dtype = "auto",
    threads: Threads = None,
    json_file: JsonFile = None,
) -> None:
    """One-pass decisions against their floor, token-by-token decoding and generated JSON calls.

    Schemas: the agent's own tools; of the lander also long (20 functions, three enums), and long with every way held
    to a function of three arguments. The worst decision is told as a multiple of the median, by the clock and by own
    compute.

    Examples:

      rtcontrol bench decide

      rtcontrol bench decide --decisions 1000 --dtype bf16 --json decide.json
    """
    from rtcontrol.bench import everything

    options = _options(model, agent, dtype, threads)
    most = 10 * decisions // 3 if worst is None else worst
    show(lambda p: everything.decide(options, decisions, most, p, p.ready), json_file)


@app.command()
def sizes(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="qwen2.5-0.5b, qwen2.5-1.5b, qwen2.5-3b.")
    ] = None,
    decisions: Annotated[int, typer.Option(min=1, help="Decisions of each shape, by each way in turns.")] = 30,
    dtype: Dtype = "auto",
    threads: Threads = None,
    json_file: JsonFile = None,
) -> None:
    """One decision by random weights of sizes that people deploy: one pass, without graphs, and all other ways. Without
    names, of all of them, on a GPU.

    Example: rtcontrol bench sizes qwen2.5-0.5b --json sizes.json
    """
    from rtcontrol.bench import everything

    options = _options("lander", None, dtype, threads)
    show(lambda p: everything.sizes(options, tuple(names or ()), decisions, p), json_file)


@app.command()
def batch(
    model: Model = "lander",
    agent: AgentName = None,
    rounds: Annotated[int, typer.Option(min=2, help="How often each size takes its turn.")] = 30,
    dtype: Dtype = "auto",
    threads: Threads = None,
    json_file: JsonFile = None,
) -> None:
    """1 to 128 sessions' decisions together: beside one alone, the bare forward of the same tokens (the floor), as many
    situations of one session, and the paper's table of batch scaling, taking turns.

    Example: rtcontrol bench batch --json batch.json
    """
    from rtcontrol.bench import everything

    options = _options(model, agent, dtype, threads)
    show(lambda p: everything.batch(options, rounds, p), json_file)


@app.command()
def heads(
    model: Model = "lander",
    agent: AgentName = None,
    rounds: Annotated[int, typer.Option(min=2, help="How often each number of heads takes its turn.")] = 100,
    dtype: Dtype = "auto",
    threads: Threads = None,
    json_file: JsonFile = None,
) -> None:
    """The same values shared out over 1 to 8 heads: one packed pass beside a sequence of its own for each head.

    Example: rtcontrol bench heads --json heads.json
    """
    from rtcontrol.bench import everything

    options = _options(model, agent, dtype, threads)
    show(lambda p: everything.heads(options, rounds, p), json_file)


@app.command()
def prefix(
    model: Model = "lander",
    agent: AgentName = None,
    rounds: Annotated[int, typer.Option(min=2, help="How often each case takes its turn.")] = 20,
    dtype: Dtype = "auto",
    threads: Threads = None,
    json_file: JsonFile = None,
) -> None:
    """Opening a session and deciding with the prefix computed, restored from disk, cached, and with nothing cached.

    Example: rtcontrol bench prefix --json prefix.json
    """
    from rtcontrol.bench import everything

    options = _options(model, agent, dtype, threads)
    show(lambda p: everything.prefix(options, rounds, p), json_file)


@app.command()
def memory(
    model: Model = "lander",
    agent: AgentName = None,
    sessions: Annotated[int, typer.Option(min=1, help="Further sessions to open.")] = 20,
    json_file: JsonFile = None,
) -> None:
    """Memory (RSS, USS) of a model, its first session and each further one; with $RTCONTROL_DATA also with Qwen2's
    tokenizer.

    Example: rtcontrol bench memory --sessions 50
    """
    from rtcontrol.bench import everything

    options = _options(model, agent, "auto", None)
    show(lambda p: everything.memory(options, sessions, p), json_file)


@app.command()
def dtype(
    model: Model = "lander",
    agent: AgentName = None,
    decisions: Annotated[int, typer.Option(min=1, help="Situations of each agent and schema.")] = 300,
    threads: Threads = None,
    json_file: JsonFile = None,
) -> None:
    """How often bf16 calls what fp32 calls, and what it calls itself token by token or with many together; near-ties.

    Example: rtcontrol bench dtype --decisions 1000
    """
    from rtcontrol.bench import everything

    options = _options(model, agent, "auto", threads)
    show(lambda p: everything.dtype(options, decisions, p), json_file)


@app.command()
def engines(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[ENGINE]...", help="Default: all that are installed.")
    ] = None,
    model: Model = "lander",
    agent: AgentName = None,
    decisions: Annotated[int, typer.Option(min=1, help="Situations that each engine decides.")] = 500,
    dtype: Dtype = "auto",
    threads: Threads = None,
    json_file: JsonFile = None,
) -> None:
    """Whether engines call what the first one calls, near-ties told apart; passes and milliseconds, in turns.

    Examples:

      rtcontrol bench engines

      rtcontrol bench engines torch transformers vllm --model runs/my-model/checkpoint --json engines.json
    """
    from rtcontrol.bench import everything
    from rtcontrol.models.runners import registry

    for name in names or ():
        registry.check(name)
    options = _options(model, agent, dtype, threads)
    show(lambda p: everything.engines(options, names or (), decisions, p), json_file)


@app.command("all")
def everything_there_is(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Of the files (default: all).")] = None,
    folder: Folder = PAGES,
    again: Annotated[bool, typer.Option("--again", help="Also what is measured already.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A few of each, to see that it works.")] = False,
) -> None:
    """Measure what docs/benchmarks.md shows, one JSON file each, and write the page: about 20 minutes on two cores.

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
    options = everything.BenchOptions(quick=quick)
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


for command in (*bench_baselines.COMMANDS, *bench_loop.COMMANDS, experiments):
    app.command()(command)


def _options(model: str, agent: str | None, dtype: str, threads: int | None) -> Any:
    from rtcontrol.bench.everything import BenchOptions
    from rtcontrol.bench.situations import agent_of
    from rtcontrol.models.checkpoint.checkpoint import read_config, resolve

    read_config(resolve(model))  # before anything is begun: `memory` loads it in a process of its own
    return BenchOptions(model, agent_of(model, agent), dtype, threads)
