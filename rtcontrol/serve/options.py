"""The settings of `rtcontrol serve`: agent, tools, model, rates, and the limits for clients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from rtcontrol.models.errors import UserError
from rtcontrol.models.runners import registry
from rtcontrol.serve.sessions import SessionRules
from rtcontrol.settings import ServeGroup
from rtcontrol_client.wire import LIMITS, Limits

ANY_PORT = "tcp://127.0.0.1:*"  # default address of a replica, on any free port


@dataclass(frozen=True, kw_only=True)
class ServeOptions(ServeGroup):
    """A server's settings. Raises UserError if settings contradict each other.

    `agent`: the agent of all clients, or None if clients choose a bundled agent or send tools. `tools`: for clients
    that do neither. `prepare` sets `default_tools` from `tools` or `agent`, or to those of the model's training.
    `model`: for clients that choose no model (None: the agent's model, or the one trained on the client's tools).
    """

    limits: Limits = LIMITS
    default_tools: tuple[dict[str, Any], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hz > self.hz_max:
            raise UserError(f"loop.hz={self.hz:g} is above serve.hz_max={self.hz_max:g}.", "Lower loop.hz.")

    def prepare(self) -> Self:
        """Check the settings, and return them with `default_tools`, perhaps from an MCP server. Raises UserError."""
        from rtcontrol.run import assembly

        self.check()
        if self.agent is not None:
            return replace(self, default_tools=tuple(assembly.load_agent(self.agent).tools.openai()))
        from rtcontrol.run.model_compatibility import metadata_of, model_for

        if self.tools is None:
            learnt = None if self.model is None else metadata_of(self.model)
            known = () if learnt is None or learnt.any_tools else learnt.tools or ()
            return replace(self, default_tools=tuple(map(dict, known)))
        from rtcontrol.models.schema.random_call import check_random
        from rtcontrol.run.toolsets import load_tools

        tools = load_tools(self.tools, skip_unsupported=self.skip_unsupported)
        if model_for(tools.schemas, self.model) == "random":
            check_random(tools.schemas)
        return replace(self, default_tools=tuple(tools.openai()))

    def session_rules(self, outlives_client: bool = False) -> SessionRules:
        """Return the limits of `SessionCore`. `outlives_client`: a session continues without its client."""
        return SessionRules(
            limit=self.max_sessions,
            ticks_per_s=self.max_ticks_per_s,
            beat_ns=round(self.heartbeat_s * 1e9),
            silent_beats=self.silent_heartbeats,
            outlives_client=outlives_client,
        )

    def last_session_number(self) -> int:
        """Return the highest number of a session folder in `out`. New sessions get higher numbers."""
        names = (path.name.removeprefix("session-") for path in self.out.glob("session-*"))
        return max((int(name) for name in names if name.isdigit()), default=0)

    def check(self) -> None:
        """Raise UserError if the server cannot run with these options."""
        from rtcontrol.hosts.deciders import SCRIPTED
        from rtcontrol.hosts.remote_api import is_endpoint
        from rtcontrol.models.checkpoint.checkpoint import resolve
        from rtcontrol.run import assembly, interpreting
        from rtcontrol.run.model_compatibility import hysteresis_for

        if self.interpreter is not None:
            interpreting.check_interpreter(self.interpreter, self.engine)
        registry.check_engine(self.engine)
        registry.check_options(self.engine, self.dtype, None, self.threads)
        if self.agent is not None and self.tools is not None:
            raise UserError("--agent and --tools exclude each other: an agent has tools.", "Use one of the options.")
        if self.agent is not None:
            assembly.load_agent(self.agent)
        if self.model is not None and self.model not in SCRIPTED and not is_endpoint(self.model):
            resolve(self.model)
        if self.model is not None:
            hysteresis_for(self.hysteresis, self.model)
        if self.backup is not None and self.backup not in SCRIPTED:
            resolve(self.backup)
        if self.replicas is not None:
            self._check_replicas()

    def _check_replicas(self) -> None:
        from rtcontrol.serve.zmq_auth import check_endpoint

        parse_replicas(self.replicas)
        for name in ("host.standby", "serve.require_token"):
            if getattr(self, name.partition(".")[2]):
                raise UserError(f"--replicas and {name} exclude each other.", "Use one of the options.")
        if len(self.bind) > 1:
            raise UserError("--replicas allows only one --bind address.", f"Give one, such as {ANY_PORT}.")
        check_endpoint(self.bind[0], keyed=self.keys is not None)


def parse_replicas(text: str | None) -> tuple[int, int]:
    """Parse the text `N` or `MIN:MAX`, and return the minimum and maximum number of replicas. Raises UserError."""
    minimum, _, maximum = (text or "1").partition(":")
    maximum = maximum or minimum
    are_numbers = all(part.isascii() and part.isdigit() and len(part) < 5 for part in (minimum, maximum))
    if are_numbers and 1 <= int(minimum) <= int(maximum):
        return int(minimum), int(maximum)
    raise UserError(f"--replicas {text} is invalid.", "Give a number such as 2, or a range such as 2:8.")
