"""Commands whose flags are settings: each setting also by `--set PATH=VALUE`, in a file, or by its flag of old."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer
from pydantic import ValidationError
from typer.core import TyperCommand

from rtcontrol.cli.figures import check_writable
from rtcontrol.models.errors import UserError
from rtcontrol.settings import GROUPS, Setting, find, read_file, required, settings_of

ALSO = "Also: `--set loop.hold_ms=300` (repeatable) and `--config FILE.toml`, for each of `rtcontrol settings`."
FIGURES = "`--json FILE` writes all figures; - is standard output."
METAVARS = {float: "FLOAT", int: "INTEGER", Path: "PATH", str: "TEXT"}
SOURCES: list[Any] = []  # what has settings: options classes and functions of commands
# Commands in modules of their own, imported at the first use.
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
    """What a command line says with the options of every command. `words`: setting, text, and who names it."""

    words: list[tuple[str, str, str]] = field(default_factory=list)
    config: Path | None = None
    json: Path | None = None

    def take(self, option: str, value: str) -> None:
        """Keep the value of --set, --config or --json. Raises UserError."""
        if option == "--config":
            self.config = Path(value)
        elif option == "--json":
            self.json = check_writable(Path(value))
        else:
            path, equals, text = value.partition("=")
            if not equals:
                raise UserError(f"--set {value} has no value.", "Give such as --set loop.hold_ms=300.")
            self.words.append((path, text, f"--set {path}="))

    def values(self, source: Any, command: str) -> dict[str, Any]:
        """Return the values of the settings of a command by Python name: the file's, over them those of --set."""
        values = {} if self.config is None else read_file(self.config, source, command, has_setting)
        given: dict[str, Any] = {}
        for word, text, origin in self.words:
            entry = required(source, word, origin, command)
            value = entry.from_text(text, origin)
            given[entry.name] = (*given.get(entry.name, ()), *value) if repeats(entry) else value
        return values | given


def tree() -> dict[str, list[Setting]]:
    """Return the settings of all commands by group, each once."""
    for module in ("rtcontrol.cli.app", *(place.partition(":")[0] for place in LAZY.values())):
        importlib.import_module(module)
    each: dict[str, Setting] = {}
    for source in sorted(
        SOURCES, key=lambda entry: (not isinstance(entry, type), entry.__module__, entry.__qualname__)
    ):
        for entry in settings_of(source).values():
            each.setdefault(entry.path, entry)
    return {name: [entry for entry in each.values() if entry.group == name] for name in GROUPS}


def has_setting(path: str) -> bool:
    """Return whether any command has this setting."""
    return any(entry.path == path for each in tree().values() for entry in each)


def repeats(entry: Setting) -> bool:
    """Return whether a flag of this setting may be repeated."""
    return any(get_origin(part) is tuple and ... in get_args(part) for part in (entry.kind, *get_args(entry.kind)))


class SettingsCommand(TyperCommand):
    """Takes the options of every command, and flags of earlier versions that are settings now."""

    source: Any = None
    figures = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(self._rest(ctx.ensure_object(CommandLine), ctx.command_path, deque(args))))

    def _rest(self, line: CommandLine, path: str, words: deque[str]) -> Iterator[str]:
        """Yield the words that are not taken here."""
        flags: dict[str, Any] = {flag: entry for entry in self.params for flag in (*entry.opts, *entry.secondary_opts)}
        also = ("--set", "--config", "--json") if self.figures else ("--set", "--config")
        while words:
            word = words.popleft()
            name, equals, value = word.partition("=")
            if word == "--":
                yield word
                yield from words
                return
            if not name.startswith("--") or name == "--help":
                yield word
            elif name in flags:
                yield word
                if not equals and not flags[name].is_flag and words:
                    yield words.popleft()
            elif (name in also and self.source is not None) or (name == "--json" and self.figures):
                line.take(name, value if equals else _next(name, words))
            elif (setting := self._setting(name)) is not None:
                text = value if equals else _text(setting, name, words)
                print(f"{name} is deprecated: give --set {setting.path}={text}", file=sys.stderr)
                line.words.append((setting.path, text, f"{name} "))
            else:
                known = {f"--{n}": f"--set {p}=" for n, p in self._words()} | {flag: flag for flag in flags}
                near = known[difflib.get_close_matches(name, known, 1, 0.0)[0]]
                raise UserError(f"No such option: {name}.", f"The nearest one is {near}. See `{path} --help`.")

    def _setting(self, flag: str) -> Setting | None:
        return None if self.source is None else find(self.source, flag.removeprefix("--").removeprefix("no-"))

    def _words(self) -> list[tuple[str, str]]:
        settings = {} if self.source is None else settings_of(self.source)
        return [(word.replace("_", "-"), entry.path) for entry in settings.values() for word in entry.names()]


def _next(name: str, words: deque[str]) -> str:
    if not words:
        raise UserError(f"{name} has no value.", f"Give one after {name}.")
    return words.popleft()


def _text(setting: Setting, name: str, words: deque[str]) -> str:
    """Return the value of a flag of an earlier version, as `--set` takes it."""
    if setting.kind is bool:
        return "false" if name.startswith("--no-") else "true"
    if setting.is_kind(tuple) and not repeats(setting):
        return f"[{_next(name, words)}, {_next(name, words)}]"
    return _next(name, words)


def command(
    app: typer.Typer,
    flags: Sequence[str] = (),
    *,
    options: type[Any] | None = None,
    name: str | None = None,
    help: str | None = None,
    figures: bool = False,
) -> Callable[[Callable[..., int | None]], Callable[..., int | None]]:
    """Register a function as a command. What it returns is the exit status.

    Its settings are the fields of `options`, which it takes as `options`, or else those of its parameters that
    `setting` declares. `flags` names the settings with a flag. Its other parameters are Typer's, but for `line`.
    `figures`: it writes them where --json says.
    """

    def register(function: Callable[..., int | None]) -> Callable[..., int | None]:
        source: Any = options or function
        settings = settings_of(source)
        takes = inspect.signature(function, eval_str=True).parameters
        plain = [entry for entry in takes.values() if entry.name not in {"options", "line", *settings}]
        shown = {entry: settings[entry] for entry in flags}

        def call(context: typer.Context, **words: Any) -> None:
            line, called = context.ensure_object(CommandLine), context.command_path.partition(" ")[2]
            if line.json is not None and not figures:
                raise UserError(f"`rtcontrol {called}` has no --json.", "Leave it out.")
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
        also = " ".join(text for text, on in ((ALSO, settings), (FIGURES, figures)) if on)
        kind = type(function.__name__, (SettingsCommand,), {"source": source if settings else None, "figures": figures})
        text = help or inspect.getdoc(function)
        app.command(name or function.__name__.strip("_"), help=text, epilog=also or None, cls=kind)(call)
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
    values = [entry.from_text(text, f"{flag_of(entry)} ") for text in texts]
    return tuple(part for value in values for part in value) if repeats(entry) else values[0]


def _parameter(entry: Setting) -> inspect.Parameter:
    """Return Typer's parameter of a flag: None if it is not given."""
    kind: Any
    words, metavar = flag_of(entry), None
    if entry.kind is bool:
        kind = bool | None
        words += f"/--no-{words[2:]}" if entry.default is True else ""
    else:
        kind = list[str] | None if repeats(entry) else str | None
        choices = get_args(entry.kind) if entry.legal() and isinstance(entry.default, str) else ()
        metavar = "|".join(choices) or next((text for part, text in METAVARS.items() if entry.is_kind(part)), "TEXT")
    shown = not (entry.required or entry.default in (None, (), True, False, Path()) or "(default:" in entry.help)
    text = f"{entry.help} (default: {entry.default})" if shown else entry.help
    option = typer.Option(words, help=text, metavar=metavar, show_default=False)
    return inspect.Parameter(
        entry.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )
