"""The schema plan: an agent's tools compiled, at start-up, into one token trie for each active head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.domain import ClosedDomain, Free, json_text
from rtcontrol.models.errors import UserError
from rtcontrol.models.grid import NumberGrid
from rtcontrol.models.normal import as_declared
from rtcontrol.models.schema import ABSENT, Overflow, Slot, ToolSchema
from rtcontrol.models.special import ARGUMENTS, FUNCTION, NULL, closing, opening
from rtcontrol.models.tokenizer import STTokenizer
from rtcontrol.models.trie import NumberTrie, TokenTrie

NO_TOOL = -1  # the value of a null function head
LISTED = 256  # numbers of one parameter up to which a list is quicker to walk
HELD = 1 << 25  # tokens that all nodes of a plan may hold together: each has all those before it
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
    free: Mapping[int, Free]
    grids: Mapping[int, NumberGrid]

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

    Raises UserError for two values with the same tokens, and for listed values of too many, naming tool and parameter.
    """
    slots = tuple(t.slots(overflow) for t in tools)
    null_id, digits = tokenizer.special_id(NULL), tokenizer.digits

    def head(name: str, grids: Mapping[int, NumberGrid], free: Mapping[int, Free]) -> HeadPlan:
        start, end = tokenizer.special_id(opening(name)), tokenizer.special_id(closing(name))
        trie = NumberTrie(start, end, digits, grids) if digits and grids else TokenTrie(start)
        return HeadPlan(name, start, end, null_id, trie, free, grids)

    heads = [head(FUNCTION, {}, {})]
    room = HELD
    for index, tool in enumerate(tools):
        if not heads[0].trie.insert([*tokenizer.encode(tool.name), heads[0].end_id], ANY_TOOL, index):
            raise UserError(f"The tool name {tool.name!r} has the same tokens as another's.", "Rename one of them.")
    if allow_null:
        heads[0].trie.insert([null_id], ANY_TOOL, NO_TOOL)
    for k in range(max((len(s) for s in slots), default=0)):
        own = {i: s[k] for i, s in enumerate(slots) if k < len(s)}
        # Numbers that are too many to be listed quickly.
        wide = {i: g for i, s in own.items() if (g := s.domain.grid) is not None and g.count > LISTED} if digits else {}
        free = {i: s.domain for i, s in own.items() if isinstance(s.domain, Free) and i not in wide}
        heads.append(made := head(ARGUMENTS[k], wide, free))
        for index, slot in own.items():
            if isinstance(slot.domain, ClosedDomain) and index not in wide:
                for value, text in zip(slot.domain.values, slot.domain.texts, strict=True):
                    path = [*tokenizer.encode(text), made.end_id]
                    if len(path) ** 2 // 2 > room:
                        where = f"Tool {tools[index].name}, {', '.join(p.name for p in slot.parameters)}"
                        raise UserError(f"{where}: its listed values are too long, or too many.", "List shorter ones.")
                    before = made.trie.held
                    if not made.trie.insert(path, index, value):
                        where = f"Tool {tools[index].name}, argument {k + 1}"
                        told = f"{where}: {value!r} has the same tokens as another value."
                        raise UserError(told, "Remove or rename one of them.")
                    room -= made.trie.held - before
            for null in slot.null:
                made.trie.insert([null_id], index, null)
    return SchemaPlan(tuple(tools), slots, tuple(heads), allow_null)
