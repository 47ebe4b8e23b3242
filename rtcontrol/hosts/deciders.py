"""Deciders and their sources (SimpleTool models, scripts, crowds, state questions), and the worker that runs deciders.

A source builds deciders in the decoder's process. A SimpleTool (ST) model decodes the function and each argument of a
call by parallel heads over one cached prompt. A crowd has many members; one request contains the requests of all.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rtcontrol.hosts.pool import EdfScheduler, ScheduledRequest
from rtcontrol.hosts.protocol import Decider, DeciderSource, DecisionLost, DecisionReply, DecisionRequest
from rtcontrol.models.call import Call, Decision, Plan
from rtcontrol.models.errors import UserError
from rtcontrol.models.in_flight import run_to_end
from rtcontrol.models.schema.random_call import check_random, random_call
from rtcontrol.models.schema.tool_schema import tool_schemas

if TYPE_CHECKING:
    from rtcontrol.models.crowd import CrowdDecoder
    from rtcontrol.models.questions import StateQuestion

DECIDER_ERRORS = (Exception, SystemExit)  # if a decider raises these, the tick is a miss and the run continues
SCRIPTED = ("expert", "noop", "random")
log = logging.getLogger("rtcontrol.hosts")


# -- decisions ---------------------------------------------------------------------------------------------------------


def build_decider(source: DeciderSource) -> Decider:
    """Build the decider of a source. Raises UserError for any error."""
    try:
        return source.build()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"The decider cannot be built: {error!r}.", "Run with --debug.") from error


def reply_of(decider: Decider, request: DecisionRequest) -> DecisionReply:
    """Decide one request. If the decider raises an exception, the reply's `error` is the text of the exception."""
    started_ns = time.monotonic_ns()
    (outcome,) = run_to_end(_decide_request(decider, request))
    return build_reply(request, started_ns, outcome)


def answer_batch(
    pairs: Sequence[tuple[Any, DecisionRequest]], is_cancelled: Callable[[int], bool]
) -> Generator[None, None, list[DecisionReply | None]]:
    """Decide the requests of (decider, request) pairs in one batch, and yield between the steps. Return a reply for
    each pair, or None for a cancelled request. The deciders must have the same `batch_key`.

    `is_cancelled(i)` is called after each step, and returns whether the request of pair `i` was cancelled."""
    started_ns, dropped = time.monotonic_ns(), set[int]()
    steps = _decide_request(*pairs[0]) if len(pairs) == 1 else pairs[0][0].decide_batch(pairs)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return [
                None if i in dropped else build_reply(request, started_ns, decision, len(pairs))
                for i, ((_, request), decision) in enumerate(zip(pairs, done.value, strict=True))
            ]
        for i, (decider, _) in enumerate(pairs):
            if i not in dropped and is_cancelled(i):
                dropped.add(i)
                if len(pairs) == 1:
                    steps.close()
                    return [None]
                decider.cancel()
        yield


Outcome = Decision | BaseException | list[Decision | BaseException]  # for a crowd: a list with an entry per member


def _decide_request(decider: Any, request: DecisionRequest) -> Generator[None, None, list[Outcome]]:
    """Decide one request, and yield between the steps. Return a list with one entry: the decision or the exception."""
    steps = getattr(decider, "decide_in_steps", None)
    try:
        if steps is not None:
            return [(yield from steps(request))]
        if request.members:
            outcomes: Any = [run_to_end(_decide_request(decider, member))[0] for member in request.members]
            return [outcomes]
        return [decider.decide(request)]
    except DECIDER_ERRORS as error:
        return [error]


def build_reply(request: DecisionRequest, started_ns: int, outcome: Outcome, batch_size: int = 1) -> DecisionReply:
    """Return the reply to a request. `outcome`: the decision or exception; for a crowd, a list of them."""
    if isinstance(outcome, list) and len(outcome) == 1 and isinstance(outcome[0], BaseException):
        outcome = outcome[0]
    reply = DecisionReply(
        request.tick, None, None, time.monotonic_ns() - started_ns, None, request.received_ns or started_ns, started_ns
    )
    reply.batch_size = batch_size
    if isinstance(outcome, Decision):
        reply.decision = outcome
    elif isinstance(outcome, list):
        parts = zip(request.members, outcome, strict=True)
        reply.members = tuple(build_reply(member, started_ns, part) for member, part in parts)
    else:
        is_expected = isinstance(outcome, UserError | DecisionLost)
        text = str(outcome) if is_expected else f"{type(outcome).__name__}: {outcome}"
        reply.error = text.partition("\n")[0]
        if isinstance(outcome, UserError):
            reply.user_error = outcome.what, outcome.remedy
        elif isinstance(outcome, DecisionLost):
            reply.loss = outcome.loss
    return reply


def decider_info(decider: Decider) -> dict[str, Any]:
    """Return the decider's fields for the report, or an empty dict if the decider has no method `info`."""
    return dict(getattr(decider, "info", dict)())


def close_decider(decider: Decider) -> None:
    """Close the decider, and log any error."""
    try:
        getattr(decider, "close", lambda: None)()
    except DECIDER_ERRORS:
        log.exception("close() of a decider (%s) failed; its session has ended", type(decider).__qualname__)


class Worker:
    """A worker that decides batches of requests from the scheduler, on one thread.

    Each host has one decider per worker; `number` is this worker's index. Between two steps of a patient session's
    decision, the worker decides the requests of other sessions."""

    def __init__(self, scheduler: EdfScheduler, number: int) -> None:
        self.scheduler, self.number = scheduler, number
        self._paused: Generator[None, None, None] | None = None  # the patient session's unfinished decision

    @property
    def idle(self) -> bool:
        return self._paused is None

    def next_batch(self, now_ns: int) -> list[ScheduledRequest]:
        """Return the requests to decide now. While a decision is paused, requests of patient sessions must wait."""
        return self.scheduler.next_batch(now_ns, self._batch_key, self._is_patient, allow_patient=self.idle)

    def run(self, batch: Sequence[ScheduledRequest]) -> None:
        """Decide a batch of requests. If the batch is empty, execute the next step of the paused decision."""
        if batch and self._is_patient(batch[0][0]):
            self._paused = self.decide(batch)
        elif batch:
            started_ns = time.monotonic_ns()
            run_to_end(self.decide(batch))
            self.scheduler.record_duration(self._batch_key(batch[0][0]), len(batch), time.monotonic_ns() - started_ns)
        elif self._paused is not None:
            try:
                next(self._paused)
            except StopIteration:
                self._paused = None

    def decide(self, batch: Sequence[ScheduledRequest]) -> Generator[None, None, None]:
        """Decide requests in steps, and deliver the replies to the hosts. Drop the requests of closed hosts."""
        open_requests = [(*pair, decider) for pair in batch if (decider := pair[0].decider(self.number)) is not None]
        if not open_requests:
            return

        def is_cancelled(i: int) -> bool:
            host, request, _ = open_requests[i]
            return bool(host.is_cancelled(request))

        replies = yield from answer_batch([(decider, request) for _, request, decider in open_requests], is_cancelled)
        for (host, request, _), reply in zip(open_requests, replies, strict=True):
            host.deliver(request, reply)

    def _is_patient(self, host: Any) -> bool:
        return bool(getattr(host.decider(self.number), "patient", False))

    def _batch_key(self, host: Any) -> Hashable:
        """Return a key: requests of sessions with the same key can share a batch. None: no batch with others."""
        batch_key: Hashable = getattr(host.decider(self.number), "batch_key", None)
        return batch_key


class SteppedDecider:
    """A base class of deciders that yield between the steps of a decision, where the worker can pause or cancel it."""

    def decide(self, request: DecisionRequest) -> Decision:
        return run_to_end(self.decide_in_steps(request))

    def decide_in_steps(self, request: DecisionRequest) -> Generator[None, None, Decision]:
        raise NotImplementedError


# -- scripts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExpertSource:
    """A scripted decider and its source in one. `function` returns a call or plan (None: keep the active call)."""

    function: Callable[[DecisionRequest], Call | Plan | None]
    model: str = "expert"

    def build(self) -> ExpertSource:
        return self

    def decide(self, request: DecisionRequest) -> Decision:
        call = self.function(request)
        return Decision(call.calls[0], plan=call) if isinstance(call, Plan) else Decision(call)

    def info(self) -> dict[str, Any]:
        return {"engine": "script", "model": self.model}


def _keep_active_call(request: DecisionRequest) -> None:
    return None


@dataclass(frozen=True)
class NoopSource(ExpertSource):
    """A scripted decider that always keeps the active call (a null decision)."""

    function: Callable[[DecisionRequest], Call | None] = _keep_active_call
    model: str = "noop"


@dataclass(frozen=True)
class RandomSource:
    """The source of a decider that returns valid calls by uniform random choice.

    The calls have no optional parameters whose values cannot be listed. The first call of a tick depends only on the
    seed, the epoch and the tick."""

    tools: Sequence[dict[str, Any]]
    seed: int = 0

    def build(self) -> ExpertSource:
        schemas = tool_schemas(list(self.tools))
        check_random(schemas)
        last = ("", 0)  # (last tick, index of its last call)

        def call(request: DecisionRequest) -> Call:
            nonlocal last
            tick = f"{self.seed}/{request.epoch}/{request.tick}"
            last = tick, last[1] + 1 if last[0] == tick else 0
            chance = random.Random(f"{tick}/{last[1]}" if last[1] else tick)
            return random_call(schemas, chance)

        return ExpertSource(call, "random")


# -- ST models ---------------------------------------------------------------------------------------------------------

# A tool with a text parameter. To build a decider for it prepares the grammar tables for all text parameters.
FREE_VALUE: dict[str, Any] = {"name": "say", "parameters": {"properties": {"text": {"type": "string"}}}}


@dataclass(frozen=True)
class STSource:
    """The source of an STModel. `spec`: a `rtcontrol.models.decider.DeciderSpec`.

    `patient`: the callers can wait (for example HTTP clients), so requests of other sessions are decided first."""

    spec: Any
    patient: bool = False

    def build(self) -> STModel:
        return STModel(self.spec.build(), self.patient)


def _decoder_arguments(request: DecisionRequest) -> Any:
    prompt = request.observation, request.instruction, request.history
    return prompt if request.active_call is None else (*prompt, request.active_call)


class STModel:
    """A decider that uses an ST model. Requests to deciders with the same `batch_key` can share a batch."""

    def __init__(self, decider: Any, patient: bool = False) -> None:
        self._decider, self.patient = decider, patient

    def decide(self, request: DecisionRequest) -> Decision:
        decision: Decision = self._decider.decide(*_decoder_arguments(request))
        return decision

    def decide_in_steps(self, request: DecisionRequest) -> Generator[None, None, Decision]:
        decision: Decision = yield from self._decider.decide_in_steps(
            *_decoder_arguments(request), in_slices=self.patient
        )
        return decision

    @property
    def batch_key(self) -> Hashable:
        return None if self.patient else id(self._decider.runner)

    @staticmethod
    def decide_batch(pairs: Any) -> Generator[None, None, list[Decision | Exception]]:
        from rtcontrol.models.decider import decide_together_in_steps

        return decide_together_in_steps([(model._decider, _decoder_arguments(request)) for model, request in pairs])

    def cancel(self) -> None:
        self._decider.cancel()

    def info(self) -> dict[str, Any]:
        return dict(self._decider.info())


# -- crowds: a request contains the requests of many members, and its reply contains their replies ---------------------


def crowd_request(number: int, members: Sequence[DecisionRequest], within_ns: int) -> DecisionRequest:
    """Return one request that combines `members`, the requests of a crowd's members. `epoch` is a member's number."""
    return DecisionRequest(number, 0, "", "", within_ns=within_ns, members=tuple(members))


def member_replies(reply: DecisionReply, members: Sequence[DecisionRequest]) -> list[DecisionReply]:
    """Return the replies to the members. If the reply has none, return a reply with its error for each member."""
    if len(reply.members) != len(members):
        error = reply.error or f"the decoder decided for {len(reply.members)} of {len(members)} members"
        return [DecisionReply(member.tick, None, error, reply.decide_ns, reply.user_error) for member in members]
    return [replace(each, decide_ns=reply.decide_ns) for each in reply.members]


def crowd_source(source: DeciderSource) -> DeciderSource:
    """Return the source of the same decider for a crowd. A scripted decider handles the members one after another."""
    if isinstance(source, STSource):
        return CrowdSTSource(source.spec)
    return source


@dataclass(frozen=True)
class CrowdSTSource(STSource):
    """The source of a CrowdModel."""

    def build(self) -> Any:
        from rtcontrol.models.crowd import CrowdDecoder

        return CrowdModel(CrowdDecoder(self.spec))


class CrowdModel:
    """A decider that uses an ST model to decide for all members of a crowd in one batch."""

    def __init__(self, decoder: CrowdDecoder) -> None:
        self._decoder = decoder

    def decide_in_steps(self, request: DecisionRequest) -> Generator[None, None, list[Decision | Exception]]:
        from rtcontrol.models.crowd import CharacterPrompt

        members = request.members
        prompts = [CharacterPrompt(str(m.epoch), m.observation, m.instruction, m.history) for m in members]
        return self._decoder.decide_in_steps(prompts)

    def info(self) -> dict[str, Any]:
        return dict(self._decoder.decider.info())


# -- state questions: multiple-choice questions about an observed state ------------------------------------------------

ANSWERS = "answers"


def encode_questions(questions: Sequence[StateQuestion]) -> str:
    """Return the questions as JSON text for a request's `instruction`. The request's `observation` is the state."""
    return json.dumps([(question.text, question.options) for question in questions])


@lru_cache(16)
def _decode_questions(instruction: str) -> tuple[StateQuestion, ...]:
    from rtcontrol.models.questions import StateQuestion  # imported only here, because it loads torch

    return tuple(StateQuestion(text, tuple(options)) for text, options in json.loads(instruction))


@dataclass(frozen=True)
class QuestionSource:
    """The source of a QuestionModel. `spec`: a `rtcontrol.models.decider.DeciderSpec`, whose tools are not used."""

    spec: Any

    def build(self) -> QuestionModel:
        from rtcontrol.models.questions import QuestionDecider

        return QuestionModel(QuestionDecider(self.spec))


class QuestionModel(SteppedDecider):
    """A decider that answers state questions. It returns a call ANSWERS with the `probabilities` of the options, and
    the number of tokens that were `kept` in the cache. Requests of other sessions are decided first (`patient`)."""

    patient = True

    def __init__(self, decider: Any) -> None:
        self._decider = decider

    def decide_in_steps(self, request: DecisionRequest) -> Generator[None, None, Decision]:
        answers = yield from self._decider.answer_in_steps(request.observation, _decode_questions(request.instruction))
        call = Call(ANSWERS, {"probabilities": answers.probabilities, "kept": answers.kept})
        return Decision(call, {}, answers.forward_passes, answers.tokens, answers.reused_tokens)

    def info(self) -> dict[str, Any]:
        return dict(self._decider.info())
