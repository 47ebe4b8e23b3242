"""What a server offers, and what it lets its clients do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Self

from rtcontrol.loop.config import MIN_HZ, DeciderOptions, Flag, folder
from rtcontrol.models.errors import UserError
from rtcontrol.models.runners import registry
from rtcontrol.serve.sessions import SessionRules
from rtcontrol_client.wire import LIMITS, Limits
from rtcontrol_client.wire.endpoint import is_local


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions(DeciderOptions):
    """`agent`: the only one served (None: clients bring tools, or name a bundled one); `tools`: of those who do
    neither; `default_tools`: these or the agent's, once they are read (`ready`); `model`: for whoever names
    none (None: the agent's, or the one that was trained on the client's tools); `hz`: of a client that asks for none,
    `hz_max`: the highest rate of a server-paced session.
    """

    out: Annotated[Path, Flag("Folder of records and reports. (default: runs/serve-TIME)", parse=folder)] = Path()
    agent: Annotated[str | None, Flag("Serve this one only. (default: clients bring tools, or name a bundled one)")] = (
        None
    )
    skip_unsupported: Annotated[bool, Flag("--tools: leave out those that cannot be taken, and say which.")] = False
    tools: Annotated[
        str | None,
        Flag("Tools of clients and /v1 requests that bring none: a .json or .py file, mcp:COMMAND or mcp:URL."),
    ] = None
    model: Annotated[
        str | None,
        Flag("Of clients that name none: as in `rtcontrol run`. (default: the agent's, or their tools')"),
    ] = None
    value_tokens: int = 64
    hz: Annotated[float, Flag("Ticks a second of clients that ask for no rate.")] = 16.0
    hz_max: float = 100.0
    max_sessions: Annotated[int, Flag("Sessions at once.")] = 64
    heartbeat_s: float = 1.0
    silent_heartbeats: int = 3
    limits: Limits = LIMITS
    default_tools: tuple[dict[str, Any], ...] = ()

    def ready(self) -> Self:
        """Checked, and with the tools of `tools` read: an MCP server is asked here, and never again. UserError."""
        from rtcontrol.run import assembly

        self.check()
        if self.agent is not None:
            return replace(self, default_tools=tuple(assembly.agent(self.agent).tools.openai()))
        if self.tools is None:
            return self
        from rtcontrol.models.schema.random_call import check_random
        from rtcontrol.run.model_compatibility import model_for
        from rtcontrol.run.toolsets import tools_from

        tools = tools_from(self.tools, skip_unsupported=self.skip_unsupported)
        if model_for(tools.schemas, self.model) == "random":
            check_random(tools.schemas)
        return replace(self, default_tools=tuple(tools.openai()))

    def session_rules(self, outlives: bool = False) -> SessionRules:
        """Return what the sessions' core decides by."""
        return SessionRules(
            limit=self.max_sessions,
            beat_ns=round(self.heartbeat_s * 1e9),
            silent_beats=self.silent_heartbeats,
            outlives=outlives,
        )

    def last_session(self) -> int:
        """Return the highest number of a session in the folder: a restarted server overwrites no record."""
        names = (path.name.removeprefix("session-") for path in self.out.glob("session-*"))
        return max((int(name) for name in names if name.isdigit()), default=0)

    @property
    def loads(self) -> str | None:
        """The model that is loaded before there are sessions: one that is named, where tools are brought."""
        from rtcontrol.hosts.deciders import PLAIN
        from rtcontrol.hosts.remote_api import is_endpoint

        named = self.takes_tools and self.model not in PLAIN and not is_endpoint(self.model)
        return self.model if named else None

    @property
    def takes_tools(self) -> bool:
        return self.agent is None

    def check(self) -> None:
        """UserError for what cannot be served."""
        from rtcontrol.hosts.deciders import PLAIN
        from rtcontrol.hosts.remote_api import is_endpoint
        from rtcontrol.models.checkpoint.checkpoint import resolve
        from rtcontrol.run import assembly, interpreting
        from rtcontrol.run.model_compatibility import hysteresis_for

        if not MIN_HZ <= self.hz <= self.hz_max:
            raise UserError(f"--hz {self.hz:g} is no rate.", f"Give {MIN_HZ:g} to {self.hz_max:g}.")
        if self.max_sessions < 1:
            raise UserError(f"--max-sessions {self.max_sessions} lets nobody in.", "Give 1 or more.")
        self.check_shared()
        if self.interpreter is not None:
            interpreting.check(self.interpreter, self.engine)
        registry.check(self.engine)
        registry.check_options(self.engine, self.dtype, None, self.threads)
        if self.agent is not None and self.tools is not None:
            raise UserError("--agent and --tools exclude each other: an agent has its own.", "Give one of them.")
        if self.agent is not None:
            assembly.agent(self.agent)
        if self.model is not None and self.model not in PLAIN and not is_endpoint(self.model):
            resolve(self.model)
        if self.model is not None:
            hysteresis_for(self.hysteresis, self.model)
        if self.backup is not None and self.backup not in PLAIN:
            resolve(self.backup)


ANY_PORT = "tcp://127.0.0.1:*"  # of replicas


def replicas_between(text: str | None) -> tuple[int, int]:
    """Return the smallest and the largest number of replicas of `N` or `MIN:MAX`. Raises UserError."""
    least, _, most = (text or "1").partition(":")
    numbers = all(part.isascii() and part.isdigit() and len(part) < 5 for part in (least, most or least))
    if numbers and 1 <= int(least) <= int(most or least):
        return int(least), int(most or least)
    raise UserError(f"--replicas {text} is not a number of replicas.", "Give a number such as 2, or two such as 2:8.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions(ServeOptions):
    """What `rtcontrol serve` is told: what it offers, and where. Raises UserError for what does not go together."""

    bind: Annotated[
        tuple[str, ...],
        Flag("ZeroMQ endpoint; may be repeated. (default: tcp://127.0.0.1:5555)", given=list[str], parse=tuple),
    ] = ("tcp://127.0.0.1:5555",)
    keys: Annotated[Path | None, Flag("Folder of CURVE keys (`rtcontrol keys`): only listed clients come in.")] = None
    http: Annotated[str | None, Flag("Address of WebSocket, HTTP and the page: 127.0.0.1:8080.")] = None
    allow_origin: Annotated[
        tuple[str, ...], Flag("Let pages of this origin in; may be repeated.", given=list[str], parse=tuple)
    ] = ()
    token_file: Annotated[Path | None, Flag("Access token of other origins and machines.")] = None
    require_token: Annotated[
        bool,
        Flag("Ask programs and pages of this machine for the token, too: behind a proxy, everybody is one of them."),
    ] = False
    static: Annotated[Path | None, Flag("Serve the pages of this folder, too.")] = None
    replicas: Annotated[
        str | None,
        Flag("Run so many whole servers behind --http by Ray Serve, N or MIN:MAX by their load (docs/scaling.md)."),
    ] = None

    def __post_init__(self) -> None:
        given: dict[str, object] = {"--allow-origin": self.allow_origin, "--token-file": self.token_file}
        given |= {"--require-token": self.require_token, "--static": self.static}
        idle = [name for name, value in given.items() if value]
        if self.http is None and self.replicas is None and idle:
            raise UserError(f"{idle[0]} is for --http, which is not given.", "Add --http 127.0.0.1:8080.")

    @property
    def takes_tools(self) -> bool:
        return self.agent is None or self.http is not None or self.replicas is not None

    def check(self) -> None:
        """UserError for what cannot be served, and for options that do not go with `replicas`."""
        ServeOptions.check(self)
        if self.replicas is None:
            return
        replicas_between(self.replicas)
        for name in ("standby", "require_token"):
            if getattr(self, name):
                option = "--" + name.replace("_", "-")
                raise UserError(f"--replicas and {option} exclude each other.", "Leave one of them out.")
        if len(self.bind) > 1:
            raise UserError("--replicas takes one --bind.", f"Give one, such as {ANY_PORT}.")
        if self.keys is None and not is_local(self.bind[0]):
            raise UserError(
                f"--bind {self.bind[0]} can be reached from other machines, and there are no keys.",
                "Make a key for each client (`rtcontrol keys new NAME`) and give --keys, on each machine.",
            )
