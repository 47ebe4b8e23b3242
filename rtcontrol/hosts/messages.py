"""What a decoder's process and its sessions send each other: msgpack, an integer for a tick that is given up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack

from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest
from rtcontrol.models.call import Call, Decision

PING = b""


def pack_request(request: DecisionRequest) -> bytes:
    """Everything but the raw observation."""
    fields = request.tick, request.epoch, request.observation, request.instruction, request.history, request.within_ns
    standing = () if request.standing is None else (request.standing.to_dict(),)
    packed: bytes = msgpack.packb((*fields, *standing))
    return packed


def unpack_request(fields: Sequence[Any], now_ns: int) -> DecisionRequest:
    """Return the request, as it was received now."""
    tick, epoch, observation, instruction, history, within_ns, *more = fields
    standing = Call.from_dict(more[0]) if more else None
    asked = tick, epoch, observation, instruction, tuple(history)
    return DecisionRequest(*asked, None, now_ns, within_ns, standing=standing)


def decision_fields(decision: Decision) -> tuple[Any, ...]:
    """Return a decision as plain values, without its plan."""
    call = decision.call and (decision.call.name, dict(decision.call.arguments))
    figures = decision.forward_passes, decision.tokens, decision.reused_tokens
    return call, dict(decision.confidence), *figures, tuple(decision.unknown), dict(decision.kept)


def decision_of(fields: Sequence[Any]) -> Decision:
    """Return the decision of its fields."""
    call, confidence, passes, tokens, reused, unknown, kept = fields
    return Decision(call and Call(*call), confidence, passes, tokens, reused, tuple(unknown), kept=kept)


def pack_reply(reply: DecisionReply, gaps: Sequence[tuple[int, int]] = ()) -> bytes:
    """Pack a reply, with the `gaps` in this process's heartbeat. One that cannot be packed costs its tick, not the
    lane."""
    try:
        made = reply.decision and decision_fields(reply.decision)
        stamps = reply.decide_ns, reply.mistake, reply.received_ns, reply.begun_ns, gaps, reply.together, reply.loss
        packed: bytes = msgpack.packb((reply.tick, made, reply.error, *stamps))
    except Exception as error:
        return pack_error(reply.tick, error)
    return packed


def pack_error(tick: int, error: Exception) -> bytes:
    """Pack the reply in place of one that could not be made."""
    text = f"the decoder's answer cannot be sent: {type(error).__name__}: {error}".splitlines()[0]
    return pack_reply(DecisionReply(tick, None, text.encode("utf-8", "replace").decode(), 0))


def unpack_reply(body: bytes) -> DecisionReply:
    """Return the reply of its bytes."""
    tick, made, error, decide_ns, mistake, *stamps = msgpack.unpackb(body)
    decision = made and decision_of(made)
    return DecisionReply(tick, decision, error, decide_ns, mistake and (mistake[0], mistake[1]), *stamps)
