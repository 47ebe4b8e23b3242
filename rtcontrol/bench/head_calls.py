"""What an engine wrote for each head, as a typed call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.decider import STDecider
from rtcontrol.models.schema.tool_schema import ABSENT

Ids = tuple[int, ...]


class HeadCalls:
    """Typed calls from the token ids that were written for each head."""

    def __init__(self, decider: STDecider) -> None:
        plan, encode = decider.plan, decider.tokenizer.encode
        self._plan = plan
        self._tools = {tuple(encode(tool.name)): i for i, tool in enumerate(plan.tools)}
        self._values: list[list[dict[Ids, Any]]] = []
        for i, slots in enumerate(plan.slots):
            known: list[dict[Ids, Any]] = []
            for k, slot in enumerate(slots):
                values = {tuple(encode(plan.text(i, k, v))): v for v in slot.domain.values}
                known.append({**values, **dict.fromkeys([()] * len(slot.null), *slot.null)})
            self._values.append(known)

    def call(self, heads: Sequence[Ids]) -> Call | None:
        """Return the call of the function's head and the arguments'; None where the plan has no such call."""
        tool = self._tools.get(heads[0])
        if tool is None:
            return None
        arguments: dict[str, Any] = {}
        for slot, known, ids in zip(self._plan.slots[tool], self._values[tool], heads[1:], strict=False):
            if ids not in known:
                return None
            if known[ids] is not ABSENT:
                arguments |= slot.arguments(known[ids])
        return Call(self._plan.tools[tool].name, arguments)
