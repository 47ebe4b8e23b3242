"""Plan, pass, walk, budget: a decision in one packed forward pass where the schema is closed (design, section 4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rtcontrol.models.call import Call, Decision
from rtcontrol.models.domain import Free
from rtcontrol.models.engines.base import Budget, Cancelled
from rtcontrol.models.free import FreeValue, Grammars, parse_free
from rtcontrol.models.packed import Node, PackedSequence
from rtcontrol.models.plan import ANY_TOOL, NO_TOOL, SchemaPlan
from rtcontrol.models.schema import ABSENT
from rtcontrol.models.tokenizer import STTokenizer
from rtcontrol.models.walk import HeadState, Walk, Walker, leaf_value

FUNCTION_BIT = 1 << ANY_TOOL


@dataclass
class FreeState:
    """A free head under way: its cursor, and the KV slots of its tokens so far (head token first)."""

    cursor: FreeValue
    slots: list[int]
    pending: int | None = None  # the token whose evaluation comes next
    value: Any = None
    done: bool = False


@dataclass
class Attempt:
    """All that one decision accumulates."""

    heads: list[HeadState]
    hidden: list[torch.Tensor] = field(default_factory=list)
    where: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)  # (head, node) -> (pass, row)
    free: dict[int, FreeState] = field(default_factory=dict)
    visited: list[tuple[int, int]] = field(default_factory=list)


class PackedDecoder:
    """Decides for one plan on one packed sequence; the prompt must have been started there."""

    def __init__(
        self, sequence: PackedSequence, plan: SchemaPlan, tokenizer: STTokenizer, budget: Budget | None = None
    ) -> None:
        self.sequence, self.plan, self.budget = sequence, plan, budget or Budget()
        self.walker = Walker(plan)
        self._tokenizer = tokenizer
        lm_head = sequence.model.weights.lm_head
        self._columns = torch.tensor(self.walker.columns or [0], device=lm_head.device)
        self._rows = lm_head[self._columns]
        free = {(k, i): d for k, h in enumerate(plan.heads) for i, d in h.free.items() if isinstance(d, Free)}
        self._grammars = Grammars(tokenizer, lm_head.shape[0]) if free else None
        self._grammar: dict[tuple[int, int], str] = {}
        for (k, tool), domain in free.items():
            assert self._grammars is not None
            where = f"Tool {plan.tools[tool].name}, {', '.join(p.name for p in plan.slots[tool][k - 1].parameters)}"
            self._grammar[k, tool] = self._grammars.compile(domain, where)
        self._domains = free
        self._pending = self._start()
        self._first = self._wanted([HeadState() for _ in plan.heads], None, self._pending)
        self.first_nodes = self._layout([HeadState() for _ in plan.heads], self._first, 0)

    def decide(self, reused: int, stop: Callable[[], bool] = lambda: False) -> Decision:
        """Run passes until every head of the chosen function has its value. Raises Cancelled and DecodeError."""
        attempt = Attempt([HeadState() for _ in self.plan.heads])
        walks = self._pending
        tool: int | None = None
        while True:
            wanted = self._wanted(attempt.heads, tool, walks) if attempt.hidden else self._first
            drafts = [(k, s) for k, s in attempt.free.items() if s.pending is not None]
            if wanted or drafts:
                if stop():
                    raise Cancelled
                self._pass(attempt, wanted, drafts)
            walks = {0: self.walker.walk(0, attempt.heads[0], FUNCTION_BIT)}
            if not walks[0].pending:
                tool = leaf_value(self.plan.function, walks[0].node, ANY_TOOL)
            if tool == NO_TOOL:
                return self._decision(None, attempt, walks, reused)
            active = len(self.plan.heads) if tool is None else 1 + len(self.plan.slots[tool])
            tools = self.walker.possible_tools(walks[0].node) if tool is None else 1 << tool
            for k in range(1, active):
                if tool is not None and tool in self.plan.heads[k].free:
                    self._advance_free(attempt, k, tool)
                elif self.plan.heads[k].trie.legal[0] & tools:
                    walks[k] = self.walker.walk(k, attempt.heads[k], tools)
            free_open = any(not s.done for s in attempt.free.values())
            if tool is not None and not free_open and not any(w.pending for w in walks.values()):
                return self._decision(tool, attempt, walks, reused)

    def logits(self, hidden: torch.Tensor) -> list[list[float]]:
        """Logits of hidden states [n, hidden] at the walker's columns."""
        rows: list[list[float]] = self.sequence.model.logits(hidden, self._rows).tolist()
        return rows

    def _start(self) -> dict[int, Walk]:
        walks = {}
        for k, head in enumerate(self.plan.heads):
            everything = FUNCTION_BIT if k == 0 else self.plan.all_tools
            if head.trie.needed(everything):
                walks[k] = Walk(0, True, 1.0, ())
        return walks

    def _wanted(self, heads: Sequence[HeadState], tool: int | None, walks: dict[int, Walk]) -> list[tuple[int, int]]:
        """(head, trie node) of the next pass, within both budgets."""
        lists: list[list[tuple[int, int]]] = []
        everything = self.plan.all_tools
        if tool is None and 0 in walks and heads[0].slots:
            everything = self.walker.possible_tools(walks[0].node)
        for k, head in enumerate(self.plan.heads):
            tools = FUNCTION_BIT if k == 0 else everything if tool is None else 1 << tool
            nodes: list[int] = []
            if k in walks and walks[k].pending:
                nodes = self.walker.wanted(k, heads[k], walks[k].node, tools, self.budget.per_head)
            elif head.free_mask & tools and 0 not in heads[k].slots:
                nodes = [0]
            lists.append([(k, n) for n in nodes])
        # The cap on all nodes takes from every head in turn, so that no head starves.
        merged = [entry for rank in range(max(map(len, lists))) for lane in lists for entry in lane[rank : rank + 1]]
        return sorted(merged[: self.budget.total], key=lambda e: e[0])

    def _layout(self, heads: Sequence[HeadState], wanted: Sequence[tuple[int, int]], base: int) -> list[Node]:
        placed: dict[tuple[int, int], tuple[int, ...]] = {}
        nodes = []
        for i, (k, n) in enumerate(wanted):
            trie = self.plan.heads[k].trie
            above = trie.parents[n]
            if above < 0:
                ancestors: tuple[int, ...] = ()
            elif (k, above) in placed:
                ancestors = placed[k, above]
            else:
                chain = [above]
                while trie.parents[chain[-1]] >= 0:
                    chain.append(trie.parents[chain[-1]])
                ancestors = tuple(heads[k].slots[c] for c in reversed(chain))
            placed[k, n] = (*ancestors, base + i)
            nodes.append(Node(trie.tokens[n], trie.depths[n], ancestors))
        return nodes

    def _pass(
        self, attempt: Attempt, wanted: Sequence[tuple[int, int]], drafts: Sequence[tuple[int, FreeState]]
    ) -> None:
        base = self.sequence.nodes
        nodes = self.first_nodes if wanted is self._first else self._layout(attempt.heads, wanted, base)
        for _, state in drafts:
            assert state.pending is not None
            nodes = [*nodes, Node(state.pending, len(state.slots), tuple(state.slots))]
        hidden = self.sequence.run(nodes)
        logits = self.logits(hidden[: len(wanted)])
        for i, (k, n) in enumerate(wanted):
            attempt.heads[k].slots[n] = base + i
            attempt.heads[k].rows[n] = logits[i]
            attempt.where[k, n] = (len(attempt.hidden), i)
        for i, (_, state) in enumerate(drafts):
            state.slots.append(base + len(wanted) + i)
            state.pending = None
        attempt.hidden.append(hidden)

    def _advance_free(self, attempt: Attempt, k: int, tool: int) -> None:
        """Choose a free head's next token from the logits at its last one, and ask for that token's evaluation."""
        head = self.plan.heads[k]
        if 0 not in attempt.heads[k].slots:
            return
        state = attempt.free.get(k)
        if state is None:
            assert self._grammars is not None
            state = FreeState(self._grammars.start(self._grammar[k, tool]), [attempt.heads[k].slots[0]])
            attempt.free[k] = state
        if state.done or state.pending is not None:
            return
        hidden = self._hidden_at(attempt, state.slots[-1])
        logits = self.sequence.model.logits(hidden)[0].cpu().numpy()
        null = head.null_id if self.plan.slots[tool][k - 1].optional else None
        token = state.cursor.choose(logits, head.end_id, null)
        if token == null:
            state.value, state.done = ABSENT, True
        elif token == head.end_id:
            text = self._tokenizer.decode(state.cursor.tokens)
            state.value, state.done = parse_free(self._domains[k, tool], text), True
        else:
            state.pending = token

    def _hidden_at(self, attempt: Attempt, slot: int) -> torch.Tensor:
        for hidden in attempt.hidden:
            if slot < len(hidden):
                return hidden[slot : slot + 1]
            slot -= len(hidden)
        raise AssertionError("slot was evaluated in no pass")

    def _decision(self, tool: int | None, attempt: Attempt, walks: dict[int, Walk], reused: int) -> Decision:
        call = None
        heads = self.plan.heads
        names = {k: heads[k].name for k in walks}
        confidence = {names[k]: w.confidence for k, w in sorted(walks.items())}
        if tool is not None:
            arguments: dict[str, Any] = {}
            for k, slot in enumerate(self.plan.slots[tool], start=1):
                if k in attempt.free:
                    value = attempt.free[k].value
                    confidence[heads[k].name] = attempt.free[k].cursor.confidence
                else:
                    value = leaf_value(heads[k], walks[k].node, tool)
                if value is not ABSENT:
                    arguments |= slot.arguments(value)
            call = Call(self.plan.tools[tool].name, arguments)
        outside = self._outside_mass(attempt, walks)
        sequence = self.sequence
        return Decision(call, confidence, outside, sequence.forward_passes, sequence.tokens, reused)

    def _outside_mass(self, attempt: Attempt, walks: dict[int, Walk]) -> float:
        """The largest probability outside the union trie over the visited nodes."""
        visited = [(k, n) for k, w in walks.items() for n in w.visited]
        if not visited:
            return 0.0
        rows = torch.cat([attempt.hidden[p][r : r + 1] for p, r in (attempt.where[v] for v in visited)])
        total = torch.logsumexp(self.sequence.model.logits(rows), -1).tolist()
        worst = 0.0
        for (k, n), lse in zip(visited, total, strict=True):
            row = torch.tensor(
                [attempt.heads[k].rows[n][self.walker.column[t]] for t in self.plan.heads[k].trie.children[n]]
            )
            worst = max(worst, 1.0 - float((row - lse).exp().sum()))
        return max(0.0, worst)
