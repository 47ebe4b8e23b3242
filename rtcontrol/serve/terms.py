"""What is in force in a session, and the welcome that says so."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rtcontrol.agents import Agent
from rtcontrol.bridges.wire import PROTOCOL, Code, WireError, encode_json, encode_msgpack
from rtcontrol.bridges.wire.limits import check_size, check_value
from rtcontrol.bridges.wire.messages import Hello, Program, Welcome
from rtcontrol.envs.remote import RemoteEnvironment
from rtcontrol.envs.remote_parts import RemoteTerms, told, told_all
from rtcontrol.hosts.base import DeciderSource
from rtcontrol.loop.clock import ArrivalClock
from rtcontrol.loop.config import RunConfig
from rtcontrol.record.machine import version
from rtcontrol.serve.options import ServeOptions

EXECUTED, CONTROL = "executed", "control"
CAPABILITIES = [EXECUTED, CONTROL]


@dataclass(frozen=True)
class Terms:
    """What is in force in a session, whatever becomes of its connections."""

    hello: Hello
    agent: Agent
    named: str | None
    model: str
    source: DeciderSource
    config: RunConfig
    ttl_ms: float
    trained: bool | None
    warnings: tuple[str, ...]

    def remote(self, session: str, queue: int) -> RemoteTerms:
        return RemoteTerms(
            session=session,
            tools=tuple(tool.name for tool in self.agent.tools),
            minor=self.minor,
            deadline_ns=self.config.deadline_ns,
            paced_by_client=self.hello.pacing == "client",
            ttl_ms=self.ttl_ms,
            acknowledges=EXECUTED in self.hello.capabilities,
            queue=queue,
            reads_arrays=self.named is not None,
        )

    def arrivals(self, env: RemoteEnvironment) -> ArrivalClock | None:
        """The clock of a client-paced session."""
        return ArrivalClock(self.config.period_ns, env.arrival) if self.hello.pacing == "client" else None

    @property
    def minor(self) -> int:
        """The minor version that both sides speak."""
        return min(PROTOCOL[1], self.hello.protocol[1])

    @property
    def hold_ms(self) -> float:
        held = self.config.hold_ms
        return self.agent.fallback.hold_ms if held is None else held

    def welcome(
        self,
        options: ServeOptions,
        session: str,
        instruction: str,
        *,
        resumed: bool = False,
        epoch: int = 0,
        t_client_ns: int = 0,
        release_ns: int | None = None,
        more: Sequence[str] = (),
    ) -> Welcome:
        """`more`: warnings beside these terms' own."""
        config = self.config
        return Welcome(
            protocol=list(PROTOCOL),
            server=Program(name="rtcontrol", version=version("rtcontrol") or "", language="python"),
            session=session,
            resumed=resumed,
            epoch=epoch,
            t_client_ns=t_client_ns,
            t_server_ns=time.monotonic_ns(),
            capabilities=CAPABILITIES,
            agent=self.named,
            tools=self.agent.tools.openai(),
            instruction=instruction,
            model=Path(self.model).name,
            model_trained_on_tools=bool(self.trained),
            trained=self.trained,
            safe_call=told(self.agent.fallback.safe_call),
            safe_calls=told_all(self.agent.fallback.safe_calls),
            release_ns=release_ns,
            pacing=self.hello.pacing,
            hz=config.hz,
            period_ms=config.period_ns / 1e6,
            deadline_ms=config.deadline_ns / 1e6,
            ttl_ms=self.ttl_ms,
            max_age_ms=config.max_age_ns / 1e6,
            on_miss="safe" if config.on_miss == "safe" else "hold",
            hold_ms=self.hold_ms,
            calls_per_tick=config.calls_per_tick if config.calls_per_tick > 1 else None,
            heartbeat_ms=options.heartbeat_s * 1e3,
            session_grace_s=options.session_grace_s,
            limits=options.limits.to_dict(),
            warnings=[*self.warnings, *more],
        )

    def check_welcome(self, options: ServeOptions) -> None:
        """Raises WireError (too_large, `tools`) where no welcome could tell these terms within the limits."""
        limits = options.limits
        # Later ones may have a longer instruction, one more warning and larger numbers.
        spare = limits.max_string_bytes - len(self.agent.instruction.encode("utf-8", "replace")) + 1024
        welcome = self.welcome(options, "x" * 32, self.agent.instruction)
        try:
            within = replace(limits, max_message_bytes=limits.max_message_bytes - max(spare, 1024))
            fewer = replace(limits, max_total_items=limits.max_total_items - 1)
            check_value(welcome.model_dump(exclude_none=True), fewer)
            check_size([len(encode_json(welcome).encode())], within)
            check_size([len(part) for part in encode_msgpack(welcome)], within)
        except WireError as error:
            raise WireError(
                Code.TOO_LARGE,
                f"The welcome to these tools would exceed the limits ({error.message.rstrip('.')}).",
                "Bring fewer tools, or shorter lists of values and descriptions.",
                field="tools",
                fatal=True,
            ) from None


def ttl_of(config: RunConfig) -> float:
    """How long a call is good for by default, in milliseconds since its observation's capture."""
    return max(500.0, (2.5 * config.period_ns + config.deadline_ns) / 1e6)
