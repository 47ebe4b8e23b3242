"""The commands `rtcontrol new`, `check` and `tools`, for authors of worlds and tools."""

from __future__ import annotations

import keyword
import sys
from importlib import resources
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Annotated, Any

import typer

from rtcontrol.cli.command import CommandLine, command
from rtcontrol.cli.figures import console_for_tables, group, group_options, save, say
from rtcontrol.models.errors import UserError
from rtcontrol.settings import setting

FILES = {
    "world.py.txt": "NAME.py",
    "agent.py.txt": "NAME_agent.py",
    "goals.yaml.txt": "goals.yaml",
    "test.py.txt": "test_NAME.py",
    "README.md.txt": "README.md",
}
app_new, app_check, tools = group(), group(), group()


def write_game(folder: Path) -> list[Path]:
    """Create the folder of a new game, whose name is that of the folder. Return the files.

    Raises UserError if the name is not valid for Python modules, or if the folder cannot be created.
    """
    name = folder.resolve().name
    if not (name.isidentifier() and name.islower() and not keyword.iskeyword(name)):
        raise UserError(f"{name!r} is not a valid name of a Python module.", "Use lower-case letters, digits and _.")
    if name in sys.stdlib_module_names or name in packages_distributions():
        raise UserError(f"{name}.py would be imported in place of the existing module {name}.", "Give another name.")
    parts = resources.files("rtcontrol.run").joinpath("new_game")
    title = "".join(part.capitalize() for part in name.split("_"))
    try:
        folder.mkdir(parents=True)
        for source, target in FILES.items():
            text = parts.joinpath(source).read_text("utf-8").replace("TITLE", title).replace("NAME", name)
            (folder / target.replace("NAME", name)).write_text(text, "utf-8")
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror}).", "Give another name.") from None
    return [folder / target.replace("NAME", name) for target in FILES.values()]


@command(app_new)
def new(
    folder: Annotated[Path, typer.Argument(metavar="NAME", help="The folder to create.", show_default=False)],
) -> None:
    """Create a game that runs at once: a folder with a world, an agent (tools, expert), goals and tests.

    Examples:

        rtcontrol new my_game
        cd my_game && pytest && rtcontrol run --env my_game.py --agent my_game_agent.py --model expert

    docs/your-own-game.md explains the files.
    """
    for file in write_game(folder):
        print(file)
    print(f"next: cd {folder} && pip install -q pytest && python -m pytest; then follow README.md there")


@command(app_check, ("agent",))
def check(
    world: Annotated[str, typer.Argument(metavar="WORLD", help="gym:ID, a .py file, or a bundled name.")],
    agent: str | None = setting("check", None, "A bundled agent's name, or a .py file. (default: the world's)"),
    steps: int = setting("check", 200, "Number of steps with random calls.", ge=0),
    seed: int = setting("check", 0, "Seed of the first episode, and of the random calls.", ge=0),
) -> None:
    """Check a world for errors. On a thread, as in a run, an instance is created and reset, the agent's expert plays
    every goal, random calls follow, and the instance is closed. A file with a world and its agent needs no --agent.

    Examples:

        rtcontrol check my_world.py --agent my_agent.py
        rtcontrol check "gym:CartPole-v1?precision=3" --set check.steps=1000

    Exit status: 0 if there is no error; 2 if there is, with a message about the first error.
    """
    from rtcontrol.run.skills import check_world

    for line in check_world(world, agent, steps=steps, seed=seed):
        print(line)
    print(f"{world}: no errors")


@group_options(tools)
def _tools_group() -> None:
    """Show what a call of each tool costs, and how to make it cheaper."""


@command(tools, name="check", figures=True)
def check_tools(
    line: CommandLine,
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A .json or .py file, mcp:COMMAND or mcp:URL.", show_default=False)
    ],
    model: str | None = setting("check", None, "Bundled name or checkpoint, for its tokenizer. (default: lander)"),
    skip_unsupported: bool = setting("host", False, "Leave out unsupported tools, and list them."),
) -> None:
    """Show the cost of calling each tool.

    A tool is closed if its values are enumerated, and free if a value is decoded token by token. The output has the
    forward passes of the most expensive call (at least 2 with several tools), the tokens in the cached prompt, the
    rules that are only checked after decoding, and hints for fewer passes. A tool that no session accepts gives exit
    status 2, or is left out (host.skip_unsupported). `run --tools` and `serve --tools` accept the same SOURCE.

    Examples:

        rtcontrol tools check tools.json --json costs.json
        rtcontrol tools check "mcp:python my_server.py" --set check.model=runs/mine
    """
    from rtcontrol.models.checkpoint.checkpoint import Checkpoint, is_chat_model
    from rtcontrol.run.toolsets import load_tools, tool_costs

    checkpoint = Checkpoint.open(model or "lander")
    if model is not None and is_chat_model(model):
        what = f"The forward passes of {model}, a chat model, cannot be counted: they depend on its syntax."
        raise UserError(what, "Leave check.model out, or give a checkpoint in ST format.")
    supported = load_tools(source, skip_unsupported=skip_unsupported)
    hints, console = supported.hints(), console_for_tables(line.json)
    entries: list[dict[str, Any]] = []
    for cost in tool_costs(supported.schemas, checkpoint.tokenizer, checkpoint.template.overflow):
        each, kind = [*hints[cost.name], *cost.hints], "closed" if cost.closed else "free"
        entry = {"name": cost.name, "kind": kind, "passes": cost.passes, "prefix_tokens": cost.prefix_tokens}
        entries.append({**entry, "checked": cost.checked_only, "remedy": " ".join(each) or None})
        passes = "1 pass" if cost.passes == 1 else f"{cost.passes} passes"
        say(console, f"{cost.name}: {kind}, {passes} at worst, {cost.prefix_tokens} tokens of the prompt")
        for name, rules in cost.checked_only.items():
            say(console, f"    checked only after decoding: {name}: {', '.join(rules)}")
        for hint in each:
            say(console, f"    {hint}")
    save(line.json, {"model": model or "lander", "tools": entries})
