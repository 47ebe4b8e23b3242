"""Pack and unpack messages between a session and the decoder's process: requests, cancellations and replies.

Messages are pickled tuples, because pickling a dataclass takes 40 to 65 us with cold caches, and a tuple takes 15 us.
"""

from __future__ import annotations

import pickle
from dataclasses import fields
from operator import attrgetter
from typing import Any

from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest
from rtcontrol.models.call import Call, Decision

_DECISION, _REPLY = (attrgetter(*(field.name for field in fields(cls))) for cls in (Decision, DecisionReply))


def pack_request(message: DecisionRequest | int) -> bytes:
    """Pack a request without its raw observation, or the number of a tick to cancel."""
    if isinstance(message, int):
        return pickle.dumps(message)
    return pickle.dumps(message.__reduce__()[1])


def unpack_request(body: bytes) -> DecisionRequest | int:
    message = pickle.loads(body)
    return message if isinstance(message, int) else DecisionRequest(*message)


def pack_reply(reply: DecisionReply) -> bytes:
    """Pack a reply. If the reply cannot be pickled, pack a reply with an error instead."""
    tick, decision, *rest = _REPLY(reply)
    if decision is not None:
        call, *others = _DECISION(decision)
        decision = (call and (call.name, call.arguments), *others)
    try:
        return pickle.dumps((tick, decision, *rest))
    except Exception as error:
        text = f"the decoder's answer cannot be sent: {type(error).__name__}: {error}".splitlines()[0]
        return pack_reply(DecisionReply(tick, None, text, 0))


def unpack_reply(body: bytes) -> DecisionReply:
    tick, decision, *rest = pickle.loads(body)
    return DecisionReply(tick, decision and _decision(*decision), *rest)


def _decision(call: tuple[Any, ...] | None, *rest: Any) -> Decision:
    return Decision(None if call is None else Call(*call), *rest)
