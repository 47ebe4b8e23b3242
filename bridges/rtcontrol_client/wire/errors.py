"""The errors of the protocol, with codes for programs and texts for people."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from typing import Any


class Code(StrEnum):
    """Error codes of protocol 1.1. Clients must treat an unknown code like `internal`."""

    MALFORMED = "malformed"  # the bytes are not a message
    TOO_LARGE = "too_large"  # the message exceeds a limit that the welcome message announced
    INVALID = "invalid"  # a field has the wrong type or value
    VERSION = "version"  # the server does not support this protocol version
    STATE = "state"  # the message is not allowed now (for example, an observation before hello)
    SESSION = "session"  # the session token is unknown, or belongs to another connection
    SEQUENCE = "sequence"  # the sequence number is not greater than the previous one
    EPOCH = "epoch"  # the message's epoch has ended, or has not started
    AGENT = "agent"  # the agent is unknown
    TOOLS = "tools"  # the tool schemas are not supported
    MODEL = "model"  # the model is unknown, or clients may not choose it
    INSTRUCTION = "instruction"  # the instruction does not fit the model's context, or is empty
    UNSURE = "unsure"  # the model does not understand the instruction, so calls are withheld
    BUSY = "busy"  # another client uses this robot, or the server is full
    RATE = "rate"  # the client sent too many messages, and some were dropped
    DECODER = "decoder"  # the server cannot reach the decoder
    INTERNAL = "internal"  # an error in the server


class RemedyError(Exception):
    """An error with two texts for people: `what` describes the problem, `remedy` what to do."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what} {remedy}".rstrip())
        self.what, self.remedy = what, remedy


@dataclass(eq=False)
class WireError(Exception):
    """The refusal of a message, whose sender gets these fields in an `error` message. `remedy` is a hint for people,
    `field` the path of the invalid field, `seq` the number of the refused observation. If `fatal`, the session ends or
    cannot start. If `retryable`, the same message may succeed later. `members` has the refused parts of a crowd's
    message.
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


def wire_error_at(first: Any, steps: Sequence[int | str], kind: str) -> WireError:
    """Convert one of pydantic's errors, at the path `steps` in a message of type `kind`, to a WireError."""
    field = "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in steps).lstrip(".")[:200]
    value = "missing" if first["type"] == "missing" else _describe_value(first["input"])
    problem = f"{kind}.{field} is {value}." if field else f"The part is {value}."
    rule = re.sub(r"^.* should | or instance of .*", "", first["msg"])
    hint = "Add this field." if first["type"] == "missing" else f"It must {rule}."
    return WireError(Code.INVALID, problem, hint, field=field or None, fatal=kind == "hello")


def _describe_value(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return f"a list of {len(value)}" if isinstance(value, list) else "a map"
    long = isinstance(value, str) and len(value) > 40
    return f"a string of {len(value)} characters" if long else json.dumps(value, default=repr)[:60]
