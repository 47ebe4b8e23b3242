"""The command line: `rtcontrol run`, `envs`, `agents`, `report`, `doctor`, and the groups `models` and `bench`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rtcontrol.models.decider import ENGINES
from rtcontrol.models.errors import UserError

# Groups of commands that live in modules of their own, imported when first looked at.
LAZY = {
    "serve": "rtcontrol.serve.cli",
    "models": "rtcontrol.models_cli",
    "bench": "rtcontrol.bench.cli",
    "keys": "rtcontrol.keys_cli",
    "bridge": "rtcontrol.bridge_cli",
}

RUN_EXAMPLES = """Fly an agent in an environment at a fixed rate, and report every tick.

Examples:

  rtcontrol run --env lander --hz 16

  rtcontrol run --env lander --goal "hover at 0.7" --episodes 20 --seed 1000 --no-live --out runs/hover

  rtcontrol run --env lander --model expert --host inprocess --clock lockstep

  rtcontrol run --env remote --bind tcp://127.0.0.1:5555      (a client of the wire is the world: docs/protocol.md)

  rtcontrol run --env carla-bridge --hz 16 --instruct "follow the car ahead at 20 metres"     (docs/bridges.md)

While it runs, a line typed on the terminal is the new instruction (--stdin: one from a pipe, too); Ctrl-C ends it with
the safe call and the report.
Exit status: 0, 1 internal error or a simulator lost for good, 2 mistake in what was given, 3 too many misses,
130 Ctrl-C, 143 SIGTERM.
"""


class LazyGroup(TyperGroup):
    """Typer's group, plus groups that are imported on demand and left out where their module is missing."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *(name for name, module in LAZY.items() if _exists(module))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        module = LAZY.get(cmd_name)
        if module is None or not _exists(module):
            return super().get_command(ctx, cmd_name)
        command = typer.main.get_command(importlib.import_module(module).app)
        command.name = cmd_name
        return command


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


app = typer.Typer(cls=LazyGroup, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def _root(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks (may stand anywhere in the line).")] = False,
) -> None:
    """Real-time LLM function calling for robots and games.

    Examples:

      rtcontrol run --env lander --hz 16

      rtcontrol doctor
    """


@app.command(help=RUN_EXAMPLES)
def run(
    env: Annotated[str, typer.Option(help="Environment: a name (`rtcontrol envs`) or a .py file.")],
    hz: Annotated[float, typer.Option(help="Ticks a second.")] = 16.0,
    deadline_ms: Annotated[
        float | None, typer.Option(help="From release to deadline. (default: the period)", show_default=False)
    ] = None,
    max_age_ms: Annotated[
        float | None,
        typer.Option(help="Older observations are stale. (default: 4 periods, at least 250)", show_default=False),
    ] = None,
    pipeline: Annotated[int, typer.Option(help="Decisions in flight; deadline <= pipeline x period.")] = 1,
    episodes: Annotated[
        int | None,
        typer.Option(help="End after so many. (default: 5, or no end with --duration)", show_default=False),
    ] = None,
    duration: Annotated[float | None, typer.Option(help="End after so many seconds.", show_default=False)] = None,
    seed: Annotated[int, typer.Option(help="Seed of the first episode; the next have the next.")] = 0,
    instruct: Annotated[
        str | None, typer.Option(help="The instruction. (default: the agent's)", show_default=False)
    ] = None,
    goal: Annotated[
        str | None,
        typer.Option(help="What is judged, and told unless --instruct says else: left, 'hover at 0.7', 'aim high'."),
    ] = None,
    agent: Annotated[
        str | None, typer.Option(help="Agent: a name (`rtcontrol agents`) or a .py file. (default: the environment's)")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Checkpoint, or expert, noop, random. (default: the agent's)")
    ] = None,
    engine: Annotated[str, typer.Option(help=f"What runs the model: {', '.join(ENGINES)}.")] = "torch",
    host: Annotated[str, typer.Option(help="Where it decides: ray or inprocess.")] = "ray",
    clock: Annotated[str, typer.Option(help="wall: the world runs on; lockstep: it waits.")] = "wall",
    on_miss: Annotated[str, typer.Option(help="hold the last call, safe call, or stop the run.")] = "hold",
    hold_ms: Annotated[
        float | None, typer.Option(help="Hold at most so long, then the safe call. (default: the agent's)")
    ] = None,
    late: Annotated[str, typer.Option(help="A decision after its deadline: drop or use.")] = "drop",
    min_confidence: Annotated[float, typer.Option(help="Less sure calls are held back.")] = 0.0,
    max_miss_rate: Annotated[float | None, typer.Option(help="Exit status 3 above it.", show_default=False)] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of record.jsonl and report.json. (default: runs/ENV-TIME)", show_default=False),
    ] = None,
    live: Annotated[bool, typer.Option("--live/--no-live", help="Live view, or log lines.")] = True,
    stdin: Annotated[
        bool, typer.Option("--stdin", help="Read instructions from stdin though it is no terminal, a line each.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="--out may hold a run: replace it.")] = False,
    rt_priority: Annotated[int, typer.Option(help="SCHED_FIFO priority of the loop's thread, 1 to 99.")] = 0,
    affinity: Annotated[str, typer.Option(help="CPUs of the loop's thread, such as 0,1.")] = "",
    mlock: Annotated[bool, typer.Option("--mlock", help="Lock the memory.")] = False,
    bind: Annotated[
        str | None,
        typer.Option(help="--env remote: where a client connects. (default: tcp://127.0.0.1:5555)", show_default=False),
    ] = None,
    connect: Annotated[
        str | None, typer.Option(help="--env remote: where a client listens.", show_default=False)
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(help="--env remote: folder of CURVE keys (`rtcontrol keys`).", show_default=False)
    ] = None,
    carla_host: Annotated[str, typer.Option(help="--env carla-bridge: the CARLA server's machine.")] = "127.0.0.1",
    carla_port: Annotated[int, typer.Option(help="--env carla-bridge: its port.")] = 2000,
    town: Annotated[
        str | None,
        typer.Option(help="--env carla-bridge: load this town. (default: the one loaded)", show_default=False),
    ] = None,
    traffic: Annotated[
        int | None,
        typer.Option(help="--env carla-bridge: other vehicles. (default: 20; stand-in: 12)", show_default=False),
    ] = None,
    carla_standin: Annotated[
        bool, typer.Option("--carla-standin", help="--env carla-bridge: drive in the stand-in, which is not CARLA.")
    ] = False,
    reconnect_s: Annotated[
        float, typer.Option(help="--env carla-bridge: how long a CARLA server that is lost is waited for.")
    ] = 30.0,
    trace: Annotated[bool, typer.Option("--trace", help="--env carla-bridge: a line a step, in trace.jsonl.")] = False,
) -> None:
    from rtcontrol.config import RunConfig

    config = RunConfig(
        env=env,
        out=out or Path("runs") / f"{Path(env).stem}-{datetime.now(UTC):%Y%m%dT%H%M%S}",
        hz=hz,
        deadline_ms=deadline_ms,
        max_age_ms=max_age_ms,
        pipeline=pipeline,
        episodes=episodes if episodes is not None or duration is not None else 5,
        duration_s=duration,
        seed=seed,
        instruction=instruct,
        agent=agent,
        model=model,
        engine=engine,
        host=host,
        clock=clock,
        on_miss=on_miss,
        hold_ms=hold_ms,
        late=late,
        max_miss_rate=max_miss_rate,
        min_confidence=min_confidence,
        rt_priority=rt_priority,
        affinity=_cpus(affinity),
        mlock=mlock,
    )
    if env != "remote" and (given := [o for o in (bind, connect, keys) if o is not None]):
        raise UserError(f"--bind, --connect and --keys are for --env remote (given: {given[0]}).", "Leave them out.")
    if instruct is not None and not instruct.strip():
        raise UserError("--instruct is empty.", "Say what to do, or leave it out for the agent's own instruction.")
    if bind is not None and connect is not None:
        raise UserError("--bind and --connect exclude each other.", "Give one of them.")
    if env in ("remote", "carla-bridge") and goal is not None:
        raise UserError("--goal is for bundled environments.", "Tell a client's agent what to do with --instruct.")
    if env != "carla-bridge" and (town is not None or traffic is not None or carla_standin or trace):
        raise UserError("--town, --traffic, --carla-standin and --trace are for --env carla-bridge.", "Leave them out.")
    elsewhere = (carla_host, carla_port) != ("127.0.0.1", 2000)
    if elsewhere and (env != "carla-bridge" or carla_standin):
        why = "--carla-standin starts a server of its own" if carla_standin else "they are for --env carla-bridge"
        raise UserError(f"--carla-host and --carla-port have no effect here: {why}.", "Leave them out.")
    if env == "carla-bridge" and episodes is not None:
        raise UserError("--episodes is not for --env carla-bridge: CARLA has none.", "Give --duration.")
    if env == "carla-bridge":
        # First of all whether there is a CARLA: what decides is imported when there is.
        from rtcontrol.drive import DriveOptions, drive

        where = DriveOptions(
            host=carla_host,
            port=carla_port,
            town=town,
            traffic=traffic,
            standin=carla_standin,
            reconnect_s=reconnect_s,
            trace=trace,
        )
        raise typer.Exit(drive(config, where, live, stdin, overwrite))
    from rtcontrol.fly import Interrupted, fly

    try:
        if env == "remote":
            from rtcontrol.serve.solo import fly_remote

            status = fly_remote(config, bind, connect, keys, live, stdin, overwrite)
        else:
            status = fly(config, goal, live, stdin, overwrite)
    except Interrupted as interrupted:
        # Told here: Typer takes every KeyboardInterrupt for Ctrl-C.
        status = interrupted.status
    raise typer.Exit(status)


def _cpus(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise UserError(f"--affinity {text} is no list of CPUs.", "Give numbers, such as --affinity 0,1.") from None


@app.command()
def envs() -> None:
    """The environments by name, and the agent that each is made for; then what runs in a process of its own.

    Example: rtcontrol envs
    """
    from rtcontrol import worlds
    from rtcontrol.envs import registry

    for name, entry in registry.known().items():
        print(f"{name}  (agent {entry.agent})\n    {entry.description}")
    for name, description in sorted(worlds.JOINED.items()):
        print(f"{name}\n    {description}")


@app.command()
def agents() -> None:
    """The agents by name: what they are told by default, their tools, their model.

    Example: rtcontrol agents
    """
    from rtcontrol import assemble

    for name, one in assemble.agents().items():
        print(f'{name}  (model {one.model}, told "{one.instruction}")\n    {one.description}')
        for t in one.tools:
            parameters = ", ".join(p.name for p in t.schema.parameters)
            print(f"    {t.name}({parameters}): {t.schema.description}")
        safe = one.fallback.safe_call
        print(f"    safe call {safe.text() if safe else 'none'} after {one.fallback.hold_ms:g} ms of hold")


@app.command()
def report(folder: Annotated[Path, typer.Argument(help="A run's folder.")]) -> None:
    """Make report.json anew from a run's record, and print it; also after the run was killed.

    Example: rtcontrol report runs/lander-20260801T120000
    """
    from rich.console import Console

    from rtcontrol import report as reports
    from rtcontrol import table

    try:
        result = reports.build(folder / "record.jsonl")
        table.show(result, Console())
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"{folder / 'record.jsonl'} is no record of a run ({type(error).__name__}: {error}).",
            "Give the folder of a run.",
        ) from error
    if refused := reports.write(result, folder / "report.json"):
        raise UserError(f"The report could not be written to {folder} ({refused}).", "Free some space.")


@app.command()
def doctor() -> None:
    """What this machine can do: engines, GPU, Ray, real-time scheduling, versions; and what would mend the rest.

    Example: rtcontrol doctor
    """
    from rtcontrol.doctor import examine

    for finding in examine():
        print(f"{'ok  ' if finding.ok else '--  ' if finding.optional else 'no  '} {finding.what}")
        if finding.remedy:
            print(f"       {finding.remedy}")


def main() -> None:
    """The console script. Mistakes become one paragraph on stderr and exit status 2; --debug shows the traceback."""
    arguments = [a for a in sys.argv[1:] if a != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    try:
        code = app(arguments, standalone_mode=False, prog_name="rtcontrol")
        status = code if isinstance(code, int) else 0
    except UserError as error:
        status = _complain(str(error), 2, debug)
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:
        # Whoever read our output has gone: nothing is left to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    except Exception as error:
        if hasattr(error, "format_message"):
            # The command line itself was wrong: Typer's own words.
            hint = getattr(getattr(error, "ctx", None), "command_path", "rtcontrol")
            status = _complain(f"{error.format_message().rstrip('.')}. See `{hint} --help`.", 2, debug)
        else:
            text = f"Internal error: {type(error).__name__}: {error}. Run again with --debug for the traceback."
            status = _complain(text, 1, debug)
    sys.exit(status)


def _complain(text: str, status: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(text, file=sys.stderr)
    return status
