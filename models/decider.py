"""From observation text to typed call: checkpoint, prompt, plan and engine behind one method."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rtcontrol.models.call import Decision
from rtcontrol.models.engines.base import Budget, DecodeError, Engine, PrefixInfo
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema import tool_schemas

ENGINES = ("torch",)
# The mass outside the tries takes the whole LM head, as much as a layer or two: so often is enough for a warning.
OUTSIDE_EVERY = 16
ONE_THREAD = 64 << 20  # bytes of weights below which one CPU thread decides


@dataclass(frozen=True)
class DeciderSpec:
    """Everything a decoder process needs to build its decider; plain values only, so it crosses any wire.

    `history` is how many executed calls the prompt shows; `threads` limits torch's CPU threads
    (None: one for a small model, else torch's default). Without a budget of trie nodes (see Budget), one is chosen by
    what a pass costs on this machine.
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

    def build(self) -> STDecider:
        """Load the checkpoint and make its prefix ready. Raises UserError."""
        return STDecider(self)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "tools": list(self.tools)}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> DeciderSpec:
        return cls(**{**value, "tools": tuple(value["tools"])})


class STDecider:
    """Decides calls for one agent. Not thread-safe but for `cancel`."""

    def __init__(self, spec: DeciderSpec) -> None:
        import torch

        from rtcontrol.models.checkpoint import Checkpoint
        from rtcontrol.models.engines.torch_engine import TorchEngine
        from rtcontrol.models.plan import compile_plan

        if spec.engine not in ENGINES:
            raise UserError(f"Unknown engine {spec.engine!r}.", f"Choose {', '.join(ENGINES)}.")
        began = time.perf_counter()
        self.spec = spec
        self.checkpoint = Checkpoint.open(spec.model)
        self.template, self.tokenizer = self.checkpoint.template, self.checkpoint.tokenizer
        tools = tool_schemas(spec.tools)
        self.plan = compile_plan(tools, self.tokenizer, spec.allow_null, self.template.overflow)
        small = sum(p.stat().st_size for p in self.checkpoint.folder.glob("*.safetensors")) < ONE_THREAD
        if spec.threads is not None or small:
            # A second thread gains little on a small model, and waits for its turn when another process is busy: the
            # worst decisions become a hundred times slower.
            torch.set_num_threads(spec.threads or 1)
        given = {"per_head": spec.budget_per_head, "total": spec.budget_total}
        explicit: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
        budget = Budget(**explicit) if explicit else None
        self.engine: Engine = TorchEngine(self.checkpoint.folder, self.tokenizer, spec.dtype, spec.device, budget)
        self.prefix: PrefixInfo = self.engine.load_prefix(self.template.prefix_ids(tools), self.plan)
        self._decisions = 0
        self._due = False  # whether the mass outside is to be looked at when the call is given
        self._outside: float | None = None
        self._fault: DecodeError | None = None
        self.load_ms = (time.perf_counter() - began) * 1e3

    def decide(self, observation: str, instruction: str, history: Sequence[str] = ()) -> Decision:
        """One decision. Raises UserError when the prompt does not fit the context, and DecodeError."""
        return self._told(self.engine.decode(self._suffix(observation, instruction, history)))

    def decide_in_steps(
        self, observation: str, instruction: str, history: Sequence[str] = (), sliced: bool = True
    ) -> Generator[None, None, Decision]:
        """`decide`, which may be left alone, or given up, wherever it yields: between forward passes, and `sliced` now
        and then within a long prompt."""
        suffix = self._suffix(observation, instruction, history)
        return self._told((yield from self.engine.decode_in_steps(suffix, sliced)))

    def _suffix(self, observation: str, instruction: str, history: Sequence[str]) -> list[int]:
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault
        shown = history[-self.spec.history :] if self.spec.history else ()
        return self.template.suffix_ids(instruction, observation, shown)

    def _told(self, decision: Decision) -> Decision:
        self._due = self._decisions % OUTSIDE_EVERY == 0
        self._decisions += 1
        outside, self._outside = self._outside, None
        return decision if outside is None else replace(decision, outside_mass=outside)

    def rest(self) -> None:
        """What is only diagnosis, when the call is given: the mass outside the tries, for the next decision to tell."""
        if self._due:
            self._due = False
            try:
                self._outside = self.engine.outside_mass()
            except DecodeError as error:
                self._fault = error

    def decide_many(self, situations: Sequence[tuple[str, str]]) -> list[Decision]:
        """Decide (observation, instruction) pairs, without history, in the same forward passes."""
        return self.engine.decode_many([self.template.suffix_ids(told, seen) for seen, told in situations])

    def cancel(self) -> None:
        """Stop the decision in flight (from another thread)."""
        self.engine.cancel()

    def info(self) -> dict[str, Any]:
        """What decides: for the report and for people."""
        return {
            "engine": self.engine.name,
            "model": str(self.spec.model),
            "profile": self.template.profile,
            **self.engine.supports(),
            "prefix_tokens": self.prefix.tokens,
            "prefix_source": self.prefix.source,
            "prefix_note": self.prefix.note,
            "load_ms": round(self.load_ms, 1),
        }
