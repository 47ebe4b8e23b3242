"""`rtcontrol replay`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from rtcontrol.cli.figures import JsonFile, for_people, save, say
from rtcontrol.run.run import ERRED, mostly_errors
from rtcontrol_client.console import printable


def replay(
    file: Annotated[Path, typer.Argument(help="A record.mcap, or a run's folder.")],
    model: Annotated[str | None, typer.Option(help="Decides again. (default: the recorded one)")] = None,
    agent: Annotated[str | None, typer.Option(help="FILE.py whose expert is meant by --model expert.")] = None,
    diff: Annotated[bool, typer.Option("--diff", help="Show each tick that was decided otherwise.")] = False,
    json_file: JsonFile = None,
) -> None:
    """Decide recorded observations again, and compare with what was decided then, tick by tick.

    Without a clock, in order, each with the instruction and history that were recorded: twice gives the same. What was
    recorded with --record-observations no cannot be replayed.

    Exit status: 0; 2 mistake in what was given; 8 a tenth of the decisions or more ended in an error.

    Examples:

      rtcontrol replay runs/soak --model expert --diff

      rtcontrol replay runs/soak/record.mcap --model lander --json replay.json

      rtcontrol replay runs/mine --agent my_agent.py --model expert
    """
    from rtcontrol.run import assembly
    from rtcontrol.run.recording import recording
    from rtcontrol.run.replay import replay as decide_again

    recorded = recording(file)
    own = None if agent is None else assembly.agent(agent)
    console = for_people(json_file)
    tell = partial(say, console)
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("decisions", total=len(recorded.seen))
        found, _ = decide_again(recorded, model, lambda done: bar.update(task, completed=done), own)
    then, now, ms = found["recorded"], found["replayed"], found["decide_ms"]
    if not found["whole"]:
        console.print(f"{file} was cut short: what it holds is replayed.", soft_wrap=True)
    if diff:
        again: dict[str, list[int]] = {}  # of each error the ticks that had it after the first
        for one in found["differing"]:
            if (error := one.get("error")) in again:
                again[error].append(one["k"])
                continue
            if error is not None:
                again[error] = []
            tell(f"tick {one['k']}, seen at {one['t_s']:.3f} s: {one['recorded']} then, {one['replayed'] or error} now")
        for error, ticks in again.items():
            if ticks:
                tell(f"the same {len(ticks)} times more, ticks {ticks[0]} to {ticks[-1]}: {error}")
    share = "" if found["agreement"] is None else f" ({100 * found['agreement']:.2f} %)"
    console.print(
        f"recorded: {then['model']} on {then['engine']}, {then['hz']:g} Hz; replayed: {now['model']} on "
        f"{now['engine']}, {now['hz']:g} Hz\n{found['decisions']} decisions, {found['compared']} compared "
        f"(where a call was decided in time then), {found['agreed']} the same{share}, "
        f"{len(found['differing'])} differ, {found['errors']} errors\n"
        f"decide p50 {ms['p50']} ms, p99 {ms['p99']} ms; {found['above_period']} took longer than a period",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    save(json_file, found)
    if mostly_errors(found["errors"], found["decisions"]):
        print(
            f"ERRORS: {found['errors']} of {found['decisions']} decisions ended in one, most often: "
            f"{printable(str(found['commonest_error']))}. Correct it there.",
            file=sys.stderr,
        )
        raise typer.Exit(ERRED)
