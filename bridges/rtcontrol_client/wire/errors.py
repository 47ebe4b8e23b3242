"""What can be wrong with a message, as codes that programs can use and sentences that people can."""

from __future__ import annotations

import json
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
    EPOCH = "epoch"  # of an epoch that is over, or not begun
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


# What pydantic found wrong, in the words of the protocol: what to write instead.

KINDS = {"string": "a string", "boolean": "true or false", "array": "a list", "object": "a map"}
NUMBERS = {"integer": "a whole number", "number": "a number"}


def refusal_of(first: Any, steps: Sequence[int | str], kind: str, schema: dict[str, Any], inside: int = 0) -> WireError:
    """Of the first error, at `steps` of a message of type `kind`; the field is named from step `inside` on."""
    field = "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in steps[inside:]).lstrip(".")[:200]
    is_what = "missing" if first["type"] == "missing" else _shown(first["input"])
    what = f"{kind}.{field} is {is_what}." if field else f"The part is {is_what}."
    remedy = f"Give {_wanted(_schema_at(schema, steps))}."
    return WireError(Code.INVALID, what, remedy, field=field or None, fatal=kind == "hello")


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return f"a list of {len(value)}" if isinstance(value, list) else "a map"
    long = isinstance(value, str) and len(value) > 40
    return f"a string of {len(value)} characters" if long else json.dumps(value, default=repr)[:60]


def _schema_at(root: dict[str, Any], steps: Sequence[int | str]) -> dict[str, Any]:
    at = root
    for step in steps:
        at = at.get("items", {}) if isinstance(step, int) else at.get("properties", {}).get(step, {})
        at = next((arm for arm in at.get("anyOf", ()) if arm != {"type": "null"}), at)
        if "$ref" in at:
            at = root["$defs"][at["$ref"].rsplit("/", 1)[1]]
    return at


def _wanted(schema: dict[str, Any]) -> str:
    # A JSON schema in words: `a number from 0.001 to 10000`.
    if values := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return ("one of " if len(values) > 1 else "") + ", ".join(f'"{v}"' for v in values)
    kind = schema.get("type", "object")
    if kind in NUMBERS:
        low, high = schema.get("minimum", schema.get("ge")), schema.get("maximum", schema.get("le"))
        high = schema["lt"] - 1 if "lt" in schema else high
        span = f" from {low:.16g}" if low is not None else ""
        return f"{NUMBERS[kind]}{span}" + ("" if high is None else f" to {high if kind == 'integer' else f'{high:g}'}")
    low, high = (schema.get(f"{end}{'Items' if kind == 'array' else 'Length'}") for end in ("min", "max"))
    span = f" of {low or 0} to {high}" if high is not None and high != low else f" of {low}" if low else ""
    size = f"{span} {'entries' if kind == 'array' else 'characters'}" if span else ""
    inner = schema.get("items", {})
    each = f", each {_wanted(inner)}" if inner.get("type") in (*KINDS, *NUMBERS) else ""
    keys = f" with {', '.join(schema['required'])}" if "required" in schema else ""
    return KINDS[kind] + keys + size + each
