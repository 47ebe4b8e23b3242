"""Which of two layouts a plan's passes have: everything at once, or the function first.

A node that is carried needlessly costs a token; a node that is missing costs a pass. On a GPU a pass of forty tokens
costs what one of ten does, so everything goes into one; on a CPU tokens are what a pass is made of, and arguments of
tools that are not called need not be carried. It is decided once, when the plan is loaded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rtcontrol.models.cost import PassCost, worst_call
from rtcontrol.models.engines.base import Budget
from rtcontrol.models.passes import Passes
from rtcontrol.models.plan import SchemaPlan
from rtcontrol.models.walk import Walker

WORST = 1.5  # so much more than the other's its worst call may cost, where a layout is chosen for its mean
NEAR = 1.02  # costs closer than that are equal: fewer passes win


def has_choice(plan: SchemaPlan, walker: Walker, budget: Budget) -> bool:
    """Whether the two layouts differ."""
    return Passes(plan, walker, budget).first != Passes(plan, walker, replace(budget, function_first=True)).first


def choose_layout(plan: SchemaPlan, walker: Walker, cost: PassCost, limit: Budget) -> tuple[Budget, dict[str, Any]]:
    """The budget whose calls cost less when all tools are equally likely, unless its worst call costs much more than
    the other's; and what was weighed. The same cost gives the same choice."""
    weighed = []
    for budget in (limit, replace(limit, function_first=True)):
        passes = Passes(plan, walker, budget)
        spent = [worst_call(passes, tool) for tool in range(len(plan.tools))]
        costs = [cost.of(*s) for s in spent]
        weighed.append((sum(costs) / len(costs), max(costs), max(p for p, _ in spent), budget, len(passes.first)))
    everything, first = weighed
    chosen = first if first[0] * NEAR < everything[0] and first[1] <= WORST * everything[1] else everything
    layout = "function first" if chosen is first else "everything"
    return chosen[3], {"layout": layout, "passes": chosen[2], "first_nodes": chosen[4]}
