"""What a call of each tool costs at worst: known from the schema and the tokenizer, before a model is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rtcontrol.models.engines.base import Budget
from rtcontrol.models.free import MAX_TOKENS
from rtcontrol.models.passes import Passes
from rtcontrol.models.plan import ANY_TOOL, NO_TOOL, HeadPlan, SchemaPlan, compile_plan
from rtcontrol.models.schema import Overflow, ToolSchema
from rtcontrol.models.tokenizer import STTokenizer
from rtcontrol.models.trie import ROOT, TrieNode
from rtcontrol.models.walk import HeadState, Walker

LOOKED = 128  # branching tokens of unlisted numbers up to which the worst is looked for


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

    @property
    def worth(self) -> int:
        """So many guessed nodes cost what a pass of one costs."""
        one = max(self.token_ms + self.choice_ms, 1e-3)
        return int((self.fixed_ms + one) / one)

    def told(self) -> dict[str, float]:
        """For people."""
        return {"pass_ms": round(self.fixed_ms, 3), "token_ms": round(self.token_ms, 4)}


def fitted(took: Mapping[int, float], choice_ms: float) -> PassCost:
    """From milliseconds of passes by their tokens."""
    sizes = np.array(list(took), float)
    ms = np.array(list(took.values()))
    token = max(float(np.polyfit(sizes, ms, 1)[0]), 0.0)
    return PassCost(max(float(ms.mean()) - token * float(sizes.mean()), 0.0), token, choice_ms)


@dataclass(frozen=True)
class ToolCost:
    """`passes`: forward passes of the worst call, in the layout that takes more. `prefix_tokens` describe the tool in
    the cached prompt."""

    name: str
    closed: bool
    passes: int
    prefix_tokens: int
    remedies: tuple[str, ...]


def costs(tools: Sequence[ToolSchema], tokenizer: STTokenizer, overflow: Overflow = "merge") -> list[ToolCost]:
    """Of each tool, where all of them may be called. Raises UserError for tools that cannot be decoded."""
    plan = compile_plan(tools, tokenizer, overflow=overflow)
    budget, walker = Budget(), Walker(plan)
    layouts = [Passes(plan, walker, replace(budget, function_first=first)) for first in (False, True)]
    found = []
    for index, tool in enumerate(tools):
        slots = plan.slots[index]
        free = [d for head in plan.heads if (d := head.free.get(index)) is not None]
        worst = max(worst_call(passes, index)[0] for passes in layouts)
        worst += max((d.grid.longest if d.grid else MAX_TOKENS for d in free), default=0)
        remedies = []
        for head, slot in zip(plan.heads[1:], slots, strict=False):
            count = len(head.trie.needed(1 << index, limit=_limit(head, index)))
            if index not in head.free and count > budget.per_head:
                values = slot.domain.grid.count if slot.domain.grid else len(head.trie.leaves)
                more = " or more" * (count == _limit(head, index))
                remedies.append(
                    f"{', '.join(p.name for p in slot.parameters)}: its {values} values make {count}{more} branching "
                    f"tokens, a pass carries {budget.per_head} of a head. Fewer values, or coarser steps."
                )
        size = len(tokenizer.encode(tool.canonical_json()))
        found.append(ToolCost(tool.name, not free, worst, size, tuple(remedies)))
    return found


def worst_call(passes: Passes, tool: int) -> tuple[int, int]:
    """(passes, nodes) of the call of a tool whose values come last in the order in which nodes are carried; of a free
    value the head's own token alone."""
    plan = passes.plan
    goals = [_last_leaf(plan, k, tool) for k in range(len(plan.heads))]
    heads = [HeadState() for _ in plan.heads]
    known: int | None = None
    walks, count, nodes = passes.start, 0, 0
    while True:
        wanted = passes.wanted(heads, known, walks)
        if wanted:
            count, nodes = count + 1, nodes + len(wanted)
        for k, n in wanted:
            row = [0.0] * len(passes.walker.columns)
            goal = goals[k]
            if goal[: len(n)] == n and len(goal) > len(n) and goal[len(n)] in passes.walker.column:
                row[passes.walker.column[goal[len(n)]]] = 1.0
            heads[k].slots[n] = 0
            heads[k].rows[n] = row
        known, walks, free = passes.look(heads)
        if known == NO_TOOL or not (
            any(w.pending for w in walks.values()) or any(ROOT not in heads[k].slots for k in free)
        ):
            return count, nodes


def _last_leaf(plan: SchemaPlan, k: int, tool: int) -> TrieNode:
    """Of the tool's values the one whose last branching node is carried last, or a beginning that leads to no other."""
    trie = plan.heads[k].trie
    if k == 0:
        return next(leaf for leaf, values in trie.leaves.items() if values[ANY_TOOL] == tool)
    tools, node, limit = 1 << tool, ROOT, _limit(plan.heads[k], tool)
    while order := trie.needed(tools, node, limit):
        # Of more nodes than are looked at, the last one below each.
        last = order[-1] if len(order) != limit else node
        below = [c for c in trie.children(last).values() if trie.tools(c)[0] & tools]
        node = sorted(below, key=lambda c: bool(trie.tools(c)[1] & tools))[-1]
    return node


def _limit(head: HeadPlan, tool: int) -> int | None:
    """Of numbers that are not listed there may be any number of nodes."""
    return LOOKED if tool in head.grids else None
