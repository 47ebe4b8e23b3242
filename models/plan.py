"""The schema plan: an agent's tools compiled, at start-up, into one token trie for each active head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.domain import ClosedDomain, Domain, json_text
from rtcontrol.models.errors import UserError
from rtcontrol.models.grid import NumberGrid
from rtcontrol.models.normal import as_declared
from rtcontrol.models.schema import ABSENT, Overflow, Slot, ToolSchema
from rtcontrol.models.special import ARGUMENTS, FUNCTION, NULL, closing, opening
from rtcontrol.models.tokenizer import STTokenizer
from rtcontrol.models.trie import ROOT, NumberTrie, TokenTrie

NO_TOOL = -1  # the value of a null function head
LISTED = 256  # numbers of one parameter up to which a list is quicker to walk
ANY_TOOL = 0  # the function head is walked before a tool is chosen: its leaves are legal under one common bit


@dataclass(frozen=True)
class HeadPlan:
    """One active head. `free` lists, by tool index, the domains that no trie can hold, `grids` the numbers that one
    holds without listing them."""

    name: str
    head_id: int
    end_id: int
    null_id: int
    trie: TokenTrie
    free: Mapping[int, Domain] = field(default_factory=dict)
    grids: Mapping[int, NumberGrid] = field(default_factory=dict)

    @property
    def free_mask(self) -> int:
        return sum(1 << tool for tool in self.free)


@dataclass(frozen=True)
class SchemaPlan:
    """All active heads: the function and as many argument heads as the largest tool needs."""

    tools: tuple[ToolSchema, ...]
    slots: tuple[tuple[Slot, ...], ...]
    heads: tuple[HeadPlan, ...]
    allow_null: bool

    @property
    def function(self) -> HeadPlan:
        return self.heads[0]

    @property
    def all_tools(self) -> int:
        return (1 << len(self.tools)) - 1

    def head_values(self, call: Call | None) -> list[tuple[HeadPlan, str | None]]:
        """Each active head with the text it should carry for `call` (None: the null token): the training target.

        A null call sets the function head alone; heads beyond the tool's arity are null.
        """
        if call is None:
            return [(self.function, None)]
        index = self.tool_index(call.name)
        values: list[tuple[HeadPlan, str | None]] = [(self.function, call.name)]
        for k, head in enumerate(self.heads[1:]):
            value = self.slots[index][k].value(call.arguments) if k < len(self.slots[index]) else ABSENT
            null = value is ABSENT or (value is None and bool(self.slots[index][k].null))
            values.append((head, None if null else self.text(index, k, value)))
        return values

    def tool_index(self, name: str) -> int:
        return next(i for i, t in enumerate(self.tools) if t.name == name)

    def text(self, tool: int, k: int, value: Any) -> str:
        """How the tool's head `k` (0: its first argument) writes a value. Raises ValueError for one outside its
        domain."""
        domain = self.slots[tool][k].domain
        if (grid := self.heads[k + 1].grids.get(tool)) is not None:
            return grid.text(value)
        if isinstance(domain, ClosedDomain):
            for known, text in zip(domain.values, domain.texts, strict=True):
                if known == value and isinstance(known, bool) == isinstance(value, bool):
                    return text
            raise ValueError(f"{self.tools[tool].name}: {value!r} is not in the domain of argument {k + 1}")
        return value if domain.is_string else json_text(as_declared(value, domain.schema))


def compile_plan(
    tools: Sequence[ToolSchema], tokenizer: STTokenizer, allow_null: bool = False, overflow: Overflow = "merge"
) -> SchemaPlan:
    """Compile tools for one tokenizer.

    Raises UserError for two values with the same tokens, naming tool and parameter.
    """
    slots = tuple(t.slots(overflow) for t in tools)
    null_id = tokenizer.special_id(NULL)

    def empty(name: str) -> tuple[TokenTrie, int]:
        return TokenTrie(tokenizer.special_id(opening(name))), tokenizer.special_id(closing(name))

    trie, end = empty(FUNCTION)
    for index, (tool, ids) in enumerate(zip(tools, tokenizer.encode_many([t.name for t in tools]), strict=True)):
        if not trie.insert([*ids, end], ANY_TOOL, index):
            raise UserError(f"The tool name {tool.name!r} has the same tokens as another's.", "Rename one of them.")
    if allow_null:
        trie.insert([null_id], ANY_TOOL, NO_TOOL)
    heads = [HeadPlan(FUNCTION, trie.token(ROOT), end, null_id, trie)]

    for k in range(max((len(s) for s in slots), default=0)):
        trie, end = empty(ARGUMENTS[k])
        free: dict[int, Domain] = {}
        grids = _spelled(k, slots) if tokenizer.digits else {}
        if grids and tokenizer.digits:
            trie = numbers = NumberTrie(trie.token(ROOT), end, tokenizer.digits)
            for index, grid in grids.items():
                numbers.add(index, grid)
        for index, own in enumerate(slots):
            if k >= len(own):
                continue
            slot = own[k]
            if index in grids:
                pass
            elif isinstance(slot.domain, ClosedDomain):
                for value, ids in zip(slot.domain.values, tokenizer.encode_many(slot.domain.texts), strict=True):
                    if not trie.insert([*ids, end], index, value):
                        raise UserError(
                            f"Tool {tools[index].name}, argument {k + 1}: {value!r} has the same tokens as another "
                            "value.",
                            "Remove or rename one of them.",
                        )
            else:
                free[index] = slot.domain
            for null in slot.null:
                trie.insert([null_id], index, null)
        heads.append(HeadPlan(ARGUMENTS[k], trie.token(ROOT), end, null_id, trie, free, grids))
    return SchemaPlan(tuple(tools), slots, tuple(heads), allow_null)


def _spelled(k: int, slots: Sequence[Sequence[Slot]]) -> dict[int, NumberGrid]:
    """By tool, the numbers of argument k + 1 that are too many to be listed quickly."""
    own = {i: s[k].domain.grid for i, s in enumerate(slots) if k < len(s)}
    return {i: grid for i, grid in own.items() if grid is not None and grid.count > LISTED}
