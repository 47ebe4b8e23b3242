"""What a loop reports, as messages to its client."""

from __future__ import annotations

import time

from rtcontrol.envs.base import Emission
from rtcontrol.envs.remote_core import wire_call
from rtcontrol.loop.instructions import echo
from rtcontrol.loop.interpreter import Understood
from rtcontrol.loop.operator_control import OperatorControl
from rtcontrol_client.wire import Code, WireError
from rtcontrol_client.wire.messages import ControlMessage, Instruct


def control_of(operator: OperatorControl, session: str) -> ControlMessage:
    """Return the state as it is now, and the call that waits for a yes."""
    control = ControlMessage(session=session, state=operator.state)
    if (asking := operator.asking) is None or asking.denied:
        return control
    left_ms = max(0.0, (asking.expires_ns - time.monotonic_ns()) / 1e6)
    return control.model_copy(update={"id": asking.tick.k, "call": wire_call(asking.call), "ttl_ms": left_ms})


def interpreted(result: Understood, session: str, examples: str) -> Instruct | WireError:
    """Return what a sentence was understood as; or why it was not, or is not taken, and what can be said instead."""
    sentence = result.said
    if result.text is not None:
        return Instruct(session=session, instruction=result.text, said=sentence, by=result.by, confidence=result.sure)
    if result.why == "overtaken":
        what = f'"{echo(sentence)}" is not taken: {result.reason}. What was said last counts.'
        hint = "Say it again if it is meant."
    else:
        what = f'"{echo(sentence)}" is not understood: {result.reason}. The instruction before continues.'
        hint = f"Say it in other words, such as: {examples}."
    return WireError(Code.INSTRUCTION, what, hint, field="instruction")


def undecided(emission: Emission, seq: int | None) -> WireError:
    """No decision could be made of the observation `seq`."""
    error = emission.error or ""
    # The cause may be another: on a busy machine a pause goes first.
    if error.startswith("observe:"):
        hint = "Send the fields of `data` that the agent reads, or `text`."
        return WireError(Code.INVALID, f"{error}.", hint, field="data", seq=seq)
    if emission.mistake is not None:
        # The instruction was decided by before: it is the observation that is too long.
        hint = "Send a shorter `text`, or fewer and shorter values in `data`."
        return WireError(Code.TOO_LARGE, emission.mistake[0], hint, field="text", seq=seq)
    hint = "Continue to observe: the next tick decides again. What is active runs out as always."
    return WireError(Code.DECODER, f"{emission.cause}: {error}", hint, seq=seq, retryable=True)
