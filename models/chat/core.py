"""One decision of a chat model without the model: the call that constrained greedy decoding of its text gives.

A pass carries the text that is certain, all values that may come next, and behind the likeliest of them the text up to
the next value: what is written between two values costs no pass. It answers to the same protocol as the ST core.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rtcontrol.models.call import Call, Decision
from rtcontrol.models.chat.plan import ChatPlan, Choice, FreeText, Place, TrieNode
from rtcontrol.models.core import Ask, Drafts, Tree
from rtcontrol.models.cost import PassCost
from rtcontrol.models.engines.base import Budget, NotFinite
from rtcontrol.models.errors import UserError
from rtcontrol.models.free import MAX_TOKENS, Grammars, parse_free
from rtcontrol.models.schema import ABSENT
from rtcontrol.models.tokenizer import STTokenizer

Likely = dict[int, "Likely"]  # what may follow a token, by token


class ChatCore:
    """Decides for one plan. A free value has at most `limit` tokens; a pass looks `ahead` of the choice at hand by so
    many nodes."""

    def __init__(
        self, plan: ChatPlan, tokenizer: STTokenizer, grammars: Grammars | None, limit: int = MAX_TOKENS
    ) -> None:
        self.plan, self.tokenizer, self.grammars, self.limit = plan, tokenizer, grammars, limit
        self.ahead, self.budget = 0, Budget()

    def adapt(self, budget: Budget | None, cost: Callable[[], PassCost]) -> dict[str, Any]:
        """Choose what passes carry: so much ahead as a pass costs. For people, what was chosen."""
        self.budget = budget or Budget()
        self.ahead = min(self.budget.total, cost().worth(choosing=False)) if self.budget.per_head > 1 else 0
        arguments = "in parallel" if self.plan.parallel else "in sequence"
        return {"layout": f"arguments {arguments}", "ahead": self.ahead}

    @property
    def reserve(self) -> int:
        """Nodes that a decision surely takes."""
        return len(self.plan.opening)

    @property
    def most(self) -> int:
        """Nodes that a decision with guesses may take."""
        return 4 * self.budget.total

    def begin(self, drafts: Drafts | None = None, prompt: Sequence[int] = ()) -> ChatDeciding:
        """A decision; the likeliest call is `drafts`' own guess, else the last one. Without drafts a pass does not look
        ahead of the choice at hand."""
        return ChatDeciding(self, drafts)


@dataclass(eq=False)
class _Cursor:
    """One line of text under way: behind node `at` (-1: the prompt's end) the tokens `pending` are certain but not
    evaluated; then comes `place` (None: the line is over)."""

    place: Place | None
    pending: list[int]
    at: int = -1
    text: list[int] = field(default_factory=list)
    free: Any = None
    ask: np.ndarray | None = None  # of a free value: which ids are legal next


@dataclass(eq=False)
class _Pass:
    """Nodes of the next pass as they are laid down, after `base` others."""

    base: int
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    scored: list[int] = field(default_factory=list)
    masked: list[tuple[int, np.ndarray]] = field(default_factory=list)


class ChatDeciding:
    """One decision under way: `work` until there is a `decision`. Raises NotFinite and DecodeError."""

    def __init__(self, core: ChatCore, drafts: Drafts | None) -> None:
        self.core, self.plan = core, core.plan
        self.passes = self.nodes = 0
        self.work: Tree | None = None
        self.decision: Decision | None = None
        self._drafts, self._guessing = drafts or Drafts(), drafts is not None
        self._along: dict[int, Likely] = {-1: self._likely()}  # by node: what followed there last time
        self._depths: list[int] = []
        self._edges: dict[tuple[int, int], int] = {}
        self._rows: dict[int, Sequence[float]] = {}
        self._bests: dict[int, tuple[int, float]] = {}
        self.chosen: list[tuple[int, list[float]]] = []  # nodes of choices, and the scores of what was legal there
        self._confidence: dict[int, float] = {}
        self._function: int | None = None
        self._arguments: dict[str, Any] = {}
        self._steps = self._decide()
        self._go(None)

    def _likely(self) -> Likely:
        """The text of somebody else's guess, once, else of the last call."""
        call, self._drafts.call = self._drafts.call, None
        if call is not None:
            with suppress(LookupError, TypeError, ValueError, StopIteration, UserError):
                return _nested([[t for piece in self.plan.pieces(call) for t in piece]])
        return self._drafts.text

    def feed(self, answers: Sequence[Any]) -> None:
        """What the tree's `asks` asked for, in their order."""
        assert self.work is not None
        self.passes += 1
        self.nodes += len(self.work.tokens)
        self._go(answers)

    def _go(self, answers: Sequence[Any] | None) -> None:
        try:
            self.work = self._steps.send(answers)  # type: ignore[arg-type]
        except StopIteration as done:
            self.work, self.decision = None, done.value

    def _decide(self) -> Generator[Tree, Sequence[Any], Decision]:
        lines = [_Cursor((self.plan.function, ()), list(self.plan.opening))]
        while True:
            for line in lines:
                self._walk(line)
            if self.plan.parallel and self._function is not None and len(lines) == 1:
                lines += [_Cursor(place, list(tokens)) for tokens, place in self.plan.arguments[self._function]]
                for line in lines[1:]:
                    self._over_known(line)
                    self._walk(line)
            waiting = [line for line in lines if line.place is not None]
            if not waiting:
                return self._end(lines)
            laid = self._lay(waiting)
            answers = list((yield self._tree(laid)))
            if laid.scored:
                self._rows.update(zip(laid.scored, answers.pop(0), strict=True))
            for (node, _), (best,) in zip(laid.masked, answers, strict=True):
                self._bests[node] = best

    def _tree(self, laid: _Pass) -> Tree:
        asks = [Ask([n - laid.base for n in laid.scored], self.plan.columns)] if laid.scored else []
        asks += [Ask([n - laid.base], masks=legal[None]) for n, legal in laid.masked]
        assert laid.tokens, "every pass makes headway"
        return Tree(laid.tokens, laid.parents, self._depths[laid.base :], asks)

    # -- what is known ------------------------------------------------------------------------------------------------

    def _over_known(self, line: _Cursor) -> None:
        """Go over the pending tokens that are evaluated already."""
        while line.pending and (node := self._edges.get((line.at, line.pending[0]))) is not None:
            line.at = node
            line.text.append(line.pending.pop(0))

    def _step(self, line: _Cursor, token: int) -> None:
        line.pending.append(token)
        self._over_known(line)

    def _walk(self, line: _Cursor) -> None:
        """On to the next choice whose scores are not known, or to the line's end."""
        self._over_known(line)
        while line.place is not None:
            where, node = line.place
            if isinstance(where, FreeText):
                if not self._walk_free(line, where):
                    return
                continue
            if node in where.leaves:
                value, line.place = where.leaves[node]
                self._take(where, value)
                continue
            children = where.children(node)
            if len(children) > 1:
                row = None if line.pending else self._rows.get(line.at)
                if row is None:
                    return
                token, child = self._best(where.decides, line.at, children, row)
            else:
                ((token, child),) = children
                if self.core.budget.forced and (line.pending or line.at not in self._rows):
                    return  # the baseline: a pass for each token
            self._step(line, token)
            line.place = where, child

    def _best(
        self, decides: int, at: int, children: Sequence[tuple[int, TrieNode]], row: Sequence[float]
    ) -> tuple[int, TrieNode]:
        """The child with the largest score; ties go to the lowest token id. Raises NotFinite."""
        scores = [row[self.plan.column[token]] for token, _ in children]
        if not math.isfinite(sum(scores)):
            raise NotFinite
        most = max(scores)
        self.chosen.append((at, scores))
        self._sure(decides, 1.0 / math.fsum(math.exp(s - most) for s in scores))
        return children[scores.index(most)]

    def _sure(self, decides: int, probability: float) -> None:
        self._confidence[decides] = self._confidence.get(decides, 1.0) * probability

    def _take(self, where: Choice, value: Any) -> None:
        """A leaf of a choice: a function or a value; a key or the end decides nothing that is told."""
        if where is self.plan.function:
            self._function = value
        elif where.is_value and value is not ABSENT:
            self._arguments[self.plan.tools[where.tool].parameters[where.decides - 1].name] = value

    def _walk_free(self, line: _Cursor, where: FreeText) -> bool:
        """On in a free value; whether it is over."""
        if line.free is None:
            assert self.core.grammars is not None
            line.free = self.core.grammars.start(where.grammar, self.core.limit)
        while True:
            if line.ask is None:
                for token in line.free.forced():
                    self._step(line, token)
                legal = line.free.legal(where.ends, None)
                if np.count_nonzero(legal) > 1:
                    line.ask = legal
                    return False
                token = int(legal.argmax())
            else:
                best = None if line.pending else self._bests.get(line.at)
                if best is None:
                    return False
                token, probability = best
                if not math.isfinite(probability):
                    raise NotFinite
                self._sure(where.decides, probability)
                line.ask = None
            self._step(line, token)
            if token in where.ends:
                text = self.core.tokenizer.decode(line.free.tokens)
                name = self.plan.tools[where.tool].parameters[where.decides - 1].name
                self._arguments[name] = parse_free(where.domain, text)
                line.place, line.free = (where.then, (token,)), None
                return True
            line.free.push(token)

    # -- what to evaluate ---------------------------------------------------------------------------------------------

    def _lay(self, lines: Sequence[_Cursor]) -> _Pass:
        """The nodes of the next pass: what is certain, what may be chosen, and what may come behind that."""
        laid, budget = _Pass(len(self._depths)), self.core.budget
        begins: list[tuple[int, Choice, TrieNode]] = []
        for line in lines:
            at = line.at
            for token in line.pending[:1] if budget.forced else line.pending:
                at = self._node(laid, at, token)
            if line.ask is not None and (len(line.pending) <= 1 or not budget.forced):
                laid.masked.append((at, line.ask))
            elif budget.forced:
                laid.scored.append(at)
            elif line.place is not None and isinstance(line.place[0], Choice):
                begins.append((at, *line.place))
        if budget.per_head == 1:
            laid.scored += dict.fromkeys(at for at, _, _ in begins)
            return laid
        behind: deque[tuple[int, list[int], Place]] = deque()
        for begin in begins:
            self._spread(laid, *begin, budget.total, behind)
        room = min(budget.total, len(laid.tokens) + self.core.ahead * self._guessing)
        while behind:
            self._look_behind(laid, *behind.popleft(), room, behind)
        return laid

    def _spread(self, laid: _Pass, at: int, choice: Choice, start: TrieNode, most: int, behind: deque[Any]) -> None:
        """A choice whose `start` is node `at`: all nodes between which the model may choose, in declared order, and
        what comes `behind` its leaves, the likeliest first."""
        places = {start: at}
        for node in (start, *choice.needed(start, most)):
            if node not in places:
                if len(laid.tokens) >= self.core.budget.total:
                    break
                places[node] = self._node(laid, places[node[:-1]], node[-1])
            if len(children := choice.children(node)) > 1 and places[node] not in self._rows:
                laid.scored.append(places[node])
            for token, child in children:
                if not choice.branches(child):
                    likely = token in self._along.get(places[node], ())
                    (behind.appendleft if likely else behind.append)((places[node], [token], (choice, child)))

    def _look_behind(
        self, laid: _Pass, at: int, tokens: list[int], place: Place, room: int, behind: deque[Any]
    ) -> None:
        """Where a choice may lead: the text up to the next one and all of that, where it fits; of the likeliest its own
        text alone."""
        while True:  # what is certain from there
            where, node = place
            if isinstance(where, FreeText):
                return
            if node in where.leaves:
                if (then := where.leaves[node][1]) is None:
                    return
                place = then
            elif where.branches(node) and len(where.children(node)) > 1:
                break
            else:
                ((token, child),) = where.children(node)
                tokens, place = [*tokens, token], (where, child)
        left = room - len(laid.tokens) - len(tokens)
        fits = left >= 0 and len(where.needed(node, left)) <= left
        if not fits and (left < 0 or not (self._along.get(at) or {}).get(tokens[0])):
            return
        for token in tokens:
            at = self._node(laid, at, token)
        if fits:
            self._spread(laid, at, where, node, left, behind)
        elif at not in self._rows:
            laid.scored.append(at)
            for token, child in where.children(node):
                if token in self._along.get(at, ()):
                    behind.append((at, [token], (where, child)))

    def _node(self, laid: _Pass, parent: int, token: int) -> int:
        known = self._edges.get((parent, token))
        if known is None:
            known = self._edges[parent, token] = laid.base + len(laid.tokens)
            laid.tokens.append(token)
            laid.parents.append(parent)
            self._depths.append(self._depths[parent] + 1 if parent >= 0 else 0)
            if (likely := self._along.get(parent, {}).get(token)) is not None:
                self._along[known] = likely
        return known

    def _end(self, lines: Sequence[_Cursor]) -> Decision:
        assert self._function is not None
        self._drafts.text = _nested([[*line.text, *line.pending] for line in lines])
        tool = self.plan.tools[self._function]
        names = ["function", *(f"arg{k + 1}" for k in range(len(tool.parameters)))]
        sure = {name: self._confidence[k] for k, name in enumerate(names) if k in self._confidence}
        call = Call(tool.name, {p.name: self._arguments[p.name] for p in tool.parameters if p.name in self._arguments})
        return Decision(call, sure, None, self.passes, self.nodes, 0)


def _nested(paths: Sequence[Sequence[int]]) -> Likely:
    """Texts as tokens that follow one another."""
    root: Likely = {}
    for path in paths:
        below = root
        for token in path:
            below = below.setdefault(token, {})
    return root
