"""Deciders that query a server over HTTP: decision APIs (`--model decisions:URL`, `systemone:URL`; docs/deciders.md)
and chat models (`chat:URL#NAME`). Also functions for the URLs, keys and time limits of all remote deciders."""

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
POLICY = "openpi"  # the endpoint is a policy server (see `rtcontrol.hosts.policy_api`)
KEY = "RTCONTROL_DECISION_KEY"
LONGEST_S = 10.0
# A query times out before the tick's deadline, so that the loop receives the cause of the miss in time. The margin is
# MARGIN_S seconds, or the share MARGIN of the time until the deadline, whichever is longer.
MARGIN_S, MARGIN = 0.002, 0.05
POLL_S = 0.002  # seconds between two checks whether the request was cancelled


# -- shared by all remote deciders -------------------------------------------------------------------------------------


def is_endpoint(model: str | None) -> bool:
    """Return whether `model` is the name of a decision API or a policy server."""
    return model is not None and model.partition(":")[0] in ("decisions", "systemone", POLICY)


def is_policy(model: str | None) -> bool:
    """Return whether `model` names a policy server, which reads arrays instead of text."""
    return model is not None and model.partition(":")[0] == POLICY


def is_chat(model: str) -> bool:
    """Return whether `model` names a chat model."""
    return model.partition(":")[0] == CHAT


def endpoint_url(name: str, schemes: Sequence[str], form: str) -> SplitResult:
    """Parse the URL of a name such as `API:URL`. Raises UserError, which shows the expected `form`."""
    api, _, text = name.partition(":")
    try:
        url = urlsplit(text)
        _ = url.port
    except ValueError:
        url = urlsplit("")
    if url.scheme not in schemes or not url.hostname or url.username or url.password:
        raise UserError(f"The URL of {api} is not valid.", f"Write {form}.")
    return url


def api_key(variable: str, url: SplitResult) -> str | None:
    """Return the key in an environment variable, or None. Raises UserError if the key cannot be sent in a header, or
    would be sent to `url` without encryption."""
    key = os.environ.get(variable) or None
    if key is None:
        return None
    if url.scheme in ("http", "ws") and not is_loopback(url.hostname or ""):
        hint = f"Use {url.scheme}s, or unset {variable} if the server needs no key."
        raise UserError(f"The key in {variable} would be sent to {url.hostname} unencrypted.", hint)
    if not (key.isascii() and key.isprintable() and " " not in key):
        hint = "Use letters, digits and punctuation, without spaces."
        raise UserError(f"The key in {variable} cannot be sent in a header.", hint)
    return key


def time_limit_s(request: DecisionRequest, late: bool) -> float | None:
    """Return how many seconds an answer may take, or None if there is no limit."""
    if late or not request.within_ns:
        return None
    within_s = request.within_ns / 1e9
    return max(within_s - max(MARGIN_S, MARGIN * within_s), 0.0)


def wait_in_steps(job: Future[T]) -> Generator[None, None, T]:
    """Wait for the result of a job, yielding every POLL_S. Cancel the job if the generator is closed early."""
    try:
        while True:
            try:
                return job.result(POLL_S)
            except TimeoutError:
                if job.done():
                    raise
            yield
    finally:
        job.cancel()


# -- over HTTP ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EndpointSource:
    """The source of an EndpointDecider. `api`: a key of APIS; `url`: the URL of the API's route; `model`: its name.

    `allow_null`: the model may decide that no call is meant. `late`: wait for an answer even after the request's
    deadline."""

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
        """Return the source for a name such as `API:URL#MODEL`. The key comes from the environment.

        Raises UserError, also if the API cannot represent the tools."""
        api = name.partition(":")[0]
        if api not in APIS:
            raise UserError(f"{name[:80]} cannot read text.", "Use another model here (docs/deciders.md).")
        form = f"{api}:https://HOST/v1#MODEL, and put a key into the environment variable {KEY}"
        url = endpoint_url(name, ("http", "https"), form)
        APIS[api](tools, allow_null)
        path = url.path.rstrip("/")
        if not path.endswith(APIS[api].route):
            path = f"{path or '/v1'}{APIS[api].route}"
        address = url._replace(path=path, fragment="").geturl()
        return cls(api, address, url.fragment or "default", tuple(tools), allow_null, late, api_key(KEY, url))

    def build(self) -> EndpointDecider:
        return EndpointDecider(self)


class EndpointDecider(SteppedDecider):
    """A decider that queries an HTTP API on a background thread: one query at a time, over one connection."""

    def __init__(self, source: EndpointSource, web: WebClient | None = None) -> None:
        self._source = source
        self._api = APIS[source.api](source.tools, source.allow_null)
        headers = {"authorization": f"Bearer {source.key}"} if source.key is not None else {}
        self._web = WebClient(source.url, headers) if web is None else web

    def decide_in_steps(self, request: DecisionRequest) -> Generator[None, None, Decision]:
        """Return the API's decision. Raises DecisionLost. Closing the generator cancels the HTTP request."""
        body = {"model": self._source.model, **self._api.build_body(request)}
        limit_s = time_limit_s(request, self._source.late)
        try:
            job = self._web.post(body, LONGEST_S if limit_s is None else limit_s)
            answer = yield from wait_in_steps(job)
        except WebError as error:
            raise DecisionLost(error.loss, str(error)) from None
        if answer.status != 200:
            raise DecisionLost("http", f"HTTP {answer.status}: {' '.join(answer.text.split())[:200]}")
        try:
            content = dict(answer.json())
        except (ValueError, TypeError):
            raise DecisionLost("malformed", "the answer is not a JSON object") from None
        return replace(self._api.parse_decision(content), forward_passes=1)

    def info(self) -> dict[str, Any]:
        source = self._source
        return {"engine": source.api, "model": source.model, "url": source.url}


def _as_dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _as_count(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0


# -- decision APIs -----------------------------------------------------------------------------------------------------

MOST_OPTIONS = 255  # maximum number of options of a question
NONE = "(none)"
HINT = "Give the parameter an enum, or bounds and a larger step (multipleOf), or use a model that generates values."


@dataclass(frozen=True)
class ClosedQuestion:
    """A question with a closed set of options. `descriptions`, `values`: by option, its description and its value."""

    name: str
    instructions: str
    descriptions: Mapping[str, str]
    values: Mapping[str, Any]

    def choice(self, answers: Mapping[str, Any]) -> tuple[Any, float]:
        """Return the chosen value and its probability (1 if the answer has none). Raises DecisionLost."""
        if len(self.values) == 1:  # a question with only one option is not sent
            return next(iter(self.values.values())), 1.0
        answer = _as_dict(answers.get(self.name))
        if answer.get("type") == "refusal":
            raise DecisionLost("refused", f"the model declined to answer the question {self.name}")
        option = answer.get("choice")
        if not isinstance(option, str) or option not in self.values:
            raise DecisionLost("malformed", f"{str(option)[:80]!r} is not an option of the question {self.name}")
        rows = answer.get("probabilities")
        if isinstance(rows, list):
            rows = {str(row.get("value")): row.get("probability") for row in rows if isinstance(row, dict)}
        candidates: list[Any] = [_as_dict(rows).get(option), answer.get("confidence"), 1.0]
        return self.values[option], next(float(p) for p in candidates if type(p) in (int, float) and 0 <= p <= 1)


class DecisionsApi:
    """The decision API `/v1/decisions` of OpenAI: questions about the function to call and each argument's value.

    Raises UserError if the values of a parameter cannot be listed as options."""

    route, state = "/decisions", "input"

    def __init__(self, tools: Sequence[dict[str, Any]], allow_null: bool) -> None:
        self.tools = tool_schemas(list(tools))
        self.sent: list[ClosedQuestion] = []
        descriptions = {NONE: "The active call continues."} | {tool.name: tool.description for tool in self.tools}
        functions = {tool.name: i for i, tool in enumerate(self.tools)}
        null = (None,) if allow_null else ()
        self._function = self._add_question(
            "function", "Which function is to be called now?", functions, null, descriptions
        )
        self._arguments = [[self._argument_question(tool, slot) for slot in tool.slots()] for tool in self.tools]

    def build_body(self, request: DecisionRequest) -> dict[str, Any]:
        """Return the body of the HTTP request. The most variable parts are last, for the server's prefix cache."""
        calls = "; ".join(request.history) or "none"
        state = f"Instruction: {request.instruction}\nCalls so far: {calls}\nObservation: {request.observation}"
        return {"questions": self.build_questions(), self.state: state}

    def build_questions(self) -> Any:
        return [
            {
                "type": "choice",
                "name": question.name,
                "instructions": question.instructions,
                "choices": [
                    {"value": option} | ({"description": words} if words else {})
                    for option, words in question.descriptions.items()
                ],
            }
            for question in self.sent
        ]

    def parse_answers(self, content: Any) -> Mapping[str, Any]:
        """Return the answers with the names of their questions as keys. Raises DecisionLost."""
        if not isinstance(content, list) or len(content) != len(self.sent):
            raise DecisionLost("malformed", f"the server did not give one answer to each of {len(self.sent)} questions")
        return {question.name: answer for question, answer in zip(self.sent, content, strict=True)}

    def parse_decision(self, content: Any) -> Decision:
        """Parse the JSON of a response, and return the decision. Raises DecisionLost."""
        decision = self._call(self.parse_answers(content.get("answers")))
        usage = _as_dict(content.get("usage"))
        total = _as_count(usage.get("input_tokens"))
        cached = min(_as_count(_as_dict(usage.get("input_tokens_details")).get("cached_tokens")), total)
        return replace(decision, tokens=total - cached, reused_tokens=cached)

    def _add_question(
        self, name: str, words: str, values: Mapping[str, Any], null: Sequence[Any], descriptions: Mapping[str, str]
    ) -> ClosedQuestion:
        """Add and return a question. Its options are the keys of `values`, and NONE if `null` has a value."""
        while any(name == other.name for other in self.sent):  # make names such as a.b.c unique
            name += "'"
        if len(values) + len(null) > MOST_OPTIONS or (null and NONE in values):
            problem = f"{name} has {len(values)} values: at most {MOST_OPTIONS} are allowed, and {NONE!r} is reserved."
            raise UserError(problem, HINT)
        options = {**values, **({NONE: null[0]} if null else {})}
        question = ClosedQuestion(name, words, {option: descriptions.get(option, "") for option in options}, options)
        if len(options) > 1:
            self.sent.append(question)
        return question

    def _argument_question(self, tool: ToolSchema, slot: Slot) -> ClosedQuestion:
        names = ", ".join(p.name for p in slot.parameters)
        if not isinstance(slot.domain, ClosedDomain):
            where = f"Tool {tool.name}, parameter {names}"
            raise UserError(f"{where}: the values cannot be listed, but a decision API chooses among options.", HINT)
        values: dict[str, Any] = dict(zip(slot.domain.texts, slot.domain.values, strict=True))
        about = "; ".join(str(p.schema["description"]) for p in slot.parameters if p.schema.get("description"))
        words = f"If the function is {tool.name}, what is {names}?" + (f" {about}" if about else "")
        return self._add_question(f"{tool.name}.{names}", words, values, slot.null[:1], {})

    def _call(self, answers: Mapping[str, Any]) -> Decision:
        """Return the decision from the answers to the questions about the function and its arguments."""
        i, share = self._function.choice(answers)
        confidence = {"function": share}
        if i is None:
            return Decision(None, confidence)
        tool = self.tools[i]
        arguments: dict[str, Any] = {}
        for k, (slot, question) in enumerate(zip(tool.slots(), self._arguments[i], strict=True), start=1):
            value, confidence[f"arg{k}"] = question.choice(answers)
            if value is not ABSENT:
                arguments |= slot.arguments(value)
        return Decision(Call(tool.name, arguments), confidence)


class SystemOneApi(DecisionsApi):
    """The decision API `/v1/systemone` (System One), whose answers are a map with the questions' names as keys."""

    route, state = "/systemone", "state"

    def build_questions(self) -> Any:
        return {
            question.name: {
                "type": "choice",
                "instructions": question.instructions,
                "criteria": {option: words or None for option, words in question.descriptions.items()},
            }
            for question in self.sent
        }

    def parse_answers(self, content: Any) -> Mapping[str, Any]:
        if not isinstance(content, dict):
            raise DecisionLost("malformed", "the answers are not keyed by the questions' names")
        return content


# -- chat models -------------------------------------------------------------------------------------------------------

INVALID_CHARACTERS, NAME_LENGTH = re.compile(r"[^a-zA-Z0-9_-]"), 64
NOT_UNDERSTOOD = "not_understood"
NO_CALL = "None of the other functions is what was asked for, or it is not clear which, or a value is out of range."
SYSTEM = (
    "You map what a person says to a machine to exactly one function call. Call one function, with the values that "
    "were said. Where no function is plainly meant, call {none}. Never guess."
)
SYSTEM_ALWAYS = "Call exactly one function for what is asked, with the values that are said."


class ChatApi:
    """The chat API `/v1/chat/completions` of OpenAI with tools, which many servers of chat models have."""

    route = "/chat/completions"

    def __init__(self, tools: Sequence[dict[str, Any]], allow_null: bool) -> None:
        none = {"name": NOT_UNDERSTOOD, "description": NO_CALL, "parameters": {"type": "object", "properties": {}}}
        self._names, functions = named_tools([*tools, none] if allow_null else tools)
        system = SYSTEM.format(none=NOT_UNDERSTOOD) if allow_null else SYSTEM_ALWAYS
        self._none = NOT_UNDERSTOOD if allow_null else None
        self._system = {"role": "system", "content": system}
        named = [{"type": "function", "function": function} for function in functions]
        self._constant_fields = {"tools": named, "tool_choice": "required", "temperature": 0}

    def build_body(self, request: DecisionRequest) -> dict[str, Any]:
        calls = f"Calls so far: {'; '.join(request.history)}" if request.history else ""
        content = "\n\n".join(text for text in (request.instruction, calls, request.observation) if text)
        return {**self._constant_fields, "messages": [self._system, {"role": "user", "content": content}]}

    def parse_decision(self, content: Any) -> Decision:
        try:
            calls = [self._call(call["function"]) for call in content["choices"][0]["message"].get("tool_calls") or []]
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
            raise DecisionLost("malformed", "the answer is not a chat completion with a call") from None
        if len(calls) != 1:
            output = f"{len(calls)} calls instead of one" if calls else "text instead of a call"
            error = f"the model returned {output}"
            raise DecisionLost("malformed", error)
        tokens = _as_count(_as_dict(content.get("usage")).get("prompt_tokens"))
        return Decision(None if calls[0].name == self._none else calls[0], tokens=tokens)

    def _call(self, function: Any) -> Call:
        """Return the call of a function object, whose `arguments` are JSON text or a map. Raises TypeError, LookupError
        or ValueError."""
        text = function.get("arguments") or "{}"
        arguments = json.loads(text) if isinstance(text, str) else text
        if not isinstance(arguments, dict):
            raise TypeError
        return Call(self._names.get(function["name"], str(function["name"])), arguments)


def named_tools(tools: Sequence[Mapping[str, Any]]) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Rename tools for the chat API, which allows at most 64 letters, digits, `_` and `-`. Return a map from the new
    names to the original names, and the renamed tools. Raises UserError if two tools get the same new name."""
    functions = [dict(tool.get("function", tool)) for tool in tools]
    names = {INVALID_CHARACTERS.sub("_", function["name"])[:NAME_LENGTH]: function["name"] for function in functions}
    if len(names) < len(functions):
        hint = "A chat API allows only letters, digits, _ and -. Rename one of the tools."
        raise UserError("Two tools get the same name in the chat API.", hint)
    return names, [{**function, "name": name} for name, function in zip(names, functions, strict=True)]


APIS: Mapping[str, type[DecisionsApi | ChatApi]] = {
    "decisions": DecisionsApi,
    "systemone": SystemOneApi,
    CHAT: ChatApi,
}
