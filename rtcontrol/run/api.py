"""Deciding from Python: a model once, and a session for each set of tools (`rtcontrol.load`)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from rtcontrol.agents import InvalidCall, Tool, Tools
from rtcontrol.envs.registry import BY_AGENT
from rtcontrol.hosts.remote_api import is_endpoint
from rtcontrol.loop.operator import never_taught
from rtcontrol.loop.realtime import SWITCH_INTERVAL_S
from rtcontrol.loop.rules import ConfidenceGate, heads_of
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.checkpoint.checkpoint import resolve
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.decider import DeciderSpec, STDecider
from rtcontrol.models.errors import UserError
from rtcontrol.models.runners import registry
from rtcontrol.records import Doubt
from rtcontrol.run.model_compatibility import difference, trained_on

MAX_DEADLINE_MS = 3_600_000.0
WAKE_S = 0.000_25  # a thread takes so long to wake: one that is to wake at an instant itself would be late
Definitions = Sequence[Tool | Callable[..., Any] | Mapping[str, Any]]
T = TypeVar("T")


class InTime:
    """Do one piece of work after another on a thread, which starts with the first, and ends with its owner."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "decide")
        self._last: Future[Any] | None = None  # nothing else may start before it is over

    def settle(self) -> None:
        """Wait for work that is late."""
        if self._last is not None:
            wait([self._last])
            self._last = None

    def until(self, by_s: float, work: Callable[[], T], late: Callable[[], None]) -> list[T]:
        """Return the result of `work`, alone in a list, if it is there by this instant of `time.monotonic`.

        Else return nothing, drop whatever it returns or raises, and call `late` if it has started. It waits for work
        that is late before.
        """
        # Else the caller may get the interpreter 5 ms after the working thread was to give it up.
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))
        future = self._last = self._pool.submit(work)
        wait([future], max(0.0, by_s - WAKE_S - time.monotonic()))
        if time.monotonic() <= by_s and future.done():
            return [future.result()]
        if not future.cancel():
            late()
        return []


@dataclass(frozen=True, slots=True)
class SessionDecision(Decision):
    """A decision of a session: `call` is what may act. `confidence` goes by `function` and the parameters' names.

    Where it is too unsure, `held` says so in words, and `unsure` is what it would have called; `missed`: it was not
    there by its deadline. Then `call` is the session's safe call, None where it has none.
    """

    held: str | None = None
    missed: bool = False
    unsure: Call | None = None


class Model:
    """A checkpoint by bundled name, folder or hub id; its weights are loaded with the first session, once for all.

    `engine` is torch, transformers or vllm; `dtype` is auto, fp32 or bf16; `device` torch's name of one (None: a GPU
    where there is one); `threads` limits torch's CPU threads (None: one for a small model). Raises UserError.
    """

    def __init__(
        self,
        name: str,
        dtype: str = "auto",
        device: str | None = None,
        threads: int | None = None,
        engine: str = "torch",
    ) -> None:
        if is_endpoint(name):
            hint = f"Use it by `rtcontrol run --model {name.partition(':')[0]}:URL` or `rtcontrol serve`."
            raise UserError(f"{name} is an endpoint, not a model: there is nothing of it to load.", hint)
        registry.check(engine)
        registry.check_options(engine, dtype, device, threads)
        resolve(name)
        self.name = name
        self._options: dict[str, Any] = {"engine": engine, "dtype": dtype, "device": device, "threads": threads}

    def session(
        self,
        tools: Tools | Definitions | None = None,
        *,
        untrained: bool = False,
        min_confidence: float | Mapping[str, float] | None = None,
        safe_call: Call | None = None,
    ) -> ModelSession:
        """Return a session for these tools: functions, pydantic models or OpenAI-style definitions (None: those that a
        bundled or fitted model was trained on).

        The prompt shows as many calls as in training, where that is known, else 6. Where a fitted model learnt so, a
        decision may be to leave the active call.

        A decision that is less sure than `min_confidence` is held (None: than the checkpoint's gate, where it has one
        for these tools; 0: none is): a number is for all, a mapping for `function` and parameters. `safe_call` takes
        its place, and that of one that is late.

        Raises UserError for tools that cannot be decoded, for a safe call that they do not allow, and for a model that
        was trained on others, unless `untrained`: its calls are legal then, and nonsense.
        """
        bundled = next((agent for world in BY_AGENT.values() if (agent := world.controller()).model == self.name), None)
        learnt = TrainingMetadata.of(resolve(self.name))
        if tools is None and bundled is not None:
            tools = bundled.tools
        elif tools is None:
            if learnt is None or learnt.tools is None:
                raise UserError(f"{self.name} does not say which tools it learnt.", "Give session(tools).")
            tools = Tools(learnt.tools)
        chosen = tools if isinstance(tools, Tools) else Tools(tools)
        if not untrained and trained_on(chosen.schemas, self.name) is False:
            raise UserError(
                f"The model {self.name} was trained on other tools: its calls would be legal, and nonsense."
                + difference(chosen.schemas, self.name),
                "Load a model that was trained on these, or say session(tools, untrained=True).",
            )
        knows = learnt is not None and learnt.knows(chosen.schemas)
        gate = confidence_gate(chosen, min_confidence, learnt if knows else None)
        if safe_call is not None:
            _check_safe(chosen, safe_call)
        history = learnt.history if learnt is not None else 6 if bundled is None else bundled.history
        # Of tools that it never saw, null says nothing.
        allow_null = learnt is not None and learnt.allow_null and knows
        spec = DeciderSpec(self.name, tuple(chosen.openai()), **self._options, history=history, allow_null=allow_null)
        return ModelSession(chosen, spec.build(), gate, safe_call)


class ModelSession:
    """Decides for one set of tools. One decision at a time; `cancel` may be called from another thread."""

    def __init__(self, tools: Tools, decider: STDecider, gate: ConfidenceGate, safe_call: Call | None = None) -> None:
        self.tools, self.decider, self.gate, self.safe_call = tools, decider, gate, safe_call
        named = {tool: {head: name for name, head in heads.items()} for tool, heads in heads_of(tools).items()}
        self._names = {tool: {h: n for h, n in names.items() if n != "function"} for tool, names in named.items()}
        self._in_time = InTime()

    def decide(
        self, text: str, instruction: str, history: Sequence[Call | str] = (), *, deadline_ms: float | None = None
    ) -> SessionDecision:
        """Return the call for an observation (`text`) and an instruction, after these calls (or their `Call.text()`),
        the newest last.

        With `deadline_ms` it returns by then, whatever the model does: what is not there is `missed`. The forward pass
        under way continues, and its result is dropped; the next decision waits for it, within its own deadline.

        Raises UserError where the prompt does not fit, DecodeError where no legal call could be decoded, and Cancelled.
        """
        called_s = time.monotonic()
        shown = [call.text() if isinstance(call, Call) else call for call in history]
        if deadline_ms is None:
            self.settle()
            return self.given(self.decider.decide(text, instruction, shown))
        if not 0 < deadline_ms <= MAX_DEADLINE_MS:
            raise UserError(f"deadline_ms={deadline_ms:g} is out of range.", f"Give above 0 to {MAX_DEADLINE_MS:g}.")
        results = self._in_time.until(
            called_s + deadline_ms / 1e3, lambda: self.decider.decide(text, instruction, shown), self.decider.cancel
        )
        return self.given(results[0]) if results else SessionDecision(self.safe_call, missed=True)

    def settle(self) -> None:
        """Wait for a decision that missed its deadline, and is still under way."""
        self._in_time.settle()

    def given(self, decision: Decision) -> SessionDecision:
        """Return a decision as the gate lets it through, with parameters' names."""
        values = {field.name: getattr(decision, field.name) for field in fields(Decision)}
        doubt, call = self.gate.doubt(decision), decision.call
        names = self._names.get(call.name, {}) if call is not None else {}
        values["confidence"] = {names.get(head, head): sure for head, sure in decision.confidence.items()}
        if doubt is None:
            return SessionDecision(**values)
        head = names.get(doubt.head, doubt.head)
        held = why_held(doubt, head, call) + (f"; {never_taught(decision.unknown)}" if decision.unknown else "")
        return SessionDecision(**values | {"call": self.safe_call}, held=held, unsure=call)

    def execute(self, call: Call) -> Any:
        """Run the function of a call's tool. Raises InvalidCall (of rtcontrol.agents) for a call that the tools do not
        allow, and UserError for a tool that has no function here."""
        if any(tool.elsewhere for tool in self.tools if tool.name == call.name):
            raise UserError(
                f"The tool {call.name} has no function here.",
                f"Give the functions: session(Tools([...]).bind({call.name}=function)); or use call.arguments (of a "
                f"pydantic model: {call.name}(**call.arguments)).",
            )
        return self.tools.execute(self.tools.validate(call))

    def cancel(self) -> None:
        """Give up the decision under way, before its next forward pass."""
        self.decider.cancel()

    def info(self) -> dict[str, Any]:
        """Return what decides: engine, dtype, device, tokens of the cached prefix, how passes are laid out."""
        return self.decider.info()


def why_held(doubt: Doubt, head: str, call: Call | None) -> str:
    """Return in words why a decision is held back."""
    if call is None:
        return "the instruction is not understood: the model answers that it asks for nothing here"
    return f"{head} is {doubt.confidence:.3f} sure, and acts from {doubt.least:.3f} on"


def confidence_gate(
    tools: Tools, least: float | Mapping[str, float] | None, learnt: TrainingMetadata | None
) -> ConfidenceGate:
    """Return the gate of `least`, else that of a checkpoint that knows the tools. Raises UserError."""
    if least is None and learnt is not None and learnt.gate is not None:
        return ConfidenceGate({"function": learnt.gate}, tools, null_is_doubt=learnt.allow_null)
    floors: Any = least if isinstance(least, Mapping) else {"": least or 0.0}
    known = {"function"}.union(*((*names, *names.values()) for names in heads_of(tools).values()))
    for head, floor in floors.items():
        if head and head not in known:
            problem = f"min_confidence names {head!r}, which no tool has."
            raise UserError(problem, f"There are {', '.join(sorted(known))}.")
        if not 0 <= floor <= 1:
            raise UserError(f"min_confidence={least} is not a probability.", "Give 0 (no gate) to 1.")
    return ConfidenceGate(floors, tools)


def _check_safe(tools: Tools, safe_call: Call) -> None:
    try:
        tools.validate(safe_call)
    except InvalidCall as error:
        raise UserError(f"The safe call is none of these tools ({error}).", "Give such as Call('stop', {}).") from None
