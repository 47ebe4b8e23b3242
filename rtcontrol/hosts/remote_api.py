"""Decides by a decision API over HTTP (`--model decisions:URL`, `systemone:URL`); docs/decisions.md."""

from __future__ import annotations

import concurrent.futures
import json
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import SplitResult, urlsplit

from rtcontrol.hosts.deciders import SteppedDecider
from rtcontrol.hosts.protocol import DecisionLost, DecisionRequest
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import ClosedDomain
from rtcontrol.models.schema.tool_schema import ABSENT, Slot, ToolSchema, tool_schemas
from rtcontrol.models.web import WebAnswer, WebClient, WebError
from rtcontrol_client.wire.endpoint import is_loopback

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


class CallQuestions:
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
            return Decision(None, confidence)
        arguments: dict[str, Any] = {}
        for k, (slot, one) in enumerate(zip(self.tools[tool].slots(), self._arguments[tool], strict=True), start=1):
            if (found := value(f"arg{k}", one)) is not ABSENT:
                arguments |= slot.arguments(found)
        return Decision(Call(self.tools[tool].name, arguments), confidence)


def state(request: DecisionRequest) -> str:
    """What the questions are about; what changes most comes last."""
    calls = "; ".join(request.history) or "none"
    return f"Instruction: {request.instruction}\nCalls so far: {calls}\nObservation: {request.observation}"


class DecisionsWire:
    """OpenAI's `/v1/decisions`: answers come in the order of the questions."""

    path, state = "/decisions", "input"

    def body(self, questions: CallQuestions) -> list[Any]:
        return [
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

    def answers(self, questions: CallQuestions, found: Any) -> Mapping[str, Any]:
        if not isinstance(found, list) or len(found) != len(questions.asked):
            raise DecisionLost("malformed", f"not one answer for each of {len(questions.asked)} questions")
        return {one.name: answer for one, answer in zip(questions.asked, found, strict=True)}


class SystemOneWire:
    """The System One shape, `/v1/systemone`: answers come by the questions' names."""

    path, state = "/systemone", "state"

    def body(self, questions: CallQuestions) -> dict[str, Any]:
        return {
            one.name: {
                "type": "choice",
                "instructions": one.instructions,
                "criteria": {option: words or None for option, words in one.descriptions.items()},
            }
            for one in questions.asked
        }

    def answers(self, questions: CallQuestions, found: Any) -> Mapping[str, Any]:
        if not isinstance(found, dict):
            raise DecisionLost("malformed", "no answers by name")
        return found


def _said(one: ClosedQuestion, given: Any) -> Said:
    """The choice and its probability, or what its confidence tells of that; some endpoints give neither: it is 1.
    Raises DecisionLost."""
    given = _checked(one, given)
    shares, choice = given.get("probabilities"), given["choice"]
    if isinstance(shares, list):
        shares = {str(row.get("value")): row.get("probability") for row in shares if isinstance(row, dict)}
    probability = _share(shares.get(choice)) if isinstance(shares, dict) else None
    if probability is None and (confidence := _share(given.get("confidence"))) is not None:
        probability = (confidence * (len(one.values) - 1) + 1) / len(one.values)
    return choice, 1.0 if probability is None else probability


def _checked(one: ClosedQuestion, given: Any) -> dict[str, Any]:
    if isinstance(given, dict) and given.get("type") == "refusal":
        raise DecisionLost("refused", f"the model declined to answer the question {one.name}")
    if not isinstance(given, dict) or not isinstance(given.get("choice"), str):
        raise DecisionLost("malformed", f"no choice for the question {one.name}: {json.dumps(given)[:80]}")
    return given


def _share(value: Any) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and 0 <= value <= 1 else None


WIRES: dict[str, DecisionsWire | SystemOneWire] = {"decisions": DecisionsWire(), "systemone": SystemOneWire()}
POLICIES = ("openpi",)  # `rtcontrol.hosts.policy_api`
KEY = "RTCONTROL_DECISION_KEY"
LONGEST_S = 10.0
# So long before the deadline (and so much of the time until then) an answer is given up: the loop hears of it in time,
# and knows what was missed.
SPARE_S, SPARE = 0.002, 0.05
LOOK_S = 0.002  # so often it is asked whether anybody still waits


def is_endpoint(model: str | None) -> bool:
    """Whether a model's name is that of an endpoint, one of policies, too."""
    return model is not None and model.partition(":")[0] in (*WIRES, *POLICIES)


def is_policy(model: str | None) -> bool:
    """Whether it is that of a policy server, which is asked by arrays."""
    return model is not None and model.partition(":")[0] in POLICIES


@dataclass(frozen=True)
class EndpointSource:
    """`api` is one of WIRES, `url` that of its route, `model` the name that is asked for. With `late` an answer is
    waited for beyond its request's time."""

    api: str
    url: str
    model: str
    tools: tuple[dict[str, Any], ...]
    allow_null: bool = False
    late: bool = False
    key: str | None = field(default=None, repr=False)

    @classmethod
    def parse(
        cls, name: str, tools: Sequence[dict[str, Any]], allow_null: bool = False, late: bool = False
    ) -> EndpointSource:
        """From `decisions:URL#MODEL`; the key is in the environment. Raises UserError."""
        api = name.partition(":")[0]
        if api not in WIRES:
            raise UserError(
                f"{name[:80]} is a policy server: it reads observations, and no text.",
                "Fly it (`rtcontrol run --model`, docs/policies.md), and name a model that reads text here.",
            )
        url, model, key = address(name, WIRES[api].path)
        source = cls(api, url, model or "default", tuple(tools), allow_null, late, key)
        CallQuestions(source.tools, allow_null)
        return source

    def build(self) -> EndpointDecider:
        return EndpointDecider(self)


def endpoint_url(name: str, schemes: Sequence[str], form: str) -> SplitResult:
    """Return the URL of `API:URL`. Raises UserError for another, with the `form` to write."""
    api, _, given = name.partition(":")
    try:
        parts = urlsplit(given)
        _ = parts.port
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in schemes or not parts.hostname or parts.username or parts.password:
        raise UserError(f"{api}: its URL is none.", f"Write {form}.")
    return parts


def secret(variable: str, url: SplitResult) -> str | None:
    """Return the key of the environment for this URL. Raises UserError where it would travel in the clear, and for one
    that no header takes."""
    key = os.environ.get(variable) or None
    if key is None:
        return None
    if url.scheme in ("http", "ws") and not is_loopback(url.hostname or ""):
        raise UserError(
            f"{variable} would travel to {url.hostname} in the clear.",
            f"Use {url.scheme}s, or unset it where none is needed.",
        )
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise UserError(f"{variable} is no key: no header takes it.", "Letters, digits and signs, without spaces.")
    return key


def address(name: str, route: str) -> tuple[str, str, str | None]:
    """Of `API:URL#MODEL` the address of the API's route, the model, "" where none is named, and the key, which is in
    the environment. Raises UserError."""
    api = name.partition(":")[0]
    form = f"{api}:https://HOST/v1#MODEL; a key goes into the environment, as {KEY}"
    parts = endpoint_url(name, ("http", "https"), form)
    path = parts.path.rstrip("/")
    if not path.endswith(route):
        path = f"{path or '/v1'}{route}"
    return parts._replace(path=path, fragment="").geturl(), parts.fragment, secret(KEY, parts)


class EndpointDecider(SteppedDecider):
    """Asks an endpoint, on a connection that is kept open and a thread of its own; one decision at a time."""

    def __init__(self, source: EndpointSource, web: WebClient | None = None) -> None:
        self._source, self._wire = source, WIRES[source.api]
        self._questions = CallQuestions(source.tools, source.allow_null)
        self._same = {"model": source.model, "questions": self._wire.body(self._questions)}
        headers = {"authorization": f"Bearer {source.key}"} if source.key is not None else {}
        self._web = WebClient(source.url, headers) if web is None else web

    def decide_in_steps(self, request: DecisionRequest) -> Generator[None, None, Decision]:
        """Raises DecisionLost. Where it is given up, the request is closed."""
        if not self._questions.asked:
            return self._questions.decision(lambda one: (next(iter(one.values)), 1.0))
        limit = None if self._source.late else time_of(request)
        body = self._same | {self._wire.state: state(request)}
        return self._read((yield from posted(self._web, body, LONGEST_S if limit is None else limit)))

    def _read(self, answer: WebAnswer) -> Decision:
        found = read_answer(answer)
        if not isinstance(found, dict):
            raise DecisionLost("malformed", "the answer is no JSON object")
        answers = self._wire.answers(self._questions, found.get("answers"))
        made = self._questions.decision(lambda one: _said(one, answers.get(one.name)))
        tokens, cached = _tokens(found.get("usage"))
        return replace(made, forward_passes=1, tokens=tokens, reused_tokens=cached)

    def info(self) -> dict[str, Any]:
        source = self._source
        return {"engine": source.api, "model": source.model, "url": source.url, "questions": len(self._questions.asked)}


def time_of(request: DecisionRequest) -> float | None:
    """So many seconds an answer may take for its request to hear of it in time; None where nobody waits."""
    within_s = request.within_ns / 1e9
    return max(within_s - max(SPARE_S, SPARE * within_s), 0.0) if within_s else None


def posted(web: WebClient, body: Any, limit_s: float) -> Generator[None, None, WebAnswer]:
    """The answer, waited for in steps; where they are given up, the request is closed. Raises DecisionLost."""
    try:
        return (yield from done_in_steps(web.post(body, limit_s)))
    except WebError as error:
        raise DecisionLost(error.loss, str(error)) from None


def done_in_steps(job: concurrent.futures.Future[Any]) -> Generator[None, None, Any]:
    """The job's result, waited for in steps; where they are given up, it is cancelled."""
    try:
        while True:
            try:
                return job.result(LOOK_S)
            except TimeoutError:
                if job.done():
                    raise
            yield
    finally:
        job.cancel()


def read_answer(answer: WebAnswer) -> Any:
    """What it says as JSON, None for what is none. Raises DecisionLost for an error."""
    try:
        found = answer.json()
    except ValueError:
        found = None
    if answer.status != 200:
        raise DecisionLost("http", f"HTTP {answer.status}: {_message(found)}")
    return found


def _message(found: Any) -> str:
    """What an error's body says, in short."""
    error = found.get("error", found) if isinstance(found, dict) else "it says nothing"
    said = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(said).split())[:200]


def _tokens(used: Any) -> tuple[int, int]:
    """Read, and cached, as the endpoint counts them; some leave one or the other out."""
    used = used if isinstance(used, dict) else {}
    details = used.get("input_tokens_details")
    total = _count(used.get("input_tokens"))
    cached = min(_count((details if isinstance(details, dict) else used).get("cached_tokens")), total)
    return total - cached, cached


def _count(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0
