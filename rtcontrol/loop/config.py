"""The configuration of a run: an immutable, validated object."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rtcontrol.models.errors import UserError
from rtcontrol.settings import LoopGroup
from rtcontrol.telemetry.run_folder import describe_machine
from rtcontrol_client.wire.limits import LIMITS

if TYPE_CHECKING:
    from rtcontrol.agents import Agent

MAX_INSTRUCTION_BYTES = LIMITS.max_string_bytes
NOT_RECORDED = ("tools", "skip_unsupported")  # settings that the record omits, because it contains the agent's tools


def plain_text(text: str) -> str:
    """Return `text` with a question mark for each lone surrogate, which comes from bytes that could not be decoded."""
    return text.encode("utf-8", "replace").decode("utf-8")


def instruction_text(text: str) -> str:
    """Return an instruction without lone surrogates. Raises UserError if it is longer than a wire message allows."""
    text = plain_text(text)
    if len(text) > MAX_INSTRUCTION_BYTES // 4 and (size := len(text.encode())) > MAX_INSTRUCTION_BYTES:
        message = f"The instruction has {size} bytes, but at most {MAX_INSTRUCTION_BYTES} are allowed."
        raise UserError(message, "Use a shorter instruction.")
    return text


@dataclass(frozen=True, kw_only=True)
class RunConfig(LoopGroup):
    """The settings of a run (the group `loop.*`). If a setting is None, a property with a similar name returns the
    default.

    Before the first release the decoder makes `warmup` decisions, and more until `warmup_s` have passed. Raises
    UserError unless deadline <= pipeline * period."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.instruction is not None:
            object.__setattr__(self, "instruction", instruction_text(self.instruction))
        if self.deadline_ns > self.pipeline * self.period_ns:
            need = math.ceil(self.deadline_ns / self.period_ns)
            raise UserError(
                f"loop.deadline_ms={self.deadline_ms:g} is longer than loop.pipeline={self.pipeline} periods of "
                f"{self.period_ns / 1e6:g} ms.",
                f"Set loop.pipeline={need}, or a deadline of at most {self.pipeline * self.period_ns / 1e6:g} ms.",
            )

    @property
    def floors(self) -> dict[str, float]:
        """Return the minimum confidence by head (a part of the call). The empty name means all heads."""
        least = self.min_confidence
        return dict(least) if isinstance(least, dict) else {"": least or 0.0}

    @property
    def period_ns(self) -> int:
        return round(1e9 / self.hz)

    @property
    def deadline_ns(self) -> int:
        """Return the time from a tick's release (scheduled start) to its deadline; the period by default."""
        return self.period_ns if self.deadline_ms is None else round(self.deadline_ms * 1e6)

    @property
    def max_age_ns(self) -> int:
        """Return the age above which an observation is stale; by default four periods, but at least 250 ms."""
        if self.max_age_ms is not None:
            return round(self.max_age_ms * 1e6)
        return max(4 * self.period_ns, 250_000_000)

    def header(self, hold_ms: float, agent: Agent | None = None) -> dict[str, Any]:
        """Return the header of a record: the settings, the machine, and the agent's tools, length of history and
        whether null calls are allowed, which training needs. `hold_ms`: the agent's default."""
        decides: dict[str, Any] = {}
        if agent is not None:
            decides = {"tools": agent.tools.openai(), "history": agent.history, "allow_null": agent.allow_null}
        names = (field.name for field in fields(RunConfig) if field.name not in NOT_RECORDED)
        settings = {name: getattr(self, name) for name in names}
        return {
            **{k: str(v) if isinstance(v, Path) else v for k, v in settings.items()},
            "period_ms": self.period_ns / 1e6,
            "deadline_ms": self.deadline_ns / 1e6,
            "max_age_ms": self.max_age_ns / 1e6,
            "hold_ms": hold_ms if self.hold_ms is None else self.hold_ms,
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": describe_machine(),
            **decides,
        }
