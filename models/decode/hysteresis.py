"""Apply hysteresis: keep the values of the active call until other values are more probable by a margin."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decode.plan import ANY_TOOL, NO_TOOL, SchemaPlan, TrieNode
from rtcontrol.models.decode.walk import FUNCTION_BIT, HeadState, Walk, Walker
from rtcontrol.models.errors import UserError

_NUMBER = re.compile(r"[0-9]*\.?[0-9]+(e-?[0-9]+)?")
# Exceptions that `SchemaPlan.text` may raise for a value that the parameter does not allow.
VALUE_ERRORS = (ArithmeticError, AttributeError, LookupError, StopIteration, TypeError, ValueError, UserError)


def margin_of(text: str) -> float:
    """Parse the setting `margin=NUMBER`, and return the number: a difference of probabilities above 0 and at most 1.
    Raises UserError for any other text."""
    name, _, number = (part.strip() for part in text.partition("="))
    if name != "margin" or not _NUMBER.fullmatch(number) or not 0 < float(number) <= 1:
        hint = "Give a difference of probabilities, such as margin=0.2 (above 0, at most 1), or remove loop.hysteresis."
        raise UserError(f"loop.hysteresis={text[:80]!r} is not a margin.", hint)
    return float(number)


class HysteresisWalk:
    """Walks the tries of one decision, and prefers the values of the active call: arguments only if the same function
    is called again. Hysteresis applies neither to the null function nor to free values."""

    def __init__(self, walker: Walker, tokenizer: STTokenizer, margin: float, active_call: Call) -> None:
        self._walker, self._plan, self._margin = walker, walker.plan, margin
        self._tool, self._leaves = active_leaves(walker.plan, tokenizer, active_call)
        self._mask = 0 if self._tool == NO_TOOL else 1 << self._tool
        self.kept: dict[str, str | None] = {}  # see `Decision.kept`

    def walk(self, head: int, state: HeadState, tools: int) -> Walk:
        """Return the walk to the active value, or to the best value if that is more probable by the margin. Head 0 (the
        function) must be walked first, and resets `kept`. Raises NotFinite."""
        if head == 0:
            self.kept = {}
        best = self._walker.walk(head, state, tools)
        leaf = self._leaves.get(head) if head == 0 or tools == self._mask else None
        if leaf is None or best.pending or best.node == leaf:
            return best
        if head == 0 and self._plan.function.trie.value(best.node, ANY_TOOL) == NO_TOOL:
            return best
        active_call = self._walker.walk(head, state, tools, leaf)
        if active_call.pending:
            return active_call
        if best.confidence - active_call.confidence >= self._margin:
            return best
        self.kept[self._plan.heads[head].name] = self._text(head, best.node)
        return active_call

    def _text(self, head: int, leaf: TrieNode) -> str | None:
        """Return the text of a leaf's value; None for the null token."""
        plan = self._plan
        if leaf == (plan.heads[head].null_id,):
            return None
        if head == 0:
            return plan.tools[plan.function.trie.value(leaf, ANY_TOOL)].name
        return plan.text(self._tool, head - 1, plan.heads[head].trie.value(leaf, self._tool))


def active_leaves(plan: SchemaPlan, tokenizer: STTokenizer, call: Call) -> tuple[int, dict[int, TrieNode]]:
    """Return the index of the call's tool (NO_TOOL if it is unknown), and the trie leaf of the call's value by head.
    Values outside the tool's domains are left out."""
    index = next((i for i, tool in enumerate(plan.tools) if tool.name == call.name), None)
    if index is None:
        return NO_TOOL, {}
    by_head: dict[int, TrieNode] = {0: (*tokenizer.encode(call.name), plan.function.end_id)}
    try:
        texts: Sequence[str | None] = [text for _, text in plan.head_values(call)]
    except VALUE_ERRORS:
        texts = ()
    for k, (head, text) in enumerate(zip(plan.heads, texts, strict=False)):
        if k == 0 or k > len(plan.slots[index]) or index in head.free:
            continue
        leaf = (head.null_id,) if text is None else (*tokenizer.encode(text), head.end_id)
        if head.trie.tool_masks(leaf)[0] >> index & 1:
            by_head[k] = leaf
    return index, {k: leaf for k, leaf in by_head.items() if k or plan.function.trie.tool_masks(leaf)[0] & FUNCTION_BIT}
