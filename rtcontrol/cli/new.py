"""`rtcontrol new`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="NAME", help="The folder to make.", show_default=False)],
) -> None:
    """Begin a game of your own: a folder with a world, an agent (tools, words, expert), its goals and tests, which runs
    at once. docs/your-own-game.md tells what each part must hold.

    Examples:

      rtcontrol new my_game

      cd my_game && pytest && rtcontrol run --env my_game.py --agent my_game_agent.py --model expert
    """
    from rtcontrol.run.skeleton import new as write

    for file in write(folder):
        print(file)
    print(f"next: cd {folder} && pip install -q pytest && python -m pytest, and what its README.md says")
