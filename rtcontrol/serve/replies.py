"""Turn the reports of a loop and its world into events for the sessions' core and messages for the client."""

from __future__ import annotations

import time

from rtcontrol.envs.base import Emission
from rtcontrol.envs.remote import RemoteEnvironment
from rtcontrol.envs.remote_core import wire_call
from rtcontrol.loop.active import echo
from rtcontrol.loop.interpreter import InterpretedSentence
from rtcontrol.loop.loop import Listener
from rtcontrol.loop.operator_control import OperatorControl
from rtcontrol.records import LoopReport
from rtcontrol.serve import session_events as ev
from rtcontrol.serve.session import SessionThread
from rtcontrol_client.wire import Code, WireError
from rtcontrol_client.wire.messages import ControlMessage, Instruct


class LoopReports(Listener):
    """A listener that passes the reports of a session's loop to the core and the client."""

    def __init__(self, session: SessionThread) -> None:
        self._session, self._facts = session, session.facts

    def report(self, report: LoopReport) -> None:
        loop, owner, facts = self._session.loop, self._session.owner, self._facts
        if loop is None or not isinstance(loop.env, RemoteEnvironment):
            return
        if report.kind == "accepted":
            loop.env.accepted(report.text)
        elif report.kind == "refused":
            owner.tell(ev.GaveWay(facts, report.why))
        elif report.kind == "doubted":
            # The instruction stays active, and the calls that follow from it are held back.
            error = WireError(Code.UNSURE, report.why, "Say it in other words.", field="instruction")
            owner.tell(ev.Wrong(facts, error))
        else:
            self._session.send(control_of(loop.operator, facts.token))

    def understood(self, result: InterpretedSentence) -> None:
        loop = self._session.loop
        if loop is not None and loop.interpretation is not None:
            answer = interpreted(result, self._facts.token, loop.interpretation.interpreter.examples())
            if isinstance(answer, WireError):
                self._session.owner.tell(ev.Wrong(self._facts, answer))
            else:
                self._session.send(answer)

    def undecided(self, emission: Emission, seq: int | None) -> None:
        """Report that no decision could be made on the observation `seq`."""
        self._session.owner.tell(ev.Wrong(self._facts, refusal_of(emission, seq), emission.error or ""))


def control_of(operator: OperatorControl, session: str) -> ControlMessage:
    """Return a control message with the run's state and the call that waits for a confirmation."""
    control = ControlMessage(session=session, state=operator.state)
    if (asking := operator.pending_approval) is None or asking.denied:
        return control
    left_ms = max(0.0, (asking.expires_ns - time.monotonic_ns()) / 1e6)
    return control.model_copy(update={"id": asking.tick.k, "call": wire_call(asking.call), "ttl_ms": left_ms})


def interpreted(result: InterpretedSentence, session: str, examples: str) -> Instruct | WireError:
    """Return the instruction that a sentence was mapped to, or the error if it was not understood or not accepted."""
    sentence, confidence = result.sentence, result.confidence
    if result.text is not None:
        return Instruct(session=session, instruction=result.text, said=sentence, by=result.by, confidence=confidence)
    verb = "accepted" if result.why == "overtaken" else "understood"
    problem = f'"{echo(sentence)}" is not {verb}: {result.reason}. The previous instruction continues.'
    return WireError(Code.INSTRUCTION, problem, f"Say it in other words, such as: {examples}.", field="instruction")


def refusal_of(emission: Emission, seq: int | None) -> WireError:
    """Return the error for the observation `seq`, on which no decision could be made."""
    error = emission.error or ""
    # The emission's cause may differ: on a busy machine a pause takes precedence.
    if error.startswith("observe:"):
        hint = "Send the fields of `data` that the agent reads, or `text`."
        return WireError(Code.INVALID, f"{error}.", hint, field="data", seq=seq)
    if emission.mistake is not None:
        # Earlier decisions used the same instruction: it must be the observation that is too long.
        hint = "Send a shorter `text`, or fewer and shorter values in `data`."
        return WireError(Code.TOO_LARGE, emission.mistake[0], hint, field="text", seq=seq)
    hint = "Continue to observe: the next tick decides again. The active call expires as usual."
    return WireError(Code.DECODER, f"{emission.cause}: {error}", hint, seq=seq, retryable=True)
