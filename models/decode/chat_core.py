"""Decide one call of a chat model from scores. The result is the call that constrained greedy decoding of the text
gives.

A pass carries the certain text, all values that may come next, and, after the likeliest value, the text up to the next
value, so that text between two values costs no pass. The protocol is that of `decode.core`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rtcontrol.models.call import Call, Decision
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decode.chat_plan import ChatPlan, Choice, FreeText, Place
from rtcontrol.models.decode.core import Drafts, Stepwise
from rtcontrol.models.decode.draft_tree import FreeHead, Guesses
from rtcontrol.models.decode.grammar import MAX_TOKENS, Grammars, parse_free
from rtcontrol.models.decode.plan import TrieNode
from rtcontrol.models.decode.protocol import Ask, Budget, DecodeError, PassCost, Tree
from rtcontrol.models.decode.walk import best_of

Likely = dict[int, "Likely"]  # a trie of the tokens that may follow
Behind = deque[tuple[int, list[int], Place]]  # by node: the tokens that follow, and where they lead


@dataclass(eq=False)
class NextPass:
    """The nodes of the next pass, numbered from `base` on. Some nodes ask for scores, others for the best legal
    token."""

    base: int
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    scored: list[int] = field(default_factory=list)
    masked: list[tuple[int, np.ndarray]] = field(default_factory=list)


class Nodes:
    """All nodes of a decision, with the `rows` and `bests` that are known so far. The `likely` continuations come from
    `along`. A pass has at most `total` nodes."""

    def __init__(self, likely: Likely, total: int) -> None:
        self.rows: dict[int, Sequence[float]] = {}
        self.bests: dict[int, tuple[int, float]] = {}
        self._along: dict[int, Likely] = {-1: likely}
        self._depths: list[int] = []
        self._edges: dict[tuple[int, int], int] = {}
        self._total = total

    def begin(self) -> NextPass:
        return NextPass(len(self._depths))

    def child(self, node: int, token: int) -> int | None:
        """Return the evaluated node that a token leads to, or None."""
        return self._edges.get((node, token))

    def forget(self, text: Sequence[int], token: int) -> int:
        """Mark a token as not evaluated; return the node of the token before it."""
        at = -1
        for one in text:
            at = self._edges[at, one]
        del self._edges[at, token]
        return at

    def tree(self, laid: NextPass, columns: Sequence[int]) -> Tree:
        asks = [Ask([n - laid.base for n in laid.scored], columns)] if laid.scored else []
        asks += [Ask([n - laid.base], masks=legal[None]) for n, legal in laid.masked]
        assert laid.tokens, "every pass has nodes"
        return Tree(laid.tokens, laid.parents, self._depths[laid.base :], asks)

    def take(self, laid: NextPass, answers: Sequence[Any]) -> None:
        """Store the answers of a pass."""
        rest = list(answers)
        if laid.scored:
            self.rows.update(zip(laid.scored, rest.pop(0), strict=True))
        for (node, _), (best,) in zip(laid.masked, rest, strict=True):
            self.bests[node] = best

    def spread(self, laid: NextPass, at: int, choice: Choice, start: TrieNode, most: int, behind: Behind) -> None:
        """Add all nodes of a choice that starts at node `at`, in declared order, and queue the texts after its leaves,
        the likeliest first."""
        places = {start: at}
        for node in (start, *choice.needed(start, most)):
            if node not in places:
                if len(laid.tokens) >= self._total:
                    break
                places[node] = self.node(laid, places[node[:-1]], node[-1])
            if len(children := choice.children(node)) > 1 and places[node] not in self.rows:
                laid.scored.append(places[node])
            for token, child in children:
                if not choice.branches(child):
                    likely = token in self._along.get(places[node], ())
                    (behind.appendleft if likely else behind.append)((places[node], [token], (choice, child)))

    def look_behind(self, laid: NextPass, at: int, tokens: list[int], place: Place, room: int, behind: Behind) -> None:
        """Add what may follow a choice: the text up to the next choice, and all nodes of that choice if they fit. The
        likeliest branch gets the text even if the nodes do not fit."""
        while tokens and (known := self.child(at, tokens[0])) is not None:
            at, tokens = known, tokens[1:]
        while True:  # the certain tokens from this place on
            where, node = place
            if isinstance(where, FreeText):
                return
            if (leaf := where.leaf(node)) is not None:
                if leaf[1] is None:
                    return
                place = leaf[1]
            elif where.branches(node) and len(where.children(node)) > 1:
                break
            else:
                ((token, child),) = where.children(node)
                tokens, place = [*tokens, token], (where, child)
        left = room - len(laid.tokens) - len(tokens)
        fits = left >= 0 and len(where.needed(node, left)) <= left
        likely = self._along.get(at, {})
        if not fits and (left < 0 or not (likely.get(tokens[0]) if tokens else likely)):
            return
        for token in tokens:
            at = self.node(laid, at, token)
        if fits:
            self.spread(laid, at, where, node, left, behind)
        elif at not in self.rows:
            laid.scored.append(at)
            for token, child in where.children(node):
                if token in self._along.get(at, ()):
                    behind.append((at, [token], (where, child)))

    def node(self, laid: NextPass, parent: int, token: int) -> int:
        """Return the node that a token leads to, and add the node if it is new."""
        known = self._edges.get((parent, token))
        if known is None:
            known = self._edges[parent, token] = laid.base + len(laid.tokens)
            laid.tokens.append(token)
            laid.parents.append(parent)
            self._depths.append(self._depths[parent] + 1 if parent >= 0 else 0)
            if (likely := self._along.get(parent, {}).get(token)) is not None:
                self._along[known] = likely
        return known


class ChatCore:
    """A decoder of calls for one chat plan. A free value has at most `limit` tokens; a pass looks ahead by `ahead`
    nodes."""

    def __init__(
        self, plan: ChatPlan, tokenizer: STTokenizer, grammars: Grammars | None, limit: int = MAX_TOKENS
    ) -> None:
        self.plan, self.tokenizer, self.grammars, self.limit = plan, tokenizer, grammars, limit
        self.ahead, self.budget = 0, Budget()
        for free in plan.free:
            assert grammars is not None
            grammars.check(free.grammar, limit, plan.where(free))

    def adapt(self, budget: Budget | None, cost: Callable[[], PassCost]) -> dict[str, Any]:
        """Choose how far passes look ahead, by the cost of a pass; return the choice for the report."""
        self.budget = budget or Budget()
        self.ahead = min(self.budget.total, cost().worth(choosing=False)) if self.budget.per_head > 1 else 0
        return {"layout": "arguments in sequence", "ahead": self.ahead}

    @property
    def reserve(self) -> int:
        """Return how many nodes every decision takes without guesses."""
        return len(self.plan.opening)

    @property
    def most(self) -> int:
        """Return how many nodes a decision with guesses may take."""
        return 4 * self.budget.total

    def begin(self, drafts: Drafts | None = None, prompt: Sequence[int] = ()) -> ChatDeciding:
        """Start a decision with the last call as the guess. Without `drafts` a pass does not look ahead."""
        return ChatDeciding(self, drafts)


@dataclass(eq=False)
class _Cursor:
    """The position in a call's text: after node `at` (-1: the prompt's end) the `pending` tokens are certain but not
    evaluated; then comes `place` (None: the text is complete)."""

    place: Place | None
    pending: list[int]
    at: int = -1
    text: list[int] = field(default_factory=list)
    head: FreeHead | None = None  # matcher of a free value
    chosen: int = 0  # tokens of text before its last choice


class ChatDeciding(Stepwise):
    """A decision in progress, whose call is decoded as text."""

    def __init__(self, core: ChatCore, drafts: Drafts | None) -> None:
        self.core, self.plan = core, core.plan
        self._drafts, self._guessing = drafts or Drafts(), drafts is not None
        self._known = Nodes(self._drafts.text, core.budget.total)
        self._confidence: dict[int, float] = {}
        self._function: int | None = None
        self._arguments: dict[str, Any] = {}
        self._steps = self._decide()
        self._go(None)

    def _decide(self) -> Generator[Tree, Sequence[Any], Decision]:
        line = _Cursor((self.plan.function, ()), list(self.plan.opening))
        while True:
            self._walk(line)
            if line.place is None:
                return self._end(line)
            laid = self._lay(line)
            self._known.take(laid, (yield self._known.tree(laid, self.plan.columns)))

    # -- what is known ------------------------------------------------------------------------------------------------

    def _over_known(self, line: _Cursor) -> None:
        """Skip the pending tokens that are evaluated already."""
        while line.pending and (node := self._known.child(line.at, line.pending[0])) is not None:
            line.at = node
            line.text.append(line.pending.pop(0))

    def _push(self, line: _Cursor, tokens: Sequence[int]) -> None:
        line.pending += tokens
        self._over_known(line)

    def _walk(self, line: _Cursor) -> None:
        """Advance to the next choice without scores, or to the end of the text."""
        self._over_known(line)
        while line.place is not None:
            where, node = line.place
            if isinstance(where, FreeText):
                if not self._walk_free(line, where):
                    return
                continue
            if (leaf := where.leaf(node)) is not None:
                value, line.place = leaf
                self._take(where, value)
                continue
            children = where.children(node)
            if len(children) > 1:
                row = None if line.pending else self._known.rows.get(line.at)
                if row is None:
                    return
                token, child = self._best(where.decides, children, row)
            else:
                ((token, child),) = children
                if self.core.budget.forced and (line.pending or line.at not in self._known.rows):
                    return  # the baseline takes one pass for each token
            self._push(line, [token])
            line.place = where, child

    def _best(
        self, decides: int, children: Sequence[tuple[int, TrieNode]], row: Sequence[float]
    ) -> tuple[int, TrieNode]:
        """Return the child with the largest score; ties go to the lowest token id. Raises NotFinite."""
        scores = [row[self.plan.column[token]] for token, _ in children]
        best, share = best_of(scores)
        self._sure(decides, share)
        return children[best]

    def _sure(self, decides: int, probability: float) -> None:
        self._confidence[decides] = self._confidence.get(decides, 1.0) * probability

    def _take(self, where: Choice, value: Any) -> None:
        """Store the value of a leaf: a function or an argument; keys and ends are not part of the call."""
        if where is self.plan.function:
            self._function = value
        elif where.is_value:
            self._arguments[self.plan.tools[where.tool].parameters[where.decides - 1].name] = value

    def _walk_free(self, line: _Cursor, where: FreeText) -> bool:
        """Continue a free value; return whether the value is complete."""
        head = line.head
        if head is None:
            assert self.core.grammars is not None
            value = self.core.grammars.start(where.grammar, self.core.limit, self.plan.where(where))
            head = line.head = FreeHead(value, where.ends.tolist(), None, Guesses(self.core.tokenizer))
            self._push(line, head.chain)
        while True:
            while not head.done:
                best = None if line.pending else self._known.bests.get(line.at)
                if best is None:
                    return False
                line.chosen = len(line.text)
                head.take(best)
                self._push(line, head.chain)
            text = self.core.tokenizer.decode(head.value.tokens)
            name = self.plan.tools[where.tool].parameters[where.decides - 1].name
            try:
                self._arguments[name] = parse_free(where.domain, text)
                break
            except DecodeError:
                if not (line.chosen and head.decide_again()):
                    raise
                self._decide_again(line, head)
        self._sure(where.decides, head.confidence)
        assert head.end is not None
        self._push(line, [head.end])
        line.place, line.head = (where.then, (head.end,)), None
        return True

    def _decide_again(self, line: _Cursor, head: FreeHead) -> None:
        """Evaluate the token before the last choice once more, with the illegal choice excluded."""
        token = line.text[line.chosen - 1]
        line.text, line.pending = line.text[: line.chosen - 1], [token]
        line.at = self._known.forget(line.text, token)
        self._push(line, head.chain[min(head.kept, 1) :])

    # -- what to evaluate ---------------------------------------------------------------------------------------------

    def _lay(self, line: _Cursor) -> NextPass:
        """Return the nodes of the next pass: certain tokens, the choices after them, and what may follow the
        choices."""
        laid, budget, at = self._known.begin(), self.core.budget, line.at
        for token in line.pending[:1] if budget.forced else line.pending:
            at = self._known.node(laid, at, token)
        behind: Behind = deque()
        if line.head is not None and (len(line.pending) <= 1 or not budget.forced):
            laid.masked.append((at, line.head.stops[0].legal))
        elif budget.forced or budget.per_head == 1:
            laid.scored.append(at)
        elif line.place is not None and isinstance(where := line.place[0], Choice):
            self._known.spread(laid, at, where, line.place[1], budget.total, behind)
        room = min(budget.total, len(laid.tokens) + self.core.ahead * self._guessing)
        while behind:
            self._known.look_behind(laid, *behind.popleft(), room, behind)
        return laid

    def _end(self, line: _Cursor) -> Decision:
        assert self._function is not None
        self._drafts.tool = self._function
        self._drafts.text = _nested([*line.text, *line.pending])
        tool = self.plan.tools[self._function]
        names = ["function", *(f"arg{k + 1}" for k in range(len(tool.parameters)))]
        sure = {name: self._confidence[k] for k, name in enumerate(names) if k in self._confidence}
        call = Call(tool.name, {p.name: self._arguments[p.name] for p in tool.parameters if p.name in self._arguments})
        if tool.rules is not None and (fault := tool.rules.fault(call.arguments)) is not None:
            raise DecodeError(f"Tool {tool.name}: {fault}")
        return Decision(call, sure, self.passes, self.nodes, 0)


def _nested(path: Sequence[int]) -> Likely:
    """Return a token sequence as a chain of nested dicts."""
    root: Likely = {}
    below = root
    for token in path:
        below = below.setdefault(token, {})
    return root
