"""What `rtcontrol run` is told, by flags or a file, and what of it excludes each other."""

from __future__ import annotations

import difflib
import inspect
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Self, get_type_hints

import pydantic
import typer

from rtcontrol.loop.config import Confidence, Flag, RunConfig
from rtcontrol.models.errors import UserError, read_text, user_path

CONFIG = "TOML file of these options; flags win. Relative paths in it, as in flags, begin where the command is run."


def command(kind: type[Any], table: str, run: Callable[[Any], int]) -> Callable[..., None]:
    """A Typer command that makes a `kind` of what is given, and ends with the status that `run` gives."""
    flags = flags_of(kind)
    kinds = {name: hint for name, (_, hint, _) in flags.items()}
    defaults = {field.name: field.default for field in fields(kind)}
    parameters = [_parameter("config", Path | None, None, CONFIG, is_eager=True, callback=_reads(table, kinds))]
    for name, (field, hint, flag) in flags.items():
        given, default = flag.given or hint, defaults[field]
        default = inspect.Parameter.empty if default is MISSING else default
        if flag.given or "(default:" in flag.help:
            given, default = given | None, None
        parameters.append(_parameter(name, given, default, flag.help))

    def call(config: Path | None, **given: Any) -> None:
        told = {flags[name][0]: flags[name][2].parse(value) for name, value in given.items() if value is not None}
        raise typer.Exit(run(kind(**told)))

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    return call


def flags_of(kind: type[Any]) -> dict[str, tuple[str, Any, Flag]]:
    """Return field, type and flag of each option of a dataclass, by the option's name."""
    hints, found = get_type_hints(kind, include_extras=True), {}
    for field in fields(kind):
        flag = next((m for m in getattr(hints[field.name], "__metadata__", ()) if isinstance(m, Flag)), None)
        if flag is not None:
            found[flag.name or field.name] = field.name, hints[field.name].__origin__, flag
    return found


def _parameter(name: str, given: Any, default: Any, text: str, **more: Any) -> inspect.Parameter:
    flag = "--" + name.replace("_", "-")
    if default is True or given == bool | None:
        flag += f"/--no-{flag[2:]}"
    option = typer.Option(flag, help=text, show_default=default is not None, **more)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[given, option])


def load(path: Path, table: str, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the file says, as the flags of the command `table` take it. Raises UserError, also for a key that is
    not in `kinds` (option to type) and a value of another type."""
    try:
        values = tomllib.loads(read_text(path))
    except (OSError, ValueError) as error:
        what = f"--config {path} cannot be read ({getattr(error, 'strerror', None) or error})."
        raise UserError(what, 'Give a TOML file, of lines such as `hz = 16` or `env = "lander"`.') from None
    return as_flags({key.replace("-", "_"): value for key, value in values.items()}, kinds, str(path), table)


def as_flags(values: dict[str, Any], kinds: Mapping[str, Any], where: str, table: str) -> dict[str, Any]:
    """Return typed values as the flags of the command `table` take them. Raises UserError, naming `where` they are
    from, for a key that is not in `kinds` (option to type) and a value of another type."""
    for key in values:
        if key not in kinds:
            near = difflib.get_close_matches(key, kinds, 1, 0.0)
            raise UserError(
                f"{where}: {key} is no option of `rtcontrol {table}`.",
                f"The nearest one is {near[0]}; see --help.",
            )
        try:
            values[key] = _as_flag(values[key], kinds[key])
        except pydantic.ValidationError as error:
            raise UserError(
                f"{where}: {key} = {values[key]!r} cannot be used.", f"{error.errors()[0]['msg']}."
            ) from None
    return values


def _as_flag(value: Any, kind: Any) -> Any:
    """A file's value as the flags of this type take it; one may stand for a list of one. Raises ValidationError."""
    if kind == tuple[str, ...]:
        return pydantic.TypeAdapter(list[str]).validate_python(
            value if isinstance(value, list) else [value], strict=True
        )
    takes: Any = {Path: str, Path | None: str, Confidence: float | str, Confidence | None: float | str}.get(kind, kind)
    pydantic.TypeAdapter(takes).validate_python(value, strict=True)
    # As a shell would have it.
    return str(user_path(value)) if isinstance(value, str) and value.startswith("~/") else value


def _reads(table: str, kinds: dict[str, Any]) -> Callable[[typer.Context, Path | None], Path | None]:
    def read(context: typer.Context, path: Path | None) -> Path | None:
        if path is not None:
            context.default_map = load(path, table, kinds)
        return path

    return read


REMOTE, CARLA, STANDIN = "remote", "carla-bridge", "carla-standin"
# Options of one environment, and those that one has no use for.
FOR = {
    REMOTE: ("bind", "keys", "record_pictures"),
    CARLA: ("carla_host", "carla_port", "town", "carla_standin", "trace"),
}
NOT_FOR = {REMOTE: ("goal",), CARLA: ("goal", "tools", "calls_per_tick", "episodes")}
# The rate that the machine reaches is told from the decisions of so many seconds.
WARMUP_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(RunConfig):
    """A run's settings with what the command line adds to them. Raises UserError for what does not go together.

    `goal` is judged, and told unless `instruction` says else; `bind` and `keys` are of `--env remote`; those
    from `carla_host` on of `--env carla-bridge`, whose run has the environment `carla-standin` in the stand-in.
    """

    goal: Annotated[
        str | None,
        Flag("What is judged, and told unless --instruct says else: left, 'hover at 0.7', 'aim high'."),
    ] = None
    skip_unsupported: Annotated[bool, Flag("--tools: leave out those that cannot be taken, and say which.")] = False
    tools: Annotated[
        str | None,
        Flag(
            "Tools in the place of the agent's, which the world must have functions for; --env remote: of a client "
            "that brings none. A .json or .py file, mcp:COMMAND or mcp:URL."
        ),
    ] = None
    live: Annotated[bool, Flag("Live view, or log lines.")] = True
    view: Annotated[bool, Flag("A page in the browser, on this machine: what goes on; pause, resume, stop.")] = False
    view_port: Annotated[int, Flag("Its port; 0: any.")] = 0
    stdin: Annotated[bool, Flag("Read instructions from stdin though it is no terminal, a line each.")] = False
    overwrite: Annotated[bool, Flag("--out may hold a run: replace it.")] = False
    bind: Annotated[str | None, Flag("--env remote: where a client connects. (default: tcp://127.0.0.1:5555)")] = None
    keys: Annotated[Path | None, Flag("--env remote: folder of CURVE keys (`rtcontrol keys`).")] = None
    carla_host: Annotated[str, Flag("--env carla-bridge: the CARLA server's machine.")] = "127.0.0.1"
    carla_port: Annotated[int, Flag("--env carla-bridge: its port.")] = 2000
    town: Annotated[str | None, Flag("--env carla-bridge: load this town. (default: the one loaded)")] = None
    carla_standin: Annotated[bool, Flag("--env carla-bridge: drive in the stand-in, which is not CARLA.")] = False
    trace: Annotated[bool, Flag("--env carla-bridge: a line a step, in trace.jsonl.")] = False

    def __post_init__(self) -> None:
        RunConfig.__post_init__(self)
        kind = CARLA if self.env == STANDIN else self.env
        given = {field.name for field in fields(self) if getattr(self, field.name) != field.default}
        for env, names in FOR.items():
            for name in (name for name in names if name in given and env != kind):
                _refuse(f"--{name.replace('_', '-')} is for --env {env}.", "Leave it out.")
        for name in (name for name in NOT_FOR.get(kind, ()) if name in given):
            _refuse(f"--{name.replace('_', '-')} is not for --env {kind}.", "Leave it out (docs/bridges.md).")
        if self.instruction is not None and not self.instruction.strip():
            _refuse("--instruct is empty.", "Say what to do, or leave it out for the agent's own instruction.")
        if not 0 <= self.view_port < 65536:
            _refuse(f"--view-port {self.view_port} is no port.", "Give 0 (any) to 65535.")
        if self.view_port and not self.view:
            _refuse("--view-port is for --view, which is not given.", "Add --view.")
        if self.tools is not None and self.model == "expert":
            _refuse("--model expert calls the tools that it was written for, not those of --tools.", "Give another.")
        if self.carla_standin and {"carla_host", "carla_port"} & given:
            _refuse("--carla-standin starts its own server: --carla-host and --carla-port have no effect.")

    def at(self, out: Path) -> Self:
        """In this folder, with what depends on the other options filled in."""
        endless = self.duration_s is not None or self.env in (CARLA, STANDIN)
        episodes = 5 if self.episodes is None and not endless else self.episodes
        return replace(self, out=out, episodes=episodes, warmup_s=WARMUP_S)


def _refuse(what: str, remedy: str = "Leave them out.") -> None:
    raise UserError(what, remedy)


def named_by_time(name: str) -> Path:
    """The default folder of what begins now."""
    name = re.sub(r"[^\w.-]+", "-", name)
    return Path("runs") / f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
