"""The engine protocol (design, section 4)."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rtcontrol.models.call import Decision
from rtcontrol.models.plan import SchemaPlan


class Cancelled(Exception):
    """The decision was cancelled between two forward passes."""


class DecodeError(Exception):
    """No legal call could be decoded (a free value that never ended or does not parse)."""


class NotFinite(DecodeError):
    """Scores that decide, or tell of confidence, are NaN or infinite."""

    def __init__(self) -> None:
        super().__init__("the model's scores are no finite numbers: its weights are damaged, or overflow")


@dataclass(frozen=True)
class Budget:
    """How many trie nodes a pass may carry: for each head (its head token included) and in all. 1 per head is
    ordinary constrained parallel decoding. With `function_first` the argument heads wait for the function; with
    `forced` tokens that must follow are evaluated, too (the baseline: one token a pass)."""

    per_head: int = 64
    total: int = 128
    function_first: bool = False
    forced: bool = False

    def __post_init__(self) -> None:
        if self.per_head < 1 or self.total < 1:
            raise ValueError(f"budget {self}: at least one node per head and in all")


@dataclass(frozen=True)
class PrefixInfo:
    """How the prefix came into memory: `source` is computed or disk; `note` says why a disk copy was refused."""

    tokens: int
    source: str
    note: str | None = None


class Engine(Protocol):
    """One model, one prefix and plan, one decision at a time."""

    name: str

    def load_prefix(self, ids: Sequence[int], plan: SchemaPlan) -> PrefixInfo:
        """Make the cached prefix ready and compile what depends on the plan."""

    def decode(self, suffix: Sequence[int]) -> Decision:
        """Decide after prefix + `suffix`. Raises Cancelled, DecodeError, or UserError when the context is too long."""

    def decode_in_steps(self, suffix: Sequence[int], sliced: bool) -> Generator[None, None, Decision]:
        """`decode`, which may be left alone, or given up, wherever it yields: between forward passes, and `sliced` now
        and then within a long prompt."""

    def decode_many(self, suffixes: Sequence[Sequence[int]]) -> list[Decision]:
        """Decide after prefix + each suffix, as `decode` would for each alone. Raises what `decode` raises."""

    def outside_mass(self) -> float:
        """The largest probability, over the nodes that led to the last decision's call, that the model gave to tokens
        outside the tries. Raises NotFinite."""

    def cancel(self) -> None:
        """Ask the decision in flight (from another thread) to stop before its next forward pass."""

    def supports(self) -> dict[str, Any]:
        """What this engine can do: device, dtype, free_values, batch, exact."""
