"""`rtcontrol check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

HELP = """Tell the author of a world all that is wrong with it: one instance is made, reset, flown by its agent's expert
for every goal, called at random and closed, on one thread, as in a run. A file that is world and agent needs no
--agent.

Examples:

  rtcontrol check my_world.py --agent my_agent.py

  rtcontrol check "gym:CartPole-v1?precision=3" --steps 1000

  rtcontrol check gym:my_module:MyWorld-v0      (a module that registers it)

  rtcontrol check lander

From Python: `rtcontrol.check_world("my_world.py", "my_agent.py")` (docs/your-own-game.md).

Exit status: 0 where nothing was found, warnings aside; 2 where something was.
"""
app = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)


@app.command(help=HELP)
def check(
    world: Annotated[str, typer.Argument(metavar="WORLD", help="gym:ID, a .py file, or a bundled name.")],
    agent: Annotated[
        str | None,
        typer.Option(help="A bundled name, or a .py file. (default: the world's own)", show_default=False),
    ] = None,
    goals: Annotated[
        Path | None, typer.Option(help="Goals of a .yaml or .json file, in place of the agent's.", show_default=False)
    ] = None,
    steps: Annotated[int, typer.Option(min=0, help="Steps with random calls.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Of the first episode, and of the calls.")] = 0,
) -> None:
    from rtcontrol.run.world_check import check as checked

    result = checked(world, agent, goals, steps=steps, seed=seed)
    for one in result.wrong:
        print(one)
    for line in result.may:
        print(f"warning: {line}")
    if result.tried:
        print(f"tried: {'; '.join(result.tried)}")
    found = len(result.wrong)
    print(f"{world}: {found or 'nothing'} found wrong{f'; {result.note}' * bool(result.note)}")
    raise typer.Exit(2 if found else 0)
