"""A model that answers questions, as a decider of requests: these cross to a host as any other does."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rtcontrol.hosts.base import DecisionRequest
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.in_flight import result
from rtcontrol.models.questions import StateQuestion

ANSWERS = "answers"


def told(questions: Sequence[StateQuestion]) -> str:
    """The questions as a request's instruction carries them; the state is its observation."""
    return json.dumps([(question.text, question.options) for question in questions])


@lru_cache(16)
def _read(instruction: str) -> tuple[StateQuestion, ...]:
    return tuple(StateQuestion(text, tuple(options)) for text, options in json.loads(instruction))


@dataclass(frozen=True)
class QuestionSource:
    """`spec` is a `rtcontrol.models.decider.DeciderSpec`, of which the tools are not looked at."""

    spec: Any

    def build(self) -> QuestionModel:
        from rtcontrol.models.questions import QuestionDecider

        return QuestionModel(QuestionDecider(self.spec))


class QuestionModel:
    """Gives a call named ANSWERS: `probabilities` of each question's options, and how many tokens of the state are
    `kept` newly. Whoever asks can wait: its work gives way to other sessions'."""

    patient = True

    def __init__(self, decider: Any) -> None:
        self._decider = decider

    def decide(self, request: DecisionRequest) -> Decision:
        return result(self.decide_in_steps(request))

    def decide_in_steps(self, request: DecisionRequest) -> Generator[None, None, Decision]:
        found = yield from self._decider.answer_in_steps(request.observation, _read(request.instruction))
        call = Call(ANSWERS, {"probabilities": found.probabilities, "kept": found.kept})
        return Decision(call, {}, None, found.forward_passes, found.tokens, found.reused_tokens)

    def info(self) -> dict[str, Any]:
        return dict(self._decider.info())
