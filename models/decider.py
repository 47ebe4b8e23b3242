"""From observation text to typed call: checkpoint, prompt, plan and engine behind one method."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
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
    """Everything a decoder process needs to build its decider; plain values only, so it crosses any wire.

    `history` is how many executed calls the prompt shows, at most as many as the checkpoint says that it learnt;
    `threads` limits torch's CPU threads (None: one for a small model, else torch's default). A free value has at most
    `value_tokens` tokens. Without a budget of trie nodes (see Budget), one is chosen by what a pass costs on this
    machine. A chat model always calls a tool. With
    `hysteresis` a value in force stays until another one is clearly preferred (not of a chat model).
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
        """Load the checkpoint and make its prefix ready. Raises UserError."""
        return STDecider(self)

    def load(self) -> tuple[Checkpoint, Runner]:
        """The checkpoint and what runs it. Raises UserError."""
        from rtcontrol.models.checkpoint.checkpoint import Checkpoint

        registry.check(self.engine)
        checkpoint = Checkpoint.open(self.model)
        return checkpoint, registry.load(self.engine, checkpoint.folder, self.dtype, self.device, self.threads)


def core_of(
    spec: DeciderSpec, checkpoint: Checkpoint, vocabulary: int, tools: Sequence[ToolSchema]
) -> DecoderCore | ChatCore:
    """What decides, for ST heads or in a chat model's own syntax; nothing of it needs the weights. Raises UserError."""
    from rtcontrol.models.decode.plan import compile_plan

    template, tokenizer = checkpoint.template, checkpoint.tokenizer
    if isinstance(template, PromptTemplate):
        plan = compile_plan(tools, tokenizer, spec.allow_null, template.overflow)
        return DecoderCore(plan, tokenizer, vocabulary, limit=spec.value_tokens, hysteresis=spec.hysteresis)
    if spec.hysteresis is not None:
        what = f"--hysteresis compares the values of heads, and {spec.model} is a chat model: it has none."
        raise UserError(what, "Leave it out, or use a checkpoint with heads (docs/checkpoints.md).")
    free = any(isinstance(p.domain, Free) for tool in tools for p in tool.parameters)
    grammars = Grammars(tokenizer, vocabulary) if free else None
    chat = ChatPlan(tools, tokenizer, template.syntax, grammars)
    return ChatCore(chat, tokenizer, grammars, spec.value_tokens)


class STDecider:
    """Decides calls for one agent: its own plan, prefix and cache, on a model that all deciders of its checkpoint
    share. Not thread-safe but for `cancel`."""

    def __init__(self, spec: DeciderSpec) -> None:

        began = time.perf_counter()
        self.spec = spec
        self.checkpoint, runner = spec.load()
        self.template, self.tokenizer = self.checkpoint.template, self.checkpoint.tokenizer
        learnt = TrainingMetadata.of(self.checkpoint.folder)
        # What a model was never shown in training changes its calls by what happens to stand there.
        self._history = spec.history if learnt is None else min(spec.history, learnt.history)
        tools = tool_schemas(spec.tools)
        self._learnt = learnt if learnt is not None and learnt.knows(tools) else None
        if self._learnt is not None:
            tools = self._learnt.as_trained(tools)
        self._told = "", 1.0, tuple[str, ...]()  # an instruction, what it lowers the confidence by, its unknown words
        given = {"per_head": spec.budget_per_head, "total": spec.budget_total}
        explicit: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
        budget = Budget(**explicit) if explicit else None
        self.runner: Runner = runner
        prefix = self.template.prefix_ids(tools)
        if len(prefix) >= runner.slots:  # before the plan: that of values as long as this takes minutes, and gigabytes
            raise too_long(runner.slots, len(prefix))
        core = core_of(spec, self.checkpoint, runner.caps.vocabulary, tools)
        self.plan: Any = core.plan
        self.decoding = Decoding(self.runner, core, prefix, budget)
        self.prefix = self.decoding.prefix
        self.load_ms = (time.perf_counter() - began) * 1e3

    def decide(
        self, observation: str, instruction: str, history: Sequence[str] = (), standing: Call | None = None
    ) -> Decision:
        """One decision; `standing` is the call in force, for hysteresis. Raises UserError when the prompt does not fit
        the context, and DecodeError."""
        return result(self.decide_in_steps(observation, instruction, history, standing, sliced=False))

    def decide_in_steps(
        self,
        observation: str,
        instruction: str,
        history: Sequence[str] = (),
        standing: Call | None = None,
        sliced: bool = True,
    ) -> Generator[None, None, Decision]:
        """`decide`, which may be left alone, or given up, wherever it yields: between forward passes, and `sliced` now
        and then within a long prompt."""
        one = self.begin(observation, instruction, history, standing)
        yield from self.decoding.in_steps(one, sliced)
        return self.result_of(one)

    def begin(
        self, observation: str, instruction: str, history: Sequence[str] = (), standing: Call | None = None
    ) -> InFlightDecode:
        """A decision under way, that others may share passes with."""
        begun = self.decoding.begin(self.suffix(observation, instruction, history), standing)
        self._hear(instruction)
        return begun

    def result_of(self, one: InFlightDecode) -> Decision:
        """What was decided, as it is given. Raises what ended it."""
        return self._believed(one.decision())

    def decide_many(
        self, situations: Sequence[tuple[str, str] | Told], standing: Sequence[Call | None] = ()
    ) -> list[Decision]:
        """Decide (observation, instruction) or (observation, instruction, history) in the same forward passes;
        `standing` are the calls in force, none or one for each."""
        made = self.decoding.decode_many([self.suffix(*told) for told in situations], standing)
        for i, (_, instruction, *_) in enumerate(situations):
            made[i] = self.believed(made[i], instruction)
        return made

    def _hear(self, instruction: str) -> None:
        """What the next decision is told: nearly always the same as the one before."""
        if self._learnt is not None and instruction != self._told[0]:
            unknown = self._learnt.unknown(instruction)
            self._told = instruction, self._learnt.doubt ** len(unknown), unknown

    def believed(self, decision: Decision, instruction: str) -> Decision:
        """What was decided by this instruction, as sure as its words were taught."""
        self._hear(instruction)
        return self._believed(decision)

    def _believed(self, decision: Decision) -> Decision:
        """A decision by words of which some were never taught is less sure than it seems to be."""
        _, doubt, unknown = self._told
        if not unknown:
            return decision
        sure = decision.confidence
        if decision.call is not None and "function" in sure:
            sure = {**sure, "function": sure["function"] * doubt}
        return replace(decision, confidence=sure, unknown=unknown)

    def suffix(self, observation: str, instruction: str, history: Sequence[str] = ()) -> list[int]:
        """The tokens of this behind the prefix."""
        shown = history[-self._history :] if self._history else ()
        return self.template.suffix_ids(instruction, observation, shown)

    def cancel(self) -> None:
        """Stop the decision in flight (from another thread)."""
        self.decoding.cancel()

    def info(self) -> dict[str, Any]:
        """What decides: for the report and for people."""
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


Told = tuple[str, str, Sequence[str]] | tuple[str, str, Sequence[str], Call | None]


def decide_together(asked: Sequence[tuple[STDecider, Told]]) -> list[Decision | Exception]:
    """Decide for different sessions, those of one model in the same passes: of each what `decide` gives, or raises."""
    return result(decide_together_in_steps(asked))


def decide_together_in_steps(
    asked: Sequence[tuple[STDecider, Told]],
) -> Generator[None, None, list[Decision | Exception]]:
    """`decide_together`, which may be left alone wherever it yields: between forward passes."""
    assert len({id(decider) for decider, _ in asked}) == len(asked), "one decision of a session at a time"
    begun = [(decider, _tried(decider.begin, *told)) for decider, told in asked]
    for runner in dict.fromkeys(decider.runner for decider, _ in asked):
        own = [one for decider, one in begun if decider.runner is runner]
        yield from evaluate(runner, [one for one in own if isinstance(one, InFlightDecode)])
    return [one if isinstance(one, Exception) else _tried(decider.result_of, one) for decider, one in begun]


def _tried(what: Callable[..., T], *given: Any) -> T | Exception:
    try:
        return what(*given)
    except Exception as fault:
        return fault
