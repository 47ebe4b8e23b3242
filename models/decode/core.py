"""Decode one call of an ST checkpoint: request scores of trie nodes, and choose the call from these scores.

`DecoderCore.start` starts a decision. While the decision has `work`, the caller evaluates this tree of tokens after the
prompt, and passes the answers to `feed`. The core is independent of the engine: for an engine without tree attention
the budget is one node per head. Between two steps a decision can wait or be cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np

from rtcontrol.models.call import Call, Decision
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decode.draft_tree import Best, ChoicePoint, FreeValueDecode, GuessSources
from rtcontrol.models.decode.grammar import MAX_TOKENS, GrammarCompiler, parse_free
from rtcontrol.models.decode.hysteresis import HysteresisWalk
from rtcontrol.models.decode.plan import NO_TOOL, ROOT, SchemaPlan
from rtcontrol.models.decode.probe import check_probes
from rtcontrol.models.decode.protocol import Budget, DecodeError, NotFinite, PassCost, ScoreQuery, Tree
from rtcontrol.models.decode.walk import HeadNode, HeadState, Walk, Walker, choose_layout
from rtcontrol.models.errors import UserError, quoted_name
from rtcontrol.models.schema.combinations import ClassRow
from rtcontrol.models.schema.tool_schema import ABSENT

MAX_AHEAD = 24  # maximum number of nodes per pass that are guessed from the grammar alone
MAX_GUESSED = 256  # maximum guessed nodes per decision, for each free value (generated, not chosen from a list)
Request = tuple[ScoreQuery, Callable[[Any], None]]  # a query, and the function that stores its answer
FreeStart = tuple[int, str, bool]  # (index of a head, grammar of its free value, whether null is legal)


@dataclass(slots=True)
class Drafts:
    """Guesses for the next decision, taken from the last decision: the `tool`, the `tokens` of free values by (head,
    tool), and, for a chat model, the tokens of the call's whole `text` as a tree."""

    tool: int | None = None
    tokens: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    text: dict[int, Any] = field(default_factory=dict)


class DecisionSteps:
    """A decision in progress. The caller evaluates `work` and calls `feed` with the answers until `decision` is set.
    `feed` may raise NotFinite and DecodeError."""

    _steps: Generator[Tree, Sequence[Any], Decision]
    work: Tree | None = None
    decision: Decision | None = None
    passes = nodes = 0

    def feed(self, answers: Sequence[Any]) -> None:
        """Continue with the answers to the `queries` of the current `work`, in their order."""
        assert self.work is not None
        self.passes += 1
        self.nodes += len(self.work.tokens)
        self._advance(answers)

    def _advance(self, answers: Sequence[Any] | None) -> None:
        try:
            self.work = self._steps.send(answers)  # type: ignore[arg-type]
        except StopIteration as done:
            self.work, self.decision = None, done.value


class DecoderCore:
    """A decoder core for the tools of one plan. A free value (generated, not chosen from a list) has at most `limit`
    tokens. A pass has at most `ahead` nodes for guesses from grammars, and `depth` tokens of a guessed value."""

    depth: int | None = None
    ahead = MAX_AHEAD

    def __init__(
        self,
        plan: SchemaPlan,
        tokenizer: STTokenizer,
        vocabulary: int,
        budget: Budget | None = None,
        limit: int = MAX_TOKENS,
        hysteresis: float | None = None,
    ) -> None:
        self.hysteresis = hysteresis
        self.plan, self.tokenizer, self._limit = plan, tokenizer, limit
        self.domains = {(k, i): d for k, h in enumerate(plan.heads) for i, d in h.free.items()}
        free = {tool for _, tool in self.domains}
        self.only_free = free.pop() if len(free) == 1 else None  # the tool with free values, if there is only one
        self._grammars = GrammarCompiler(tokenizer, vocabulary) if self.domains else None
        self.set_budget(budget or Budget())
        self.starts: dict[tuple[int, int], FreeStart] = {}  # by (head, tool)
        self.firsts: dict[FreeStart, ChoicePoint] = {}  # legal first tokens; no entry if the first token is certain
        self.present_firsts: dict[FreeStart, ChoicePoint] = {}  # the same without null, if rules may exclude null
        for (k, tool), domain in self.domains.items():
            assert self._grammars is not None
            slot = plan.slots[tool][k - 1]
            where = self.where(k, tool)
            start = self.starts[k, tool] = (k, self._grammars.compile(domain, where), bool(slot.null))
            self._grammars.check(start[1], limit, where)
            try:
                head = self.new_free_value(k, tool, False)
            except DecodeError as error:
                raise UserError(
                    f"{where}: its schema cannot be decoded ({error}).",
                    "Use a plain type, bounds or an enum, or shorter patterns.",
                ) from None
            if not head.chain and not head.done:
                self.firsts[start] = head.stops[0]
            if slot.null and plan.tools[tool].rules is not None:
                present = self.new_free_value(k, tool, False, nullable=False)
                if not present.chain and not present.done:
                    self.present_firsts[k, start[1], False] = present.stops[0]
        check_probes(plan.tools)

    def set_budget(self, budget: Budget) -> None:
        """Set how many nodes a pass may have."""
        self.walker = Walker(self.plan, budget)

    def where(self, k: int, tool: int) -> str:
        """Return the tool and the parameters of its head `k`, for error messages."""
        return (
            f"Tool {quoted_name(self.plan.tools[tool].name)}, "
            f"{', '.join(quoted_name(p.name) for p in self.plan.slots[tool][k - 1].parameters)}"
        )

    def choose_budget(self, budget: Budget | None, cost: Callable[[], PassCost]) -> dict[str, Any]:
        """Set the budget (None: choose it by the cost of a pass). Return the budget and its reasons for the report."""
        chosen, layout = (budget, asdict(budget)) if budget is not None else choose_layout(self.plan, Budget(), cost)
        self.set_budget(chosen)
        if self.domains:
            self.ahead = min(self.ahead, cost().break_even_nodes())
        return layout

    @property
    def reserve(self) -> int:
        """Return how many nodes must fit after the prompt if no tokens are guessed."""
        return len(self.walker.first)

    def new_free_value(
        self,
        k: int,
        tool: int,
        guessing: bool = True,
        values: Sequence[Sequence[int]] = (),
        prompt: str = "",
        nullable: bool = True,
    ) -> FreeValueDecode:
        """Return a new free value for head `k` of a tool. With `guessing`, tokens are guessed from `values` and
        `prompt`. Without `nullable`, the value cannot be null."""
        assert self._grammars is not None
        head, (_, grammar, null) = self.plan.heads[k], self.starts[k, tool]
        room = per_head if guessing and (per_head := self.walker.budget.per_head) > 1 else 0
        (quote, *_) = self.tokenizer.encode('"')
        ends = None if self.domains[k, tool].is_string else quote
        guesses = GuessSources(self.tokenizer, values, prompt, ends, room, self.ahead, MAX_GUESSED, self.depth)
        value = self._grammars.start(grammar, self._limit, self.where(k, tool))
        return FreeValueDecode(value, [head.end_id], head.null_id if null and nullable else None, guesses)

    @property
    def max_nodes(self) -> int:
        """Return how many nodes may follow the prompt if tokens are guessed."""
        return len(self.walker.first) + (self._limit + MAX_GUESSED) * sum(bool(h.free) for h in self.plan.heads)

    def start(
        self, drafts: Drafts | None = None, prompt: Sequence[int] = (), active_call: Call | None = None
    ) -> HeadSteps:
        """Start a decision. Tokens of free values are guessed from `prompt` and `drafts`, which the decision updates
        (None: no guesses). Guesses save passes, but never change the call. `active_call` is for hysteresis."""
        return HeadSteps(self, drafts, prompt, active_call)


class HeadSteps(DecisionSteps):
    """A decision in progress, made with the heads of an ST checkpoint."""

    def __init__(
        self, core: DecoderCore, drafts: Drafts | None, prompt: Sequence[int], active_call: Call | None = None
    ) -> None:
        self.core, self.plan = core, core.plan
        self._hysteresis: HysteresisWalk | None = None
        if core.hysteresis is not None and active_call is not None:
            self._hysteresis = HysteresisWalk(core.walker, core.tokenizer, core.hysteresis, active_call)
        self.heads = [HeadState() for _ in self.plan.heads]
        self.visited: list[HeadNode] = []  # the nodes at which a token was chosen
        self._guessing, self._drafts = drafts is not None, drafts or Drafts()
        self._prompt = core.tokenizer.decode(prompt) if core.domains and self._guessing else ""
        self._free: dict[tuple[int, int], FreeValueDecode] = {}  # by head and tool
        self._first_bests: dict[FreeStart, Best] = {}
        # Trie nodes that the tool's rules allow, by head. For the head of a free value, rules only exclude null.
        self._within: dict[int, Collection[tuple[int, ...]]] = {}
        self._steps = self._decide()
        self._advance(None)

    @property
    def guesses(self) -> tuple[int, int]:
        """Return (number of guessed nodes, number of right guesses)."""
        return sum(s.guessed for s in self._free.values()), sum(s.right for s in self._free.values())

    def _decide(self) -> Generator[Tree, Sequence[Any], Decision]:
        walker, heads = self.core.walker, self.heads
        walks, tool, decision = walker.start, None, None
        while decision is None:
            tree, handlers = self._build_tree(walker.next_nodes(heads, tool, walks) if self.nodes else walker.first)
            if not tree.tokens and self.passes:
                raise RuntimeError("every later pass has nodes")
            if tree.tokens:
                answers = yield tree
                for handle_answer, answer in zip(handlers, answers, strict=True):
                    handle_answer(answer)
                self._accept_guesses(tool)
            tool, walks, decision = self._walk_to_decision()
        return decision

    def _walk_to_decision(self) -> tuple[int | None, dict[int, Walk], Decision | None]:
        """Walk the tries as far as scores are known. Return the tool, the walks, and the decision (None: not known
        yet). If the arguments may not be combined, restrict a head and walk again. Raises DecodeError."""
        while True:
            tool, walks, free = self.core.walker.walk_heads(self.heads, self._walk)
            if tool == NO_TOOL:
                return tool, walks, self._build_decision(None, walks, {})
            if tool is None:
                return tool, walks, None
            free_heads = [self._free_value_of(k, tool) for k in free]
            complete = all(s is not None and s.done for s in free_heads) and not any(w.pending for w in walks.values())
            values = self._free_values(tool) if complete else None
            self._free = {(k, t): s for (k, t), s in self._free.items() if t == tool}
            if values is None:
                if complete and all(s.done for s in self._free.values()):
                    continue  # the retried values are complete, so check the rules again
                return tool, walks, None
            arguments, rules = self._arguments(tool, walks, values), self.plan.tools[tool].rules
            fault = None if rules is None else rules.violation(arguments)
            if fault is None:
                return tool, walks, self._build_decision(tool, walks, arguments)
            if not self._restrict_head(tool, arguments):
                raise DecodeError(f"Tool {quoted_name(self.plan.tools[tool].name)}: {fault}")

    def _walk(self, head: int, state: HeadState, tools: int) -> Walk:
        if head in self._within:
            return self.core.walker.walk(head, state, tools, within=self._within[head])
        return (self._hysteresis or self.core.walker).walk(head, state, tools)

    def _restrict_head(self, tool: int, arguments: Mapping[str, Any]) -> bool:
        """Restrict the first head whose value may not be combined with the values of the heads before it. Return False
        if there is no such head, or its legal values are not known."""
        combinations = self.plan.tools[tool].combinations
        if combinations is None:
            return False
        rows: Sequence[ClassRow] = combinations.rows
        for k, slot in enumerate(self.plan.slots[tool], start=1):
            names = [p.name for p in slot.parameters if p.name in combinations.names]
            matching = combinations.matching_rows(rows, names, arguments)
            if not matching:
                few = combinations.distinct_rows(rows, names)
                return self._restrict(k, tool, partial(combinations.matching_rows, few, names))
            rows = matching
        return False

    def _restrict(self, k: int, tool: int, allowed: Callable[[Mapping[str, Any]], Any]) -> bool:
        """Restrict head `k` to values for whose arguments `allowed` is true. Return False if no such value is known."""
        head, slot, state = self.plan.heads[k], self.plan.slots[tool][k - 1], self._free.get((k, tool))
        if state is None:
            leaves = {leaf: values[tool] for leaf, values in head.trie.leaves.items() if tool in values}
            legal = [leaf for leaf, v in leaves.items() if allowed({} if v is ABSENT else slot.arguments(v))]
            self._within[k] = {leaf[:end] for leaf in legal for end in range(len(leaf) + 1)}
            return bool(legal)
        if not state.null and slot.null and allowed({} if slot.null[0] is ABSENT else slot.arguments(None)):
            state.end, state.confidence = head.null_id, 1 - state.confidence  # the probability of null is at most this
            return True
        if not state.null or k in self._within:
            return False
        self._within[k] = ()  # evaluate the head token again to get the best token other than null
        del self._free[k, tool], self.heads[k].slots[ROOT]
        return True

    def _free_values(self, tool: int) -> dict[int, Any] | None:
        """Return the free values of a call by head. If a value is illegal, retry its last token and return None.

        Raises DecodeError if the value after a retry is illegal too, or no other token is legal.
        """
        values: dict[int, Any] = {}
        for k, state in ((k, state) for (k, called), state in self._free.items() if called == tool):
            try:
                values[k] = self.plan.slots[tool][k - 1].null[0] if state.null else self._parse_value(k, tool, state)
            except DecodeError:
                if not state.retry_last_choice():
                    raise
                return None
        return values

    def _accept_guesses(self, tool: int | None) -> None:
        for at, state in list(self._free.items()):
            try:
                if state.bests:
                    state.accept_guesses()
            except DecodeError as error:  # if the tool is not decided, the value was only a guess: ignore the error
                if tool is not None or isinstance(error, NotFinite):
                    raise
                del self._free[at]

    # -- choose the nodes to evaluate ----------------------------------------------------------------------------------

    def _build_tree(self, wanted: Sequence[HeadNode]) -> tuple[Tree, list[Callable[[Any], None]]]:
        """Return the tree of the next pass (`wanted` trie nodes, tokens of free values) and handlers of its answers."""
        base, heads = self.nodes, self.plan.heads
        # Until the function is decided, only the free values of this tool are guessed.
        likely = self.core.only_free if self._drafts.tool is None else self._drafts.tool
        nodes: list[tuple[int, int, int]] = []  # token, parent and depth
        requests: list[Request] = []
        for k, n in wanted:
            slots = self.heads[k].slots
            slots[n] = base + len(nodes)
            nodes.append((heads[k].trie.last_token(n), slots[n[:-1]] if n else -1, len(n)))
        if wanted:
            needed: Sequence[int] = range(len(nodes))
            if self.core.walker.budget.paths:
                needed = [i for i, (k, n) in enumerate(wanted) if len(heads[k].trie.children(n)) > 1]
            store = partial(self._store_logits, [wanted[i] for i in needed])
            requests.append((ScoreQuery(needed, self.core.walker.columns), store))
        for k in (k for k, n in wanted if n == ROOT and heads[k].free):
            node = self.heads[k].slots[ROOT]
            known = self.core.present_firsts if k in self._within else self.core.firsts
            firsts = [(node, start, stop) for start, stop in known.items() if start[0] == k]
            requests += self._build_queries(firsts, self._first_bests)
            if self._guessing and likely is not None and likely in heads[k].free and not base:
                with suppress(DecodeError):  # not an error yet, because another tool may be called
                    state = self._new_free_value(k, likely, node)
                    if state.chain or state.tree:  # otherwise the first token is requested with `firsts`
                        self._free[k, likely] = state
        for state in self._free.values():
            if not state.done:
                nodes += state.next_nodes(base + len(nodes))
                requests += self._build_queries(
                    [(state.places[stop.path], stop.path, stop) for stop in state.stops], state.bests
                )
        tokens, parents, depths = zip(*nodes, strict=True) if nodes else ((), (), ())
        return Tree(tokens, parents, depths, [query for query, _ in requests]), [handler for _, handler in requests]

    def _build_queries(
        self, stops: Sequence[tuple[int, Any, ChoicePoint]], bests: dict[Any, Best]
    ) -> Iterator[Request]:
        """Yield a query for each (node, key, choice point): all scores if few tokens are legal, else the best token."""
        base = self.nodes
        if any(node < base for node, _, _ in stops):
            raise RuntimeError("a score query is about a node of another pass")
        if few := [entry for entry in stops if entry[2].few]:
            ids = sorted({i for _, _, stop in few for i in stop.few})

            def store_few(rows: Sequence[Sequence[float]]) -> None:
                bests.update((key, stop.best(ids, row)) for (_, key, stop), row in zip(few, rows, strict=True))

            yield ScoreQuery([node - base for node, _, _ in few], ids), store_few
        if many := [entry for entry in stops if not entry[2].few]:

            def store_many(answers: Sequence[Best]) -> None:
                bests.update((key, best) for (_, key, _), best in zip(many, answers, strict=True))

            masks = np.stack([stop.legal for _, _, stop in many])
            yield ScoreQuery([node - base for node, _, _ in many], masks=masks), store_many

    # -- use the answers -----------------------------------------------------------------------------------------------

    def _store_logits(self, entries: Sequence[HeadNode], rows: Sequence[Sequence[float]]) -> None:
        for (k, n), row in zip(entries, rows, strict=True):
            self.heads[k].rows[n] = row

    def _new_free_value(self, k: int, tool: int, node: int) -> FreeValueDecode:
        """Return a new free value whose head token is at `node`, with guesses from the last decision."""
        last = self._drafts.tokens.get((k, tool))
        values = () if last is None else (last,)
        state = self.core.new_free_value(k, tool, self._guessing, values, self._prompt, k not in self._within)
        state.nodes.append(node)
        return state

    def _free_value_of(self, k: int, tool: int) -> FreeValueDecode | None:
        """Return the free value of head `k` of the called tool, or None if its head token is not evaluated yet."""
        state = self._free.get((k, tool))
        if state is None and ROOT in self.heads[k].slots:
            state = self._free[k, tool] = self._new_free_value(k, tool, self.heads[k].slots[ROOT])
            _, grammar, null = self.core.starts[k, tool]
            if (best := self._first_bests.get((k, grammar, null and k not in self._within))) is not None:
                state.accept(best)
        return state

    def _arguments(self, tool: int, walks: Mapping[int, Walk], values: Mapping[int, Any]) -> dict[str, Any]:
        """Return the arguments of a call, with the free `values` by head."""
        arguments: dict[str, Any] = {}
        for k, slot in enumerate(self.plan.slots[tool], start=1):
            value = values[k] if k in values else self.plan.heads[k].trie.value(walks[k].node, tool)
            if value is not ABSENT:
                arguments |= slot.arguments(value)
        return arguments

    def _build_decision(self, tool: int | None, walks: dict[int, Walk], arguments: Mapping[str, Any]) -> Decision:
        heads, call, self._drafts.tool = self.plan.heads, None, tool
        self.visited = [(k, n) for k, w in walks.items() for n in w.visited]
        confidence = {heads[k].name: w.confidence for k, w in sorted(walks.items())}
        if tool is not None:
            confidence |= {heads[at[0]].name: self._free[at].confidence for at in sorted(self._free)}
            call = Call(self.plan.tools[tool].name, dict(arguments))
        kept = {} if self._hysteresis is None else self._hysteresis.kept
        return Decision(call, confidence, self.passes, self.nodes, 0, kept=kept)

    def _parse_value(self, k: int, tool: int, state: FreeValueDecode) -> Any:
        self._drafts.tokens[k, tool] = list(state.value.tokens)
        return parse_free(self.core.domains[k, tool], self.core.tokenizer.decode(state.value.tokens))


def common_prefix_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the common prefix of two sequences."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # bisection: comparing slices is much faster than comparing tokens in a loop
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
