"""What a pass costs, and by it which of two layouts the passes have: everything at once, or the function first.

A node that is carried needlessly costs a token; a node that is missing costs a pass. On a GPU a pass of forty tokens
costs what one of ten does, so everything goes into one; on a CPU tokens are what a pass is made of, and arguments of
tools that are not called need not be carried. It is decided once, when the plan is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rtcontrol.models.engines.base import Budget
from rtcontrol.models.plan import SchemaPlan
from rtcontrol.models.walk import Walker
from rtcontrol.models.worst import worst_call

WORST = 1.5  # so much more than the other's its worst call may cost, where a layout is chosen for its mean
NEAR = 1.02  # costs closer than that are equal: fewer passes win


@dataclass(frozen=True)
class PassCost:
    """Milliseconds of a forward pass: `fixed_ms` + `token_ms` * tokens, and `choice_ms` for each of them that is asked
    for the best of the whole vocabulary."""

    fixed_ms: float
    token_ms: float
    choice_ms: float = 0.0

    def of(self, passes: int, tokens: int) -> float:
        """Milliseconds of `passes` that carry `tokens` in all."""
        return passes * self.fixed_ms + tokens * self.token_ms

    def worth(self, choosing: bool = True) -> int:
        """So many guessed nodes cost what a pass of one costs; `choosing` among the whole vocabulary, or few ids."""
        one = max(self.token_ms + self.choice_ms * choosing, 1e-3)
        return int((self.fixed_ms + one) / one)


def fitted(took: Mapping[int, float], choice_ms: float) -> PassCost:
    """From milliseconds of passes by their tokens."""
    sizes = np.array(list(took), float)
    ms = np.array(list(took.values()))
    token = max(float(np.polyfit(sizes, ms, 1)[0]), 0.0)
    return PassCost(max(float(ms.mean()) - token * float(sizes.mean()), 0.0), token, choice_ms)


def choose_layout(plan: SchemaPlan, limit: Budget, measured: Callable[[], PassCost]) -> tuple[Budget, dict[str, Any]]:
    """The budget whose calls cost less when all tools are equally likely, unless its worst call costs much more than
    the other's; and what was weighed, nothing where both are the same. The same cost gives the same choice."""
    walkers = [Walker(plan, budget) for budget in (limit, replace(limit, function_first=True))]
    if walkers[0].first == walkers[1].first:
        return limit, {"layout": "everything"}
    cost, weighed = measured(), []
    for walker in walkers:
        spent = [worst_call(walker, tool) for tool in range(len(plan.tools))]
        costs = [cost.of(*s) for s in spent]
        weighed.append((sum(costs) / len(costs), max(costs), max(p for p, _ in spent), walker))
    everything, first = weighed
    chosen = first if first[0] * NEAR < everything[0] and first[1] <= WORST * everything[1] else everything
    layout = "function first" if chosen is first else "everything"
    told = {"layout": layout, "passes": chosen[2], "first_nodes": len(chosen[3].first)}
    return chosen[3].budget, {**told, "pass_ms": round(cost.fixed_ms, 3), "token_ms": round(cost.token_ms, 4)}
