"""The errors of messages, with codes for programs and sentences for people."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from typing import Any


class Code(StrEnum):
    """Error codes of protocol 1.1. A client must treat a code it does not know as `internal`."""

    MALFORMED = "malformed"  # the bytes are not a message
    TOO_LARGE = "too_large"  # a limit of the welcome is exceeded
    INVALID = "invalid"  # a field has the wrong type or value
    VERSION = "version"  # the server does not support this protocol version
    STATE = "state"  # not allowed now (for example an observation before hello)
    SESSION = "session"  # the session token is unknown, or not this connection's
    SEQUENCE = "sequence"  # a sequence number that does not grow: replayed or reordered
    EPOCH = "epoch"  # the message's epoch is over, or has not started
    AGENT = "agent"  # unknown agent
    TOOLS = "tools"  # the tool schema cannot be compiled
    MODEL = "model"  # unknown model, or one that clients may not choose
    INSTRUCTION = "instruction"  # the instruction does not fit the model's context, or is empty
    UNSURE = "unsure"  # the instruction is not understood: calls are held back
    BUSY = "busy"  # an exclusive robot is claimed already, or the server is full
    RATE = "rate"  # more messages than allowed, and some were dropped
    DECODER = "decoder"  # the decoder cannot be reached
    INTERNAL = "internal"  # an error in the server


class RemedyError(Exception):
    """An error with two sentences: `what` is wrong, and the `remedy`."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what} {remedy}".rstrip())
        self.what, self.remedy = what, remedy


@dataclass(eq=False)
class WireError(Exception):
    """The refusal of a message, with field, rule and remedy. The sender gets it as an `error` message.

    `fatal`: the error ends the session, or the attempt to open one. `retryable`: the same message may succeed later.
    `members`: the refused parts of a crowd's message (`crowd.MemberError`).
    """

    code: Code
    message: str
    remedy: str = ""
    _: KW_ONLY
    field: str | None = None
    seq: int | None = None
    t_client_ns: int | None = None
    retryable: bool = False
    fatal: bool = False
    members: Sequence[Any] = ()

    def __str__(self) -> str:
        return f"{self.code}: {self.message} {self.remedy}".rstrip()


def refusal_of(first: Any, steps: Sequence[int | str], kind: str) -> WireError:
    """Return the refusal for pydantic's first error, at `steps` of a message of type `kind`, with a hint."""
    field = "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in steps).lstrip(".")[:200]
    is_what = "missing" if first["type"] == "missing" else _shown(first["input"])
    what = f"{kind}.{field} is {is_what}." if field else f"The part is {is_what}."
    rule = re.sub(r"^.* should | or instance of .*", "", first["msg"])
    remedy = "Give it." if first["type"] == "missing" else f"It must {rule}."
    return WireError(Code.INVALID, what, remedy, field=field or None, fatal=kind == "hello")


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return f"a list of {len(value)}" if isinstance(value, list) else "a map"
    long = isinstance(value, str) and len(value) > 40
    return f"a string of {len(value)} characters" if long else json.dumps(value, default=repr)[:60]
