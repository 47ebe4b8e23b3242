"""A command line from a dataclass: its fields are the flags, the keys of `--config FILE`, and their help."""

from __future__ import annotations

import difflib
import inspect
import tomllib
from collections.abc import Callable, Collection
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from rtcontrol.loop.config import Flag
from rtcontrol.models.errors import UserError

TABLES = ("run", "serve", "bridge")
# What stands for a flag's type in a file, and how that is called.
IN_FILES: dict[Any, tuple[tuple[type, ...], str]] = {
    float: ((int, float), "a number"),
    int: ((int,), "a whole number"),
    bool: ((bool,), "true or false"),
    str: ((str,), "text in quotes"),
    Path: ((str,), "a path in quotes"),
    list[str]: ((list,), "a list of texts in quotes"),
}
# Brackets would be taken for the help's own marks.
CONFIG = "TOML file of these options; flags win. What one command alone takes stands in its table: run, serve, bridge."


def command(kind: type[Any], table: str, run: Callable[[Any], int]) -> Callable[..., None]:
    """A Typer command that makes a `kind` of what is given, and ends with the status that `run` gives."""
    flags: dict[str, tuple[str, Flag]] = {}
    kinds: dict[str, Any] = {}
    parameters = [_parameter("config", Path | None, None, CONFIG, is_eager=True, callback=_reads(table, kinds))]
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        flag = next((m for m in getattr(hints[field.name], "__metadata__", ()) if isinstance(m, Flag)), None)
        if flag is None:
            continue
        flags[flag.name or field.name] = field.name, flag
        given = flag.given or hints[field.name].__origin__
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        if flag.given or "(default:" in flag.help:
            given, default = given | None, None
        kinds[flag.name or field.name] = given
        parameters.append(_parameter(flag.name or field.name, given, default, flag.help))

    def call(config: Path | None, **given: Any) -> None:
        told = {flags[name][0]: flags[name][1].parse(value) for name, value in given.items() if value is not None}
        raise typer.Exit(run(kind(**told)))

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    return call


def _parameter(name: str, given: Any, default: Any, text: str, **more: Any) -> inspect.Parameter:
    flag = "--" + name.replace("_", "-")
    if default is True or given == bool | None:
        flag += f"/--no-{flag[2:]}"
    option = typer.Option(flag, help=text, show_default=default is not None, **more)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[given, option])


def load(path: Path, table: str, known: Collection[str]) -> dict[str, Any]:
    """What the file says to the command `table`: its own table over what stands above all tables. Raises UserError,
    also for a key that is not `known`."""
    try:
        told = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        what = f"--config {path} cannot be read ({getattr(error, 'strerror', None) or error})."
        raise UserError(what, "Give a TOML file, of lines such as `hz = 16`.") from None
    tables = {key: value for key, value in told.items() if isinstance(value, dict)}
    for key in tables:
        if key not in TABLES:
            raise UserError(f"{path}: there is no table [{key}].", f"There are {', '.join(f'[{t}]' for t in TABLES)}.")
    values = {k.replace("-", "_"): v for k, v in (told | tables.get(table, {})).items() if k not in tables}
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1, 0.0)
            raise UserError(
                f"{path}: {key} is no option of `rtcontrol {table}`.",
                f"The nearest one is {near[0]}. What another command takes stands under its [table]; see --help.",
            )
    return values


def _reads(table: str, kinds: dict[str, Any]) -> Callable[[typer.Context, Path | None], Path | None]:
    def read(context: typer.Context, path: Path | None) -> Path | None:
        if path is not None:
            values = load(path, table, kinds)
            for key, value in values.items():
                kind = next(k for k in IN_FILES if kinds[key] in (k, k | None))
                takes, word = IN_FILES[kind]
                if isinstance(value, list) and kind is str:
                    values[key] = ",".join(map(str, value))  # such as 0,1
                elif not isinstance(value, takes) or isinstance(value, bool) != (kind is bool):
                    raise UserError(f"{path}: {key} = {value!r} cannot be used.", f"It needs {word}.")
            context.default_map = values
        return path

    return read
