"""Turn a loop's reports, such as a refused instruction, into events for `SessionCore` and messages for the client."""

from __future__ import annotations

import time

from rtcontrol.envs.base import Emission
from rtcontrol.envs.remote import RemoteEnvironment
from rtcontrol.envs.remote_core import to_wire_call
from rtcontrol.loop.active import echo
from rtcontrol.loop.interpreter import InterpretedSentence
from rtcontrol.loop.loop import Listener
from rtcontrol.loop.operator_control import OperatorControl
from rtcontrol.records import LoopReport
from rtcontrol.serve import session_events as ev
from rtcontrol.serve.session import SessionThread
from rtcontrol_client.wire import Code, WireError
from rtcontrol_client.wire.messages import ControlMessage, Instruct


class LoopListener(Listener):
    """A listener of a session's loop. It passes the loop's reports to `SessionCore` and to the client."""

    def __init__(self, thread: SessionThread) -> None:
        self._thread, self._session = thread, thread.session

    def handle_report(self, report: LoopReport) -> None:
        loop, owner, session = self._thread.loop, self._thread.owner, self._session
        if loop is None or not isinstance(loop.env, RemoteEnvironment):
            return
        if report.kind == "accepted":
            loop.env.send_instruction(report.text)
        elif report.kind == "refused":
            owner.handle(ev.InstructionRejected(session, report.why))
        elif report.kind == "doubted":
            # The instruction is active, but its calls are withheld. The client must know this.
            error = WireError(Code.UNSURE, report.why, "Use other words.", field="instruction")
            owner.handle(ev.LoopError(session, error))
        elif report.kind == "unfamiliar":
            error = WireError(Code.UNSURE, report.why, "Send what the training showed.", field="observation")
            owner.handle(ev.LoopError(session, error))
        else:
            self._thread.send(control_message(loop.operator, session.token))

    def handle_interpretation(self, result: InterpretedSentence) -> None:
        loop = self._thread.loop
        if loop is not None and loop.interpretation is not None:
            answer = interpretation_message(result, self._session.token, loop.interpretation.interpreter.examples())
            if isinstance(answer, WireError):
                self._thread.owner.handle(ev.LoopError(self._session, answer))
            else:
                self._thread.send(answer)

    def report_undecided(self, emission: Emission, seq: int | None) -> None:
        """Send the client an error: the decoder made no decision for the observation with the number `seq`."""
        self._thread.owner.handle(ev.LoopError(self._session, undecided_error(emission, seq), emission.error or ""))


def control_message(operator: OperatorControl, session: str) -> ControlMessage:
    """Return a control message with the run's state, and the call that waits for a person's confirmation, if any."""
    control = ControlMessage(session=session, state=operator.state)
    if (pending := operator.pending_approval) is None or pending.denied:
        return control
    left_ms = max(0.0, (pending.expires_ns - time.monotonic_ns()) / 1e6)
    return control.model_copy(update={"id": pending.tick.k, "call": to_wire_call(pending.call), "ttl_ms": left_ms})


def interpretation_message(result: InterpretedSentence, session: str, examples: str) -> Instruct | WireError:
    """Return a message with the instruction that the interpreter chose for a sentence. Return an error if the sentence
    was not understood, or if a newer instruction replaced it. `examples`: sentences for the error's hint."""
    sentence, confidence = result.sentence, result.confidence
    if result.text is not None:
        return Instruct(session=session, instruction=result.text, said=sentence, by=result.by, confidence=confidence)
    verb = "accepted" if result.why == "overtaken" else "understood"
    problem = f'"{echo(sentence)}" was not {verb}: {result.reason}. The previous instruction stays active.'
    return WireError(Code.INSTRUCTION, problem, f"Use other words, such as: {examples}.", field="instruction")


def undecided_error(emission: Emission, seq: int | None) -> WireError:
    """Return the error that the decoder made no decision for the observation with the number `seq`."""
    error = emission.error or ""
    # Check the text, not `emission.cause`, because on a busy machine the cause of the miss may be a pause.
    if error.startswith("observe:"):
        hint = "Send the fields of `data` that the agent reads, or `text`."
        return WireError(Code.INVALID, f"{error}.", hint, field="data", seq=seq)
    if emission.input_error is not None:
        # The prompt is too long because of the observation: earlier prompts with the same instruction were accepted.
        hint = "Send a shorter `text`, or fewer and shorter values in `data`."
        return WireError(Code.TOO_LARGE, emission.input_error[0], hint, field="text", seq=seq)
    hint = "Continue to send observations: the next tick decides again. The active call expires as usual."
    return WireError(Code.DECODER, f"{emission.cause}: {error}", hint, seq=seq, retryable=True)
