"""Decides by a policy server of robots over WebSocket, as openpi has it (`openpi:ws://HOST:PORT`); docs/policies.md.

Whatever is wrong with an answer, and every answer that is not there in time, is a miss, and nothing of it acts.
"""

from __future__ import annotations

import concurrent.futures
import math
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np

from rtcontrol.agents import InvalidCall, Tools
from rtcontrol.hosts.array_message import MalformedMessage, pack_message, unpack_message
from rtcontrol.hosts.deciders import SteppedDecider
from rtcontrol.hosts.policy_link import PolicyLink
from rtcontrol.hosts.policy_mapping import MOST_ROWS, PolicyMapping
from rtcontrol.hosts.protocol import DecisionLost, DecisionRequest
from rtcontrol.hosts.remote_api import LONGEST_S, done_in_steps, endpoint_url, secret, time_of
from rtcontrol.models.call import Decision, Plan
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.tool_schema import tool_schemas

KEY = "RTCONTROL_POLICY_KEY"
FIRST_S = 60.0
READ_S = 0.003  # of a question's time, to unpack and to check the answer
TIMINGS = ("server_timing", "policy_timing")  # no two answers of one server have the same
REMEMBERED = 64  # answers that are recognised
REMEDY = "Check the policy's configuration, or map its actions (docs/policies.md)."


@dataclass(frozen=True)
class PolicySource:
    """`url` is that of the server; `step_ns` is how long an action stands where the mapping does not say it. With
    `late` an answer is waited for beyond its request's time. `answers` are digests of the last ones, of all deciders of
    the source."""

    url: str
    tools: tuple[dict[str, Any], ...]
    mapping: PolicyMapping
    step_ns: int
    late: bool = False
    key: str | None = field(default=None, repr=False)
    answers: deque[bytes] = field(default_factory=lambda: deque(maxlen=REMEMBERED), repr=False, compare=False)

    @classmethod
    def parse(cls, name: str, tools: Sequence[dict[str, Any]], step_ns: int, late: bool = False) -> PolicySource:
        """From `openpi:ws://HOST:PORT#policy.yaml`; the key is in the environment. Raises UserError."""
        form = f"openpi:ws://HOST:PORT, or openpi:ws://HOST:PORT#policy.yaml; a key goes into the environment, as {KEY}"
        url = endpoint_url(name, ("ws", "wss"), form)
        mapping = PolicyMapping.read(url.fragment or None, tool_schemas(list(tools)))
        plain = url._replace(fragment="").geturl()
        return cls(plain, tuple(tools), mapping, mapping.step_ns or step_ns, late, secret(KEY, url))

    def build(self) -> PolicyDecider:
        return PolicyDecider(self)


class PolicyDecider(SteppedDecider):
    """Asks a policy server, on a connection that is kept open and a thread of its own; one decision at a time."""

    def __init__(self, source: PolicySource, link: PolicyLink | None = None) -> None:
        self._source, self._mapping = source, source.mapping
        self._tools = Tools(list(source.tools))
        headers = {"Authorization": f"Api-Key {source.key}"} if source.key is not None else {}
        self._link = PolicyLink(source.url, headers) if link is None else link
        self._first = True
        self._proven = False  # whether an answer was good
        tool = next(schema for schema in self._tools.schemas if schema.name == self._mapping.tool)
        self._heads = ("function", *(f"arg{k}" for k, _ in enumerate(tool.slots(), start=1)))

    def decide_in_steps(self, request: DecisionRequest) -> Generator[None, None, Decision]:
        """Raises DecisionLost, and UserError for an observation or a policy that is not the mapping's.

        Where it is given up the connection is cut, as after an answer that is not good: what comes next on it may be of
        this question, too.
        """
        data = request.data or {}
        self._mapping = self._mapping.fixed(data)
        packed = pack_message(self._mapping.question(data, request.instruction))
        try:
            said = yield from done_in_steps(self._link.ask(packed, self._limit_s(request)))
        except concurrent.futures.CancelledError:
            raise DecisionLost("connection", "the link was closed") from None
        good = False
        try:
            decision = self._decision(said)
            good = decision.plan is not None
            return decision
        finally:
            if not good:
                self._link.cut()

    def _limit_s(self, request: DecisionRequest) -> float:
        """A policy may be compiled with the first question before a run, and with no other."""
        first, self._first = self._first and request.tick < 0, False
        limit_s = time_of(request, self._source.late)
        if limit_s is None:
            return FIRST_S if first else LONGEST_S
        return limit_s - min(READ_S, limit_s / 4)

    def _decision(self, said: bytes) -> Decision:
        try:
            answer = unpack_message(said)
        except MalformedMessage as error:
            raise DecisionLost("malformed", f"the policy's answer: {error}") from None
        if not isinstance(answer, dict):
            raise DecisionLost("malformed", "the policy's answer is no map")
        status = answer.get("status", "fresh")
        if not isinstance(status, str) or status != "fresh":
            raise DecisionLost("refused", f"the policy decided nothing: its status is {str(status)[:20]!r}")
        chunk = self._chunk(answer)
        self._check_new(said, answer)
        try:
            calls = tuple(self._mapping.call(row) for row in chunk[: self._mapping.horizon].tolist())
        except OverflowError as error:
            raise DecisionLost("not_finite", f"an action is not finite when it is scaled: {error}") from None
        confidence = self._confidence(answer)
        for call in calls:
            try:
                self._tools.validate(call)
            except InvalidCall:  # the loop says so: nothing of such a plan acts
                return Decision(call, confidence)
        self._proven = True
        return Decision(calls[0], confidence, plan=Plan(calls, self._source.step_ns))

    def _chunk(self, answer: Mapping[str, Any]) -> np.ndarray[Any, Any]:
        """The actions, of the shape, dtype and size that the mapping knows, and finite."""
        found, dims = answer.get("actions"), len(self._mapping.dims)
        kind = getattr(found, "dtype", type(found).__name__)
        if not isinstance(found, np.ndarray) or found.dtype.kind != "f" or found.dtype.itemsize > 8:
            raise self._wrong(f"its actions are {kind}, no array of floats")
        if found.ndim != 2 or found.shape[1] != dims:
            raise self._wrong(f"its actions have the shape {found.shape}; [steps, {dims}] are mapped")
        if not 1 <= len(found) <= MOST_ROWS:
            raise DecisionLost("malformed", f"the policy's answer has {len(found)} actions; 1 to {MOST_ROWS} are taken")
        if not np.isfinite(found).all():
            raise DecisionLost("not_finite", "the policy's actions have numbers that are not finite")
        return found

    def _wrong(self, what: str) -> Exception:
        """What is not as it is mapped: before the first good answer a mistake that somebody can mend."""
        if self._proven:
            return DecisionLost("malformed", f"the policy's answer: {what}")
        return UserError(f"The policy at {self._source.url} does not fit the agent: {what}.", REMEDY)

    def _check_new(self, said: bytes, answer: Mapping[str, Any]) -> None:
        """Raises DecisionLost for an answer with a timing that is an earlier one, byte for byte."""
        digest, seen = blake2b(said).digest(), self._source.answers
        if digest in seen and any(isinstance(answer.get(name), dict) and answer[name] for name in TIMINGS):
            raise DecisionLost("repeated", "the policy's answer is an earlier one, byte for byte with its timing")
        seen.append(digest)

    def _confidence(self, answer: Mapping[str, Any]) -> dict[str, float]:
        given = answer.get("confidence", 1.0)
        number = isinstance(given, int | float | np.number) and math.isfinite(given) and 0 <= given <= 1
        return dict.fromkeys(self._heads, float(given) if number else 0.0)

    def close(self) -> None:
        """Cut the connection."""
        self._link.close()

    def info(self) -> dict[str, Any]:
        return {
            "engine": "openpi",
            "url": self._source.url,
            "tool": self._mapping.tool,
            "actions": [dim and dim.name for dim in self._mapping.dims],
            "step_ms": self._source.step_ns / 1e6,
        }
