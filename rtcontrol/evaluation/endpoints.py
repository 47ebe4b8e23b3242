"""Endpoints that answer rows: decision APIs, which choose among listed values, and OpenAI's chat API with tools.

A place that cannot be reached, or will not serve, ends the run, and what was answered is kept; an answer that cannot be
read, or is refused for what was asked, counts as wrong.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rtcontrol.evaluation.answerers import Answerer, HeadsAnswerer, Opened
from rtcontrol.evaluation.json_calls import JsonAnswerer
from rtcontrol.evaluation.options import ModelOptions
from rtcontrol.hosts.chat_api import ROUTE, Unreadable, named_tools, read_calls
from rtcontrol.hosts.protocol import DecisionLost, DecisionRequest
from rtcontrol.hosts.remote_api import EndpointDecider, EndpointSource, address, is_endpoint
from rtcontrol.models.data.compression import Tokens
from rtcontrol.models.data.row import DataRow
from rtcontrol.models.errors import UserError
from rtcontrol.models.metrics.predictions import Prediction
from rtcontrol.models.web import WebClient, WebError

CHAT = "openai"
TRIES, PAUSE_S = 4, 1.0  # the pause doubles
LONGEST_S = 120.0
MOST_BYTES = 1 << 22
# Of the server, not of the row: no other row would be answered either.
CLOSED = {401: "the key", 403: "the key", 404: "the address"}
BUSY = (408, 409, 425, 429)
HISTORY = 6


class Lost(Exception):
    """No answer came: `what` says why, `again` whether one may come when it is asked again."""

    def __init__(self, what: str, again: bool) -> None:
        super().__init__(what)
        self.what, self.again = what, again


def patiently(url: str, ask: Callable[[], Any]) -> Any:
    """What `ask` gives, asked again where that may help. Raises UserError where nothing comes of it, and Lost."""
    for turn in range(TRIES):
        try:
            return ask()
        except Lost as lost:
            if not lost.again:
                raise
            if turn == TRIES - 1:
                raise UserError(
                    f"{url} does not answer ({lost.what}).",
                    "What was answered is kept (--out): see that it runs, and give the same command again.",
                ) from None
            time.sleep(PAUSE_S * 2**turn)
    raise AssertionError("the last turn returns or raises")


class QuestionsAnswerer:
    """A decision API (docs/decisions.md): each row's tools as questions. Rows whose values cannot be listed are
    refused."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._url = EndpointSource.parse(
            name, [{"name": "look"}]
        ).url  # a wrong address is told before anything is asked
        self.told: Mapping[str, Any] = {"name": name, "way": name.partition(":")[0]}
        self.tokens: Tokens | None = None
        self._deciders = Opened[EndpointDecider]()

    def forget(self) -> None:
        self._deciders.clear()

    def answer(self, row: DataRow) -> Prediction:
        null = row.call is None
        try:
            tools = [*row.tools, {"null": null}]
            decider, _ = self._deciders.of(tools, lambda: self._open(row.tools, null))
        except UserError as error:
            return Prediction(row.id, (), error=f"refused: {error.what}")
        request = DecisionRequest(0, 0, row.observation, row.instruction, row.history[-HISTORY:])
        took = _Stopwatch()
        try:
            found = patiently(self._url, lambda: _decided(decider, request, took))
        except Lost as lost:
            return Prediction(row.id, (), error=lost.what)
        calls = () if found.call is None else (found.call,)
        return Prediction(
            row.id, calls, found.confidence, took.ms, None, found.forward_passes, found.tokens + found.reused_tokens
        )

    def _open(self, tools: Sequence[Mapping[str, Any]], null: bool) -> EndpointDecider:
        return EndpointSource.parse(self._name, [dict(tool) for tool in tools], null).build()


class _Stopwatch:
    """Milliseconds of the last try."""

    ms = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *exc: object) -> None:
        self.ms = (time.perf_counter() - self._began) * 1e3


def _decided(decider: EndpointDecider, request: DecisionRequest, took: _Stopwatch) -> Any:
    try:
        with took:
            return decider.decide(request)
    except DecisionLost as lost:
        what = f"{lost.loss}: {lost}"
        status = re.match(r"HTTP (\d+)", str(lost)) if lost.loss == "http" else None
        if status is not None:
            raise _refused(int(status[1]), what) from None
        raise Lost(what, lost.loss in ("timeout", "connection")) from None


def _refused(status: int, what: str) -> Exception:
    if status in CLOSED:
        return UserError(f"The endpoint refuses {CLOSED[status]} ({what}).", "Set it right, and give the same command.")
    return Lost(what, status in BUSY or status >= 500)


class ChatAnswerer:
    """OpenAI's `/v1/chat/completions` with each row's tools, at temperature 0, as any server of chat models has it."""

    def __init__(self, name: str) -> None:
        self._url, model, key = address(name, ROUTE)
        self._model = model or "default"
        headers = {"authorization": f"Bearer {key}"} if key is not None else {}
        self._web = WebClient(self._url, headers, most_bytes=MOST_BYTES)
        self.told: Mapping[str, Any] = {"name": name, "way": CHAT}
        self.tokens: Tokens | None = None

    def forget(self) -> None:
        """Nothing is kept here."""

    def answer(self, row: DataRow) -> Prediction:
        names, tools = named_tools(row.tools)
        told = (row.instruction, f"Calls so far: {'; '.join(row.history[-HISTORY:])}" if row.history else "")
        content = "\n\n".join(text for text in (*told, row.observation) if text)
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": content}],
            "tools": tools,
            "temperature": 0,
        }
        took = _Stopwatch()
        try:
            said = patiently(self._url, lambda: self._asked(body, took))
            calls, used = read_calls(said, names)
        except Lost as lost:
            return Prediction(row.id, (), error=lost.what)
        except Unreadable:
            return Prediction(row.id, (), error="malformed: the answer is no chat completion with calls")
        return Prediction(
            row.id,
            calls,
            {},
            took.ms,
            tokens=_count(used.get("prompt_tokens")),
            written=_count(used.get("completion_tokens")),
        )

    def _asked(self, body: Mapping[str, Any], took: _Stopwatch) -> Any:
        try:
            with took:
                answer = self._web.post(body, LONGEST_S).result()
        except WebError as error:
            raise Lost(f"{error.loss}: {error}", error.loss != "malformed") from None
        if answer.status != 200:
            said = " ".join(answer.text.split())[:200]
            raise _refused(answer.status, f"http: HTTP {answer.status}: {said}")
        try:
            return answer.json()
        except ValueError:
            raise Lost("malformed: the answer is no JSON", False) from None


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def answerer(options: ModelOptions) -> Answerer:
    """Raises UserError for what is neither."""
    elsewhere = is_endpoint(options.model) or options.model.partition(":")[0] == CHAT
    if options.grammar and options.way != "json":
        raise UserError("--grammar is for a model that writes JSON.", "Give --way json, too, or leave it out.")
    if not elsewhere:
        return JsonAnswerer(options) if options.way == "json" else HeadsAnswerer(options)
    if options.way != "heads":
        raise UserError(
            f"--way {options.way} is for a checkpoint, and {options.model} is an endpoint.", "Leave it out."
        )
    return QuestionsAnswerer(options.model) if is_endpoint(options.model) else ChatAnswerer(options.model)
