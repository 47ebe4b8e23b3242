"""Messages between a session and the decoder's process, as pickled tuples.

Each tick finds the processor's caches cold: a pickled dataclass then takes 40 to 65 us each way, a tuple 15 us.
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
    """Return the packed request, without its raw observation, or the packed tick to cancel."""
    if isinstance(message, int):
        return pickle.dumps(message)
    return pickle.dumps(message.__reduce__()[1])


def unpack_request(body: bytes) -> DecisionRequest | int:
    message = pickle.loads(body)
    return message if isinstance(message, int) else DecisionRequest(*message)


def pack_reply(reply: DecisionReply) -> bytes:
    """Return the packed reply. A reply that cannot be pickled costs its tick alone."""
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
