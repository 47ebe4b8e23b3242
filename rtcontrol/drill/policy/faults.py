"""What a policy server does wrong on purpose, and what the miss may be called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PolicyFault:
    """`about` for people; `called`: causes and sub-causes that are true of it."""

    about: str
    called: tuple[str, ...]


LOST = ("decide.timeout", "decide.connection")
MALFORMED = ("decide.malformed",)
POLICY_FAULTS: Mapping[str, PolicyFault] = {
    "frozen": PolicyFault("no answer; pings are answered", ("decide.timeout",)),
    "half_open": PolicyFault("nothing is read or sent any more, and the connection stays open", ("decide.timeout",)),
    "late": PolicyFault("the right answer two deadlines late, on the same connection", ("decide.timeout",)),
    "drip": PolicyFault("the right answer a byte at a time, too slowly", LOST),
    "close": PolicyFault("the connection is closed in place of an answer", ("decide.connection",)),
    "close_midway": PolicyFault("the connection is cut in the midst of the answer", ("decide.connection",)),
    "endless": PolicyFault("an answer that says it is a terabyte long", ("decide.malformed", "decide.connection")),
    "traceback": PolicyFault("a traceback as text, and the end of the connection", ("decide.server_error",)),
    "garbage": PolicyFault("random bytes", MALFORMED),
    "truncated": PolicyFault("half of an answer, whole as a message", MALFORMED),
    "no_actions": PolicyFault("an answer without actions", MALFORMED),
    "empty": PolicyFault("no action", MALFORMED),
    "wrong_shape": PolicyFault("two numbers an action in place of one", MALFORMED),
    "batch": PolicyFault("a batch of chunks", MALFORMED),
    "wrong_dtype": PolicyFault("actions of whole numbers", MALFORMED),
    "text_actions": PolicyFault("actions of text", MALFORMED),
    "wrong_size": PolicyFault("an array with fewer bytes than its shape says", MALFORMED),
    "nan": PolicyFault("NaN in the action", ("decide.not_finite",)),
    "inf": PolicyFault("infinity in the action", ("decide.not_finite",)),
    "out_of_bounds": PolicyFault("a number that the tool does not allow", ("invalid",)),
    "replay": PolicyFault("an earlier answer, byte for byte", ("decide.repeated",)),
    "repeated": PolicyFault("the actions of an earlier answer, bit for bit, with new timing", ("decide.repeated",)),
    "two_answers": PolicyFault(
        "an earlier answer, and the right one right behind it", ("decide.malformed", "decide.repeated")
    ),
    "nan_then_right": PolicyFault("NaN, and the right answer behind the next question", ("decide.not_finite",)),
    "illegal_then_right": PolicyFault("an illegal number, and the right answer behind the next question", ("invalid",)),
    "not_fresh": PolicyFault("an answer that says that it is a fallback", ("decide.refused",)),
}
