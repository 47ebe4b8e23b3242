"""A decider that asks an openpi policy server for robots over WebSocket (`openpi:ws://HOST:PORT`, docs/deciders.md).

If an answer is invalid or late, the tick is a miss and none of the answer's actions is executed. A mapping file
(`policy.yaml`) maps observed values to the policy's input arrays, and the numbers of an action to a tool's arguments.
"""

from __future__ import annotations

import concurrent.futures
import math
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from hashlib import blake2b
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, Field

from rtcontrol.agents import InvalidCall, Tools
from rtcontrol.hosts.deciders import SteppedDecider
from rtcontrol.hosts.policy_link import MalformedMessage, PolicyLink, pack_message, unpack_message
from rtcontrol.hosts.protocol import DecisionLost, DecisionRequest
from rtcontrol.hosts.remote_api import LONGEST_S, api_key, endpoint_url, time_limit_s, wait_in_steps
from rtcontrol.models.call import Call, Decision, Plan
from rtcontrol.models.errors import UserError, read_text, user_path
from rtcontrol.models.schema.domain import ClosedDomain
from rtcontrol.models.schema.numbers import number_range
from rtcontrol.models.schema.tool_schema import ToolSchema, tool_schemas

KEY = "RTCONTROL_POLICY_KEY"
FIRST_S = 60.0  # timeout of the first question of the warm-up; the server may compile the policy meanwhile
PARSE_S = 0.003  # a question times out 3 ms before the request's deadline, to leave time to parse the answer
TIMINGS = ("server_timing", "policy_timing")  # keys of measured times, which always differ between answers
MAX_DIGESTS = 64  # a new answer is compared with this number of earlier answers, to detect repeated ones
STATE, PROMPT = "observation/state", "prompt"
MOST_ROWS = 1024
FLOATS = ("<f2", "<f4", "<f8")
PAGE = "See docs/deciders.md for the keys of a mapping file, openpi:ws://HOST:PORT#FILE."

Finite = Annotated[float, Field(allow_inf_nan=False)]
Fields = str | Annotated[list[str], Field(min_length=1)]


@dataclass(frozen=True)
class PolicySource:
    """The source of a PolicyDecider, which asks the server at `url`. `step_ns`: the duration of one action of a plan.

    `late`: wait for an answer even after the request's deadline. `answers`: digests of the server's last answers."""

    url: str
    tools: tuple[dict[str, Any], ...]
    mapping: PolicyMapping
    step_ns: int
    late: bool = False
    key: str | None = field(default=None, repr=False)
    answers: deque[bytes] = field(default_factory=lambda: deque(maxlen=MAX_DIGESTS), repr=False, compare=False)

    @classmethod
    def parse(cls, name: str, tools: Sequence[dict[str, Any]], step_ns: int, late: bool = False) -> PolicySource:
        """Return the source for a name such as `openpi:ws://HOST:PORT#policy.yaml`. The key comes from the environment.

        The mapping's `step_ms` takes precedence over `step_ns`. Raises UserError."""
        form = f"openpi:ws://HOST:PORT or openpi:ws://HOST:PORT#policy.yaml, and put a key into the variable {KEY}"
        url = endpoint_url(name, ("ws", "wss"), form)
        mapping = PolicyMapping.read(url.fragment or None, tool_schemas(list(tools)))
        if mapping.file.step_ms is not None:
            step_ns = round(mapping.file.step_ms * 1e6)
        return cls(url._replace(fragment="").geturl(), tuple(tools), mapping, step_ns, late, api_key(KEY, url))

    def build(self) -> PolicyDecider:
        return PolicyDecider(self)


class PolicyDecider(SteppedDecider):
    """A decider that queries a policy server on a background thread: one question at a time, over one connection."""

    def __init__(self, source: PolicySource, link: PolicyLink | None = None) -> None:
        self._source, self._mapping = source, source.mapping
        self._fields = source.mapping.file.observation
        self._tools = Tools(list(source.tools))
        headers = {"Authorization": f"Api-Key {source.key}"} if source.key is not None else {}
        self._link = PolicyLink(source.url, headers) if link is None else link
        self._first = True
        self._had_good_answer = False

    def decide_in_steps(self, request: DecisionRequest) -> Generator[None, None, Decision]:
        """Return the policy server's decision. Raises DecisionLost, or UserError if the mapping does not fit.

        After a cancelled question or an invalid answer this method closes the connection, because the next message
        could still belong to this question."""
        packed = pack_message(self.build_question(request))
        try:
            message = yield from wait_in_steps(self._link.ask(packed, self._answer_limit_s(request)))
        except concurrent.futures.CancelledError:
            raise DecisionLost("connection", "the link was closed") from None
        good = False
        try:
            decision = self._decision(message)
            good = decision.plan is not None
            return decision
        finally:
            if not good:
                self._link.disconnect()

    def build_question(self, request: DecisionRequest) -> dict[str, Any]:
        """Return the policy's inputs: arrays with values of the observation, and the instruction. Raises UserError."""
        data, prompt = request.data or {}, self._mapping.file.prompt
        if self._fields is None:
            number_names = [name for name, value in data.items() if isinstance(value, int | float | np.number)]
            self._fields = {STATE: number_names}
        question: dict[str, Any] = {key: _field_array(data, fields) for key, fields in self._fields.items()}
        return question if prompt is None else question | {prompt: request.instruction}

    def _answer_limit_s(self, request: DecisionRequest) -> float:
        first, self._first = self._first and request.tick < 0, False
        limit_s = time_limit_s(request, self._source.late)
        if limit_s is None:
            return FIRST_S if first else LONGEST_S
        return limit_s - min(PARSE_S, limit_s / 4)

    def _decision(self, message: bytes) -> Decision:
        try:
            answer = unpack_message(message)
            status = answer.get("status", "fresh")
        except (MalformedMessage, AttributeError) as error:
            raise DecisionLost("malformed", f"the policy's answer is not valid: {error}") from None
        if not isinstance(status, str) or status != "fresh":
            raise DecisionLost("refused", f"the policy made no decision: its status is {str(status)[:20]!r}")
        chunk = self._checked_actions(answer.get("actions"))
        self._check_not_repeated(message, answer)
        try:
            calls = tuple(self._mapping.call(row) for row in chunk[: self._mapping.file.horizon].tolist())
        except OverflowError as error:
            raise DecisionLost("not_finite", f"an action is not finite when it is scaled: {error}") from None
        reported = answer.get("confidence", 1.0)
        valid = isinstance(reported, int | float | np.number) and 0 <= reported <= 1
        confidence = {"function": float(reported) if valid else 0.0}
        for call in calls:
            try:
                self._tools.validate(call)
            except InvalidCall:  # return only this call: the loop will reject it and count a miss
                return Decision(call, confidence)
        self._had_good_answer = True
        return Decision(calls[0], confidence, plan=Plan(calls, self._source.step_ns))

    def _checked_actions(self, actions: Any) -> np.ndarray[Any, Any]:
        """Return the actions as an array of finite floats with one row per action, one column per mapping entry.

        If the shape is wrong, raises UserError before the first valid answer, and DecisionLost afterwards."""
        dims, dtype = len(self._mapping.dims), getattr(actions, "dtype", type(actions).__name__)
        shape: Sequence[int] = getattr(actions, "shape", ())
        if not (len(shape) == 2 and 1 <= shape[0] <= MOST_ROWS and shape[1] == dims and dtype in FLOATS):
            fault = f"the actions are {dtype} of shape {shape}; the mapping needs floats of shape [steps, {dims}]"
            if self._had_good_answer:
                raise DecisionLost("malformed", f"the policy's answer is not valid: {fault}")
            raise UserError(f"The policy at {self._source.url} does not fit the agent: {fault}.", PAGE)
        if not np.isfinite(actions).all():
            raise DecisionLost("not_finite", "the policy's actions have numbers that are not finite")
        return np.asarray(actions)

    def _check_not_repeated(self, message: bytes, answer: Mapping[str, Any]) -> None:
        """Raise DecisionLost if an answer that contains measured times equals an earlier answer byte for byte."""
        digest, earlier = blake2b(message).digest(), self._source.answers
        if digest in earlier and any(isinstance(answer.get(name), dict) and answer[name] for name in TIMINGS):
            raise DecisionLost("repeated", "the policy's answer and its timing repeat an earlier answer byte for byte")
        earlier.append(digest)

    def close(self) -> None:
        """Close the connection to the policy server."""
        self._link.close()

    def info(self) -> dict[str, Any]:
        source, dims = self._source, self._mapping.dims
        names = [dim and dim.entry.parameter for dim in dims]
        step_ms = source.step_ns / 1e6
        return {"engine": "openpi", "url": source.url, "tool": self._mapping.tool, "actions": names, "step_ms": step_ms}


# -- the mapping -------------------------------------------------------------------------------------------------------


class ActionEntry(BaseModel, extra="forbid", strict=True):
    """An entry of `actions` in a mapping file, which maps a number to the argument `parameter`.

    The argument is `scale * number + offset`, or the value of `levels` with the nearest key."""

    parameter: str
    scale: Finite = 1.0
    offset: Finite = 0.0
    levels: Annotated[dict[Finite, Any], Field(min_length=1)] | None = None


class MappingFile(BaseModel, extra="forbid", strict=True):
    """The contents of a mapping file.

    `observation`: for each input of the policy, a list of number fields that become a vector, or the name of one array
    field; None: all numbers of the first observation become the vector STATE. `prompt`: the policy's input for the
    instruction (None: do not send the instruction). `horizon`: the maximum number of actions to execute per plan."""

    observation: Annotated[dict[str, Fields], Field(min_length=1)] | None = None
    prompt: str | None = PROMPT
    tool: str | None = None
    actions: Annotated[list[ActionEntry | None], Field(min_length=1, max_length=MOST_ROWS)] | None = None
    clip: bool = False
    step_ms: Annotated[float, Field(gt=0, le=60_000)] | None = None
    horizon: Annotated[int, Field(ge=1, le=MOST_ROWS)] | None = None


@dataclass(frozen=True)
class ActionDim:
    """The rule that turns one number of an action into an argument: the value of the nearest key of `values`, or the
    nearest multiple of `step`, or the number itself if both are None.

    `max_distance`: how far a number may be from the nearest key of `values`."""

    entry: ActionEntry
    values: Mapping[float, Any] | None = None
    max_distance: float = 0.0
    bounds: tuple[float, float] = (-math.inf, math.inf)
    step: Fraction | None = None
    integer: bool = False

    def value(self, number: float, clip: bool) -> Any:
        """Return the argument for a number. `clip`: move a number that is out of bounds to the nearest bound.

        Raises OverflowError if the scaled number is not finite."""
        scaled = self.entry.scale * number + self.entry.offset
        if not math.isfinite(scaled):
            raise OverflowError(f"{number:g} of {self.entry.parameter}")
        if self.values is not None:
            nearest = min(self.values, key=lambda point: abs(point - scaled))
            return self.values[nearest] if clip or abs(nearest - scaled) <= self.max_distance else scaled
        if clip:
            scaled = min(max(scaled, self.bounds[0]), self.bounds[1])
        if self.step is None:
            return scaled
        exact = round(Fraction(scaled) / self.step) * self.step
        return int(exact) if self.integer else float(exact)


@dataclass(frozen=True)
class PolicyMapping:
    """The mapping from the numbers of an action to the arguments of `tool`. `dims`: a rule or None for each number."""

    tool: str
    dims: tuple[ActionDim | None, ...]
    file: MappingFile

    @classmethod
    def read(cls, path: str | None, tools: Sequence[ToolSchema]) -> PolicyMapping:
        """Read a YAML file. Without a file, map the numbers to the tool's parameters in order. Raises UserError."""
        file, where = MappingFile() if path is None else _read_contents(path), path or "No mapping file"
        candidates = [tool for tool in tools if file.tool in (None, tool.name)]
        if len(candidates) != 1:
            names = ", ".join(tool.name for tool in tools)
            raise UserError(f"{where}: `tool` must be one of the agent's {len(tools)} tools ({names}).", PAGE)
        tool = candidates[0]
        entries = file.actions or [ActionEntry(parameter=parameter.name) for parameter in tool.parameters]
        return cls(tool.name, _action_rules(entries, tool, where), file)

    def call(self, row: Sequence[float]) -> Call:
        """Return the call for an action. The arguments may be out of bounds, unless the file has `clip: true`."""
        pairs = [(dim, number) for dim, number in zip(self.dims, row, strict=True) if dim is not None]
        return Call(self.tool, {dim.entry.parameter: dim.value(number, self.file.clip) for dim, number in pairs})


def _read_contents(path: str) -> MappingFile:
    """Return the contents of a mapping file. Raises UserError."""
    import yaml

    try:
        return MappingFile.model_validate(yaml.safe_load(read_text(user_path(path))))
    except (OSError, ValueError, OverflowError, yaml.YAMLError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:400]
        raise UserError(f"The policy's mapping {path} cannot be read: {reason}.", PAGE) from None


def _action_rules(entries: Sequence[ActionEntry | None], tool: ToolSchema, where: str) -> tuple[ActionDim | None, ...]:
    """Return the rules for the entries of `actions`, in order. Raises UserError."""
    dims = tuple(None if e is None else _action_rule(e, tool, f"{where}: actions[{i}]") for i, e in enumerate(entries))
    names = [entry.parameter for entry in entries if entry is not None]
    for parameter in tool.parameters:
        count = names.count(parameter.name)
        if count > 1 or (parameter.required and not count):
            text = f"{where}: `actions` must have one entry for {tool.name}'s {parameter.name}, but has {count}."
            raise UserError(text, PAGE)
    return dims


def _action_rule(entry: ActionEntry, tool: ToolSchema, where: str) -> ActionDim:
    """Return the rule for an entry of `actions`, by the parameter's values or its bounds and step. Raises UserError."""
    parameter = next((p for p in tool.parameters if p.name == entry.parameter), None)
    if parameter is None:
        names = ", ".join(p.name for p in tool.parameters)
        raise UserError(f"{where}: {tool.name} has no parameter {entry.parameter[:80]!r}; it has {names}.", PAGE)
    values, domain = entry.levels, parameter.domain
    if values is None and isinstance(domain, ClosedDomain):
        values = {value: value for value in domain.values if type(value) in (int, float)}
        if len(values) < len(domain.values):
            values = {}
    if values:
        points = sorted(values)
        max_distance = max((b - a for a, b in pairwise(points)), default=0.0) / 2 * (1 + 1e-9)
        return ActionDim(entry, values, max_distance)
    if values is not None or parameter.schema.get("type") not in ("integer", "number"):
        hint = f"List them: {{parameter: {parameter.name}, levels: {{-1: left, 0: stay, 1: right}}}}. {PAGE}"
        raise UserError(f"{where}: the values of {parameter.name} are not numbers.", hint)
    numbers, integer = number_range(parameter.schema), parameter.schema["type"] == "integer"
    step = Fraction(numbers.step.numerator if numbers.step else 1) if integer else numbers.step
    low, high = float(numbers.low), float(numbers.high)
    if step is not None:
        low, high = (float(count * step) for count in numbers.multiples(step))
    else:
        low = math.nextafter(low, math.inf) if numbers.above else low
        high = math.nextafter(high, -math.inf) if numbers.below else high
    return ActionDim(entry, bounds=(low, high), step=step, integer=integer)


def _field_array(data: Mapping[str, Any], fields: str | Sequence[str]) -> np.ndarray[Any, Any]:
    """Return one field of the observation as an array, or several fields as a float32 vector. Raises UserError."""
    try:
        if isinstance(fields, str):
            return np.asarray(data[fields])
        with np.errstate(over="raise"):
            vector = np.array([float(data[name]) for name in fields]).astype(np.float32)
        if np.isfinite(vector).all():
            return vector
        reason = "not finite"
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        reason = f"{type(error).__name__}: {str(error)[:80]}"
    raise UserError(f"The observation's {fields!r} cannot be sent to the policy ({reason}).", PAGE)
