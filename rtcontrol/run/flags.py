"""A command line from a dataclass: its fields are the flags, the keys of `--config FILE`, and their help."""

from __future__ import annotations

import difflib
import inspect
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from rtcontrol.loop.config import Confidence, Flag
from rtcontrol.models.errors import UserError, read_text, user_path

TABLES = ("run", "serve", "bridge")
# What a file says for an option of each type: how that is called.
IN_FILES: dict[Any, str] = {
    float: "a number",
    Confidence: "a number, or text such as 'function=0.6,main=0.3'",
    int: "a whole number",
    bool: "true or false",
    str: "text in quotes",
    Path: "a path in quotes",
    tuple[str, ...]: "a list of texts in quotes",
    tuple[int, ...]: "a list of whole numbers",
}
CONFIG = (
    "TOML file of these options; flags win. What one command alone takes stands in its table: [run], [serve], "
    "[bridge]. Relative paths in it, as in flags, begin where the command is run."
)


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
        kinds[flag.name or field.name] = hints[field.name].__origin__
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


def load(path: Path, table: str, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """What the file says to the command `table`, as its flags take it: its own table over what stands above all
    tables. Raises UserError, also for a key that is not in `kinds` (option to type) and a value of another type."""
    try:
        told = tomllib.loads(read_text(path))
    except (OSError, ValueError) as error:
        what = f"--config {path} cannot be read ({getattr(error, 'strerror', None) or error})."
        raise UserError(what, 'Give a TOML file, of lines such as `hz = 16` or `env = "lander"`.') from None
    tables = {key: value for key, value in told.items() if isinstance(value, dict)}
    for key in tables:
        if key not in TABLES:
            raise UserError(f"{path}: there is no table [{key}].", f"There are {', '.join(f'[{t}]' for t in TABLES)}.")
    values = {k.replace("-", "_"): v for k, v in (told | tables.get(table, {})).items() if k not in tables}
    for key in values:
        if key not in kinds:
            near = difflib.get_close_matches(key, kinds, 1, 0.0)
            raise UserError(
                f"{path}: {key} is no option of `rtcontrol {table}`.",
                f"The nearest one is {near[0]}. What another command takes stands under its [table]; see --help.",
            )
        kind = next(k for k in IN_FILES if kinds[key] in (k, k | None))
        try:
            values[key] = _as_flags(values[key], kind)
        except ValueError:
            raise UserError(f"{path}: {key} = {values[key]!r} cannot be used.", f"It needs {IN_FILES[kind]}.") from None
    return values


def _as_flags(value: Any, kind: Any) -> Any:
    """A file's value as the flags of this type take it; one may stand for a list of one. Raises ValueError."""
    if (item := next(iter(get_args(kind)), None)) is not None:
        items = [_as_flags(one, item) for one in (value if isinstance(value, list) else [value])]
        return items if item is str else ",".join(map(str, items))  # such as 0,1
    takes: Any = {float: (int, float), Path: str, Confidence: (int, float, str)}.get(kind, kind)
    if not isinstance(value, takes) or isinstance(value, bool) != (kind is bool):
        raise ValueError
    # As a shell would have it.
    return str(user_path(value)) if isinstance(value, str) and value.startswith("~/") else value


def _reads(table: str, kinds: dict[str, Any]) -> Callable[[typer.Context, Path | None], Path | None]:
    def read(context: typer.Context, path: Path | None) -> Path | None:
        if path is not None:
            context.default_map = load(path, table, kinds)
        return path

    return read
