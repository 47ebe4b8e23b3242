"""Hysteresis: a head keeps the active value until another one is more probable by a margin."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decode.plan import ANY_TOOL, NO_TOOL, SchemaPlan, TrieNode
from rtcontrol.models.decode.walk import FUNCTION_BIT, HeadState, Walk, Walker
from rtcontrol.models.errors import UserError

_NUMBER = re.compile(r"[0-9]*\.?[0-9]+(e-?[0-9]+)?")
# The errors of `plan.text` for a value outside the parameter's domain.
NO_VALUE = (ArithmeticError, AttributeError, LookupError, StopIteration, TypeError, ValueError, UserError)


def margin_of(text: str) -> float:
    """Return the margin of a rule such as `margin=0.2`: a difference of probabilities, above 0 and at most 1. Raises
    UserError for another text."""
    name, _, number = (part.strip() for part in text.partition("="))
    if name != "margin" or not _NUMBER.fullmatch(number) or not 0 < float(number) <= 1:
        hint = "Give a difference of probabilities above 0 to 1, such as margin=0.2; or leave loop.hysteresis out."
        raise UserError(f"loop.hysteresis={text[:80]!r} is not a margin.", hint)
    return float(number)


class SteadyWalk:
    """The walks of one decision under hysteresis. Arguments are compared only if the active function is called again.
    Hysteresis does not apply to a null function or to free values."""

    def __init__(self, walker: Walker, tokenizer: STTokenizer, margin: float, standing: Call) -> None:
        self._walker, self._plan, self._margin = walker, walker.plan, margin
        self._tool, self._leaves = leaves(walker.plan, tokenizer, standing)
        self._mask = 0 if self._tool == NO_TOOL else 1 << self._tool
        self.kept: dict[str, str | None] = {}  # the mask of tools of the walks since the function was walked

    def walk(self, head: int, state: HeadState, tools: int) -> Walk:
        """Walk as `Walker.walk` does, or to the active value if no other value wins by the margin. The function head is
        walked first and starts a new decision. Raises NotFinite."""
        if head == 0:
            self.kept = {}
        best = self._walker.walk(head, state, tools)
        leaf = self._leaves.get(head) if head == 0 or tools == self._mask else None
        if leaf is None or best.pending or best.node == leaf:
            return best
        if head == 0 and self._plan.function.trie.value(best.node, ANY_TOOL) == NO_TOOL:
            return best
        standing = self._walker.walk(head, state, tools, leaf)
        if standing.pending:
            return standing
        if best.confidence - standing.confidence >= self._margin:
            return best
        self.kept[self._plan.heads[head].name] = self._text(head, best.node)
        return standing

    def _text(self, head: int, leaf: TrieNode) -> str | None:
        """Return the text of a leaf; None for the null token."""
        plan = self._plan
        if leaf == (plan.heads[head].null_id,):
            return None
        if head == 0:
            return plan.tools[plan.function.trie.value(leaf, ANY_TOOL)].name
        return plan.text(self._tool, head - 1, plan.heads[head].trie.value(leaf, self._tool))


def leaves(plan: SchemaPlan, tokenizer: STTokenizer, call: Call) -> tuple[int, dict[int, TrieNode]]:
    """Return the index of a call's tool and, for each head with a trie, the leaf of the call's value. Values outside
    the domains of the tool are left out."""
    index = next((i for i, tool in enumerate(plan.tools) if tool.name == call.name), None)
    if index is None:
        return NO_TOOL, {}
    by_head: dict[int, TrieNode] = {0: (*tokenizer.encode(call.name), plan.function.end_id)}
    try:
        texts: Sequence[str | None] = [text for _, text in plan.head_values(call)]
    except NO_VALUE:
        texts = ()
    for k, (head, text) in enumerate(zip(plan.heads, texts, strict=False)):
        if k == 0 or k > len(plan.slots[index]) or index in head.free:
            continue
        leaf = (head.null_id,) if text is None else (*tokenizer.encode(text), head.end_id)
        if head.trie.tools(leaf)[0] >> index & 1:
            by_head[k] = leaf
    return index, {k: leaf for k, leaf in by_head.items() if k or plan.function.trie.tools(leaf)[0] & FUNCTION_BIT}
