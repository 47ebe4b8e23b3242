"""Define the options of `rtcontrol run`, and reject combinations that are not allowed."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from rtcontrol.loop.config import RunConfig
from rtcontrol.models.checkpoint.checkpoint import bundled_models
from rtcontrol.models.errors import UserError
from rtcontrol.settings import BIND, KEYS, setting, settings_of

REMOTE, CARLA, STANDIN = "remote", "carla-bridge", "carla-standin"
# By environment: settings that only this environment supports, and settings that it does not support.
ONLY_FOR = {
    REMOTE: ("bind", "keys", "record_pictures"),
    CARLA: ("carla_host", "carla_port", "town", "carla_standin", "trace"),
}
UNSUPPORTED = {CARLA: ("tools", "calls_per_tick", "episodes")}
# Warm-up decisions are made for at least this many seconds, to measure the achievable rate.
WARMUP_S = 1.0


@dataclass(frozen=True, kw_only=True)
class RunOptions(RunConfig):
    """The settings of a run, including those that only the command line offers.

    Raises UserError if two options exclude each other. With the CARLA stand-in, `env` changes from `carla-bridge` to
    `carla-standin`.
    """

    bind: tuple[str, ...] = BIND
    keys: Path | None = KEYS
    overwrite: bool = setting("record", False, "Replace the run that the folder already has.")
    live: bool = setting("view", True, "Live view in the terminal, instead of log lines.")
    view: bool = setting("view", False, "Serve a web page that shows and controls the run.", leaf="page")
    view_port: int = setting("view", 0, "The page's port; 0: any free port.", leaf="port", ge=0, le=65535)
    stdin: bool = setting("view", False, "Read instructions from stdin also if it is not a terminal, one per line.")
    carla_host: str = setting("carla", "127.0.0.1", "The CARLA server's host name or address.", leaf="host")
    carla_port: int = setting("carla", 2000, "The CARLA server's port.", leaf="port", ge=1, le=65535)
    town: str | None = setting("carla", None, "Load this town. (default: the loaded town)")
    carla_standin: bool = setting("carla", False, "Drive in the stand-in, which is not CARLA.", leaf="standin")
    trace: bool = setting("carla", False, "Write trace.jsonl, with a line for each simulation step.")

    def __post_init__(self) -> None:
        super().__post_init__()
        kind = CARLA if self.env == STANDIN else self.env
        changed = {field.name for field in fields(self) if getattr(self, field.name) != field.default}
        paths = {name: entry.path for name, entry in settings_of(RunOptions).items()}
        for env, names in ONLY_FOR.items():
            for name in (name for name in names if name in changed and env != kind):
                raise UserError(f"{paths[name]} can only be used with --env {env}.", "Do not set it.")
        for name in (name for name in UNSUPPORTED.get(kind, ()) if name in changed):
            raise UserError(f"{paths[name]} cannot be used with --env {kind}.", "Do not set it (docs/clients.md).")
        if self.instruction is not None and not self.instruction.strip():
            raise UserError(
                "--instruct is empty.", "Write an instruction, or omit --instruct to use the agent's instruction."
            )
        if self.tools is not None and self.model == "expert":
            raise UserError("--model expert knows only the agent's tools, not those of --tools.", "Use another model.")

    def in_folder(self, out: Path) -> Self:
        """Return the options with the folder `out`, and with the defaults of options that depend on other options."""
        unlimited = self.duration_s is not None or self.env in (CARLA, STANDIN)
        episodes = 5 if self.episodes is None and not unlimited else self.episodes
        model = self.model
        if (
            model is not None and model not in bundled_models() and Path(model).is_dir()
        ):  # make it absolute, because the world may change the working directory
            model = str(Path(model).absolute())
        return replace(self, out=out, model=model, episodes=episodes, warmup_s=self.warmup_s or WARMUP_S)


def timestamped_folder(name: str) -> Path:
    """Return runs/NAME-TIME, the default folder of a run that starts now."""
    name = re.sub(r"[^\w.-]+", "-", name)
    return Path("runs") / f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
