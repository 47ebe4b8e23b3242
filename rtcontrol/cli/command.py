"""Register commands whose options are settings, which users give by flag, by `--set PATH=VALUE` or in a file."""

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
from rtcontrol.models.docstrings import docstring
from rtcontrol.models.errors import UserError
from rtcontrol.settings import GROUPS, Setting, find_setting, read_settings_file, settings_of

ALSO = "Also: `--set loop.hold_ms=300` (repeatable) and `--config FILE.toml`; `rtcontrol settings` lists all settings."
FIGURES = "`--json FILE` writes all results as JSON; - is standard output."
SOURCES: list[Any] = []  # classes and commands that declare settings
# By command: the object that defines the command. Its module is imported on first use.
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
    """The global options, which may appear anywhere in the command line."""

    set: list[str]
    config: Path | None = None
    json: Path | None = None
    debug: bool = False

    def values(self, source: Any, command: str) -> dict[str, Any]:
        """Return the values of a command's settings by Python name. Values of --set override those of --config."""
        values = {} if self.config is None else read_settings_file(self.config, source, command, has_setting)
        parsed: dict[str, Any] = {}
        for word in self.set:
            path, equals, text = word.partition("=")
            if not equals:
                raise UserError(f"--set {word} has no value.", "Give a value, as in --set loop.hold_ms=300.")
            entry = find_setting(source, path, f"--set {path}", command)
            value = entry.typed_value(text, f"--set {word}")
            parsed[entry.name] = (*parsed.get(entry.name, ()), *value) if is_repeatable(entry) else value
        return values | parsed


def split_global_options(words: Sequence[str]) -> tuple[CommandLine, list[str]]:
    """Separate the global options from the other words (not for `rtcontrol bridge`). Raises UserError."""
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


def settings_by_group() -> dict[str, list[Setting]]:
    """Return the settings of all commands by group. A setting that several commands share is listed once."""
    for module in ("rtcontrol.cli.app", *(place.partition(":")[0] for place in LAZY.values())):
        importlib.import_module(module)
    each: dict[str, Setting] = {}
    for source in sorted(SOURCES, key=lambda kind: (not isinstance(kind, type), kind.__module__, kind.__qualname__)):
        for entry in settings_of(source).values():
            each.setdefault(entry.path, entry)
    return {name: [entry for entry in each.values() if entry.group == name] for name in GROUPS}


def has_setting(path: str) -> bool:
    """Return whether any command has a setting with this path, such as `loop.hz`."""
    return any(entry.path == path for each in settings_by_group().values() for entry in each)


def is_repeatable(entry: Setting) -> bool:
    """Return whether the flag of a setting may be repeated, since its value is a tuple of any length."""
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
    """Return a decorator that registers a function as a command; the function may return an exit status.

    The settings of the command are the fields of the class `options` (the function gets an instance as `options`), or
    else the function's parameters declared by `setting`. `flags` names the settings that also have a flag. A parameter
    `line` gets the CommandLine; Typer handles the other parameters. `figures` says that the command supports --json.
    """

    def register(function: Callable[..., int | None]) -> Callable[..., int | None]:
        source: Any = options or function
        settings = settings_of(source)
        accepted = inspect.signature(function, eval_str=True).parameters
        plain = [entry for entry in accepted.values() if entry.name not in {"options", "line", *settings}]
        shown = {entry: settings[entry] for entry in flags}

        def run_command(context: typer.Context, **words: Any) -> None:
            line, called = context.obj, context.command_path.partition(" ")[2]
            if line.json is not None:
                if not figures:
                    raise UserError(f"`rtcontrol {called}` does not support --json.", "Leave it out.")
                check_writable(line.json)
            values = line.values(source, called)
            used = [entry for entry in shown if words[entry] not in (None, [])]
            values |= {entry: _flag_value(shown[entry], words[entry]) for entry in used}
            for entry in settings.values():
                if entry.is_required and entry.name not in values:
                    raise UserError(f"Missing option {flag_of(entry)}.", entry.help)
            rest = {entry.name: words[entry.name] for entry in plain} | ({"line": line} if "line" in accepted else {})
            if options is not None:
                raise typer.Exit(function(options=_make_options(options, values), **rest) or 0)
            defaults = {name: entry.default for name, entry in settings.items()}
            raise typer.Exit(function(**defaults | values, **rest) or 0)

        context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        parameters = [*(entry.replace(kind=context.kind) for entry in plain), *map(_flag_parameter, shown.values())]
        run_command.__signature__ = inspect.Signature([context, *parameters])  # type: ignore[attr-defined]
        run_command.__annotations__ = {entry.name: entry.annotation for entry in (context, *parameters)}
        run_command.settings = settings  # type: ignore[attr-defined]
        also = " ".join(text for text, on in ((ALSO, settings), (FIGURES, figures)) if on)
        text = help or docstring(function)
        app.command(name or function.__name__, help=text, epilog=also or None)(run_command)
        if settings:
            SOURCES.append(source)
        return function

    return register


def _make_options(options: type[Any], values: dict[str, Any]) -> Any:
    try:
        return options(**values)
    except ValidationError as error:
        raise UserError(f"{error.errors()[0]['msg']}.", "See `rtcontrol settings`.") from None


def flag_of(entry: Setting) -> str:
    """Return the flag of a setting, such as --hz."""
    return "--" + entry.flag.replace("_", "-")


def _flag_value(entry: Setting, parsed: Any) -> Any:
    if isinstance(parsed, bool):
        return parsed
    texts = parsed if isinstance(parsed, list) else [parsed]
    values = [entry.typed_value(text, f"{flag_of(entry)} {text}") for text in texts]
    return tuple(part for value in values for part in value) if is_repeatable(entry) else values[0]


def _flag_parameter(entry: Setting) -> inspect.Parameter:
    """Return the Typer parameter for the flag of a setting. Its value is None if the flag is not used."""
    kind: Any = bool | None if entry.kind is bool else list[str] | None if is_repeatable(entry) else str | None
    words, metavar = flag_of(entry), "|".join(get_args(entry.kind)) if get_origin(entry.kind) is Literal else None
    if entry.default is True:
        words += f"/--no-{words[2:]}"
    shown = not (entry.is_required or entry.default in (None, (), True, False, Path()) or "(default:" in entry.help)
    text = f"{entry.help} (default: {entry.default})" if shown else entry.help
    option = typer.Option(words, help=text, metavar=metavar, show_default=False)
    return inspect.Parameter(
        entry.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )
