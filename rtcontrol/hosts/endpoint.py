"""Decides by a decision API over HTTP (`--model decisions:URL`, `systemone:URL`); docs/decisions.md."""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from rtcontrol.bridges.wire.endpoint import is_loopback
from rtcontrol.hosts.base import DecisionLost, DecisionRequest
from rtcontrol.hosts.questionnaire import DecisionsWire, EndpointWire, Questionnaire, SystemOneWire
from rtcontrol.models.call import Decision
from rtcontrol.models.errors import UserError
from rtcontrol.models.in_flight import result
from rtcontrol.models.web import WebAnswer, WebClient, WebError

WIRES: dict[str, EndpointWire] = {"decisions": DecisionsWire(), "systemone": SystemOneWire()}
KEY = "RTCONTROL_DECISION_KEY"
LONGEST_S = 10.0
# So long before the deadline (and so much of the time until then) an answer is given up: the loop hears of it in time,
# and knows what was missed.
SPARE_S, SPARE = 0.002, 0.05
LOOK_S = 0.002  # so often it is asked whether anybody still waits


def is_endpoint(model: str | None) -> bool:
    """Whether a model's name is that of an endpoint."""
    return model is not None and model.partition(":")[0] in WIRES


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
        url, model, key = address(name, WIRES[api].path)
        source = cls(api, url, model or "default", tuple(tools), allow_null, late, key)
        Questionnaire(source.tools, allow_null)
        return source

    def build(self) -> EndpointDecider:
        return EndpointDecider(self)


def address(name: str, route: str) -> tuple[str, str, str | None]:
    """Of `API:URL#MODEL` the address of the API's route, the model, "" where none is named, and the key, which is in
    the environment. Raises UserError."""
    api, _, given = name.partition(":")
    try:
        parts = urlsplit(given)
        _ = parts.port
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
        raise UserError(
            f"--model {api}: its URL is none.",
            f"Write {api}:https://HOST/v1#MODEL; a key goes into the environment, as {KEY}.",
        )
    key = os.environ.get(KEY) or None
    if key is not None and parts.scheme == "http" and not is_loopback(parts.hostname):
        raise UserError(
            f"{KEY} would travel to {parts.hostname} in the clear.", "Use https, or unset it where none is needed."
        )
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        raise UserError(
            f"{KEY} is no key: no header takes it.", "Letters, digits and signs, without spaces or line ends."
        )
    path = parts.path.rstrip("/")
    if not path.endswith(route):
        path = f"{path or '/v1'}{route}"
    url = parts._replace(path=path, fragment="").geturl()
    return url, parts.fragment, key


class EndpointDecider:
    """Asks an endpoint, on a connection that is kept open and a thread of its own; one decision at a time."""

    def __init__(self, source: EndpointSource) -> None:
        self._source, self._wire = source, WIRES[source.api]
        self._questions = Questionnaire(source.tools, source.allow_null)
        self._same = {"model": source.model, **self._wire.body(self._questions)}
        self._web = WebClient(source.url, {"authorization": f"Bearer {source.key}"} if source.key is not None else {})

    def decide(self, request: DecisionRequest) -> Decision:
        """Raises DecisionLost."""
        return result(self.decide_in_steps(request))

    def decide_in_steps(self, request: DecisionRequest) -> Generator[None, None, Decision]:
        """`decide`, which may be left alone; where it is given up, the request is closed."""
        if not self._questions.asked:
            return self._questions.decision(lambda one: (next(iter(one.values)), 1.0))
        within_s = request.within_ns / 1e9
        limited = within_s and not self._source.late
        limit = max(within_s - max(SPARE_S, SPARE * within_s), 0.0) if limited else LONGEST_S
        job = self._web.post(self._same | self._wire.told(request), limit)
        try:
            while not concurrent.futures.wait([job], LOOK_S).done:
                yield
            return self._read(job.result())
        except WebError as error:
            raise DecisionLost(error.loss, str(error)) from None
        finally:
            job.cancel()

    def _read(self, answer: WebAnswer) -> Decision:
        try:
            found = answer.json()
        except ValueError:
            found = None
        if answer.status != 200:
            raise DecisionLost("http", f"HTTP {answer.status}: {_message(found)}")
        if not isinstance(found, dict):
            raise DecisionLost("malformed", "the answer is no JSON object")
        made = self._questions.decision(self._wire.read(self._questions, found.get("answers")))
        tokens, cached = _tokens(found.get("usage"))
        return replace(made, forward_passes=1, tokens=tokens, reused_tokens=cached)

    def info(self) -> dict[str, Any]:
        source = self._source
        return {"engine": source.api, "model": source.model, "url": source.url, "questions": len(self._questions.asked)}


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
