"""`rtcontrol new`, `check` and `tools`: for authors of worlds and of tools."""

from __future__ import annotations

import keyword
import sys
from importlib import resources
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from rtcontrol.cli.figures import JsonFile, check_writable, for_people, group, save, say
from rtcontrol.models.errors import UserError
from rtcontrol_client.console import printable

FILES = {
    "world.py.txt": "NAME.py",
    "agent.py.txt": "NAME_agent.py",
    "goals.yaml.txt": "goals.yaml",
    "test.py.txt": "test_NAME.py",
    "README.md.txt": "README.md",
}


def write(folder: Path) -> list[Path]:
    """Write it; its last part is the name. Gives its files. UserError for a name that is none or another module's, and
    for a folder that is there already."""
    name = folder.resolve().name
    if not (name.isidentifier() and name.islower() and not keyword.iskeyword(name)):
        raise UserError(
            f"{name!r} is no name for Python files.", "Give small letters, digits and _, as in `rtcontrol new my_game`."
        )
    remedy = "Give another name."
    if name in sys.stdlib_module_names or name in packages_distributions():
        raise UserError(f"{name} is a module of Python's: {name}.py would be imported in its place.", remedy)
    parts = resources.files("rtcontrol.run").joinpath("new_game")
    title = "".join(part.capitalize() for part in name.split("_"))
    try:
        folder.mkdir(parents=True)
        for source, target in FILES.items():
            text = parts.joinpath(source).read_text("utf-8").replace("TITLE", title).replace("NAME", name)
            (folder / target.replace("NAME", name)).write_text(text, "utf-8")
    except FileExistsError:
        raise UserError(f"{folder} is there already.", remedy) from None
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror or error}).", remedy) from None
    return [folder / target.replace("NAME", name) for target in FILES.values()]


def new(
    folder: Annotated[Path, typer.Argument(metavar="NAME", help="The folder to make.", show_default=False)],
) -> None:
    """Begin a game of your own: a folder with a world, an agent (tools, words, expert), its goals and tests, which runs
    at once. docs/your-own-game.md tells what each part must hold.

    Examples:

      rtcontrol new my_game

      cd my_game && pytest && rtcontrol run --env my_game.py --agent my_game_agent.py --model expert
    """
    for file in write(folder):
        print(file)
    print(f"next: cd {folder} && pip install -q pytest && python -m pytest, and what its README.md says")


def check(
    world: Annotated[str, typer.Argument(metavar="WORLD", help="gym:ID, a .py file, or a bundled name.")],
    agent: Annotated[
        str | None,
        typer.Option(help="A bundled name, or a .py file. (default: the world's own)", show_default=False),
    ] = None,
    steps: Annotated[int, typer.Option(min=0, help="Steps with random calls.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Of the first episode, and of the calls.")] = 0,
) -> None:
    """Tell the author of a world what is wrong with it: one instance is made, reset, played by its agent's expert for
    every goal, called at random and closed, on one thread, as in a run. A file that is world and agent needs no
    --agent.

    Examples:

      rtcontrol check my_world.py --agent my_agent.py

      rtcontrol check "gym:CartPole-v1?precision=3" --steps 1000

      rtcontrol check gym:my_module:MyWorld-v0      (a module that registers it)

    Exit status: 0 where nothing was found; 2, and the first thing that is wrong, where something was.
    """
    from rtcontrol.run.skills import check_world

    for line in check_world(world, agent, steps=steps, seed=seed):
        print(line)
    print(f"{world}: nothing found wrong")


TOOLS = "Look at tools: which of them take one forward pass, and what would make the others do so."
tools = group(help=TOOLS)


@tools.callback(help=TOOLS)
def _tools() -> None:
    pass


@tools.command("check")
def check_tools(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A .json or .py file, mcp:COMMAND or mcp:URL.", show_default=False)
    ],
    model: Annotated[
        str | None,
        typer.Option(help="Bundled name or checkpoint folder. (default: the tokenizer of lander)", show_default=False),
    ] = None,
    skip_unsupported: Annotated[
        bool, typer.Option(help="Leave out tools that cannot be taken, and say which.")
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """For each tool: whether its values are listed (closed) or decoded token by token (free), the forward passes of its
    worst call (with several tools two at least, as the function may be decided first), the tokens that describe it in
    the cached prompt, which rules of its values are checked when a value is decoded and not enforced token by token,
    and what bound would make it one pass. A tool that every session
    would be refused ends it with exit status 2, or is left out (--skip-unsupported). `rtcontrol run --tools` and
    `serve --tools` take the same SOURCE.

    Examples:

      rtcontrol tools check tools.json

      rtcontrol tools check robot.py --json found.json      (--json -: on standard output, the table on stderr)

      rtcontrol tools check "mcp:python my_server.py" --model runs/mine
    """
    from rtcontrol.models.checkpoint.checkpoint import Checkpoint, chats
    from rtcontrol.run.toolsets import check_context, check_decodable, costs, tools_from

    if json_file is not None:
        check_writable(json_file)
    checkpoint = Checkpoint.open(model or "lander")
    if model is not None and chats(model):
        what = f"{model} is a chat model: the passes of its calls depend on its syntax, and are not counted here."
        raise UserError(what, "Leave --model out, or name a checkpoint in ST format.")
    found = tools_from(source, skip_unsupported=skip_unsupported)
    check_decodable(found.schemas, checkpoint.tokenizer)
    if model is not None:
        check_context(found.schemas, checkpoint)
    remedies = found.remedies()
    entries: list[dict[str, Any]] = []
    told: list[str] = []
    table = Table(
        "tool",
        "values",
        "passes at worst",
        "prefix tokens",
        "checked, not enforced",
        caption="passes of the model for the longest call of a tool; its tokens in the cached prompt",
    )
    for cost in costs(found.schemas, checkpoint.tokenizer, checkpoint.template.overflow):
        entry = {
            "name": cost.name,
            "kind": "closed" if cost.closed else "free",
            "passes": cost.passes,
            "prefix_tokens": cost.prefix_tokens,
            "checked": cost.checked,
            "remedy": " ".join([*remedies[cost.name], *cost.remedies]) or None,
        }
        entries.append(entry)
        checked = "; ".join(f"{name}: {', '.join(rules)}" for name, rules in cost.checked.items())
        shown = [*(entry[k] for k in ("name", "kind", "passes", "prefix_tokens")), checked or "-"]
        table.add_row(*(escape(printable(str(text))) for text in shown))
        told += [f"{cost.name}: {remedy}" for remedy in (*remedies[cost.name], *cost.remedies)]
    console = for_people(json_file)
    console.print(table)
    for line in told:
        say(console, line)
    save(json_file, {"model": model or "lander", "tools": entries})
