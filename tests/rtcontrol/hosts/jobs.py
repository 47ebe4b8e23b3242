"""Fake links of remote deciders, without threads or sockets, whose answers come at once or never."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from standin_endpoint import Choose, Standin, first

from rtcontrol.hosts.policy_link import unpack_message
from rtcontrol.models.web import WebAnswer, WebError


class Job:
    """A finished future: `result` returns the answer, or raises it if it is an exception."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def result(self, timeout: float | None = None) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def cancel(self) -> None:
        pass


class FakeLink:
    """A fake `PolicyLink` that gives these answers, in order."""

    def __init__(self, answers: Sequence[Any]) -> None:
        self._answers = list(answers)
        self.questions: list[Any] = []
        self.limits: list[float] = []
        self.cuts = 0

    def ask(self, packed: bytes, limit_s: float) -> Job:
        self.questions.append(unpack_message(packed))
        self.limits.append(limit_s)
        return Job(self._answers.pop(0))

    def disconnect(self) -> None:
        self.cuts += 1

    def close(self) -> None:
        pass


class FakeWeb:
    """A fake `WebClient` of the stand-in for a decision API; `fault(n)` says what is wrong with the n-th answer
    ("drop": no answer comes, "late": the answer comes too late)."""

    def __init__(self, path: str, fault: Callable[[int], Any] = lambda n: None, choose: Choose = first) -> None:
        self._path, self._fault = path, fault
        self._standin = Standin(lambda n: (0.0, None), choose)
        self.bodies: list[dict[str, Any]] = []
        self.limits: list[float] = []

    def post(self, body: Any, limit_s: float) -> Job:
        fault = self._fault(len(self.bodies))
        self.bodies.append(json.loads(json.dumps(body)))
        self.limits.append(limit_s)
        lost = {"drop": WebError("connection", "gone"), "late": WebError("timeout", "no answer within 1 ms")}
        if fault in lost:
            return Job(lost[fault])
        status, data = self._standin.reply(self._path, body, fault)
        return Job(WebAnswer(status, {}, data))

    def close(self) -> None:
        pass
