"""Hysteresis: a head keeps the value in force until another one is surer by a margin, or preferred for long enough."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from rtcontrol.models.call import Call, StandingCall, Steadied
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decode.plan import ANY_TOOL, NO_TOOL, SchemaPlan, TrieNode
from rtcontrol.models.decode.walk import FUNCTION_BIT, HeadState, Walk, Walker
from rtcontrol.models.errors import UserError

MOST_TICKS = 1000
_NUMBER = re.compile(r"[0-9]*\.?[0-9]+(e-?[0-9]+)?")
# What `plan.text` raises for a value that is none of the parameter's.
NO_VALUE = (ArithmeticError, AttributeError, LookupError, StopIteration, TypeError, ValueError, UserError)


@dataclass(frozen=True, slots=True)
class Hysteresis:
    """Another value is taken where its probability is by `margin` above that of the value in force (None: however far
    above, it is not), or where it is preferred in `ticks` decisions in a row (None: however many)."""

    margin: float | None = None
    ticks: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `margin=0.2`, `ticks=3` or `margin=0.2,ticks=3`. Raises UserError."""
        given = [part.strip().partition("=") for part in text.split(",")]
        terms = {name.strip(): value.strip() for name, _, value in given}
        if len(terms) < len(given) or not terms.keys() <= {"margin", "ticks"}:
            what = f"--hysteresis {text[:80]!r} is no hysteresis."
            raise UserError(what, "Give margin=0.2, ticks=3, or margin=0.2,ticks=3 (whichever comes first).")
        margin, ticks = terms.get("margin"), terms.get("ticks")
        if margin is not None and not (_NUMBER.fullmatch(margin) and 0 < float(margin) <= 1):
            what = f"--hysteresis margin={margin[:80]} is no difference of probabilities."
            raise UserError(what, "Give above 0 to 1, such as margin=0.2; or leave --hysteresis out.")
        if ticks is not None and not (re.fullmatch("[0-9]{1,9}", ticks) and 2 <= int(ticks) <= MOST_TICKS):
            what = f"--hysteresis ticks={ticks[:80]} is no number of ticks."
            raise UserError(what, f"Give 2 to {MOST_TICKS}; 1 would keep nothing: leave --hysteresis out.")
        return cls(None if margin is None else float(margin), None if ticks is None else int(ticks))

    def __str__(self) -> str:
        given = (("margin", self.margin), ("ticks", self.ticks))
        return ",".join(f"{name}={value:g}" for name, value in given if value is not None)


class SteadyWalk:
    """The walks of one decision under hysteresis. An argument is compared where the function in force is called again;
    of another function all arguments are new. A null function and free values are taken as they are preferred."""

    def __init__(self, walker: Walker, tokenizer: STTokenizer, terms: Hysteresis, standing: StandingCall) -> None:
        self._walker, self._plan, self._terms = walker, walker.plan, terms
        self._before = standing.preferred
        self._tool, self._leaves = leaves(walker.plan, tokenizer, standing.call)
        self._mask = 0 if self._tool == NO_TOOL else 1 << self._tool
        self._preferred: dict[str, tuple[str | None, int]] = {}
        self._kept: list[str] = []

    @property
    def steadied(self) -> Steadied:
        """Of the walks since the function's."""
        return Steadied(self._preferred, tuple(self._kept))

    def walk(self, head: int, state: HeadState, tools: int) -> Walk:
        """As `Walker.walk`, or to the value in force. The function's walk comes first, and begins anew. Raises
        NotFinite."""
        if head == 0:
            self._preferred, self._kept = {}, []
        best = self._walker.walk(head, state, tools)
        leaf = self._leaves.get(head) if head == 0 or tools == self._mask else None
        if leaf is None or best.pending or best.node == leaf:
            return best
        if head == 0 and self._plan.function.trie.value(best.node, ANY_TOOL) == NO_TOOL:
            return best
        standing = self._walker.follow(head, state, tools, leaf)
        return standing if standing.pending else self._chosen(head, best, standing)

    def _chosen(self, head: int, best: Walk, standing: Walk) -> Walk:
        name, text = self._plan.heads[head].name, self._text(head, best.node)
        before = self._before.get(name)
        ticks = 1 + (before[1] if before is not None and before[0] == text else 0)
        self._preferred[name] = text, ticks
        margin, most = self._terms.margin, self._terms.ticks
        if margin is not None and best.confidence - standing.confidence >= margin:
            return best
        if most is not None and ticks >= most:
            return best
        self._kept.append(name)
        return standing

    def _text(self, head: int, leaf: TrieNode) -> str | None:
        """What a leaf says; None of the null token."""
        plan = self._plan
        if leaf == (plan.heads[head].null_id,):
            return None
        if head == 0:
            return plan.tools[plan.function.trie.value(leaf, ANY_TOOL)].name
        return plan.text(self._tool, head - 1, plan.heads[head].trie.value(leaf, self._tool))


def leaves(plan: SchemaPlan, tokenizer: STTokenizer, call: Call) -> tuple[int, dict[int, TrieNode]]:
    """A call's tool, and by head the leaf of its value, where the head has a trie; nothing of a call that these tools
    do not have, and of a value that the tool does not."""
    index = next((i for i, tool in enumerate(plan.tools) if tool.name == call.name), None)
    if index is None:
        return NO_TOOL, {}
    found: dict[int, TrieNode] = {0: (*tokenizer.encode(call.name), plan.function.end_id)}
    try:
        texts: Sequence[str | None] = [text for _, text in plan.head_values(call)]
    except NO_VALUE:
        texts = ()
    for k, (head, text) in enumerate(zip(plan.heads, texts, strict=False)):
        if k == 0 or k > len(plan.slots[index]) or index in head.free:
            continue
        leaf = (head.null_id,) if text is None else (*tokenizer.encode(text), head.end_id)
        if head.trie.tools(leaf)[0] >> index & 1:
            found[k] = leaf
    return index, {k: leaf for k, leaf in found.items() if k or plan.function.trie.tools(leaf)[0] & FUNCTION_BIT}
