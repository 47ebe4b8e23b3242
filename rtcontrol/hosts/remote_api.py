"""Decides by a server over HTTP: decision APIs (`--model decisions:URL`, `systemone:URL`; docs/decisions.md) and models
that chat (`chat:URL#NAME`). What all remote deciders share is here too: addresses, keys, time limits."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

from rtcontrol.hosts.deciders import SteppedDecider
from rtcontrol.hosts.protocol import DecisionLost, DecisionRequest
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import ClosedDomain
from rtcontrol.models.schema.tool_schema import ABSENT, Slot, ToolSchema, tool_schemas
from rtcontrol.models.web import WebClient, WebError
from rtcontrol_client.wire.endpoint import is_loopback

T = TypeVar("T")
CHAT = "chat"
POLICIES = ("openpi",)  # `rtcontrol.hosts.policy_api`
KEY = "RTCONTROL_DECISION_KEY"
LONGEST_S = 10.0
# An answer is given up so long before the deadline (and so much of the time until then): the loop hears of it in time,
# and knows what was missed.
SPARE_S, SPARE = 0.002, 0.05
LOOK_S = 0.002  # between two looks whether the request was cancelled


# -- what all remote deciders share ------------------------------------------------------------------------------------


def is_endpoint(model: str | None) -> bool:
    """Return whether a model's name is that of a decision API or a policy server."""
    return model is not None and model.partition(":")[0] in ("decisions", "systemone", *POLICIES)


def is_policy(model: str | None) -> bool:
    """Return whether it is that of a policy server, which is asked by arrays."""
    return model is not None and model.partition(":")[0] in POLICIES


def is_chat(model: str) -> bool:
    """Return whether it is that of a model that chats."""
    return model.partition(":")[0] == CHAT


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


def time_of(request: DecisionRequest, late: bool) -> float | None:
    """Return how many seconds an answer may take for its request to hear of it in time; None where the caller waits
    for it in any case."""
    if late or not request.within_ns:
        return None
    within_s = request.within_ns / 1e9
    return max(within_s - max(SPARE_S, SPARE * within_s), 0.0)


def done_in_steps(job: Future[T]) -> Generator[None, None, T]:
    """Return the job's result, waited for in steps; where they are given up, it is cancelled."""
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


# -- over HTTP ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EndpointSource:
    """`api` is one of APIS, `url` that of its route, `model` the name that is asked for. With `allow_null` it may say
    that no call is meant; with `late` an answer is waited for beyond its request's time."""

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
        """From `API:URL#MODEL`; the key is in the environment. Raises UserError, also for tools that the API cannot
        be asked about."""
        api = name.partition(":")[0]
        if api not in APIS:
            raise UserError(
                f"{name[:80]} is a policy server: it reads observations, and no text.",
                "Fly it (`rtcontrol run --model`, docs/policies.md), and name a model that reads text here.",
            )
        form = f"{api}:https://HOST/v1#MODEL; a key goes into the environment, as {KEY}"
        parts, made = endpoint_url(name, ("http", "https"), form), APIS[api]
        made(list(tools), allow_null)
        path = parts.path.rstrip("/")
        if not path.endswith(made.route):
            path = f"{path or '/v1'}{made.route}"
        url = parts._replace(path=path, fragment="").geturl()
        return cls(api, url, parts.fragment or "default", tuple(tools), allow_null, late, secret(KEY, parts))

    def build(self) -> EndpointDecider:
        return EndpointDecider(self)


class EndpointDecider(SteppedDecider):
    """Asks an endpoint, on a connection that is kept open and a thread of its own; one decision at a time."""

    def __init__(self, source: EndpointSource, web: WebClient | None = None) -> None:
        self._source = source
        self._api = APIS[source.api](list(source.tools), source.allow_null)
        headers = {"authorization": f"Bearer {source.key}"} if source.key is not None else {}
        self._web = WebClient(source.url, headers) if web is None else web

    def decide_in_steps(self, request: DecisionRequest) -> Generator[None, None, Decision]:
        """Raises DecisionLost. Where it is given up, the request is closed."""
        if (body := self._api.body(request)) is None:
            return self._api.decision(None)
        limit_s = time_of(request, self._source.late)
        try:
            job = self._web.post({"model": self._source.model, **body}, LONGEST_S if limit_s is None else limit_s)
            answer = yield from done_in_steps(job)
        except WebError as error:
            raise DecisionLost(error.loss, str(error)) from None
        if answer.status != 200:
            raise DecisionLost("http", f"HTTP {answer.status}: {' '.join(answer.text.split())[:200]}")
        try:
            found = answer.json()
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise DecisionLost("malformed", "the answer is no JSON object")
        return replace(self._api.decision(found), forward_passes=1)

    def info(self) -> dict[str, Any]:
        source = self._source
        return {"engine": source.api, "model": source.model, "url": source.url, **self._api.about()}


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0


# -- decision APIs -----------------------------------------------------------------------------------------------------

MOST_OPTIONS = 255  # of these APIs
NONE = "(none)"


@dataclass(frozen=True)
class ClosedQuestion:
    """A question: by what they are called, each option's description and value. `name` is unique in a request."""

    name: str
    instructions: str
    descriptions: Mapping[str, str]
    values: Mapping[str, Any]


def _said(one: ClosedQuestion, given: Any) -> tuple[str, float]:
    """Return the choice and its probability: 1 where an endpoint gives none, as of a question that is not asked. Raises
    DecisionLost."""
    if len(one.values) == 1:
        return next(iter(one.values)), 1.0
    if isinstance(given, dict) and given.get("type") == "refusal":
        raise DecisionLost("refused", f"the model declined to answer the question {one.name}")
    if not isinstance(given, dict) or not isinstance(choice := given.get("choice"), str):
        raise DecisionLost("malformed", f"no choice for the question {one.name}: {json.dumps(given)[:80]}")
    shares = given.get("probabilities")
    if isinstance(shares, list):
        shares = {str(row.get("value")): row.get("probability") for row in shares if isinstance(row, dict)}
    known: list[Any] = [_map(shares).get(choice), given.get("confidence"), 1.0]
    return choice, next(float(share) for share in known if type(share) in (int, float) and 0 <= share <= 1)


class DecisionsApi:
    """OpenAI's `/v1/decisions`: questions about an agent's tools, whose answers come in their order. Raises UserError
    for what no list of options holds."""

    route, state = "/decisions", "input"

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

    def body(self, request: DecisionRequest) -> dict[str, Any] | None:
        # What changes most comes last.
        calls = "; ".join(request.history) or "none"
        told = f"Instruction: {request.instruction}\nCalls so far: {calls}\nObservation: {request.observation}"
        return {"questions": self.questions(), self.state: told} if self.asked else None

    def questions(self) -> Any:
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
            for one in self.asked
        ]

    def answers(self, found: Any) -> Mapping[str, Any]:
        """Return the answers by their questions' names. Raises DecisionLost."""
        if not isinstance(found, list) or len(found) != len(self.asked):
            raise DecisionLost("malformed", f"not one answer for each of {len(self.asked)} questions")
        return {one.name: answer for one, answer in zip(self.asked, found, strict=True)}

    def decision(self, found: Any) -> Decision:
        if found is None:
            return self._call({})
        made = self._call(self.answers(found.get("answers")))
        used = _map(found.get("usage"))  # some leave out what was read, or what was cached
        details, total = _map(used.get("input_tokens_details")) or used, _count(used.get("input_tokens"))
        cached = min(_count(details.get("cached_tokens")), total)
        return replace(made, tokens=total - cached, reused_tokens=cached)

    def about(self) -> dict[str, Any]:
        return {"questions": len(self.asked)}

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

    def _call(self, answers: Mapping[str, Any]) -> Decision:
        """Return the decision of the answers to the function's question and to those of its arguments; others are not
        looked at. Raises DecisionLost."""
        confidence: dict[str, float] = {}

        def value(head: str, one: ClosedQuestion) -> Any:
            said, confidence[head] = _said(one, answers.get(one.name))
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


class SystemOneApi(DecisionsApi):
    """The System One shape, `/v1/systemone`: answers come by the questions' names."""

    route, state = "/systemone", "state"

    def questions(self) -> Any:
        return {
            one.name: {
                "type": "choice",
                "instructions": one.instructions,
                "criteria": {option: words or None for option, words in one.descriptions.items()},
            }
            for one in self.asked
        }

    def answers(self, found: Any) -> Mapping[str, Any]:
        if not isinstance(found, dict):
            raise DecisionLost("malformed", "no answers by name")
        return found


# -- models that chat --------------------------------------------------------------------------------------------------

UNNAMED, NAME_LENGTH = re.compile(r"[^a-zA-Z0-9_-]"), 64
NOT_UNDERSTOOD = "not_understood"
NO_CALL = "None of the other functions is what was asked for, or it is not clear which, or a value is out of range."
TOLD = (
    "You map what a person says to a machine to exactly one function call. Call one function, with the values that "
    "were said. Where no function is plainly meant, call {none}. Never guess."
)
TOLD_ALWAYS = "Call exactly one function for what is asked, with the values that are said."


class ChatApi:
    """OpenAI's `/v1/chat/completions` with tools, as any server of chat models has it."""

    route = "/chat/completions"

    def __init__(self, tools: Sequence[dict[str, Any]], allow_null: bool) -> None:
        self._names, named = named_tools(tools)
        self._none: str | None = None
        if allow_null:
            self._none = NOT_UNDERSTOOD
            while self._none in self._names:
                self._none += "_"
            empty = {"type": "object", "properties": {}}
            named.append(
                {"type": "function", "function": {"name": self._none, "description": NO_CALL, "parameters": empty}}
            )
        told = TOLD_ALWAYS if self._none is None else TOLD.format(none=self._none)
        self._system = {"role": "system", "content": told}
        self._same = {"tools": named, "tool_choice": "required", "temperature": 0}

    def body(self, request: DecisionRequest) -> dict[str, Any]:
        calls = f"Calls so far: {'; '.join(request.history)}" if request.history else ""
        content = "\n\n".join(text for text in (request.instruction, calls, request.observation) if text)
        return {**self._same, "messages": [self._system, {"role": "user", "content": content}]}

    def decision(self, found: Any) -> Decision:
        try:
            calls = self._calls(found)
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
            raise DecisionLost("malformed", "the answer is no chat completion with a call") from None
        if len(calls) != 1:
            what = f"it made {len(calls)} calls in place of one" if calls else "it wrote words in place of a call"
            raise DecisionLost("malformed", what)
        tokens = _count(_map(found.get("usage")).get("prompt_tokens"))
        return Decision(None if calls[0].name == self._none else calls[0], tokens=tokens)

    def _calls(self, found: Any) -> list[Call]:
        """Return the calls; arguments may be a JSON text or its object. Raises what is wrong with another answer."""
        made = list[Call]()
        for one in found["choices"][0]["message"].get("tool_calls") or []:
            name, given = one["function"]["name"], one["function"].get("arguments") or "{}"
            arguments = json.loads(given) if isinstance(given, str) else given
            if not isinstance(arguments, dict):
                raise TypeError
            made.append(Call(self._names.get(name, str(name)), arguments))
        return made

    def about(self) -> dict[str, Any]:
        return {"tools": len(self._names)}


def named_tools(tools: Sequence[Mapping[str, Any]]) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return what each name that the API takes (letters, digits, `_` and `-`, 64 at most) stands for, and the tools
    with these names."""
    names: dict[str, str] = {}
    found = []
    for tool in tools:
        body = dict(tool.get("function", tool))
        own = str(body["name"])
        name, n = UNNAMED.sub("_", own)[:NAME_LENGTH], 1
        while name in names:
            n += 1
            name = f"{UNNAMED.sub('_', own)[: NAME_LENGTH - 4]}_{n}"
        names[name] = own
        found.append({"type": "function", "function": {**body, "name": name}})
    return names, found


# An API for one set of tools: the `body` of a request (None: there is nothing to ask), the `decision` of an answer's
# JSON (None: nothing was asked), and what the report says `about` it. Raises DecisionLost.
APIS: Mapping[str, type[DecisionsApi | ChatApi]] = {
    "decisions": DecisionsApi,
    "systemone": SystemOneApi,
    CHAT: ChatApi,
}
