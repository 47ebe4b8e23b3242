"""What went wrong in a session, as the error that its client is told."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from rtcontrol.agents import Tools
from rtcontrol.envs.base import Emission
from rtcontrol.envs.remote_parts import wire_call as told_call
from rtcontrol.hosts.protocol import DecoderUnavailable
from rtcontrol.loop.desk import OperatorControl
from rtcontrol.loop.instructions import echo
from rtcontrol.loop.interpreter import Interpreter, Understood
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import Free
from rtcontrol.serve.negotiate import Terms
from rtcontrol.serve.refusals import AGAIN, refused_as
from rtcontrol_client.wire import Code, WireError
from rtcontrol_client.wire.messages import ControlMessage, Instruct


def refusal(emission: Emission, seq: int | None) -> WireError:
    """Of the observation `seq`, of which no decision could be made."""
    error = emission.error or ""
    # The cause may be another: on a busy machine a pause goes first.
    if error.startswith("observe:"):
        remedy = "Send the fields of `data` that the agent reads, or `text`."
        return WireError(Code.INVALID, f"{error}.", remedy, field="data", seq=seq)
    if emission.mistake is not None:
        # The instruction was decided by before: it is the observation that is too long.
        remedy = "Send a shorter `text`, or fewer and shorter values in `data`."
        return WireError(Code.TOO_LARGE, emission.mistake[0], remedy, field="text", seq=seq)
    remedy = "Go on observing: the next tick decides anew. What is in force runs out as always."
    return WireError(Code.DECODER, f"{emission.cause}: {error}", remedy, seq=seq, retryable=True)


def undecodable(error: UserError, tools: Tools) -> WireError:
    """The first decision failed: names the parameters that are decoded token by token."""
    slots = ((t.name, slot) for t in tools.schemas for slot in t.slots() if isinstance(slot.domain, Free))
    named = "; ".join(f"{name}: {', '.join(p.name for p in slot.parameters)}" for name, slot in slots)
    what = f"{error.what} These are decoded token by token: {named[:300]}."
    remedy = "Give them an enum or bounds, and no array or recursion; give a tool at most six parameters."
    return WireError(Code.TOOLS, what, remedy, field="tools", fatal=True)


@contextmanager
def placed(welcomed: bool) -> Iterator[None]:
    """Where the place of decision is full or away in here, raises the WireError that says so. A session that was
    welcomed is kept: its client says hello again."""
    try:
        yield
    except DecoderUnavailable as error:
        code = Code.BUSY if error.full else Code.DECODER
        raise WireError(code, error.what, error.remedy, retryable=True, fatal=not welcomed) from None


def failure(fault: BaseException) -> WireError:
    """The session ended by a fault of the server, or for want of files."""
    what = " ".join(f"{type(fault).__name__}: {fault}".split())[:200]
    full = isinstance(fault, OSError) and fault.errno in (errno.EMFILE, errno.ENFILE)
    code, remedy = (Code.BUSY, AGAIN) if full else (Code.INTERNAL, "Say hello again.")
    return WireError(code, f"The session failed ({what}).", remedy, retryable=full, fatal=True)


def no_host(terms: Terms) -> AbstractContextManager[None]:
    """What cannot be decided by in here is the client's tools, or the model that it named. Raises WireError."""
    code = Code.TOOLS if terms.named is None else Code.MODEL
    return refused_as(code, code.value)


def control_of(operator: OperatorControl, session: str) -> ControlMessage:
    """The state as it is now, and the call that waits for a yes."""
    now_ns = time.monotonic_ns()
    told = ControlMessage(session=session, state=operator.state)
    if (asking := operator.asking) is not None and not asking.denied:
        left_ms = max(0.0, (asking.expires_ns - now_ns) / 1e6)
        return told.model_copy(update={"id": asking.tick.k, "call": told_call(asking.call), "ttl_ms": left_ms})
    return told


def understood(found: Understood, session: str, interpreter: Interpreter) -> Instruct | WireError:
    """Return what a sentence was understood as; or why it was not, or is not taken, and what can be said instead."""
    said = found.said
    if found.text is not None:
        return Instruct(session=session, instruction=found.text, said=said, by=found.by, confidence=found.sure)
    if found.why == "overtaken":
        what = f'"{echo(said)}" is not taken: {found.reason}. What was said last counts.'
        remedy = "Say it again if it is meant."
    else:
        what = f'"{echo(said)}" is not understood: {found.reason}. The instruction before goes on.'
        remedy = f"Say it in other words, such as: {interpreter.examples()}."
    return WireError(Code.INSTRUCTION, what, remedy, field="instruction")
