"""`rtcontrol data interpret`: rows that teach an interpreter."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rtcontrol.cli.figures import check_writable, count_rows
from rtcontrol.models.errors import UserError


def interpret(
    rows: Annotated[int, typer.Option(min=1, help="How many rows, of each agent in turn.")],
    out: Annotated[Path, typer.Option(help="Where they go, one JSON object a line.", callback=check_writable)],
    env: Annotated[
        list[str] | None,
        typer.Option(help="World whose agent is told: a bundled one, or a .py file; may be repeated."),
    ] = None,
    agent: Annotated[
        list[str] | None, typer.Option(help="Agent: a name, or a .py file with goals; may be repeated.")
    ] = None,
    nonsense: Annotated[
        float, typer.Option(min=0.0, max=0.9, help="Share of what asks for nothing: its call is null.")
    ] = 0.15,
    tool_sets: Annotated[
        bool, typer.Option("--tool-sets", help="Write each set of tools once; its rows name it by its hash.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Draws whatever is drawn.")] = 0,
) -> None:
    """Rows that teach a model to understand what people say (--interpreter): each the sentence, the agent's goals as
    tools, and the goal that is meant as a call; null for what asks for none. Of the lists that models are judged by no
    sentence is taken.

    Examples:

      rtcontrol data interpret --env lander --rows 20000 --out rows.jsonl

      rtcontrol data interpret --env lander --env paddle --env road --rows 60000 --out rows.jsonl

      rtcontrol data interpret --agent my_agent.py --rows 5000 --out mine.jsonl
    """
    from rtcontrol.models.data.row import write_rows
    from rtcontrol.run import assembly
    from rtcontrol.training.interpreter_rows import rows as drawn
    from rtcontrol.training.interpreter_rows import taught

    if not env and not agent:
        raise UserError("Whose goals are meant was not said.", "Give --env lander, or --agent FILE.py.")
    chosen = [assembly.agent(assembly.default_agent(one), env=one) for one in env or ()]
    chosen += [assembly.agent(one) for one in agent or ()]
    count = write_rows(out, count_rows(drawn([taught(one) for one in chosen], rows, seed, nonsense)), tool_sets)
    print(f"{count} rows: {out}")
