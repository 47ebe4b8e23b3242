"""Recipes of deciders: the ST model, and the plain ones that need no model (expert, no-op, random); how to ask one, or
several together, and the lane that asks those of many sessions."""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rtcontrol.hosts.protocol import Decider, DeciderSource, DecisionLost, DecisionReply, DecisionRequest
from rtcontrol.hosts.scheduler import EdfScheduler, Turn
from rtcontrol.models.call import Call, Decision, Plan
from rtcontrol.models.errors import UserError
from rtcontrol.models.in_flight import result
from rtcontrol.models.schema.random_call import check_random, random_call
from rtcontrol.models.schema.tool_schema import tool_schemas

if TYPE_CHECKING:
    from rtcontrol.models.questions import StateQuestion

FAULTS = (Exception, SystemExit)  # whatever a decider raises costs one tick, never the loop
PLAIN = ("expert", "noop", "random")
log = logging.getLogger("rtcontrol.hosts")


def build(source: DeciderSource) -> Decider:
    """The source's decider; whatever goes wrong becomes a UserError."""
    try:
        return source.build()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"The decider cannot be built: {error!r}.", "Run with --debug.") from error


def answer(decider: Decider, request: DecisionRequest) -> DecisionReply:
    """Decide; an exception becomes the reply's error, in one line."""
    return result(_answer_in_steps(decider, request))


def _answer_in_steps(decider: Decider, request: DecisionRequest) -> Generator[None, None, DecisionReply]:
    began = time.monotonic_ns()
    steps: Any = getattr(decider, "decide_in_steps", None)
    try:
        return reply_to(request, began, decider.decide(request) if steps is None else (yield from steps(request)))
    except FAULTS as error:
        return reply_to(request, began, error)


def answer_together(
    asked: Sequence[tuple[Decider, DecisionRequest]], cancelled: Callable[[int], bool]
) -> Generator[None, None, list[DecisionReply | None]]:
    """Of each its reply, or None where it was given up. Several must be of one `kind`. It may be left alone wherever it
    yields; `cancelled` is asked there whether nobody waits for the one at this place any more."""
    began = time.monotonic_ns()
    gone: set[int] = set()
    alone = len(asked) == 1
    steps: Any = _answer_in_steps(*asked[0]) if alone else asked[0][0].together(asked)  # type: ignore[attr-defined]
    while True:
        try:
            next(steps)
        except StopIteration as done:
            if alone:
                return [done.value]
            return [
                None if i in gone else reply_to(request, began, found, len(asked))
                for i, ((_, request), found) in enumerate(zip(asked, done.value, strict=True))
            ]
        for i, (decider, _) in enumerate(asked):
            if i not in gone and cancelled(i):
                gone.add(i)
                if alone:
                    steps.close()
                    return [None]
                decider.cancel()  # type: ignore[attr-defined]
        yield


def reply_to(request: DecisionRequest, began: int, found: Decision | BaseException, together: int = 1) -> DecisionReply:
    """Return what came of a request: a decision, or what was raised."""
    took, received = time.monotonic_ns() - began, request.received_ns or began
    if not isinstance(found, BaseException):
        return DecisionReply(request.tick, found, None, took, None, received, began, (), together)
    mistake = (found.what, found.remedy) if isinstance(found, UserError) else None
    loss = found.loss if isinstance(found, DecisionLost) else None
    said = str(found) if mistake or loss else f"{type(found).__name__}: {found}"
    line = (said.splitlines() or [""])[0]
    return DecisionReply(request.tick, None, line, took, mistake, received, began, (), together, loss)


def describe(decider: Decider) -> dict[str, Any]:
    """What a decider says of itself; empty where it says nothing."""
    info = getattr(decider, "info", None)
    return dict(info()) if info is not None else {}


def end(decider: Decider) -> None:
    """Its session is over: what it holds open is closed. What it raises is logged."""
    try:
        close = getattr(decider, "close", None)
        if close is not None:
            close()
    except FAULTS:
        log.exception("close() of a decider (%s) failed; its session is over all the same", type(decider).__qualname__)


class DeciderLane:
    """One thread that decides turn after turn what `rota` says, for sessions of which it has a decider each. A patient
    session's decision gives way to others wherever it can be left alone.

    `decider_of` gives a session's decider, None where the session is over; `cancelled` whether no one waits for a
    request any more; `answer` takes each reply, None of one that was given up.
    """

    def __init__(
        self,
        rota: EdfScheduler,
        decider_of: Callable[[Any], Decider | None],
        cancelled: Callable[[Any, DecisionRequest], bool],
        answer: Callable[[Any, DecisionRequest, DecisionReply | None], None],
    ) -> None:
        self.rota = rota
        self._decider_of, self._cancelled, self._answer = decider_of, cancelled, answer
        self._late: tuple[Any, Generator[None, None, None]] | None = None  # the patient session's under way

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return self._late is None

    def take(self, now_ns: int) -> list[Turn]:
        """Return whose turn it is; empty where nobody waits, or only who can wait for what is under way."""
        return self.rota.take(now_ns, self._kind, self._patient, late=self.idle)

    def run(self, turn: Sequence[Turn]) -> None:
        """Decide the turn; without one, take a step of what is under way."""
        if turn and self._patient(turn[0][0]):
            self._late = turn[0][0], self.decide(turn)
        elif turn:
            began = time.monotonic_ns()
            for _ in self.decide(turn):
                pass
            self.rota.took(self._kind(turn[0][0]), len(turn), time.monotonic_ns() - began)
        elif self._late is not None:
            try:
                next(self._late[1])
            except StopIteration:
                self._late = None

    def decide(self, turn: Sequence[Turn]) -> Generator[None, None, None]:
        """Decide a turn in steps, of sessions that are not over, and answer."""
        there = [(one, decider) for one in turn if (decider := self._decider_of(one[0])) is not None]
        if not there:
            return
        asked = [(decider, request) for (_, request), decider in there]
        replies = yield from answer_together(asked, lambda i: self._cancelled(*there[i][0]))
        for (one, _), reply in zip(there, replies, strict=True):
            self._answer(*one, reply)

    def _patient(self, key: Any) -> bool:
        """Return whether its decisions give way to others'."""
        return bool(getattr(self._decider_of(key), "patient", False))

    def _kind(self, key: Any) -> Hashable:
        """Return what decides together with others of the same kind: the model; None where nothing can be shared."""
        found: Hashable = getattr(self._decider_of(key), "kind", None)
        return found


class SteppedDecider:
    """One that may be left alone, or given up, wherever its steps yield."""

    def decide(self, request: DecisionRequest) -> Decision:
        return result(self.decide_in_steps(request))

    def decide_in_steps(self, request: DecisionRequest) -> Generator[None, None, Decision]:
        raise NotImplementedError


@dataclass(frozen=True)
class STSource:
    """An ST model; `spec` is a `rtcontrol.models.decider.DeciderSpec`. A `patient` one is for whoever can wait, as a
    request of HTTP can: its work gives way to other sessions'."""

    spec: Any
    patient: bool = False

    def build(self) -> STModel:
        return STModel(self.spec.build(), self.patient)


def _asked(request: DecisionRequest) -> Any:
    what = request.observation, request.instruction, request.history
    return what if request.standing is None else (*what, request.standing)


class STModel:
    """The ST decoder as a decider of requests."""

    def __init__(self, decider: Any, patient: bool = False) -> None:
        self._decider, self.patient = decider, patient

    def decide(self, request: DecisionRequest) -> Decision:
        decision: Decision = self._decider.decide(*_asked(request))
        return decision

    def decide_in_steps(self, request: DecisionRequest) -> Generator[None, None, Decision]:
        decision: Decision = yield from self._decider.decide_in_steps(*_asked(request), sliced=self.patient)
        return decision

    @property
    def kind(self) -> Hashable:
        return None if self.patient else id(self._decider.runner)

    @staticmethod
    def together(asked: Any) -> Generator[None, None, list[Decision | Exception]]:
        from rtcontrol.models.decider import decide_together_in_steps

        return decide_together_in_steps([(model._decider, _asked(request)) for model, request in asked])

    def cancel(self) -> None:
        self._decider.cancel()

    def info(self) -> dict[str, Any]:
        return dict(self._decider.info())


# A tool with a free value: what sessions need for their first one is made when it is loaded.
FREE_VALUE: dict[str, Any] = {"name": "say", "parameters": {"properties": {"text": {"type": "string"}}}}


@dataclass(frozen=True)
class ExpertSource:
    """A scripted decider: `function` gives the call (or a plan) for a request, None to leave whatever is in force."""

    function: Callable[[DecisionRequest], Call | Plan | None]
    model: str = "expert"

    def build(self) -> ExpertSource:
        return self

    def decide(self, request: DecisionRequest) -> Decision:
        decided = self.function(request)
        return Decision(decided.calls[0], plan=decided) if isinstance(decided, Plan) else Decision(decided)

    def info(self) -> dict[str, Any]:
        return {"engine": "script", "model": self.model}


def _null(request: DecisionRequest) -> None:
    return None


@dataclass(frozen=True)
class NoopSource(ExpertSource):
    """Leaves whatever is in force: the null function, always."""

    function: Callable[[DecisionRequest], Call | None] = _null
    model: str = "noop"


@dataclass(frozen=True)
class RandomSource:
    """A uniformly random legal call each tick, and another draw for each further call of a tick; optional parameters
    of an open domain are left out.

    The same seed, tick and epoch give the same first call, in every lane.
    """

    tools: Sequence[dict[str, Any]]
    seed: int = 0

    def build(self) -> ExpertSource:
        schemas = tool_schemas(list(self.tools))
        check_random(schemas)
        asked = ("", 0)  # the tick asked for last, and how often

        def call(request: DecisionRequest) -> Call:
            nonlocal asked
            tick = f"{self.seed}/{request.epoch}/{request.tick}"
            asked = tick, asked[1] + 1 if asked[0] == tick else 0
            chance = random.Random(f"{tick}/{asked[1]}" if asked[1] else tick)
            return random_call(schemas, chance)

        return ExpertSource(call, "random")


ANSWERS = "answers"


def encode_questions(questions: Sequence[StateQuestion]) -> str:
    """The questions as a request's instruction carries them; the state is its observation."""
    return json.dumps([(question.text, question.options) for question in questions])


@lru_cache(16)
def _read(instruction: str) -> tuple[StateQuestion, ...]:
    from rtcontrol.models.questions import StateQuestion  # with torch, which the other deciders do without

    return tuple(StateQuestion(text, tuple(options)) for text, options in json.loads(instruction))


@dataclass(frozen=True)
class QuestionSource:
    """`spec` is a `rtcontrol.models.decider.DeciderSpec`, of which the tools are not looked at."""

    spec: Any

    def build(self) -> QuestionModel:
        from rtcontrol.models.questions import QuestionDecider

        return QuestionModel(QuestionDecider(self.spec))


class QuestionModel(SteppedDecider):
    """Gives a call named ANSWERS: `probabilities` of each question's options, and how many tokens of the state are
    `kept` newly. Whoever asks can wait: its work gives way to other sessions'."""

    patient = True

    def __init__(self, decider: Any) -> None:
        self._decider = decider

    def decide_in_steps(self, request: DecisionRequest) -> Generator[None, None, Decision]:
        found = yield from self._decider.answer_in_steps(request.observation, _read(request.instruction))
        call = Call(ANSWERS, {"probabilities": found.probabilities, "kept": found.kept})
        return Decision(call, {}, found.forward_passes, found.tokens, found.reused_tokens)

    def info(self) -> dict[str, Any]:
        return dict(self._decider.info())
