"""From observation text to a typed call: checkpoint, prompt, plan and engine behind one method."""

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
from rtcontrol.models.decode.grammar import Grammars
from rtcontrol.models.decode.protocol import Budget, Runner
from rtcontrol.models.errors import UserError, too_long
from rtcontrol.models.in_flight import Decoding, InFlightDecode, evaluate, result
from rtcontrol.models.runners import registry
from rtcontrol.models.schema.domain import Free
from rtcontrol.models.schema.tool_schema import ToolSchema, tool_schemas

if TYPE_CHECKING:
    from rtcontrol.models.checkpoint.checkpoint import Checkpoint

T = TypeVar("T")


@dataclass(frozen=True)
class DeciderSpec:
    """What a decoder process needs to build its decider, as plain values that can be sent anywhere.

    `history` is the number of executed calls in the prompt, at most as many as in training; `threads` limits torch's
    CPU threads (None: one for a small model, else torch's default). A free value has at most `value_tokens` tokens.
    Without a budget of trie nodes (see Budget), one is chosen by the cost of a pass on this machine. A chat model
    always calls a tool. `hysteresis` keeps an active value until another one is clearly preferred (not of a chat
    model).
    """

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
        """Load the checkpoint and compute its prefix. Raises UserError."""
        return STDecider(self)

    def load(self) -> tuple[Checkpoint, Runner]:
        """Return the checkpoint and its runner. Raises UserError."""
        from rtcontrol.models.checkpoint.checkpoint import Checkpoint

        registry.check(self.engine)
        checkpoint = Checkpoint.open(self.model)
        return checkpoint, registry.load(self.engine, checkpoint.folder, self.dtype, self.device, self.threads)


def core_of(
    spec: DeciderSpec, checkpoint: Checkpoint, vocabulary: int, tools: Sequence[ToolSchema]
) -> DecoderCore | ChatCore:
    """Return the core for ST heads, or for a chat model's own syntax, without weights. Raises UserError."""
    from rtcontrol.models.decode.plan import compile_plan

    template, tokenizer = checkpoint.template, checkpoint.tokenizer
    if isinstance(template, PromptTemplate):
        plan = compile_plan(tools, tokenizer, spec.allow_null, template.overflow)
        return DecoderCore(plan, tokenizer, vocabulary, limit=spec.value_tokens, hysteresis=spec.hysteresis)
    if spec.hysteresis is not None:
        problem = f"loop.hysteresis compares the values of heads, and {spec.model} is a chat model: it has none."
        raise UserError(problem, "Leave it out, or use a checkpoint with heads (docs/engines.md).")
    free = any(isinstance(p.domain, Free) for tool in tools for p in tool.parameters)
    grammars = Grammars(tokenizer, vocabulary) if free else None
    chat = ChatPlan(tools, tokenizer, template.syntax, grammars)
    return ChatCore(chat, tokenizer, grammars, spec.value_tokens)


class STDecider:
    """Decides calls for one agent: its own plan, prefix and cache, on a model shared by all deciders of its checkpoint.

    Only `cancel` is thread-safe.
    """

    def __init__(self, spec: DeciderSpec) -> None:
        started = time.perf_counter()
        self.spec = spec
        self.checkpoint, self.runner = spec.load()
        self.template, self.tokenizer = self.checkpoint.template, self.checkpoint.tokenizer
        learnt = TrainingMetadata.of(self.checkpoint.folder)
        # What a model was never shown in training changes its calls by what happens to stand there.
        self._history = spec.history if learnt is None else min(spec.history, learnt.history)
        tools = tool_schemas(spec.tools)
        self._learnt = learnt if learnt is not None and learnt.knows(tools) else None
        if self._learnt is not None:
            tools = self._learnt.as_trained(tools)
            self._unknown = lru_cache(maxsize=4)(self._learnt.unknown)  # nearly always the same instruction
        prefix, slots = self.template.prefix_ids(tools), self.runner.slots
        if len(prefix) >= slots:  # before the plan: that of values as long as this takes minutes, and gigabytes
            raise too_long(slots, len(prefix))
        core = core_of(spec, self.checkpoint, self.runner.caps.vocabulary, tools)
        self.plan: Any = core.plan
        nodes = {"per_head": spec.budget_per_head, "total": spec.budget_total}
        limits: dict[str, Any] = {name: count for name, count in nodes.items() if count is not None}
        self.decoding = Decoding(self.runner, core, prefix, Budget(**limits) if limits else None)
        self.prefix = self.decoding.prefix
        self.load_ms = (time.perf_counter() - started) * 1e3

    def decide(
        self, observation: str, instruction: str, history: Sequence[str] = (), standing: Call | None = None
    ) -> Decision:
        """Return one decision; `standing` is the active call, for hysteresis.

        Raises UserError when the prompt does not fit the context, and DecodeError."""
        return result(self.decide_in_steps(observation, instruction, history, standing, sliced=False))

    def decide_in_steps(
        self,
        observation: str,
        instruction: str,
        history: Sequence[str] = (),
        standing: Call | None = None,
        sliced: bool = True,
    ) -> Generator[None, None, Decision]:
        """Decide as `decide`; the caller may stop at any yield: between forward passes, and with `sliced` within a long
        prompt."""
        decode = self.begin(observation, instruction, history, standing)
        yield from self.decoding.in_steps(decode, sliced)
        return self.result_of(decode, instruction)

    def begin(
        self, observation: str, instruction: str, history: Sequence[str] = (), standing: Call | None = None
    ) -> InFlightDecode:
        """Start a decision that can share passes with others."""
        return self.decoding.begin(self.suffix(observation, instruction, history), standing)

    def result_of(self, decode: InFlightDecode, instruction: str) -> Decision:
        """Return the decision, or raise the error that ended it. Its confidence is lowered for each word of the
        instruction that training did not have."""
        decision = decode.decision()
        unknown = () if self._learnt is None else self._unknown(instruction)
        if self._learnt is None or not unknown:
            return decision
        confidence = decision.confidence
        if decision.call is not None and "function" in confidence:
            confidence = {**confidence, "function": confidence["function"] * self._learnt.doubt ** len(unknown)}
        return replace(decision, confidence=confidence, unknown=unknown)

    def decide_many(self, situations: Sequence[tuple[str, str] | tuple[str, str, Sequence[str]]]) -> list[Decision]:
        """Decide (observation, instruction) or (observation, instruction, history) in the same forward passes."""
        decided = self.decoding.decided([self.suffix(*situation) for situation in situations])
        return [self.result_of(d, s[1]) for d, s in zip(decided, situations, strict=True)]

    def suffix(self, observation: str, instruction: str, history: Sequence[str] = ()) -> list[int]:
        """Return the tokens of a situation after the prefix."""
        shown = history[-self._history :] if self._history else ()
        return self.template.suffix_ids(instruction, observation, shown)

    def cancel(self) -> None:
        """Stop the decision in flight (from another thread)."""
        self.decoding.cancel()

    def info(self) -> dict[str, Any]:
        """Return model and engine for the report."""
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
    """Decide for different sessions, those of one model in the same passes; return for each what `decide` returns or
    raises."""
    return result(decide_together_in_steps(requests))


def decide_together_in_steps(
    requests: Sequence[tuple[STDecider, Situation]],
) -> Generator[None, None, list[Decision | Exception]]:
    """Decide as `decide_together`; the caller may stop at any yield, between forward passes."""
    assert len({id(decider) for decider, _ in requests}) == len(requests), "one decision of a session at a time"
    decodes = [tried(decider.begin, *situation) for decider, situation in requests]
    for runner in dict.fromkeys(decider.runner for decider, _ in requests):
        local = [decode for (decider, _), decode in zip(requests, decodes, strict=True) if decider.runner is runner]
        yield from evaluate(runner, [decode for decode in local if isinstance(decode, InFlightDecode)])
    each = zip(requests, decodes, strict=True)
    return [
        decode if isinstance(decode, Exception) else tried(decider.result_of, decode, situation[1])
        for (decider, situation), decode in each
    ]


def tried(act: Callable[..., T], *args: Any) -> T | Exception:
    """Return the result of `act`, or its exception."""
    try:
        return act(*args)
    except Exception as fault:
        return fault
