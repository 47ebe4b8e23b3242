"""What can be wrong with a message, as codes that programs can use and sentences that people can."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from typing import Any


class Code(StrEnum):
    """Error codes of protocol 1.1. A client must treat a code it does not know as `internal`."""

    MALFORMED = "malformed"  # the bytes are no message
    TOO_LARGE = "too_large"  # a limit of the welcome is exceeded
    INVALID = "invalid"  # a field has the wrong type or value
    VERSION = "version"  # the major version is not spoken here
    STATE = "state"  # not allowed now (an observation before hello, say)
    SESSION = "session"  # the session token is unknown, or not this connection's
    SEQUENCE = "sequence"  # a sequence number that does not grow: replayed or reordered
    EPOCH = "epoch"  # of an epoch that is over, or has not started
    AGENT = "agent"  # unknown agent
    TOOLS = "tools"  # the tool schema cannot be compiled
    MODEL = "model"  # unknown model, or one that clients may not choose
    INSTRUCTION = "instruction"  # the instruction does not fit the model's context, or is none
    UNSURE = "unsure"  # the instruction is not understood: calls are held back
    BUSY = "busy"  # an exclusive robot is claimed already, or the server is full
    RATE = "rate"  # more messages than allowed; this many were dropped
    DECODER = "decoder"  # the decoder cannot be reached
    INTERNAL = "internal"  # a fault of the server


class RemedyError(Exception):
    """What is wrong, and what to do about it: `what` and `remedy`, in sentences."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what} {remedy}".rstrip())
        self.what, self.remedy = what, remedy


@dataclass(eq=False)
class WireError(Exception):
    """A message that is refused: names field, rule and remedy. It becomes an `error` message for the sender.

    `fatal`: the session, or the attempt to open one, ends with it. `retryable`: the same message may succeed later.
    `members`: of a crowd's message, the parts that are refused (`crowd.MemberError`).
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
    """Of pydantic's first error, at `steps` of a message of type `kind`: what was given, and what to write instead."""
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
