"""What an engine wrote for each head, as a typed call."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.decode.plan import SchemaPlan
from rtcontrol.models.schema.tool_schema import ABSENT


class HeadTexts:
    """Typed calls from what was written for each head: a value by its text, or by what `key` makes of it."""

    def __init__(self, plan: SchemaPlan, key: Callable[[str], Hashable]) -> None:
        self._plan = plan
        self._tools = {key(tool.name): i for i, tool in enumerate(plan.tools)}
        self._values: list[list[dict[Hashable, Any]]] = []
        for i, slots in enumerate(plan.slots):
            known = [{key(plan.text(i, k, v)): v for v in slot.domain.values} for k, slot in enumerate(slots)]  # type: ignore[union-attr]
            for slot, values in zip(slots, known, strict=True):
                values.update(dict.fromkeys([key("")] * len(slot.null), *slot.null))
            self._values.append(known)

    def call(self, found: Sequence[Hashable]) -> Call | None:
        """Of the function's head and the arguments'; None where the plan has no such call."""
        if (tool := self._tools.get(found[0])) is None:
            return None
        arguments: dict[str, Any] = {}
        for slot, known, text in zip(self._plan.slots[tool], self._values[tool], found[1:], strict=False):
            if text not in known:
                return None
            if (value := known[text]) is not ABSENT:
                arguments |= slot.arguments(value)
        return Call(self._plan.tools[tool].name, arguments)
