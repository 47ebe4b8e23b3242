"""A call as questions to a decision API, and the answers as a call.

All are asked in one request: which function, and of every function's arguments what each were if it is the one. That
costs tokens; to ask for the arguments in a second request would cost a round trip, of 100 ms and more where these
endpoints are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rtcontrol.hosts.base import DecisionLost, DecisionRequest
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import ClosedDomain
from rtcontrol.models.schema.tool_schema import ABSENT, Slot, ToolSchema, tool_schemas

MOST_OPTIONS, MOST_QUESTIONS = 255, 400  # of these APIs
NONE = "(none)"
Said = tuple[str, float]  # an option, and its probability


@dataclass(frozen=True)
class ClosedQuestion:
    """A question: by what they are called, each option's description and value. `name` is unique in a request."""

    name: str
    instructions: str
    descriptions: Mapping[str, str]
    values: Mapping[str, Any]


class Questionnaire:
    """Of an agent's tools. Raises UserError for what no list of options holds."""

    def __init__(self, tools: Sequence[dict[str, Any]], allow_null: bool) -> None:
        self.tools = tool_schemas(tools)
        self.asked: list[ClosedQuestion] = []  # what is sent
        described = {tool.name: tool.description for tool in self.tools}
        called: dict[str, Any] = {tool.name: i for i, tool in enumerate(self.tools)}
        if allow_null:
            if NONE in called:
                raise UserError(f"A tool is called {NONE!r}, which stands for no call.", "Rename it.")
            described[NONE], called[NONE] = "The call that is in force goes on.", None
        self._function = self._ask("function", "Which function is to be called now?", described, called)
        self._arguments = [[self._argument(tool, slot) for slot in tool.slots()] for tool in self.tools]
        if len(self.asked) > MOST_QUESTIONS:
            what = f"These tools are {len(self.asked)} questions, and a decision API takes {MOST_QUESTIONS}."
            raise UserError(what, "Give the agent fewer tools or parameters.")

    def _ask(self, name: str, words: str, descriptions: Mapping[str, str], values: Mapping[str, Any]) -> ClosedQuestion:
        while any(name == other.name for other in self.asked):  # tool a.b has a parameter c, and tool a one called b.c
            name += "'"
        one = ClosedQuestion(name, words, descriptions, values)
        if len(values) > 1:
            self.asked.append(one)
        return one

    def _argument(self, tool: ToolSchema, slot: Slot) -> ClosedQuestion:
        names = ", ".join(p.name for p in slot.parameters)
        where = f"Tool {tool.name}, parameter {names}"
        if not isinstance(slot.domain, ClosedDomain):
            raise UserError(
                f"{where}: its values cannot be listed, and a decision API chooses among options.",
                "Give it an enum, or bounds and a step (multipleOf); or use a model that writes values.",
            )
        values: dict[str, Any] = dict(zip(slot.domain.texts, slot.domain.values, strict=True))
        if slot.null:
            if NONE in values:
                raise UserError(f"{where}: {NONE!r} stands for leaving it out.", "Rename this value.")
            values[NONE] = slot.null[0]
        if len(values) > MOST_OPTIONS:
            raise UserError(
                f"{where}: {len(values)} values, and a decision API takes {MOST_OPTIONS} options.",
                "Give it a larger step (multipleOf), or narrower bounds.",
            )
        about = "; ".join(str(p.schema["description"]) for p in slot.parameters if p.schema.get("description"))
        words = f"If the function is {tool.name}, what is {names}?" + (f" {about}" if about else "")
        return self._ask(f"{tool.name}.{names}", words, dict.fromkeys(values, ""), values)

    def decision(self, answer: Callable[[ClosedQuestion], Said]) -> Decision:
        """From the answers to the function's question and to those of its arguments; others are not looked at. Raises
        DecisionLost."""
        confidence: dict[str, float] = {}

        def value(head: str, one: ClosedQuestion) -> Any:
            said, confidence[head] = answer(one) if len(one.values) > 1 else (next(iter(one.values)), 1.0)
            if said not in one.values:
                raise DecisionLost("malformed", f"{said[:80]!r} is no option of the question {one.name}")
            return one.values[said]

        tool = value("function", self._function)
        if tool is None:
            return Decision(None, confidence, None)
        arguments: dict[str, Any] = {}
        for k, (slot, one) in enumerate(zip(self.tools[tool].slots(), self._arguments[tool], strict=True), start=1):
            if (found := value(f"arg{k}", one)) is not ABSENT:
                arguments |= slot.arguments(found)
        return Decision(Call(self.tools[tool].name, arguments), confidence, None)


def state(request: DecisionRequest) -> str:
    """What the questions are about; what changes most comes last."""
    calls = "; ".join(request.history) or "none"
    return f"Instruction: {request.instruction}\nCalls so far: {calls}\nObservation: {request.observation}"


class EndpointWire(Protocol):
    """How an API is asked and read: the `path` of its route, the part of a `body` that stays the same, and what a
    request has besides."""

    path: str

    def body(self, questions: Questionnaire) -> dict[str, Any]: ...

    def told(self, request: DecisionRequest) -> dict[str, Any]: ...

    def read(self, questions: Questionnaire, found: Any) -> Callable[[ClosedQuestion], Said]:
        """The answers by question. Raises DecisionLost."""


class DecisionsWire:
    """OpenAI's `/v1/decisions`: answers come in the order of the questions."""

    path: str = "/decisions"

    def body(self, questions: Questionnaire) -> dict[str, Any]:
        asked = [
            {
                "type": "choice",
                "name": one.name,
                "instructions": one.instructions,
                "choices": [
                    {"value": option} | ({"description": words} if words else {})
                    for option, words in one.descriptions.items()
                ],
            }
            for one in questions.asked
        ]
        return {"questions": asked}

    def told(self, request: DecisionRequest) -> dict[str, Any]:
        return {"input": state(request)}

    def read(self, questions: Questionnaire, found: Any) -> Callable[[ClosedQuestion], Said]:
        if not isinstance(found, list) or len(found) != len(questions.asked):
            raise DecisionLost("malformed", f"not one answer for each of {len(questions.asked)} questions")
        by_name = {one.name: answer for one, answer in zip(questions.asked, found, strict=True)}

        def answer(one: ClosedQuestion) -> Said:
            given = _checked(one, by_name[one.name])
            shares = given.get("probabilities")
            rows = shares if isinstance(shares, list) else []
            return _said(one, given, {str(r.get("value")): r.get("probability") for r in rows if isinstance(r, dict)})

        return answer


class SystemOneWire:
    """The System One shape, `/v1/systemone`."""

    path: str = "/systemone"

    def body(self, questions: Questionnaire) -> dict[str, Any]:
        return {
            "questions": {
                one.name: {
                    "type": "choice",
                    "instructions": one.instructions,
                    "criteria": {option: words or None for option, words in one.descriptions.items()},
                }
                for one in questions.asked
            }
        }

    def told(self, request: DecisionRequest) -> dict[str, Any]:
        return {"state": state(request)}

    def read(self, questions: Questionnaire, found: Any) -> Callable[[ClosedQuestion], Said]:
        if not isinstance(found, dict):
            raise DecisionLost("malformed", "no answers by name")

        def answer(one: ClosedQuestion) -> Said:
            given = _checked(one, found.get(one.name))
            shares = given.get("probabilities")
            return _said(one, given, shares if isinstance(shares, dict) else {})

        return answer


def _checked(one: ClosedQuestion, given: Any) -> dict[str, Any]:
    if isinstance(given, dict) and given.get("type") == "refusal":
        raise DecisionLost("refused", f"the model declined to answer the question {one.name}")
    if not isinstance(given, dict) or not isinstance(given.get("choice"), str):
        raise DecisionLost("malformed", f"no choice for the question {one.name}: {json.dumps(given)[:80]}")
    return given


def _said(one: ClosedQuestion, given: Mapping[str, Any], shares: Mapping[str, Any]) -> Said:
    """The choice and its probability, or what its confidence tells of that; some endpoints give neither: it is 1."""
    choice = str(given["choice"])
    probability = _share(shares.get(choice))
    if probability is None and (confidence := _share(given.get("confidence"))) is not None:
        probability = (confidence * (len(one.values) - 1) + 1) / len(one.values)
    return choice, 1.0 if probability is None else probability


def _share(value: Any) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and 0 <= value <= 1 else None
