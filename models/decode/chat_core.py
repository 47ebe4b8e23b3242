"""Decode one call of a chat model. The result equals constrained greedy decoding, but takes fewer forward passes.

A pass evaluates the tokens that are already certain, all values that may follow them, and the text after the value that
is guessed. The interface is the same as in `decode.core`.
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
from rtcontrol.models.decode.core import DecisionSteps, Drafts
from rtcontrol.models.decode.draft_tree import FreeValueDecode, GuessSources
from rtcontrol.models.decode.grammar import MAX_TOKENS, GrammarCompiler, parse_free
from rtcontrol.models.decode.plan import TrieNode
from rtcontrol.models.decode.probe import check_probes
from rtcontrol.models.decode.protocol import Budget, DecodeError, PassCost, ScoreQuery, Tree
from rtcontrol.models.decode.walk import best_of

TokenTree = dict[int, "TokenTree"]  # a trie of likely next tokens
Texts = deque[tuple[int, list[int], Place]]  # (node, tokens after it, position after these tokens)


@dataclass(eq=False)
class NextPass:
    """The nodes of the next pass, numbered from `base` on. The pass returns the scores at `scored` nodes, and the best
    legal token at `masked` nodes."""

    base: int
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    scored: list[int] = field(default_factory=list)
    masked: list[tuple[int, np.ndarray]] = field(default_factory=list)


class DecisionNodes:
    """The nodes that a decision has evaluated, as a tree of tokens. `rows` has scores by node, and `bests` the best
    token with its probability. `likely` has guessed tokens as a tree. A pass has at most `total` nodes."""

    def __init__(self, likely: TokenTree, total: int) -> None:
        self.rows: dict[int, Sequence[float]] = {}
        self.bests: dict[int, tuple[int, float]] = {}
        self._likely: dict[int, TokenTree] = {-1: likely}
        self._depths: list[int] = []
        self._edges: dict[tuple[int, int], int] = {}
        self._total = total

    def new_pass(self) -> NextPass:
        return NextPass(len(self._depths))

    def child(self, node: int, token: int) -> int | None:
        """Return the node after `node` and `token`, or None if it is not evaluated."""
        return self._edges.get((node, token))

    def remove_node(self, text: Sequence[int], token: int) -> int:
        """Remove the node after `text` and `token`, so that it is evaluated again. Return the node after `text`."""
        at = -1
        for text_token in text:
            at = self._edges[at, text_token]
        del self._edges[at, token]
        return at

    def build_tree(self, next_pass: NextPass, columns: Sequence[int]) -> Tree:
        queries = [ScoreQuery([n - next_pass.base for n in next_pass.scored], columns)] if next_pass.scored else []
        queries += [ScoreQuery([n - next_pass.base], masks=legal[None]) for n, legal in next_pass.masked]
        if not next_pass.tokens:
            raise RuntimeError("a pass has no nodes")
        return Tree(next_pass.tokens, next_pass.parents, self._depths[next_pass.base :], queries)

    def store_answers(self, next_pass: NextPass, answers: Sequence[Any]) -> None:
        """Store the answers of a pass: a row of scores or the best token for each requested node."""
        rest = list(answers)
        if next_pass.scored:
            self.rows.update(zip(next_pass.scored, rest.pop(0), strict=True))
        for (node, _), (best,) in zip(next_pass.masked, rest, strict=True):
            self.bests[node] = best

    def add_choice(
        self, next_pass: NextPass, at: int, choice: Choice, start: TrieNode, room: int, texts: Texts
    ) -> None:
        """Add to the pass all nodes of a choice below its trie node `start`, which is the evaluated node `at`. Append
        the texts after its leaves to `texts`, likely texts first."""
        places = {start: at}
        for node in (start, *choice.needed_nodes(start, room)):
            if node not in places:
                if len(next_pass.tokens) >= self._total:
                    break
                places[node] = self.add_node(next_pass, places[node[:-1]], node[-1])
            if len(children := choice.children(node)) > 1 and places[node] not in self.rows:
                next_pass.scored.append(places[node])
            for token, child in children:
                if not choice.is_branching(child):
                    likely = token in self._likely.get(places[node], ())
                    (texts.appendleft if likely else texts.append)((places[node], [token], (choice, child)))

    def add_text(self, next_pass: NextPass, at: int, tokens: list[int], place: Place, room: int, texts: Texts) -> None:
        """Add to the pass the text up to the next choice, and all nodes of this choice if they fit in `room`. If they
        do not fit, add the text only after a likely value."""
        while tokens and (known := self.child(at, tokens[0])) is not None:
            at, tokens = known, tokens[1:]
        while True:  # follow all tokens that are certain
            where, node = place
            if isinstance(where, FreeText):
                return
            if (leaf := where.leaf(node)) is not None:
                if leaf[1] is None:
                    return
                place = leaf[1]
            elif where.is_branching(node) and len(where.children(node)) > 1:
                break
            else:
                ((token, child),) = where.children(node)
                tokens, place = [*tokens, token], (where, child)
        remaining = room - len(next_pass.tokens) - len(tokens)
        fits = remaining >= 0 and len(where.needed_nodes(node, remaining)) <= remaining
        likely = self._likely.get(at, {})
        if not fits and (remaining < 0 or not (likely.get(tokens[0]) if tokens else likely)):
            return
        for token in tokens:
            at = self.add_node(next_pass, at, token)
        if fits:
            self.add_choice(next_pass, at, where, node, remaining, texts)
        elif at not in self.rows:
            next_pass.scored.append(at)
            for token, child in where.children(node):
                if token in self._likely.get(at, ()):
                    texts.append((at, [token], (where, child)))

    def add_node(self, next_pass: NextPass, parent: int, token: int) -> int:
        """Return the node for `token` after the node `parent`; add it to the pass if it is new."""
        known = self._edges.get((parent, token))
        if known is None:
            known = self._edges[parent, token] = next_pass.base + len(next_pass.tokens)
            next_pass.tokens.append(token)
            next_pass.parents.append(parent)
            self._depths.append(self._depths[parent] + 1 if parent >= 0 else 0)
            if (likely := self._likely.get(parent, {}).get(token)) is not None:
                self._likely[known] = likely
        return known


class ChatCore:
    """A decoder core for the tools of one chat plan. A value that is not listed has at most `limit` tokens. A pass has
    up to `ahead` nodes for text after the next choice."""

    def __init__(
        self, plan: ChatPlan, tokenizer: STTokenizer, grammars: GrammarCompiler | None, limit: int = MAX_TOKENS
    ) -> None:
        self.plan, self.tokenizer, self.grammars, self.limit = plan, tokenizer, grammars, limit
        self.ahead, self.budget = 0, Budget()
        for free in plan.free:
            assert grammars is not None
            grammars.check(free.grammar, limit, plan.where(free))
        check_probes(plan.tools)

    def choose_budget(self, budget: Budget | None, cost: Callable[[], PassCost]) -> dict[str, Any]:
        """Choose by the cost of a pass how many nodes it evaluates ahead. Return this choice for the report."""
        self.budget = budget or Budget()
        self.ahead = min(self.budget.total, cost().break_even_nodes(choosing=False)) if self.budget.per_head > 1 else 0
        return {"layout": "arguments in sequence", "ahead": self.ahead}

    @property
    def reserve(self) -> int:
        """Return how many nodes must fit after the prompt, if nothing is guessed."""
        return len(self.plan.opening)

    @property
    def max_nodes(self) -> int:
        """Return how many nodes may follow the prompt, if tokens are guessed."""
        return 4 * self.budget.total

    def start(self, drafts: Drafts | None = None, prompt: Sequence[int] = ()) -> ChatSteps:
        """Start a decision. `drafts` has the last call as a guess. Without `drafts`, no text is evaluated ahead."""
        return ChatSteps(self, drafts)


@dataclass(eq=False)
class _Cursor:
    """The position in a call's text. `text` has the evaluated tokens up to node `at` (-1: the prompt's end). The next
    tokens, `pending`, are certain, but not evaluated. `place` is the position after them (None: end of the call)."""

    place: Place | None
    pending: list[int]
    at: int = -1
    text: list[int] = field(default_factory=list)
    head: FreeValueDecode | None = None  # the value that is being generated token by token
    chosen: int = 0  # number of tokens in `text` before the last chosen token


class ChatSteps(DecisionSteps):
    """A decision in progress, made by a chat model, which writes the call as text."""

    def __init__(self, core: ChatCore, drafts: Drafts | None) -> None:
        self.core, self.plan = core, core.plan
        self._drafts, self._guessing = drafts or Drafts(), drafts is not None
        self._nodes = DecisionNodes(self._drafts.text, core.budget.total)
        self._confidence: dict[int, float] = {}
        self._function: int | None = None
        self._arguments: dict[str, Any] = {}
        self._steps = self._decide()
        self._advance(None)

    def _decide(self) -> Generator[Tree, Sequence[Any], Decision]:
        cursor = _Cursor((self.plan.function, ()), list(self.plan.opening))
        while True:
            self._walk(cursor)
            if cursor.place is None:
                return self._build_decision(cursor)
            next_pass = self._plan_pass(cursor)
            self._nodes.store_answers(next_pass, (yield self._nodes.build_tree(next_pass, self.plan.columns)))

    # -- advance the cursor with known scores --------------------------------------------------------------------------

    def _skip_evaluated(self, cursor: _Cursor) -> None:
        """Move the cursor over pending tokens that are already evaluated."""
        while cursor.pending and (node := self._nodes.child(cursor.at, cursor.pending[0])) is not None:
            cursor.at = node
            cursor.text.append(cursor.pending.pop(0))

    def _append_tokens(self, cursor: _Cursor, tokens: Sequence[int]) -> None:
        cursor.pending += tokens
        self._skip_evaluated(cursor)

    def _walk(self, cursor: _Cursor) -> None:
        """Move the cursor to the next choice whose scores are not known, or to the end of the call."""
        self._skip_evaluated(cursor)
        while cursor.place is not None:
            where, node = cursor.place
            if isinstance(where, FreeText):
                if not self._walk_free(cursor, where):
                    return
                continue
            if (leaf := where.leaf(node)) is not None:
                value, cursor.place = leaf
                self._store_value(where, value)
                continue
            children = where.children(node)
            if len(children) > 1:
                row = None if cursor.pending else self._nodes.rows.get(cursor.at)
                if row is None:
                    return
                token, child = self._best_child(where.decides, children, row)
            else:
                ((token, child),) = children
                if self.core.budget.forced and (cursor.pending or cursor.at not in self._nodes.rows):
                    return  # with `forced`, each token is evaluated in a separate pass
            self._append_tokens(cursor, [token])
            cursor.place = where, child

    def _best_child(
        self, decides: int, children: Sequence[tuple[int, TrieNode]], row: Sequence[float]
    ) -> tuple[int, TrieNode]:
        """Return the child with the largest score; if several are equal, the lowest token id. Raises NotFinite."""
        scores = [row[self.plan.column[token]] for token, _ in children]
        best, share = best_of(scores)
        self._multiply_confidence(decides, share)
        return children[best]

    def _multiply_confidence(self, decides: int, probability: float) -> None:
        self._confidence[decides] = self._confidence.get(decides, 1.0) * probability

    def _store_value(self, where: Choice, value: Any) -> None:
        """Store a chosen value, if it is the function or an argument (and not text between two values)."""
        if where is self.plan.function:
            self._function = value
        elif where.is_value:
            self._arguments[self.plan.tools[where.tool].parameters[where.decides - 1].name] = value

    def _walk_free(self, cursor: _Cursor, where: FreeText) -> bool:
        """Decode a free value as far as scores are known; return whether it is complete."""
        head = cursor.head
        if head is None:
            assert self.core.grammars is not None
            value = self.core.grammars.start(where.grammar, self.core.limit, self.plan.where(where))
            head = cursor.head = FreeValueDecode(value, where.ends.tolist(), None, GuessSources(self.core.tokenizer))
            self._append_tokens(cursor, head.chain)
        while True:
            while not head.done:
                best = None if cursor.pending else self._nodes.bests.get(cursor.at)
                if best is None:
                    return False
                cursor.chosen = len(cursor.text)
                head.accept(best)
                self._append_tokens(cursor, head.chain)
            text = self.core.tokenizer.decode(head.value.tokens)
            name = self.plan.tools[where.tool].parameters[where.decides - 1].name
            try:
                self._arguments[name] = parse_free(where.domain, text)
                break
            except DecodeError:
                if not (cursor.chosen and head.retry_last_choice()):
                    raise
                self._evaluate_again(cursor, head)
        self._multiply_confidence(where.decides, head.confidence)
        assert head.end is not None
        self._append_tokens(cursor, [head.end])
        cursor.place, cursor.head = (where.then, (head.end,)), None
        return True

    def _evaluate_again(self, cursor: _Cursor, head: FreeValueDecode) -> None:
        """Schedule a second evaluation of the token before the last choice, now without the illegal token."""
        token = cursor.text[cursor.chosen - 1]
        cursor.text, cursor.pending = cursor.text[: cursor.chosen - 1], [token]
        cursor.at = self._nodes.remove_node(cursor.text, token)
        self._append_tokens(cursor, head.chain[min(head.kept, 1) :])

    # -- choose the nodes to evaluate ----------------------------------------------------------------------------------

    def _plan_pass(self, cursor: _Cursor) -> NextPass:
        """Return the nodes of the next pass: certain tokens, the values of the next choice, and likely text after
        it."""
        next_pass, budget, at = self._nodes.new_pass(), self.core.budget, cursor.at
        for token in cursor.pending[:1] if budget.forced else cursor.pending:
            at = self._nodes.add_node(next_pass, at, token)
        texts: Texts = deque()
        if cursor.head is not None and (len(cursor.pending) <= 1 or not budget.forced):
            next_pass.masked.append((at, cursor.head.stops[0].legal))
        elif budget.forced or budget.per_head == 1:
            next_pass.scored.append(at)
        elif cursor.place is not None and isinstance(where := cursor.place[0], Choice):
            self._nodes.add_choice(next_pass, at, where, cursor.place[1], budget.total, texts)
        room = min(budget.total, len(next_pass.tokens) + self.core.ahead * self._guessing)
        while texts:
            self._nodes.add_text(next_pass, *texts.popleft(), room, texts)
        return next_pass

    def _build_decision(self, cursor: _Cursor) -> Decision:
        assert self._function is not None
        self._drafts.tool = self._function
        self._drafts.text = _as_tree([*cursor.text, *cursor.pending])
        tool = self.plan.tools[self._function]
        names = ["function", *(f"arg{k + 1}" for k in range(len(tool.parameters)))]
        confidence = {name: self._confidence[k] for k, name in enumerate(names) if k in self._confidence}
        call = Call(tool.name, {p.name: self._arguments[p.name] for p in tool.parameters if p.name in self._arguments})
        if tool.rules is not None and (problem := tool.rules.violation(call.arguments)) is not None:
            raise DecodeError(f"Tool {tool.name}: {problem}")
        return Decision(call, confidence, self.passes, self.nodes, 0)


def _as_tree(path: Sequence[int]) -> TokenTree:
    """Return a token sequence as a TokenTree with one branch."""
    root: TokenTree = {}
    below = root
    for token in path:
        below = below.setdefault(token, {})
    return root
