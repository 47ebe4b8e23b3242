"""What the application is told: options of `rtcontrol serve` as arguments, typed (YAML) or as text (`serve run`)."""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self, get_type_hints

from rtcontrol.gateway.options import GatewayOptions, origin, read_token
from rtcontrol.hosts.deciders import PLAIN
from rtcontrol.hosts.remote_api import is_endpoint
from rtcontrol.loop.config import Flag
from rtcontrol.models.checkpoint.checkpoint import zoo
from rtcontrol.models.errors import UserError
from rtcontrol.run import assembly
from rtcontrol.run.options import IN_FILES
from rtcontrol.serve.options import ServeOptions

FLEET = "serve"
MOST_DOORS = 1024
# Of `rtcontrol serve`, and not of a replica: why.
ELSEWHERE = {
    "http": "The address is that of Serve's proxies: `http_options` in Serve's config, or `serve start --http-host`.",
    "bind": "Clients come by WebSocket here. ZeroMQ's have doors of their own: `rtcontrol serve --fleet`.",
    "keys": "Clients come by WebSocket here. ZeroMQ's have doors of their own: `rtcontrol serve --fleet`.",
    "host": "The decoders are Ray's here: leave it out.",
    "standby": "Give `decoders: 2` in its place.",
    "token": "It would stand in the cluster's state, for everybody to read: give `token_env` or `token_file`.",
    "require_token": "Where there is a token, everybody shows it here: leave it out.",
}
ARGUMENTS: dict[str, Any] = {
    "doors": int,
    "token_env": str,
    "token_file": Path,
    "allow_origin": tuple[str, ...],
    "static": Path,
}
TRUTHS = {"true": True, "yes": True, "false": False, "no": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaOptions(ServeOptions):
    """What a replica serves. Requests always may bring tools."""

    @property
    def takes_tools(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class DoorOptions:
    """`doors`: how many replicas; `served`: what they serve; the rest is their gate's."""

    served: ServeOptions
    doors: int = 1
    origins: frozenset[str] = frozenset()
    token_env: str | None = None
    token_file: Path | None = None
    static: Path | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)  # they were read from

    @classmethod
    def parse(cls, arguments: Mapping[str, Any]) -> Self:
        """Checked, but for what lies on the replicas' machines. Raises UserError."""
        flags = _flags()
        values: dict[str, Any] = {}
        for key, given in arguments.items():
            name = str(key).replace("-", "_")
            _check_name(name, [*flags, *ARGUMENTS])
            if given is not None:
                kind = ARGUMENTS[name] if name in ARGUMENTS else flags[name][1]
                values[name] = _value(name, given, kind)
        told = {flags[n][0]: flags[n][2].parse(v) for n, v in values.items() if n in flags}
        model = told.get("model")
        if model not in PLAIN and not is_endpoint(model):
            told.setdefault("fleet", FLEET)
        made = cls(
            ReplicaOptions(**told),
            values.get("doors", 1),
            frozenset(map(origin, values.get("allow_origin", ()))),
            values.get("token_env"),
            values.get("token_file"),
            values.get("static"),
            dict(arguments),
        )
        made.check()
        return made

    def check(self) -> None:
        """UserError for what cannot be served."""
        if not 1 <= self.doors <= MOST_DOORS:
            raise UserError(f"doors={self.doors} is out of range.", f"Give 1 to {MOST_DOORS} replicas.")
        if self.token_env is not None and self.token_file is not None:
            raise UserError("token_env and token_file exclude each other.", "Give one of them.")
        if self.origins and self.token_env is None and self.token_file is None:
            raise UserError(
                f"allow_origin={min(self.origins)} lets pages of another site in, and there is no access token.",
                "Give one with `token_env` or `token_file`.",
            )
        with cluster_named():
            self.served.check()

    def gate(self) -> GatewayOptions:
        """Who may come in at a replica. Behind a proxy nobody is known for one of this machine: with a token,
        everybody shows it. Raises UserError."""
        token = self._token()
        if token is None and behind_another_proxy():
            raise UserError(
                "Serve's HAProxy (RAY_SERVE_ENABLE_HA_PROXY) does not tell who a request comes from, and there is no "
                "access token.",
                "Give one with `token_env` or `token_file`.",
            )
        served = self.served
        own = None if served.agent is None else assembly.agent(served.agent).model
        return GatewayOptions(
            host="127.0.0.1" if token is None else "0.0.0.0",
            origins=self.origins,
            token=token,
            static=self.static,
            # As of `rtcontrol serve`: a bundled model is found by its tools.
            model=served.model or (None if own in zoo() else own),
            engine=served.engine,
            value_tokens=served.value_tokens,
            arguments=served.arguments,
            require_token=token is not None,
            option="http_options",
        )

    def _token(self) -> str | None:
        if self.token_env is not None:
            if not (found := os.environ.get(self.token_env, "").strip()):
                raise UserError(
                    f"token_env={self.token_env}: there is no such environment variable at a replica.",
                    "Set it on each machine of the cluster, or in the deployment's `runtime_env`.",
                )
            return found
        if self.token_file is None:
            return None
        if not self.token_file.exists():  # one that was made here would be another at each replica
            raise UserError(
                f"token_file={self.token_file} is not there, at a replica.", "Put the same file on each machine."
            )
        return read_token(self.token_file)


def behind_another_proxy() -> bool:
    """Whether requests come to a replica by way of a program that does not say whose they are."""
    return os.environ.get("RAY_SERVE_ENABLE_HA_PROXY", "0") == "1"


@contextlib.contextmanager
def cluster_named() -> Iterator[None]:
    """In a process that uses a Ray cluster already, RAY_ADDRESS names it meanwhile."""
    ray = sys.modules.get("ray")
    if os.environ.get("RAY_ADDRESS") or ray is None or not ray.is_initialized():
        yield
        return
    os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    try:
        yield
    finally:
        os.environ.pop("RAY_ADDRESS", None)


def _flags() -> dict[str, tuple[str, Any, Flag]]:
    """Of `ServeOptions`, by their names on the command line: field, type, and flag."""
    hints, found = get_type_hints(ServeOptions, include_extras=True), {}
    for one in fields(ServeOptions):
        flag = next((m for m in getattr(hints[one.name], "__metadata__", ()) if isinstance(m, Flag)), None)
        if flag is not None and one.name not in ELSEWHERE:
            found[flag.name or one.name] = one.name, hints[one.name].__origin__, flag
    return found


def _check_name(name: str, known: list[str]) -> None:
    if name in known:
        return
    if name in ELSEWHERE:
        raise UserError(f"{name} is no argument of rtcontrol.ray_serve.", ELSEWHERE[name])
    near = difflib.get_close_matches(name, known, 1, 0.0)
    raise UserError(
        f"{name} is no argument of rtcontrol.ray_serve.", f"The nearest one is {near[0]}; docs/scaling.md has them."
    )


def _value(name: str, given: Any, kind: Any) -> Any:
    """As the field of this type has it. UserError where it is none."""
    kind = next(one for one in IN_FILES if kind in (one, one | None))
    try:
        return _converted(given, kind)
    except (ValueError, TypeError):
        raise UserError(f"{name}={given!r} cannot be used.", f"It needs {IN_FILES[kind]}.") from None


def _converted(given: Any, kind: Any) -> Any:
    text = isinstance(given, str)
    if kind is bool:
        if text:
            given = TRUTHS.get(given.lower())
        if not isinstance(given, bool):
            raise ValueError
        return given
    if isinstance(given, bool):
        raise ValueError
    if kind is str and isinstance(given, int | str):  # such as `decoders: 2`
        return str(given)
    if kind in (int, float) and (text or isinstance(given, int) or kind is float):
        return kind(given)
    if kind is Path and text:
        return Path(given).expanduser()
    if kind == tuple[str, ...] and (text or isinstance(given, list | tuple)):
        items = given.split(",") if text else given
        if all(isinstance(one, str) for one in items):
            return tuple(items)
    raise ValueError
