"""Register commands whose options are settings, given by flag, by `--set PATH=VALUE` or in a file."""

from __future__ import annotations

import argparse
import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import ValidationError

from rtcontrol.cli.figures import check_writable
from rtcontrol.models.errors import UserError
from rtcontrol.settings import GROUPS, Setting, read_file, required, settings_of

ALSO = "Also: `--set loop.hold_ms=300` (repeatable) and `--config FILE.toml`, for each of `rtcontrol settings`."
FIGURES = "`--json FILE` writes all figures; - is standard output."
SOURCES: list[Any] = []  # objects that declare settings: options classes and functions of commands
# Commands in other modules, which are imported on first use.
LAZY = {
    "serve": "rtcontrol.cli.serve:app",
    "fit": "rtcontrol.cli.fit:app",
    "models": "rtcontrol.cli.models:app",
    "score": "rtcontrol.cli.score:app_score",
    "tools": "rtcontrol.cli.author:tools",
    "bench": "rtcontrol.cli.bench:app",
    "keys": "rtcontrol.cli.serve:key_app",
    "bridge": "rtcontrol.cli.serve:bridges",
    "replay": "rtcontrol.cli.report:app_replay",
    "data": "rtcontrol.cli.data:app",
    "eval": "rtcontrol.cli.score:app_eval",
    "drill": "rtcontrol.cli.drill:app",
    "report": "rtcontrol.cli.report:app_report",
    "mcp": "rtcontrol.cli.serve:app_mcp",
    "new": "rtcontrol.cli.author:app_new",
    "check": "rtcontrol.cli.author:app_check",
    "settings": "rtcontrol.cli.settings:app",
}


@dataclass
class CommandLine:
    """The options that every command has, which may appear anywhere in the command line."""

    set: list[str]
    config: Path | None = None
    json: Path | None = None
    debug: bool = False

    def values(self, source: Any, command: str) -> dict[str, Any]:
        """Return the values of a command's settings by Python name; values of --set override those of the file."""
        values = {} if self.config is None else read_file(self.config, source, command, has_setting)
        given: dict[str, Any] = {}
        for word in self.set:
            path, equals, text = word.partition("=")
            if not equals:
                raise UserError(f"--set {word} has no value.", "Give such as --set loop.hold_ms=300.")
            entry = required(source, path, f"--set {path}", command)
            value = entry.checked(text, f"--set {word}")
            given[entry.name] = (*given.get(entry.name, ()), *value) if repeats(entry) else value
        return values | given


def split(words: Sequence[str]) -> tuple[CommandLine, list[str]]:
    """Separate the options that every command has from the other words, except for bridges. Raises UserError."""
    if "bridge" in words[:1]:
        return CommandLine([]), list(words)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--config", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--debug", action="store_true")
    try:
        options, rest = parser.parse_known_args(words)
    except argparse.ArgumentError as error:
        raise UserError(f"{error}.", "See `rtcontrol --help`.") from None
    return CommandLine(**vars(options)), rest


def tree() -> dict[str, list[Setting]]:
    """Return the settings of all commands by group, without duplicates."""
    for module in ("rtcontrol.cli.app", *(place.partition(":")[0] for place in LAZY.values())):
        importlib.import_module(module)
    each: dict[str, Setting] = {}
    for source in sorted(SOURCES, key=lambda kind: (not isinstance(kind, type), kind.__module__, kind.__qualname__)):
        for entry in settings_of(source).values():
            each.setdefault(entry.path, entry)
    return {name: [entry for entry in each.values() if entry.group == name] for name in GROUPS}


def has_setting(path: str) -> bool:
    """Return whether any command has this setting."""
    return any(entry.path == path for each in tree().values() for entry in each)


def repeats(entry: Setting) -> bool:
    """Return whether a flag of this setting may be repeated."""
    return any(get_origin(part) is tuple and ... in get_args(part) for part in (entry.kind, *get_args(entry.kind)))


def command(
    app: typer.Typer,
    flags: Sequence[str] = (),
    *,
    options: type[Any] | None = None,
    name: str | None = None,
    help: str | None = None,
    figures: bool = False,
) -> Callable[[Callable[..., int | None]], Callable[..., int | None]]:
    """Register a function, which returns an exit status, as a command.

    The settings of the command are the fields of the class `options`, whose instance the function gets as `options`, or
    else the parameters that `setting` declares. `flags` names the settings that have a flag. Typer handles the other
    parameters except `line`. A command with `figures` writes its figures to the file of --json.
    """

    def register(function: Callable[..., int | None]) -> Callable[..., int | None]:
        source: Any = options or function
        settings = settings_of(source)
        takes = inspect.signature(function, eval_str=True).parameters
        plain = [entry for entry in takes.values() if entry.name not in {"options", "line", *settings}]
        shown = {entry: settings[entry] for entry in flags}

        def call(context: typer.Context, **words: Any) -> None:
            line, called = context.obj, context.command_path.partition(" ")[2]
            if line.json is not None:
                if not figures:
                    raise UserError(f"`rtcontrol {called}` has no --json.", "Leave it out.")
                check_writable(line.json)
            values = line.values(source, called)
            values |= {entry: _value(shown[entry], words[entry]) for entry in shown if words[entry] not in (None, [])}
            for entry in settings.values():
                if entry.required and entry.name not in values:
                    raise UserError(f"Missing option {flag_of(entry)}.", entry.help)
            rest = {entry.name: words[entry.name] for entry in plain} | ({"line": line} if "line" in takes else {})
            if options is not None:
                raise typer.Exit(function(options=_made(options, values), **rest) or 0)
            defaults = {name: entry.default for name, entry in settings.items()}
            raise typer.Exit(function(**defaults | values, **rest) or 0)

        context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        parameters = [*(entry.replace(kind=context.kind) for entry in plain), *map(_parameter, shown.values())]
        call.__signature__ = inspect.Signature([context, *parameters])  # type: ignore[attr-defined]
        call.__annotations__ = {entry.name: entry.annotation for entry in (context, *parameters)}
        call.settings = settings  # type: ignore[attr-defined]
        also = " ".join(text for text, on in ((ALSO, settings), (FIGURES, figures)) if on)
        text = help or inspect.getdoc(function)
        app.command(name or function.__name__, help=text, epilog=also or None)(call)
        if settings:
            SOURCES.append(source)
        return function

    return register


def _made(options: type[Any], values: dict[str, Any]) -> Any:
    try:
        return options(**values)
    except ValidationError as error:
        raise UserError(f"{error.errors()[0]['msg']}.", "See `rtcontrol settings`.") from None


def flag_of(entry: Setting) -> str:
    """Return the flag of a setting."""
    return "--" + entry.flag.replace("_", "-")


def _value(entry: Setting, given: Any) -> Any:
    if isinstance(given, bool):
        return given
    texts = given if isinstance(given, list) else [given]
    values = [entry.checked(text, f"{flag_of(entry)} {text}") for text in texts]
    return tuple(part for value in values for part in value) if repeats(entry) else values[0]


def _parameter(entry: Setting) -> inspect.Parameter:
    """Return the Typer parameter for the flag of a setting; the value is None if the flag is not given."""
    kind: Any = bool | None if entry.kind is bool else list[str] | None if repeats(entry) else str | None
    words, metavar = flag_of(entry), "|".join(get_args(entry.kind)) if get_origin(entry.kind) is Literal else None
    if entry.default is True:
        words += f"/--no-{words[2:]}"
    shown = not (entry.required or entry.default in (None, (), True, False, Path()) or "(default:" in entry.help)
    text = f"{entry.help} (default: {entry.default})" if shown else entry.help
    option = typer.Option(words, help=text, metavar=metavar, show_default=False)
    return inspect.Parameter(
        entry.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )
