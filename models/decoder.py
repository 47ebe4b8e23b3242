"""Plan, pass, walk, budget: a decision in one packed forward pass where the schema is closed (design, section 4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from rtcontrol.models.attempt import Attempt, FreeState, Wanted
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.domain import Free
from rtcontrol.models.engines.base import Budget, Cancelled, NotFinite
from rtcontrol.models.free import Grammars, parse_free
from rtcontrol.models.packed import Node, PackedSequence
from rtcontrol.models.passes import Passes, Usage
from rtcontrol.models.plan import NO_TOOL, SchemaPlan
from rtcontrol.models.schema import ABSENT
from rtcontrol.models.tokenizer import STTokenizer
from rtcontrol.models.walk import HeadState, Walk, Walker, leaf_value

# The mass outside the tries needs the whole LM head: as much as a layer or two. Once a second is enough for a warning.
OUTSIDE_EVERY = 16


class PackedDecoder:
    """Decides for one plan on one packed sequence; the prompt must have been started there."""

    def __init__(
        self, sequence: PackedSequence, plan: SchemaPlan, tokenizer: STTokenizer, budget: Budget | None = None
    ) -> None:
        self.sequence, self.plan = sequence, plan
        self.walker = Walker(plan)
        self._tokenizer = tokenizer
        lm_head = sequence.model.weights.lm_head
        self._columns = torch.tensor(self.walker.columns or [0], device=lm_head.device)
        self._rows = lm_head[self._columns]
        self._decisions = 0
        free = {(k, i): d for k, h in enumerate(plan.heads) for i, d in h.free.items() if isinstance(d, Free)}
        self._grammars = Grammars(tokenizer, lm_head.shape[0]) if free else None
        self._grammar: dict[tuple[int, int], str] = {}
        for (k, tool), domain in free.items():
            assert self._grammars is not None
            where = f"Tool {plan.tools[tool].name}, {', '.join(p.name for p in plan.slots[tool][k - 1].parameters)}"
            self._grammar[k, tool] = self._grammars.compile(domain, where)
        self._domains = free
        self.set_budget(budget or Budget())

    def set_budget(self, budget: Budget) -> None:
        """What passes carry from here on."""
        self._usage = Usage(len(self.plan.tools))
        self._set_passes(Passes(self.plan, self.walker, budget))

    def _set_passes(self, passes: Passes) -> None:
        self.passes = passes
        self.first_nodes = self._layout([HeadState() for _ in self.plan.heads], self.passes.first, 0)

    def decide(self, reused: int, stop: Callable[[], bool] = lambda: False) -> Decision:
        """Run passes until every head of the chosen function has its value. Raises Cancelled and DecodeError."""
        attempt = Attempt([HeadState() for _ in self.plan.heads], reused=reused)
        return self._drive([attempt], [self._steps(attempt)], stop)[0]

    def decide_many(
        self, suffixes: Sequence[Sequence[int]], stop: Callable[[], bool] = lambda: False
    ) -> list[Decision]:
        """Decide after each suffix in the same packed passes; the prompt that they share must have been started, and is
        computed with the first pass where it is not cached."""
        attempts, stems, base = [], [], 0
        for ids in suffixes:
            slots = range(base, base + len(ids))
            stems += [Node(t, i, tuple(slots[:i])) for i, t in enumerate(ids)]
            attempts.append(
                Attempt(
                    [HeadState() for _ in self.plan.heads],
                    tuple(slots),
                    tokens=len(ids),
                    reused=len(self.sequence.prompt),
                )
            )
            base += len(ids)
        return self._drive(attempts, [self._steps(a) for a in attempts], stop, stems)

    def _drive(
        self,
        attempts: Sequence[Attempt],
        steps: Sequence[Iterator[Wanted | Decision]],
        stop: Callable[[], bool],
        stems: Sequence[Node] = (),
    ) -> list[Decision]:
        """Take every decision a step, put what they want into one pass, and so on until all are made."""
        done: dict[int, Decision] = {}
        while True:
            wanted: list[Wanted] = []
            for i, step in enumerate(steps):
                if i not in done:
                    said = next(step)
                    if isinstance(said, Decision):
                        done[i] = said
                    else:
                        wanted.append(said)
            if not wanted:
                return [done[i] for i in range(len(attempts))]
            if stop():
                raise Cancelled
            self._pass(wanted, stems)
            stems = ()

    def _steps(self, attempt: Attempt) -> Iterator[Wanted | Decision]:
        """One decision: yields what it wants from the next pass, and at last the decision."""
        walks = self.passes.start
        tool: int | None = None
        while True:
            nodes = self.passes.wanted(attempt.heads, tool, walks) if attempt.hidden else self.passes.first
            drafts = [s for s in attempt.free.values() if s.pending is not None]
            if nodes or drafts:
                yield Wanted(attempt, nodes, drafts)
            tool, walks, free = self.passes.look(attempt.heads)
            if tool == NO_TOOL:
                yield self._decision(None, attempt, walks)
                return
            for k in free:
                assert tool is not None
                self._advance_free(attempt, k, tool)
            free_open = any(k not in attempt.free or not attempt.free[k].done for k in free)
            if tool is not None and not free_open and not any(w.pending for w in walks.values()):
                yield self._decision(tool, attempt, walks)
                return

    def logits(self, hidden: torch.Tensor) -> list[list[float]]:
        """Logits of hidden states [n, hidden] at the walker's columns."""
        rows: list[list[float]] = self.sequence.model.logits(hidden, self._rows).tolist()
        return rows

    def _layout(
        self,
        heads: Sequence[HeadState],
        wanted: Sequence[tuple[int, int]],
        base: int,
        stem: tuple[int, ...] = (),
    ) -> list[Node]:
        """The wanted trie nodes as packed nodes that take the slots from `base`."""
        placed: dict[tuple[int, int], tuple[int, ...]] = {}
        nodes = []
        for i, (k, n) in enumerate(wanted):
            trie = self.plan.heads[k].trie
            above = trie.parents[n]
            if above < 0:
                ancestors = stem
            elif (k, above) in placed:
                ancestors = placed[k, above]
            else:
                chain = [above]
                while trie.parents[chain[-1]] >= 0:
                    chain.append(trie.parents[chain[-1]])
                ancestors = (*stem, *(heads[k].slots[c] for c in reversed(chain)))
            placed[k, n] = (*ancestors, base + i)
            nodes.append(Node(trie.tokens[n], len(stem) + trie.depths[n], ancestors))
        return nodes

    def _pass(self, wanted: Sequence[Wanted], stems: Sequence[Node]) -> None:
        """One forward pass for all decisions; `stems` are suffix tokens that go before their nodes."""
        sequence = self.sequence
        first, nodes = sequence.nodes, list(stems)
        bases = []
        for want in wanted:
            base, attempt = first + len(nodes), want.attempt
            bases.append(base)
            if want.nodes is self.passes.first and base == 0:
                nodes += self.first_nodes
            else:
                nodes += self._layout(attempt.heads, want.nodes, base, attempt.stem)
            for state in want.drafts:
                assert state.pending is not None
                nodes.append(Node(state.pending, len(attempt.stem) + len(state.slots), (*attempt.stem, *state.slots)))
        before = sequence.tokens
        hidden = sequence.run(nodes)
        prompt = sequence.tokens - before - len(nodes)
        for want, base in zip(wanted, bases, strict=True):
            count = len(want.nodes) + len(want.drafts)
            self._settle(want, base, hidden[base - first :][:count])
            want.attempt.tokens += count + (prompt if want is wanted[0] else 0)

    def _settle(self, want: Wanted, base: int, hidden: torch.Tensor) -> None:
        """File the results of a pass: slots, logits rows, hidden states [nodes + drafts, hidden]."""
        attempt = want.attempt
        logits = self.logits(hidden[: len(want.nodes)])
        for i in range(len(hidden)):
            attempt.where[base + i] = (len(attempt.hidden), i)
        for i, (k, n) in enumerate(want.nodes):
            attempt.heads[k].slots[n] = base + i
            attempt.heads[k].rows[n] = logits[i]
        for i, state in enumerate(want.drafts, start=len(want.nodes)):
            state.slots.append(base + i)
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
        logits = self.sequence.model.logits(attempt.hidden_at(state.slots[-1]))[0].cpu().numpy()
        null = head.null_id if self.plan.slots[tool][k - 1].optional else None
        token = state.cursor.choose(logits, head.end_id, null)
        if token == null:
            state.value, state.done = ABSENT, True
        elif token == head.end_id:
            text = self._tokenizer.decode(state.cursor.tokens)
            state.value, state.done = parse_free(self._domains[k, tool], text), True
        else:
            state.pending = token

    def _decision(self, tool: int | None, attempt: Attempt, walks: dict[int, Walk]) -> Decision:
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
        self._decisions += 1
        leaves = {k: w.node for k, w in walks.items() if k}
        if self.passes.budget.share and self._usage.count(NO_TOOL if tool is None else tool, leaves):
            # What is called often is worth carrying in the first pass.
            self._set_passes(Passes(self.plan, self.walker, self.passes.budget, self._usage))
        outside = self._outside_mass(attempt, walks) if self._decisions % OUTSIDE_EVERY == 1 else None
        return Decision(call, confidence, outside, len(attempt.hidden), attempt.tokens, attempt.reused)

    def _outside_mass(self, attempt: Attempt, walks: dict[int, Walk]) -> float:
        """The largest probability outside the union trie over the visited nodes."""
        visited = [(k, n) for k, w in walks.items() for n in w.visited]
        if not visited:
            return 0.0
        rows = torch.cat([attempt.hidden_at(attempt.heads[k].slots[n]) for k, n in visited])
        total = torch.logsumexp(self.sequence.model.logits(rows), -1).tolist()
        if not math.isfinite(sum(total)):
            raise NotFinite
        worst = 0.0
        for (k, n), lse in zip(visited, total, strict=True):
            row = torch.tensor(
                [attempt.heads[k].rows[n][self.walker.column[t]] for t in self.plan.heads[k].trie.children[n]]
            )
            worst = max(worst, 1.0 - float((row - lse).exp().sum()))
        return max(0.0, worst)
