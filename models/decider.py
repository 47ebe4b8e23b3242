"""Turn an observation text and an instruction into a typed function call, with a checkpoint and an engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from rtcontrol.models.call import Call, Decision
from rtcontrol.models.checkpoint.prompt import PromptTemplate
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.decode.chat_core import ChatCore
from rtcontrol.models.decode.chat_plan import ChatPlan
from rtcontrol.models.decode.core import DecoderCore
from rtcontrol.models.decode.grammar import GrammarCompiler
from rtcontrol.models.decode.protocol import Budget, Runner
from rtcontrol.models.errors import UserError, prompt_too_long
from rtcontrol.models.in_flight import Decoding, InFlightDecode, evaluate, run_to_end
from rtcontrol.models.runners import registry
from rtcontrol.models.schema.domain import FreeDomain
from rtcontrol.models.schema.tool_schema import ToolSchema, tool_schemas

if TYPE_CHECKING:
    from rtcontrol.models.checkpoint.checkpoint import Checkpoint

T = TypeVar("T")


@dataclass(frozen=True)
class DeciderSpec:
    """The settings of a decider, as plain values that can be sent to another process.

    `history` is the maximum number of executed calls in the prompt. `threads` limits torch's CPU threads (None: one for
    a small model, else torch's default). With `allow_null` the model may decide to make no call (a chat model always
    makes a call). `value_tokens` limits the tokens of a value that is not chosen from a list. The budgets limit the
    trie nodes of a forward pass (see `Budget`; None: chosen by the measured cost of a pass). `hysteresis` is the margin
    by which another value must be more probable than the active value to replace it (ST checkpoints only)."""

    model: str
    tools: tuple[dict[str, Any], ...]
    engine: str = "torch"
    dtype: str = "auto"
    device: str | None = None
    threads: int | None = None
    allow_null: bool = False
    history: int = 6
    budget_per_head: int | None = None
    budget_total: int | None = None
    value_tokens: int = 64
    hysteresis: float | None = None

    def build(self) -> STDecider:
        """Load the checkpoint, compute the prompt prefix, and return the decider. Raises UserError."""
        return STDecider(self)

    def load(self) -> tuple[Checkpoint, Runner]:
        """Return the checkpoint and its runner. Raises UserError."""
        from rtcontrol.models.checkpoint.checkpoint import Checkpoint

        registry.check_engine(self.engine)
        checkpoint = Checkpoint.open(self.model)
        return checkpoint, registry.load(self.engine, checkpoint.folder, self.dtype, self.device, self.threads)


def build_core(
    spec: DeciderSpec, checkpoint: Checkpoint, vocabulary: int, tools: Sequence[ToolSchema]
) -> DecoderCore | ChatCore:
    """Return the decoder core of an ST checkpoint or of a chat model, without loading weights. Raises UserError."""
    from rtcontrol.models.decode.plan import compile_plan

    template, tokenizer = checkpoint.template, checkpoint.tokenizer
    if isinstance(template, PromptTemplate):
        plan = compile_plan(tools, tokenizer, spec.allow_null, template.overflow)
        return DecoderCore(plan, tokenizer, vocabulary, limit=spec.value_tokens, hysteresis=spec.hysteresis)
    if spec.hysteresis is not None:
        problem = f"loop.hysteresis needs a checkpoint with heads, but {spec.model} is a chat model."
        raise UserError(problem, "Remove loop.hysteresis, or use a checkpoint with heads (docs/engines.md).")
    free = any(isinstance(p.domain, FreeDomain) for tool in tools for p in tool.parameters)
    grammars = GrammarCompiler(tokenizer, vocabulary) if free else None
    chat = ChatPlan(tools, tokenizer, template.syntax, grammars)
    return ChatCore(chat, tokenizer, grammars, spec.value_tokens)


class STDecider:
    """Decides calls for one agent, with separate tools and cache. Deciders of the same checkpoint share the model.

    Only `cancel` is thread-safe.
    """

    def __init__(self, spec: DeciderSpec) -> None:
        started = time.perf_counter()
        self.spec = spec
        self.checkpoint, self.runner = spec.load()
        self.template, self.tokenizer = self.checkpoint.template, self.checkpoint.tokenizer
        metadata = TrainingMetadata.load(self.checkpoint.folder)
        # The model was not trained on prompts with more history, so its calls would be unpredictable.
        self._history = spec.history if metadata is None else min(spec.history, metadata.history)
        tools = tool_schemas(spec.tools)
        self._metadata = metadata if metadata is not None and metadata.knows(tools) else None
        if self._metadata is not None:
            tools = self._metadata.in_trained_order(tools)
            self._unknown = lru_cache(maxsize=4)(self._metadata.unknown)  # cached: the instruction rarely changes
        prefix, slots = self.template.prefix_ids(tools), self.runner.slots
        if len(prefix) >= slots:  # check before compiling, which would take minutes and gigabytes
            raise prompt_too_long(slots, len(prefix))
        core = build_core(spec, self.checkpoint, self.runner.caps.vocabulary, tools)
        self.plan: Any = core.plan
        nodes = {"per_head": spec.budget_per_head, "total": spec.budget_total}
        limits: dict[str, Any] = {name: count for name, count in nodes.items() if count is not None}
        self.decoding = Decoding(self.runner, core, prefix, Budget(**limits) if limits else None)
        self.prefix = self.decoding.prefix
        self.load_ms = (time.perf_counter() - started) * 1e3

    def decide(
        self, observation: str, instruction: str, history: Sequence[str] = (), active_call: Call | None = None
    ) -> Decision:
        """Decide which call to make. If hysteresis is set, the values of `active_call` are preferred.

        Raises UserError if the prompt does not fit the context, and DecodeError if no legal call can be decoded."""
        return run_to_end(self.decide_in_steps(observation, instruction, history, active_call, in_slices=False))

    def decide_in_steps(
        self,
        observation: str,
        instruction: str,
        history: Sequence[str] = (),
        active_call: Call | None = None,
        in_slices: bool = True,
    ) -> Generator[None, None, Decision]:
        """Do the same as `decide`, as a generator that yields between forward passes. With `in_slices` a long prompt is
        computed in several passes."""
        decode = self.start(observation, instruction, history, active_call)
        yield from self.decoding.evaluate_in_steps(decode, in_slices)
        return self.result_of(decode, observation, instruction)

    def start(
        self, observation: str, instruction: str, history: Sequence[str] = (), active_call: Call | None = None
    ) -> InFlightDecode:
        """Start a decision, which `in_flight.evaluate` can finish together with others in shared passes."""
        return self.decoding.start(self.suffix(observation, instruction, history), active_call)

    def result_of(self, decode: InFlightDecode, observation: str, instruction: str) -> Decision:
        """Return a finished decision, or raise its error. The function's confidence is lowered by words and numbers of
        the instruction that were not in the training data, and by an unfamiliar observation."""
        decision, metadata = decode.decision(), self._metadata
        if metadata is None:
            return decision
        (unknown, unknown_factor), unfamiliar = self._unknown(instruction), metadata.unfamiliar(observation)
        if not unknown and not unfamiliar:
            return decision
        factor = metadata.unfamiliar_factor if unfamiliar else 1.0
        if decision.call is not None:
            factor *= unknown_factor
        confidence = decision.confidence
        if "function" in confidence and (decision.call is not None or metadata.null_keeps):
            confidence = {**confidence, "function": confidence["function"] * factor}
        return replace(decision, confidence=confidence, unknown=unknown, unfamiliar=unfamiliar)

    def decide_many(self, situations: Sequence[tuple[str, str] | tuple[str, str, Sequence[str]]]) -> list[Decision]:
        """Return a decision for each (observation, instruction[, history]), computed in shared forward passes."""
        decodes = self.decoding.decide_all([self.suffix(*situation) for situation in situations])
        return [self.result_of(d, s[0], s[1]) for d, s in zip(decodes, situations, strict=True)]

    def suffix(self, observation: str, instruction: str, history: Sequence[str] = ()) -> list[int]:
        """Return the prompt tokens after the prefix: instruction, history and observation."""
        recent_calls = history[-self._history :] if self._history else ()
        return self.template.suffix_ids(instruction, observation, recent_calls)

    def cancel(self) -> None:
        """Cancel the current decision before its next forward pass. Any thread may call this."""
        self.decoding.cancel()

    def info(self) -> dict[str, Any]:
        """Return figures about model, engine and prefix for the run's report."""
        return {
            "model": str(self.spec.model),
            "profile": self.template.profile,
            **self.runner.caps.to_dict(),
            "budget": self.decoding.layout,
            "prefix_tokens": self.prefix.tokens,
            "prefix_source": self.prefix.source,
            "prefix_note": self.prefix.note,
            **getattr(self.runner, "figures", {}),
            "load_ms": round(self.load_ms, 1),
        }


Situation = tuple[str, str, Sequence[str]] | tuple[str, str, Sequence[str], Call | None]


def decide_together(requests: Sequence[tuple[STDecider, Situation]]) -> list[Decision | Exception]:
    """Decide for several sessions. Sessions with the same model share forward passes. Return the decision of each
    session, or the exception that it raised."""
    return run_to_end(decide_together_in_steps(requests))


def decide_together_in_steps(
    requests: Sequence[tuple[STDecider, Situation]],
) -> Generator[None, None, list[Decision | Exception]]:
    """Do the same as `decide_together`, as a generator that yields between forward passes."""
    if len({id(decider) for decider, _ in requests}) != len(requests):
        raise ValueError("a session may make only one decision at a time")
    decodes = [result_or_error(decider.start, *situation) for decider, situation in requests]
    for runner in dict.fromkeys(decider.runner for decider, _ in requests):
        shared = [decode for (decider, _), decode in zip(requests, decodes, strict=True) if decider.runner is runner]
        yield from evaluate(runner, [decode for decode in shared if isinstance(decode, InFlightDecode)])
    pairs = zip(requests, decodes, strict=True)
    return [
        decode if isinstance(decode, Exception) else result_or_error(decider.result_of, decode, *situation[:2])
        for (decider, situation), decode in pairs
    ]


def result_or_error(function: Callable[..., T], *args: Any) -> T | Exception:
    """Call `function` and return its result, or the exception that it raised."""
    try:
        return function(*args)
    except Exception as error:
        return error
