"""Define the settings of all commands as one tree. A setting is declared once, with default, bounds and help text.

A setting is a field of an options class, or a parameter of a command's function (`rtcontrol/cli`). Its name is the
Python keyword. Its path, such as `loop.hold_ms`, is the name in `--set loop.hold_ms=300`, in `--config FILE` and in
docs/settings.md. Command-line flags are generated from the same declarations.
"""

from __future__ import annotations

import difflib
import inspect
import json
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING as MISSING
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BaseModel, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from rtcontrol.models.errors import UserError, read_text, user_path
from rtcontrol.models.runners.registry import ENGINES

MIN_HZ, MAX_HZ = 0.001, 10_000.0
LONGEST = 1e12  # upper bound of durations in any unit, so that they are exact as nanoseconds
MAX_CALLS = 7  # maximum calls in a tick: a prompt shows at most six previous calls
MIN_RECORD_BYTES = 10**6
UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}
SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
Confidence = float | dict[str, float]

GROUPS = {
    "loop": "Ticks: what runs, at which rate and deadline, and what a miss does.",
    "host": "What decides, and where.",
    "record": "What a run writes.",
    "view": "What a run shows while it runs.",
    "carla": "`run --env carla-bridge`.",
    "serve": "What a server offers, where, and to whom.",
    "fit": "`fit`: a controller for your tools.",
    "train": "`models train`, `adopt` and `quantize`: pretrained models.",
    "data": "`data convert` and `synthesise`: rows.",
    "score": "`score`: a model in worlds.",
    "eval": "`eval`: a checkpoint on rows.",
    "check": "`check` and `tools check`: your world, your tools.",
    "replay": "`replay`: recorded decisions again.",
    "drill": "`drill`: injected faults.",
    "bench": "`bench`: speed on this machine.",
    "mcp": "`mcp`: an agent that supervises.",
}


# -- declarations -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """A setting. `name` is the Python keyword, `leaf` the last part of the path. `parse` converts a text to a value."""

    group: str
    name: str
    leaf: str
    flag: str
    kind: Any
    default: Any
    info: FieldInfo
    parse: Callable[[str], Any] | None = None

    @property
    def path(self) -> str:
        return f"{self.group}.{self.leaf}"

    @property
    def help(self) -> str:
        return self.info.description or ""

    @property
    def is_required(self) -> bool:
        return self.default is MISSING

    def is_kind(self, kind: type) -> bool:
        """Return whether the values have the type `kind`, or may have it."""
        return any(part is kind or get_origin(part) is kind for part in (self.kind, *get_args(self.kind)))

    def legal_values(self) -> str:
        """Return the choices or the bounds as text, such as `>= 1, <= 64`."""
        if get_origin(self.kind) is Literal:
            return ", ".join(map(str, get_args(self.kind)))
        limits = [
            (sign, getattr(m, name)) for m in self.info.metadata for name, sign in SIGNS.items() if hasattr(m, name)
        ]
        return ", ".join(f"{sign} {limit:,g}" for sign, limit in limits if limit < LONGEST)

    def typed_value(self, value: Any, source_text: str) -> Any:
        """Convert a value to the setting's type, and check it. Raises UserError, which quotes `source_text`."""
        try:
            result = self._type_adapter.validate_python(self._parse_text(value))
            if isinstance(result, float) and math.isnan(result):
                raise ValueError("NaN is not a number")
            return result
        except ValidationError as error:
            message = error.errors()[0]["msg"].removeprefix("Value error, ")
        except (TypeError, ValueError) as error:
            message = str(error)
        raise UserError(f"{source_text} cannot be used: {message}.", f"{self.path}: {self.help}")

    @cached_property
    def _type_adapter(self) -> TypeAdapter[Any]:
        kind: Any = Annotated[self.kind, self.info]
        return TypeAdapter(kind)

    def _parse_text(self, value: Any) -> Any:
        if isinstance(value, bool) and not self.is_kind(bool):
            raise TypeError("true and false are not legal values")
        if not isinstance(value, str):
            return value
        text = str(user_path(value)) if value.startswith("~/") else value
        if self.parse is not None:
            return self.parse(text)
        if self.is_kind(tuple):
            return json.loads(text) if text.startswith("[") else [text]
        return text


def setting(
    group: str,
    default: Any,
    help: str,
    *,
    leaf: str = "",
    flag: str = "",
    choices: tuple[str, ...] = (),
    parse: Callable[[str], Any] | None = None,
    **bounds: Any,
) -> Any:
    """Declare a setting as a field or a parameter. `leaf`, `flag`: its names in paths and flags, if they differ."""
    info = Field(description=help, **bounds)
    metadata = {"group": group, "setting": info, "leaf": leaf, "flag": flag, "choices": choices, "parse": parse}
    return field(metadata=metadata) if default is MISSING else field(default=default, metadata=metadata)


@cache
def settings_of(source: Any) -> dict[str, Setting]:
    """Return the settings of an options class, a pydantic model or a command's function, in a dict by Python name."""
    if isinstance(source, type) and issubclass(source, BaseModel):
        group: str = source.GROUP  # type: ignore[attr-defined]
        return {
            name: Setting(
                group, name, name, name, info.annotation, MISSING if info.is_required() else info.default, info
            )
            for name, info in source.model_fields.items()
        }
    if isinstance(source, type):
        declared: Iterable[tuple[str, Any]] = ((entry.name, entry) for entry in fields(source))
    else:
        declared = ((name, parameter.default) for name, parameter in inspect.signature(source).parameters.items())
    hints = get_type_hints(source, include_extras=True)
    settings = {}
    for name, entry in declared:
        data: Mapping[str, Any] = getattr(entry, "metadata", {})
        if "setting" in data:
            kind = Literal[data["choices"]] if data["choices"] else hints[name]
            words = data["leaf"] or name, data["flag"] or name
            settings[name] = Setting(data["group"], name, *words, kind, entry.default, data["setting"], data["parse"])
    return settings


def find_setting(kind: Any, path: str, origin: str, command: str) -> Setting:
    """Return the setting with a path such as `loop.hold_ms`. Raises UserError that suggests the most similar path.
    `origin` says where the user wrote the path."""
    settings = {entry.path: entry for entry in settings_of(kind).values()}
    if path in settings:
        return settings[path]
    near = difflib.get_close_matches(path, settings, 1, 0.0)
    hint = f"The most similar is {near[0]}; `rtcontrol settings` lists all." if near else "It has no settings."
    raise UserError(f"{origin} is not a setting of `rtcontrol {command}`.", hint)


def read_settings_file(
    path: Path, kind: Any, command: str, is_foreign: Callable[[str], bool] = lambda path: False
) -> dict[str, Any]:
    """Return the values of a TOML file with settings, by Python name. `is_foreign` returns whether a path is a setting
    of another command; such settings are skipped. Raises UserError naming file and setting."""
    try:
        table = tomllib.loads(read_text(path))
    except (OSError, ValueError) as error:
        what = f"--config {path} cannot be read ({getattr(error, 'strerror', None) or error})."
        raise UserError(what, "Give a TOML file, such as `[loop]` and the line `hz = 16`.") from None
    words: dict[str, Any] = {}
    for group, value in table.items():
        words |= (
            {f"{group}.{leaf}": part for leaf, part in value.items()} if isinstance(value, dict) else {group: value}
        )
    known = {entry.path for entry in settings_of(kind).values()}
    values = {}
    for word, value in words.items():
        if word in known or not is_foreign(word):
            entry = find_setting(kind, word, f"{path}: {word}", command)
            values[entry.name] = entry.typed_value(value, f"{path}: {word} = {value!r}")
    return values


# -- values -----------------------------------------------------------------------------------------------------------


def record_bytes(text: str) -> int:
    """Return the number of bytes of a record's size such as 500M. Raises ValueError for other texts and small sizes."""
    number, unit = (text[:-1], text[-1:]) if text[-1:] in UNITS else (text, "")
    try:
        count = round(float(number) * UNITS[unit])
    except (ValueError, OverflowError):
        raise ValueError("give a number of bytes, or a size such as 500M or 2G") from None
    if count < MIN_RECORD_BYTES:
        raise ValueError("give 1M or more")
    return count


def _check_size(text: str) -> str:
    record_bytes(text)
    return text


def _check_margin(text: str) -> str:
    from rtcontrol.models.decode.hysteresis import margin_of

    margin_of(text)
    return text


def parse_confidence(text: str) -> Any:
    """Parse a minimum confidence, for all parts of a call (0.5) or some (function=0.6,main=0.3). Raises ValueError."""
    parts = [part.rpartition("=") for part in text.split(",")]
    floors = {head.strip(): float(least) for head, _, least in parts}
    if len(floors) < len(parts) or any(equals and not head.strip() for head, equals, _ in parts):
        raise ValueError("give a confidence such as 0.5, or function=0.6,main=0.3")
    return floors[""] if list(floors) == [""] else floors


def _check_probabilities(value: Confidence) -> Confidence:
    for least in value.values() if isinstance(value, dict) else [value]:
        if not 0 <= least <= 1:
            raise ValueError("give probabilities between 0 and 1, such as 0.5, or function=0.6,main=0.3")
    return value


def _parse_folder(text: str) -> str:
    return text if Path(text).parts else str(Path.cwd())  # Path(".") equals the default, an empty path


# -- runs and servers -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SharedOptions:
    """Settings that runs and servers share. Raises UserError for illegal values and combinations."""

    agent: str | None = setting("loop", None, "A name or a .py file. (default: the environment's)")
    hz: float = setting("loop", 16.0, "Ticks per second.", ge=MIN_HZ, le=MAX_HZ)
    calls_per_tick: int = setting("loop", 1, "The most calls per observation, by the deadline.", ge=1, le=MAX_CALLS)
    hysteresis: Annotated[str, AfterValidator(_check_margin)] | None = setting(
        "loop", None, "Keep a value unless another is more probable by a margin: margin=0.2 (docs/safety.md)."
    )
    interpreter: str | None = setting("loop", None, "Maps words to a goal: a checkpoint, or chat:URL#NAME.")
    seed: int = setting("loop", 0, "Seed of the first episode; the next ones have the next seeds.", ge=0)

    model: str | None = setting(
        "host",
        None,
        "Bundled name, folder or OWNER/NAME[:SUBFOLDER]; or expert, noop, random, decisions:URL#NAME, "
        "systemone:URL#NAME, openpi:ws://HOST:PORT#MAPPING. (default: the agent's)",
    )
    tools: str | None = setting("host", None, "Tools in place of the agent's: .json, .py, mcp:COMMAND, mcp:URL.")
    skip_unsupported: bool = setting("host", False, "Leave out tools that cannot be taken, and name them.")
    host: str = setting("host", "ray", "Where the model decides.", leaf="kind", choices=("ray", "inprocess"))
    engine: str = setting("host", "torch", f"What runs the model: {', '.join(ENGINES)}.")
    dtype: str = setting("host", "auto", "Number format of the model: auto, fp32 or bf16 (docs/engines.md).")
    threads: int | None = setting("host", None, "CPU threads of torch. (default: one for a small model)", ge=1)
    standby: bool = setting("host", False, "Keep a second decoder warm (ray only), which takes over at once.")
    backup: str | None = setting("host", None, "A local model that decides if the first is late or unsure.")

    out: Path = setting("record", Path(), "Folder of record and report. (default: runs/NAME-TIME)", parse=_parse_folder)
    record_observations: str = setting(
        "record", "yes", "no: keep no observations.", leaf="observations", choices=("yes", "no")
    )
    record_max: Annotated[str, AfterValidator(_check_size)] = setting(
        "record", "1G", "Bytes of the record, or with k, M, G; beyond it the oldest part is removed.", leaf="max"
    )
    record_pictures: float = setting("record", 0.0, "Pictures a second to keep.", leaf="pictures", ge=0, le=100)

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, entry in settings_of(kind).items():
            if (value := getattr(self, name)) != entry.default:
                object.__setattr__(self, name, entry.typed_value(value, f"{name}={value!r}"))
        exclusive = {
            "host.standby and host.kind=inprocess": self.standby and self.host != "ray",
            "host.standby and host.backup": self.standby and self.backup is not None,
            "loop.hysteresis and several loop.calls_per_tick": self.hysteresis is not None and self.calls_per_tick > 1,
            "record.pictures and record.observations=no": self.record_pictures and self.record_observations == "no",
        }
        for names in (names for names, both_set in exclusive.items() if both_set):
            raise UserError(f"{names} exclude each other.", "Set only one of them.")


@dataclass(frozen=True, kw_only=True)
class LoopGroup(SharedOptions):
    """The settings of `loop` that only a run has."""

    env: str = setting("loop", MISSING, "Environment: a name (`rtcontrol envs`), or a .py file.")
    instruction: str | None = setting("loop", None, "The instruction. (default: the agent's)", flag="instruct")
    episodes: int | None = setting("loop", None, "How many. (default: 5; no limit with --duration)", ge=1)
    duration_s: float | None = setting("loop", None, "Seconds until the end.", flag="duration", gt=0, le=LONGEST)
    clock: str = setting("loop", "wall", "lockstep: the world waits for calls.", choices=("wall", "lockstep"))
    deadline_ms: float | None = setting("loop", None, "Time after the release. (default: the period)", gt=0, le=LONGEST)
    max_age_ms: float | None = setting("loop", None, "Stale observation age. (default: 4 periods)", gt=0, le=LONGEST)
    pipeline: int = setting("loop", 1, "Decisions in flight; deadline <= pipeline x period.", ge=1, le=64)
    on_miss: str = setting("loop", "hold", "Hold the call, act safely, or stop.", choices=("hold", "safe", "stop"))
    hold_ms: float | None = setting("loop", None, "The longest hold. (default: the agent's)", ge=0, le=LONGEST)
    max_miss_rate: float | None = setting("loop", None, "Exit with status 3 above this rate.", ge=0, le=1)
    min_confidence: Annotated[Confidence, AfterValidator(_check_probabilities)] | None = setting(
        "loop",
        None,
        "Withhold less sure calls: 0.5, or by head or parameter, function=0.6,main=0.3. (default: the checkpoint's)",
        parse=parse_confidence,
    )
    confirm: tuple[str, ...] = setting("loop", (), "These tools wait for a person's yes.")
    confirm_s: float = setting("loop", 10.0, "How long a call waits for the yes.", gt=0, le=LONGEST)
    hang_s: float | None = setting(
        "loop", None, "Kill a run that does not respond for so long. (default: 10; 1 with loop.guard)", gt=0, le=LONGEST
    )
    guard: str | None = setting("loop", None, "A command that acts safely if the run is killed (docs/safety.md).")
    warmup: int = setting("loop", 5, "Decisions before the first release, at least.", ge=0)
    warmup_s: float = setting("loop", 0.0, "Seconds of warm-up decisions, at least.", ge=0)
    first_observation_s: float = setting("loop", 10.0, "How long to wait for the first observation.", gt=0)


# Where clients connect: to a server, and to `run --env remote`.
BIND: Any = setting("serve", ("tcp://127.0.0.1:5555",), "ZeroMQ endpoint; may be repeated.", min_length=1)
KEYS: Any = setting("serve", None, "Folder of CURVE keys (`rtcontrol keys`): only listed clients connect.")


@dataclass(frozen=True, kw_only=True)
class ServeGroup(SharedOptions):
    """The settings that only a server has."""

    bind: tuple[str, ...] = BIND
    keys: Path | None = KEYS
    paused_robots: Path | None = setting(
        "serve", None, "Folder with the names of paused robots. (default: ~/.local/state/rtcontrol/paused)"
    )
    http: str | None = setting("serve", None, "Address of WebSocket, HTTP and the page: 127.0.0.1:8080.")
    replicas: str | None = setting("serve", None, "Servers by Ray Serve: N, or MIN:MAX (docs/scaling.md).")
    token_file: Path | None = setting("serve", None, "Access token of other origins and machines.")
    require_token: bool = setting("serve", False, "Local programs show the token, too: needed with a proxy.")
    allow_origin: tuple[str, ...] = setting("serve", (), "Origins whose pages may connect, with the token.")
    static: Path | None = setting("serve", None, "Serve the pages of this folder, too.")
    hz_max: float = setting("serve", 100.0, "Highest rate of a server-paced session.", ge=MIN_HZ, le=MAX_HZ)
    max_sessions: int = setting("serve", 64, "Sessions at once.", ge=1)
    max_ticks_per_s: float = setting("serve", 500.0, "Ticks a second of all sessions together.", gt=0)
    value_tokens: int = setting("serve", 64, "Tokens of a free value at most, for /v1 requests.", ge=1)
    heartbeat_s: float = setting("serve", 1.0, "Seconds between heartbeats.", gt=0)
    silent_heartbeats: int = setting("serve", 3, "A client is lost after this many without an answer.", ge=1)
