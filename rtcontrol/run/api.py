"""Make decisions from Python: `rtcontrol.load` returns a model, which opens a session for each set of tools."""

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
from rtcontrol.loop.active import unknown_words_text
from rtcontrol.loop.operator import unfamiliar_text
from rtcontrol.loop.realtime import SWITCH_INTERVAL_S
from rtcontrol.loop.rules import ConfidenceGate, heads_of
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.checkpoint.checkpoint import resolve
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.decider import DeciderSpec, STDecider
from rtcontrol.models.errors import UserError
from rtcontrol.models.runners import registry
from rtcontrol.records import LowConfidence
from rtcontrol.run.model_compatibility import first_difference, trained_on
from rtcontrol.telemetry.progress import slow_work

MAX_DEADLINE_MS = 3_600_000.0
WAKE_S = 0.000_25  # waits end this much earlier, because a thread may need this time to wake
ToolDefinitions = Sequence[Tool | Callable[..., Any] | Mapping[str, Any]]
T = TypeVar("T")


class DeadlineWorker:
    """A worker thread that runs one task at a time, for callers who wait for the result until a deadline."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "decide")
        self._last: Future[Any] | None = None  # newest task, which may run beyond its deadline

    def wait_until_idle(self) -> None:
        """Wait until the task that missed its deadline has ended."""
        if self._last is not None:
            wait([self._last])
            self._last = None

    def run_until(self, by_s: float, work: Callable[[], T], on_late: Callable[[], None]) -> list[T]:
        """Run `work` on the worker thread until `by_s` (time.monotonic). Return a list with its result.

        If `work` does not end in time, return an empty list, drop the later result or exception, and call `on_late` if
        `work` has started. A previous task that still runs delays `work`.
        """
        # With Python's default switch interval (5 ms), the caller might wake 5 ms late.
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))
        future = self._last = self._pool.submit(work)
        wait([future], max(0.0, by_s - WAKE_S - time.monotonic()))
        if time.monotonic() <= by_s and future.done():
            return [future.result()]
        if not future.cancel():
            on_late()
        return []


@dataclass(frozen=True, slots=True)
class SessionDecision(Decision):
    """A decision of a session, with the `call` to execute.

    `confidence` has a value for `function` and for each parameter name. If the confidence is too low, `held` is the
    reason as text, and `unsure` is the model's call. `missed` is True if the decision missed its deadline. In both
    cases, `call` is the session's safe call, or None if the session has no safe call.
    """

    held: str | None = None
    missed: bool = False
    unsure: Call | None = None


class Model:
    """A model for decisions from Python. `name` is a bundled name, a folder or a hub id.

    `engine` is torch, transformers or vllm. `dtype` is auto, fp32 or bf16. `device` is a torch device name (None: a GPU
    if the machine has one). `threads` limits torch's CPU threads (None: 1 for a small model). The first session loads
    the weights; if this is slow, it prints a line on standard error, unless `progress` is False. Raises UserError.
    """

    def __init__(
        self,
        name: str,
        dtype: str = "auto",
        device: str | None = None,
        threads: int | None = None,
        engine: str = "torch",
        progress: bool = True,
    ) -> None:
        if is_endpoint(name):
            hint = f"Use `rtcontrol run --model {name.partition(':')[0]}:URL` or `rtcontrol serve`."
            raise UserError(f"{name} is an endpoint, not a model, and cannot be loaded.", hint)
        registry.check_engine(engine)
        registry.check_options(engine, dtype, device, threads)
        resolve(name)
        self.name, self._progress = name, progress
        self._options: dict[str, Any] = {"engine": engine, "dtype": dtype, "device": device, "threads": threads}

    def session(
        self,
        tools: Tools | ToolDefinitions | None = None,
        *,
        untrained: bool = False,
        min_confidence: float | Mapping[str, float] | None = None,
        safe_call: Call | None = None,
    ) -> ModelSession:
        """Return a session that decides with these tools.

        `tools` are functions, pydantic models or OpenAI-style definitions (None: the tools that the bundled or fitted
        model was trained on). The prompt has as many previous calls as in training (6 if that number is unknown). A
        fitted model may decide to keep the active call if its training rows include such decisions.

        `safe_call` replaces the call of a decision that is late, or whose confidence is below `min_confidence`. This
        limit is a number for all heads (outputs of the model), or a mapping with `function` and parameter names. None
        uses the limit in the checkpoint, if it has a limit for these tools; 0 disables the check.

        Raises UserError if the tools cannot be decoded, if they do not allow the safe call, or if the model was trained
        on other tools. `untrained=True` allows a model that was trained on other tools.
        """
        bundled = next((agent for world in BY_AGENT.values() if (agent := world.controller()).model == self.name), None)
        metadata = TrainingMetadata.load(resolve(self.name))
        if tools is None and bundled is not None:
            tools = bundled.tools
        elif tools is None:
            if metadata is None or metadata.tools is None:
                raise UserError(f"The checkpoint {self.name} does not list its tools.", "Give session(tools).")
            tools = Tools(metadata.tools)
        chosen = tools if isinstance(tools, Tools) else Tools(tools)
        if not untrained and trained_on(chosen.schemas, self.name) is False:
            raise UserError(
                f"The model {self.name} was trained on other tools: its calls would be legal but meaningless."
                + first_difference(chosen.schemas, self.name),
                "Load a model that was trained on these tools, or write session(tools, untrained=True).",
            )
        knows_tools = metadata is not None and metadata.knows(chosen.schemas)
        gate = confidence_gate(chosen, min_confidence, metadata if knows_tools else None)
        if safe_call is not None:
            _check_safe_call(chosen, safe_call)
        history = metadata.history if metadata is not None else 6 if bundled is None else bundled.history
        # Allow null only with the tools of the model's training, because otherwise the model does not use it correctly.
        allow_null = metadata is not None and metadata.allow_null and knows_tools
        spec = DeciderSpec(self.name, tuple(chosen.openai()), **self._options, history=history, allow_null=allow_null)
        with slow_work(f"Loading the model {self.name} ...", self._progress):
            decider = spec.build()
        return ModelSession(chosen, decider, gate, safe_call)


class ModelSession:
    """A model's session with a fixed set of tools, which makes one decision at a time. Any thread may call `cancel`."""

    def __init__(self, tools: Tools, decider: STDecider, gate: ConfidenceGate, safe_call: Call | None = None) -> None:
        self.tools, self.decider, self.gate, self.safe_call = tools, decider, gate, safe_call
        named = {tool: {head: name for name, head in heads.items()} for tool, heads in heads_of(tools).items()}
        self._names = {tool: {h: n for h, n in names.items() if n != "function"} for tool, names in named.items()}
        self._worker = DeadlineWorker()

    def decide(
        self, text: str, instruction: str, history: Sequence[Call | str] = (), *, deadline_ms: float | None = None
    ) -> SessionDecision:
        """Return the decision for an observation (`text`), an instruction and the previous calls.

        `history` has the previous calls, or their `Call.text()`, the newest last. With `deadline_ms` the method returns
        by the deadline; if the model is late, the decision is `missed`. The late forward pass continues, but its result
        is dropped. The next decision waits until the late pass has ended, at most until its deadline.

        Raises UserError if the prompt is too long, DecodeError if no legal call can be decoded, Cancelled by `cancel`.
        """
        called_s = time.monotonic()
        shown = [call.text() if isinstance(call, Call) else call for call in history]
        if deadline_ms is None:
            self.wait_until_idle()
            return self.apply_gate(self.decider.decide(text, instruction, shown))
        if not 0 < deadline_ms <= MAX_DEADLINE_MS:
            raise UserError(
                f"deadline_ms={deadline_ms:g} is out of range.", f"Use a value above 0, up to {MAX_DEADLINE_MS:g}."
            )
        results = self._worker.run_until(
            called_s + deadline_ms / 1e3, lambda: self.decider.decide(text, instruction, shown), self.decider.cancel
        )
        return self.apply_gate(results[0]) if results else SessionDecision(self.safe_call, missed=True)

    def wait_until_idle(self) -> None:
        """Wait until the forward pass of a decision that missed its deadline has ended."""
        self._worker.wait_until_idle()

    def apply_gate(self, decision: Decision) -> SessionDecision:
        """Replace the call by the safe call if its confidence is too low. Convert confidences to parameter names."""
        values = {field.name: getattr(decision, field.name) for field in fields(Decision)}
        doubt, call = self.gate.doubt(decision), decision.call
        names = self._names.get(call.name, {}) if call is not None else {}
        values["confidence"] = {names.get(head, head): value for head, value in decision.confidence.items()}
        if doubt is None:
            return SessionDecision(**values)
        head = names.get(doubt.head, doubt.head)
        held = low_confidence_text(doubt, head, decision)
        return SessionDecision(**values | {"call": self.safe_call}, held=held, unsure=call)

    def execute(self, call: Call) -> Any:
        """Run the Python function of the called tool, and return its result.

        Raises rtcontrol.agents.InvalidCall if the tools reject the call, and UserError if the tool has no function.
        """
        if any(tool.has_no_function for tool in self.tools if tool.name == call.name):
            raise UserError(
                f"The tool {call.name} has no function here.",
                f"Bind a function: session(Tools([...]).bind({call.name}=function)); or use call.arguments (for a "
                f"pydantic model: {call.name}(**call.arguments)).",
            )
        return self.tools.execute(self.tools.validate(call))

    def cancel(self) -> None:
        """Cancel the current decision. A running forward pass is not interrupted."""
        self.decider.cancel()

    def info(self) -> dict[str, Any]:
        """Return the decider's engine, dtype, device, number of cached prefix tokens, and layout of forward passes."""
        return self.decider.info()


def low_confidence_text(doubt: LowConfidence, head: str, decision: Decision) -> str:
    """Return a sentence for people that says why a decision is not executed."""
    reasons = [unfamiliar_text(decision.unfamiliar)] if decision.unfamiliar else []
    if decision.unknown:
        reasons.append(unknown_words_text(decision.unknown))
    lowered = " lowered to" if reasons else ""
    confidence = (
        f"the confidence of {head} is{lowered} {doubt.confidence:.3f}, and must be at least {doubt.least:.3f} to act"
    )
    if decision.call is None and doubt.least == 1:
        confidence = "the instruction is not understood: the model cannot relate it to a goal of these tools"
    return "; ".join([*reasons, confidence])


def confidence_gate(
    tools: Tools, least: float | Mapping[str, float] | None, metadata: TrainingMetadata | None
) -> ConfidenceGate:
    """Return a gate with the minimum confidences `least` (None: those of the checkpoint). Raises UserError."""
    if least is None and metadata is not None and metadata.gate is not None:
        return ConfidenceGate({"function": metadata.gate}, tools, null_is_doubt=metadata.null_is_doubt)
    floors: Any = least if isinstance(least, Mapping) else {"": least or 0.0}
    known = {"function"}.union(*((*names, *names.values()) for names in heads_of(tools).values()))
    for head, floor in floors.items():
        if head and head not in known:
            problem = f"min_confidence names {head!r}, but no tool has such a parameter."
            raise UserError(problem, f"Known names: {', '.join(sorted(known))}.")
        if not 0 <= floor <= 1:
            raise UserError(f"min_confidence={least} is not a probability.", "Use a value from 0 (no minimum) to 1.")
    return ConfidenceGate(floors, tools)


def _check_safe_call(tools: Tools, safe_call: Call) -> None:
    try:
        tools.validate(safe_call)
    except InvalidCall as error:
        problem = f"These tools do not allow the safe call ({error})."
        raise UserError(problem, "Use a call such as Call('stop', {}).") from None
