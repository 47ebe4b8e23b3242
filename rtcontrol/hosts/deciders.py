"""Sources of deciders (ST models, scripts, crowds, questions), and decisions by one decider or by several together."""

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

DECIDER_ERRORS = (Exception, SystemExit)  # an exception that a decider raises costs one tick and never ends the loop
SCRIPTED = ("expert", "noop", "random")
log = logging.getLogger("rtcontrol.hosts")


# -- decisions ---------------------------------------------------------------------------------------------------------


def build_decider(source: DeciderSource) -> Decider:
    """Return the source's decider. Raises UserError if building the decider fails in any way."""
    try:
        return source.build()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"The decider cannot be built: {error!r}.", "Run with --debug.") from error


def answer(decider: Decider, request: DecisionRequest) -> DecisionReply:
    """Return the decider's reply to a request. An exception becomes the reply's error, in one line."""
    started_ns = time.monotonic_ns()
    (outcome,) = run_to_end(_decide(decider, request))
    return reply_to(request, started_ns, outcome)


def answer_together(
    pairs: Sequence[tuple[Any, DecisionRequest]], cancelled: Callable[[int], bool]
) -> Generator[None, None, list[DecisionReply | None]]:
    """Decide in steps; return a reply for each pair, or None for a cancelled one. The deciders must share one `kind`.

    `cancelled(i)` returns at each step whether the request of pair `i` is not needed any more."""
    started_ns, dropped = time.monotonic_ns(), set[int]()
    steps = _decide(*pairs[0]) if len(pairs) == 1 else pairs[0][0].together(pairs)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return [
                None if i in dropped else reply_to(request, started_ns, decision, len(pairs))
                for i, ((_, request), decision) in enumerate(zip(pairs, done.value, strict=True))
            ]
        for i, (decider, _) in enumerate(pairs):
            if i not in dropped and cancelled(i):
                dropped.add(i)
                if len(pairs) == 1:
                    steps.close()
                    return [None]
                decider.cancel()
        yield


Outcome = Decision | BaseException | list[Decision | BaseException]  # for a crowd, the outcome of each member


def _decide(decider: Any, request: DecisionRequest) -> Generator[None, None, list[Outcome]]:
    """Return the decision or the raised exception, in a list with one entry."""
    steps = getattr(decider, "decide_in_steps", None)
    try:
        if steps is not None:
            return [(yield from steps(request))]
        if request.members:
            outcomes: Any = [run_to_end(_decide(decider, member))[0] for member in request.members]
            return [outcomes]
        return [decider.decide(request)]
    except DECIDER_ERRORS as error:
        return [error]


def reply_to(request: DecisionRequest, started_ns: int, outcome: Outcome, together: int = 1) -> DecisionReply:
    """Return the reply to a request: the decision, or the error that was raised."""
    if isinstance(outcome, list) and len(outcome) == 1 and isinstance(outcome[0], BaseException):
        outcome = outcome[0]
    reply = DecisionReply(
        request.tick, None, None, time.monotonic_ns() - started_ns, None, request.received_ns or started_ns, started_ns
    )
    reply.together = together
    if isinstance(outcome, Decision):
        reply.decision = outcome
    elif isinstance(outcome, list):
        parts = zip(request.members, outcome, strict=True)
        reply.members = tuple(reply_to(member, started_ns, part) for member, part in parts)
    else:
        known = isinstance(outcome, UserError | DecisionLost)
        text = str(outcome) if known else f"{type(outcome).__name__}: {outcome}"
        reply.error = text.partition("\n")[0]
        if isinstance(outcome, UserError):
            reply.user_error = outcome.what, outcome.remedy
        elif isinstance(outcome, DecisionLost):
            reply.loss = outcome.loss
    return reply


def decider_info(decider: Decider) -> dict[str, Any]:
    """Return the lines that the decider adds to the report; empty if the decider has no `info`."""
    return dict(getattr(decider, "info", dict)())


def close_decider(decider: Decider) -> None:
    """Close the decider, and log any error."""
    try:
        getattr(decider, "close", lambda: None)()
    except DECIDER_ERRORS:
        log.exception("close() of a decider (%s) failed; the session has ended anyway", type(decider).__qualname__)


class Worker:
    """A worker that takes batches of requests from the scheduler and decides them on one thread.

    Each session's host has one decider for each worker, selected by `number`. The decision of a patient
    session lets other sessions go first wherever the decision yields."""

    def __init__(self, scheduler: EdfScheduler, number: int) -> None:
        self.scheduler, self.number = scheduler, number
        self._paused: Generator[None, None, None] | None = None  # the patient session's unfinished decision

    @property
    def idle(self) -> bool:
        return self._paused is None

    def next_batch(self, now_ns: int) -> list[ScheduledRequest]:
        """Return the requests to decide now; empty if none waits, or if all can wait for the current decision."""
        return self.scheduler.next_batch(now_ns, self._kind, self._patient, late=self.idle)

    def run(self, batch: Sequence[ScheduledRequest]) -> None:
        """Decide these requests; without any, take a step of the paused decision."""
        if batch and self._patient(batch[0][0]):
            self._paused = self.decide(batch)
        elif batch:
            started_ns = time.monotonic_ns()
            run_to_end(self.decide(batch))
            self.scheduler.record_duration(self._kind(batch[0][0]), len(batch), time.monotonic_ns() - started_ns)
        elif self._paused is not None:
            try:
                next(self._paused)
            except StopIteration:
                self._paused = None

    def decide(self, batch: Sequence[ScheduledRequest]) -> Generator[None, None, None]:
        """Decide requests in steps for the hosts that are not closed, and hand the replies to these hosts."""
        open_requests = [(*pair, decider) for pair in batch if (decider := pair[0].decider(self.number)) is not None]
        if not open_requests:
            return

        def cancelled(i: int) -> bool:
            host, request, _ = open_requests[i]
            return bool(host.cancelled(request))

        replies = yield from answer_together([(decider, request) for _, request, decider in open_requests], cancelled)
        for (host, request, _), reply in zip(open_requests, replies, strict=True):
            host.deliver(request, reply)

    def _patient(self, host: Any) -> bool:
        return bool(getattr(host.decider(self.number), "patient", False))

    def _kind(self, host: Any) -> Hashable:
        """Return the key of sessions that can be decided together with the host's; None if there are none."""
        kind: Hashable = getattr(host.decider(self.number), "kind", None)
        return kind


class SteppedDecider:
    """A decider whose decisions can be paused or cancelled at every step."""

    def decide(self, request: DecisionRequest) -> Decision:
        return run_to_end(self.decide_in_steps(request))

    def decide_in_steps(self, request: DecisionRequest) -> Generator[None, None, Decision]:
        raise NotImplementedError


# -- scripts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExpertSource:
    """A scripted decider: `function` returns the call or plan for a request, or None to keep the active call."""

    function: Callable[[DecisionRequest], Call | Plan | None]
    model: str = "expert"

    def build(self) -> ExpertSource:
        return self

    def decide(self, request: DecisionRequest) -> Decision:
        call = self.function(request)
        return Decision(call.calls[0], plan=call) if isinstance(call, Plan) else Decision(call)

    def info(self) -> dict[str, Any]:
        return {"engine": "script", "model": self.model}


def _null(request: DecisionRequest) -> None:
    return None


@dataclass(frozen=True)
class NoopSource(ExpertSource):
    """A decider that always keeps the active call (the null function)."""

    function: Callable[[DecisionRequest], Call | None] = _null
    model: str = "noop"


@dataclass(frozen=True)
class RandomSource:
    """A decider that samples a uniformly random legal call, and another one for each further call of a tick.

    Optional parameters of an open domain are left out. The same seed, tick and epoch give the same first call."""

    tools: Sequence[dict[str, Any]]
    seed: int = 0

    def build(self) -> ExpertSource:
        schemas = tool_schemas(list(self.tools))
        check_random(schemas)
        last = ("", 0)  # the last tick, and the number of calls in that tick

        def call(request: DecisionRequest) -> Call:
            nonlocal last
            tick = f"{self.seed}/{request.epoch}/{request.tick}"
            last = tick, last[1] + 1 if last[0] == tick else 0
            chance = random.Random(f"{tick}/{last[1]}" if last[1] else tick)
            return random_call(schemas, chance)

        return ExpertSource(call, "random")


# -- ST models ---------------------------------------------------------------------------------------------------------

# A tool with a free value: loading this tool builds what sessions need for their first free value.
FREE_VALUE: dict[str, Any] = {"name": "say", "parameters": {"properties": {"text": {"type": "string"}}}}


@dataclass(frozen=True)
class STSource:
    """The source of an ST model; `spec` is a `rtcontrol.models.decider.DeciderSpec`.

    A `patient` model is for callers that can wait, such as HTTP clients: other sessions are decided first."""

    spec: Any
    patient: bool = False

    def build(self) -> STModel:
        return STModel(self.spec.build(), self.patient)


def _prompt(request: DecisionRequest) -> Any:
    prompt = request.observation, request.instruction, request.history
    return prompt if request.active_call is None else (*prompt, request.active_call)


class STModel:
    """The ST decoder as a decider of requests. Requests to models of one `kind` are decided together."""

    def __init__(self, decider: Any, patient: bool = False) -> None:
        self._decider, self.patient = decider, patient

    def decide(self, request: DecisionRequest) -> Decision:
        decision: Decision = self._decider.decide(*_prompt(request))
        return decision

    def decide_in_steps(self, request: DecisionRequest) -> Generator[None, None, Decision]:
        decision: Decision = yield from self._decider.decide_in_steps(*_prompt(request), sliced=self.patient)
        return decision

    @property
    def kind(self) -> Hashable:
        return None if self.patient else id(self._decider.runner)

    @staticmethod
    def together(pairs: Any) -> Generator[None, None, list[Decision | Exception]]:
        from rtcontrol.models.decider import decide_together_in_steps

        return decide_together_in_steps([(model._decider, _prompt(request)) for model, request in pairs])

    def cancel(self) -> None:
        self._decider.cancel()

    def info(self) -> dict[str, Any]:
        return dict(self._decider.info())


# -- crowds: one request for many members, and one reply with all of their replies -------------------------------------


def crowd_request(number: int, members: Sequence[DecisionRequest], within_ns: int) -> DecisionRequest:
    """Return one request for all members. The `epoch` identifies a member, since it is unique."""
    return DecisionRequest(number, 0, "", "", within_ns=within_ns, members=tuple(members))


def member_replies(reply: DecisionReply, members: Sequence[DecisionRequest]) -> list[DecisionReply]:
    """Return the reply to each member; a reply without members passes its error on to each of them."""
    if len(reply.members) != len(members):
        error = reply.error or f"the decoder decided for {len(reply.members)} of {len(members)}"
        return [DecisionReply(member.tick, None, error, reply.decide_ns, reply.user_error) for member in members]
    return [replace(each, decide_ns=reply.decide_ns) for each in reply.members]


def crowd_source(source: DeciderSource) -> DeciderSource:
    """Return the source of the same decider for a crowd. A script decides for the members one after the other."""
    if isinstance(source, STSource):
        return CrowdSTSource(source.spec)
    return source


@dataclass(frozen=True)
class CrowdSTSource(STSource):
    """The source of an ST model that decides for a crowd of one agent."""

    def build(self) -> Any:
        from rtcontrol.models.crowd import CrowdDecoder

        return CrowdModel(CrowdDecoder(self.spec))


class CrowdModel:
    """The ST decoder of a crowd. A crowd's batch is large enough, so no other session is decided with it."""

    def __init__(self, decoder: CrowdDecoder) -> None:
        self._decoder = decoder

    def decide_in_steps(self, request: DecisionRequest) -> Generator[None, None, list[Decision | Exception]]:
        from rtcontrol.models.crowd import CharacterPrompt

        members = request.members
        prompts = [CharacterPrompt(str(m.epoch), m.observation, m.instruction, m.history) for m in members]
        return self._decoder.decide_in_steps(prompts)

    def info(self) -> dict[str, Any]:
        return dict(self._decoder.decider.info())


# -- questions about a state -------------------------------------------------------------------------------------------

ANSWERS = "answers"


def encode_questions(questions: Sequence[StateQuestion]) -> str:
    """Return the questions as a request's instruction; the state is its observation."""
    return json.dumps([(question.text, question.options) for question in questions])


@lru_cache(16)
def _questions(instruction: str) -> tuple[StateQuestion, ...]:
    from rtcontrol.models.questions import StateQuestion  # with torch, which the other deciders do without

    return tuple(StateQuestion(text, tuple(options)) for text, options in json.loads(instruction))


@dataclass(frozen=True)
class QuestionSource:
    """The source of a QuestionModel; `spec` is a `rtcontrol.models.decider.DeciderSpec`, whose tools are not used."""

    spec: Any

    def build(self) -> QuestionModel:
        from rtcontrol.models.questions import QuestionDecider

        return QuestionModel(QuestionDecider(self.spec))


class QuestionModel(SteppedDecider):
    """Answer questions by a call named ANSWERS: the `probabilities` of the options, and how many tokens were `kept`.

    The callers can wait, so other sessions are decided first."""

    patient = True

    def __init__(self, decider: Any) -> None:
        self._decider = decider

    def decide_in_steps(self, request: DecisionRequest) -> Generator[None, None, Decision]:
        answers = yield from self._decider.answer_in_steps(request.observation, _questions(request.instruction))
        call = Call(ANSWERS, {"probabilities": answers.probabilities, "kept": answers.kept})
        return Decision(call, {}, answers.forward_passes, answers.tokens, answers.reused_tokens)

    def info(self) -> dict[str, Any]:
        return dict(self._decider.info())
