"""What a server offers, and what it lets its clients do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rtcontrol.bridges.wire import LIMITS, Limits
from rtcontrol.config import CHOICES, MAX_HZ, MIN_HZ
from rtcontrol.models.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """`agent`: the only one served (None: clients bring tools, or name a bundled one); `model`: for whoever names
    none (None: the agent's, or the one that was trained on the client's tools); `hz`: of a client that asks for none.

    `messages_per_s` and `errors_per_s` are a connection's, each with a burst of a second's worth (errors: two).
    """

    out: Path
    agent: str | None = None
    model: str | None = None
    engine: str = "torch"
    host: str = "ray"
    hz: float = 16.0
    hz_max: float = 100.0
    seed: int = 0
    max_sessions: int = 64
    session_grace_s: float = 30.0
    heartbeat_s: float = 1.0
    silent_heartbeats: int = 3
    messages_per_s: float = 5_000.0
    errors_per_s: float = 10.0
    queue: int = 64
    limits: Limits = LIMITS

    def check(self) -> None:
        """UserError for what cannot be served."""
        from rtcontrol import assemble
        from rtcontrol.hosts.deciders import PLAIN
        from rtcontrol.models.checkpoint import resolve
        from rtcontrol.models.decider import ENGINES

        for option, value in (("--hz", self.hz), ("--hz-max", self.hz_max)):
            if not MIN_HZ <= value <= MAX_HZ:
                raise UserError(f"{option} {value:g} is no rate.", f"Give {MIN_HZ:g} to {MAX_HZ:g}.")
        if self.hz > self.hz_max:
            raise UserError(f"--hz {self.hz:g} is above --hz-max {self.hz_max:g}.", "Lower it, or raise --hz-max.")
        if self.max_sessions < 1:
            raise UserError(f"--max-sessions {self.max_sessions} lets nobody in.", "Give 1 or more.")
        if not 0 <= self.session_grace_s <= 86_400:
            raise UserError(f"--session-grace {self.session_grace_s:g} is out of range.", "Give 0 to 86400 seconds.")
        if self.host not in CHOICES["host"]:
            raise UserError(f"--host {self.host} is unknown.", f"Choose one of {', '.join(CHOICES['host'])}.")
        if self.engine not in ENGINES:
            raise UserError(f"--engine {self.engine} is unknown.", f"Choose one of {', '.join(ENGINES)}.")
        if self.seed < 0:
            raise UserError(f"--seed {self.seed} is negative.", "Give 0 or more.")
        if self.agent is not None:
            assemble.agent(self.agent)
        if self.model is not None and self.model not in PLAIN:
            resolve(self.model)
