"""The commands `rtcontrol run`, `envs`, `agents` and `doctor`. LAZY lists the modules of the other commands."""

from __future__ import annotations

import difflib
import errno
import importlib
import platform
import re
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rtcontrol.cli.command import LAZY, command, split_global_options
from rtcontrol.cli.figures import group_options
from rtcontrol.hosts.processes import task_limit
from rtcontrol.loop import errors
from rtcontrol.models import __version__
from rtcontrol.models.errors import UserError
from rtcontrol.run.options import CARLA, REMOTE, RunOptions, timestamped_folder
from rtcontrol.run.run import HOST, INCOMPLETE, UNSAFE
from rtcontrol.telemetry.run_folder import RunFolder, package_version
from rtcontrol_client.console import StandardStreams, printable
from rtcontrol_client.shutdown import Interrupted, Shutdown, ignore_closed_terminal, unwritten

GOALS = 12  # `rtcontrol agents` shows at most this number of goals of an agent
SYNONYMS = {
    "train": "fit",
    "start": "run",
    "play": "run",
    "list": "envs",
    "init": "new",
    "test": "check",
    "version": "doctor",
}
UNWRITTEN = "The output could not be written completely"

RUN_EXAMPLES = """Run an agent in an environment at a fixed rate, and report every tick.

Examples:

    rtcontrol run --env lander --hz 16
    rtcontrol run --env lander --instruct "hover at 0.7" --episodes 20 --no-live --out runs/hover
    rtcontrol run --env lander --model expert --host inprocess --clock lockstep
    rtcontrol run --env gym:CartPole-v1 --agent my_expert.py --model expert --hz 50
    rtcontrol run --env my_world.py --tools tools.json --instruct "go on" --model runs/mine
    rtcontrol run --env remote   # the world is a client that connects (docs/protocol.md)

While it runs, type a new instruction, or a command: /pause and /stop activate the safe call, /resume continues, /yes
and /no answer for a call that waits for approval, /help lists all. Ctrl-C ends the run with the safe call and a report.

Exit status: 0 success; 2 wrong option; 3 too many misses; 4 safe call not active at the end; docs/running.md lists all.
"""


class LazyGroup(TyperGroup):
    """A Typer group that imports the module of a subcommand only when the subcommand is used."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *LAZY]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        place = LAZY.get(cmd_name)
        if place is None:
            return super().get_command(ctx, cmd_name)
        name, attribute = place.split(":")
        command = typer.main.get_command(getattr(importlib.import_module(name), attribute))
        command.name = cmd_name
        return command


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def _print_versions(requested: bool) -> None:
    if requested:
        versions = (f"{name} {package_version(name) or 'not installed'}" for name in ("torch", "ray"))
        print(f"rtcontrol {__version__} (python {platform.python_version()}, {', '.join(versions)})")
        raise typer.Exit


@group_options(app)
def _global_options(
    set: Annotated[list[str] | None, typer.Option(help="A setting, such as loop.hold_ms=300; may be repeated.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file of settings; flags and --set override it.")] = None,
    json: Annotated[Path | None, typer.Option(help="JSON file for a command's results; - is standard output.")] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the versions.", is_eager=True, callback=_print_versions)
    ] = False,
) -> None:
    """Real-time LLM function calling for robots and games.

    Examples:

        rtcontrol run --env lander --hz 16
        rtcontrol run --env lander --set loop.hold_ms=300
        rtcontrol doctor

    The options below may appear anywhere in the command.
    """


def start_run(options: RunOptions) -> int:
    """Run `rtcontrol run` in a new or given folder, and return the exit status."""
    base = timestamped_folder(Path(options.env).stem)
    streams = StandardStreams(escaped=False)
    with Shutdown() as ending, streams, RunFolder(options.out, base, options.overwrite) as folder:
        try:
            status = _run_environment(options.in_folder(folder.path), ending)
        except Interrupted as interrupted:
            # Use the exit status of the signal, because Typer would treat every KeyboardInterrupt as Ctrl-C.
            status = interrupted.status
    if streams.out.failed:
        print(f"{UNWRITTEN}: {streams.out.failed}. {folder.path} also has the report.", file=sys.stderr)
        return status if status in (UNSAFE, HOST) else INCOMPLETE
    return status


def _run_environment(options: RunOptions, ending: Shutdown) -> int:
    if options.env == CARLA:
        from rtcontrol.run.carla_bridge import run_carla
        from rtcontrol.serve.single_client import run_remote

        return run_carla(options, ending, run_remote)
    if options.env == REMOTE:
        from rtcontrol.serve.single_client import run_remote

        return run_remote(options, ending)
    from rtcontrol.run.run import run

    return run(options, ending)


FIRST_WEEK = ("env", "agent", "model", "tools", "instruction", "hz", "episodes", "duration_s", "clock", "host")
command(app, (*FIRST_WEEK, "out", "live", "view"), options=RunOptions, name="run", help=RUN_EXAMPLES)(start_run)


@command(app)
def envs() -> None:
    """List the environments, each with its default agent.

    Example: rtcontrol envs
    """
    from rtcontrol.envs import registry
    from rtcontrol.run import assembly

    for name, entry in registry.WORLDS.items():
        print(f"{name}  (agent {entry.agent})\n    {entry.description}")
    for name, description in sorted(assembly.OTHER_ENVIRONMENTS.items()):
        print(f"{name}\n    {description}")


@command(app)
def agents(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Only this agent: a name or a file.")] = None,
) -> None:
    """List the agents with their default instructions, tools and models.

    Examples: rtcontrol agents; rtcontrol agents lander
    """
    from rtcontrol.run import assembly, interpreting

    for title, entry in (assembly.bundled_agents() if name is None else {name: assembly.load_agent(name)}).items():
        print(f'{title}  (model {entry.model}, instruction "{entry.instruction}")\n    {entry.description}')
        for tool in entry.tools:
            parameters = ", ".join(p.name for p in tool.schema.parameters)
            print(f"    {tool.name}({parameters}): {tool.schema.description}")
        safe = entry.fallback.safe_call
        print(f"    safe call {safe.text() if safe else 'none'}, at most {entry.fallback.hold_ms:g} ms after a miss")
        goals = interpreting.goal_tools(entry)
        print("\n        ".join(["    goals:", *([] if goals is None else goals.examples(GOALS))]))


@command(app)
def doctor() -> None:
    """Check the installation on this machine (engines, GPU, Ray, versions), and show commands that fix problems.

    Example: rtcontrol doctor
    """
    from rtcontrol.cli.doctor import run_checks

    for sign, text, hint in run_checks():
        print(sign + text)
        if hint:
            print(f"       {hint}")


def main() -> None:
    """Run the console script `rtcontrol`. A UserError becomes a paragraph on stderr, and exit status 2."""
    ignore_closed_terminal()
    try:
        line, words = split_global_options(sys.argv[1:])
        code = app(words, obj=line, standalone_mode=False, prog_name="rtcontrol")
        status = code if isinstance(code, int) else 0
        if error := unwritten():
            status = _print_error(f"{UNWRITTEN}: {error}. Free some disk space, or write to another disk.", status or 1)
    except UserError as error:
        status = _print_error(str(error), 2)
    except KeyboardInterrupt:
        status = 130
    except (Exception, SystemExit) as error:  # also SystemExit, because a user's file may call exit()
        if hasattr(error, "format_message"):
            status = _print_error(_usage_message(error), 2)
        elif text := _shortage(error):
            status = _print_error(text, 2)
        else:
            text = f"Internal error: {errors.message(error)} ({errors.location(error)}). Run again with --debug."
            status = _print_error(text, 1)
    sys.exit(status)


def _shortage(error: BaseException) -> str:
    """Return the message for an error of a system that allows no more threads, processes or files; else an empty
    text."""
    code = error.errno if isinstance(error, OSError) else None
    if "can't start new thread" in str(error) or code == errno.EAGAIN:
        limit = task_limit()
        count = "no more" if limit is None else f"only {limit}"
        return f"This system allows {count} processes and threads. Raise docker --pids-limit, TasksMax or `ulimit -u`."
    if code in (errno.EMFILE, errno.ENFILE):
        return "This system allows no more open files. Raise the limit: `ulimit -n 4096`."
    return ""


def _usage_message(error: Any) -> str:
    """Return the message for a usage error of Typer; an empty text if Typer has shown the help instead."""
    text, context = error.format_message().replace("Value error, ", ""), getattr(error, "ctx", None)
    if not text:
        return ""
    leaf = getattr(error, "option_name", "").lstrip("-").replace("-", "_")
    settings = getattr(getattr(context, "command", None), "callback", None)
    paths = [entry.path for entry in getattr(settings, "settings", {}).values() if leaf in (entry.leaf, entry.name)]
    hint = f" It is a setting: use --set {paths[0]}=VALUE." if paths else _suggestion(text, context)
    return f"{text.rstrip('.')}.{hint} See `{context.command_path if context else 'rtcontrol'} --help`."


def _suggestion(text: str, context: Any) -> str:
    """Return a sentence that names the command or option which the user may have meant; an empty text if none is near.
    `text`: the message of the usage error."""
    path = context.command_path if context else "rtcontrol"
    flags = [flag for entry in getattr(getattr(context, "command", None), "params", ()) for flag in entry.opts]
    if wrong := re.search(r"No such command '([^']+)'", text):
        word = wrong[1]
        near = (
            [SYNONYMS[word]]
            if word in SYNONYMS
            else difflib.get_close_matches(word, context.command.list_commands(context))
        )
        return f" Did you mean `{path} {near[0]}`?" if near else ""
    if wrong := re.search(r"unexpected extra arguments?(?:\(s\))? \(([^ )]+)", text):
        return f" Did you mean `{path} --env {wrong[1]}`?" if "--env" in flags else " Give options with their names."
    if "Possible options" in text or not (wrong := re.search(r"No such option: (--\S+)", text)):
        return ""
    starts = [flag for flag in flags if len(flag) > 3 and wrong[1].startswith(flag)]
    return f" Did you mean {starts[0]}?" if starts else ""


def _print_error(text: str, status: int) -> int:
    if "--debug" in sys.argv:
        traceback.print_exc()
    # Keep line breaks before indented lines (of a list). Escape all other line breaks.
    print("\n".join(map(printable, re.split(r"\n(?= )", text))), file=sys.stderr)
    return status
