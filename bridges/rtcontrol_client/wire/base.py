"""What all messages are made of: kinds of values, and the parts that several of them share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator


def whole(value: Any) -> Any:
    """A float without a fraction as the integer that it is: some languages have no other numbers."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(whole)]
Name = Annotated[str, Field(min_length=1, max_length=64)]
Word = Annotated[str, Field(max_length=64)]
Title = Annotated[str, Field(max_length=256)]
Text = Annotated[str, Field(max_length=65_536)]
Token = Annotated[str, Field(min_length=16, max_length=128)]
Count = Annotated[Whole, Field(ge=0, lt=1 << 53)]
Nanoseconds = Annotated[Whole, Field(ge=0, lt=1 << 63)]
Milliseconds = Annotated[float, Field(ge=0, le=1e9)]
Seconds = Annotated[float, Field(ge=0)]
Hertz = Annotated[float, Field(ge=0.001, le=10_000)]
Pacing = Literal["server", "client"]
OnMiss = Literal["hold", "safe"]
CallsPerTick = Annotated[Whole, Field(ge=1, le=7)]
Outcomes = Literal["executed", "expired", "failed", "refused"]


class MessagePart(BaseModel):
    """Base of all: frozen, strict types, finite numbers; null fields are absent ones."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="ignore", allow_inf_nan=False, populate_by_name=True, serialize_by_alias=True
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        return {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value


class OfSession(MessagePart):
    """Base of what is said in a session only; `session` is the welcome's token."""

    session: Token


class FunctionCall(MessagePart):
    """A function call: `arguments` by name, optional ones left out."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: dict[str, Any] = {}


SafeCalls = Annotated[list[FunctionCall], Field(min_length=1, max_length=16)]


class CallFields(MessagePart):
    """What there is to do, and until when: of a session's call, and of each member's."""

    tick: Count
    epoch: Count
    seq_obs: Count | None = None  # of the observation that it answers
    t_obs_ns: Nanoseconds | None = None  # that observation's own stamp, echoed
    status: Literal["fresh", "held", "safe"]
    call: FunctionCall | None = None
    calls: SafeCalls | None = None  # 1.1, with `safe`: `call` is the first of them
    more: bool | None = None  # with `calls_per_tick` alone: another message of this tick follows
    ttl_ms: Milliseconds
    confidence: Annotated[float, Field(ge=0, le=1)] | None = None
    cause: str | None = None  # of the miss
