"""Compile tools to token tries, one for each head, with the token sequences of all legal values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.special_tokens import ARGUMENTS, FUNCTION, NULL, head_end, head_start
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.errors import UserError, quoted_name
from rtcontrol.models.schema.domain import ClosedDomain, FreeDomain, json_text
from rtcontrol.models.schema.json_schema import to_declared_types
from rtcontrol.models.schema.tool_schema import ABSENT, Overflow, Slot, ToolSchema
from rtcontrol.models.schema.validator import equality_key

TrieNode = tuple[int, ...]  # the tokens on the path from the head token to the node
ROOT: TrieNode = ()
MAX_CACHED = 4096  # entries of the caches of `Walker`


class TokenTrie:
    """A trie of the token sequences of values. Sets of tools are bit masks. A leaf has a typed value for each tool, so
    values are never parsed from text."""

    def __init__(self, head_token: int) -> None:
        self._head = head_token
        self.leaves: dict[TrieNode, dict[int, Any]] = {}  # by leaf: the value of each tool that ends there
        self.path_tokens = 0  # sum of the path lengths of all nodes
        self._children: dict[TrieNode, dict[int, TrieNode]] = {}
        self._tools: dict[TrieNode, tuple[int, int]] = {}

    def __len__(self) -> int:
        """Return the number of nodes."""
        return len(self._tools)

    def insert(self, path: Sequence[int], tool: int, value: Any) -> bool:
        """Add a tool's value with its tokens `path`. Return False if the tool already has a value with this path."""
        leaf, bit = tuple(path), 1 << tool
        values = self.leaves.setdefault(leaf, {})
        if tool in values:
            return False
        values[tool] = value
        for end in range(len(leaf) + 1):
            node = leaf[:end]
            if end and node not in self._tools:
                self._children.setdefault(node[:-1], {})[node[-1]] = node
                self.path_tokens += end
            legal, several = self._tools.get(node, (0, 0))
            self._tools[node] = legal | bit, several | legal & bit
        return True

    def last_token(self, node: TrieNode) -> int:
        """Return the last token of a node."""
        return node[-1] if node else self._head

    def tool_masks(self, node: TrieNode) -> tuple[int, int]:
        """Return two bit masks for a node: the tools with at least one value below it, and the tools with several."""
        return self._tools.get(node, (0, 0))

    def children(self, node: TrieNode) -> dict[int, TrieNode]:
        """Return the children of a node by token, in the order of the declared values."""
        return self._children.get(node, {})

    def value(self, leaf: TrieNode, tool: int) -> Any:
        """Return the value of a leaf for a tool."""
        return self.leaves[leaf][tool]

    @property
    def branching_tokens(self) -> set[int]:
        """Return all tokens that have a sibling at some node."""
        return {t for c in self._children.values() if len(c) > 1 for t in c}

    def legal_children(self, node: TrieNode, tools: int) -> list[tuple[int, TrieNode]]:
        """Return the (token, node) pairs of the children with a value for one of the `tools` (a mask), by token id."""
        return sorted((t, c) for t, c in self.children(node).items() if self.tool_masks(c)[0] & tools)

    def needed_nodes(self, tools: int, start: TrieNode = ROOT, limit: int | None = None) -> list[TrieNode]:
        """Return at most `limit` of the nodes from `start` on whose logits a walk for these tools may need: branching
        nodes and their ancestors, breadth-first."""
        order = [start] if self.tool_masks(start)[1] & tools else []
        for node in order:
            if limit is not None and len(order) >= limit:
                break
            order.extend(c for c in self.children(node).values() if self.tool_masks(c)[1] & tools)
        return order[:limit]


NO_TOOL = -1  # the value of the function head's null token
MAX_PATH_TOKENS = 1 << 25  # larger plans (by `path_tokens` of all tries) are refused
ANY_TOOL = 0  # index of the function head's leaves, where no tool is chosen yet


@dataclass(frozen=True)
class HeadPlan:
    """The trie of one head, and its special tokens. `free` has, by tool index, the domains that cannot be listed in a
    trie."""

    name: str
    head_id: int
    end_id: int
    null_id: int
    trie: TokenTrie
    free: Mapping[int, FreeDomain]

    @property
    def free_mask(self) -> int:
        return sum(1 << tool for tool in self.free)


@dataclass(frozen=True)
class SchemaPlan:
    """The plans of all heads in use: the function head, and as many argument heads as the largest tool needs."""

    tools: tuple[ToolSchema, ...]
    slots: tuple[tuple[Slot, ...], ...]
    heads: tuple[HeadPlan, ...]
    allow_null: bool

    @property
    def function(self) -> HeadPlan:
        return self.heads[0]

    def head_values(self, call: Call | None) -> list[tuple[HeadPlan, str | None]]:
        """Return for each head the text that it should write for a call (None: the null token), as a training target.

        If the call is None, only the function head is returned. Heads that the tool does not use are null.
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
        """Return the text that argument head `k` (from 0) of a tool writes for a value. Raises ValueError if the value
        is not in the argument's domain."""
        domain = self.slots[tool][k].domain
        if isinstance(domain, ClosedDomain):
            for known, text in zip(domain.values, domain.texts, strict=True):
                if known == value and equality_key(known) == equality_key(value):  # in Python, True equals 1
                    return text
            raise ValueError(f"{self.tools[tool].name}: {value!r} is not in the domain of argument {k + 1}")
        return value if domain.is_string else json_text(to_declared_types(value, domain.schema))


def compile_plan(
    tools: Sequence[ToolSchema], tokenizer: STTokenizer, allow_null: bool = False, overflow: Overflow = "merge"
) -> SchemaPlan:
    """Compile the tools of an agent for one tokenizer. With `allow_null`, the null function may be chosen.

    Raises UserError for two values with the same tokens, and for too many or too long values.
    """
    slots = tuple(t.slots(overflow) for t in tools)
    heads = [_head(tokenizer, FUNCTION, {})]
    null_id = heads[0].null_id
    room = MAX_PATH_TOKENS
    for index, tool in enumerate(tools):
        if not heads[0].trie.insert([*tokenizer.encode(tool.name), heads[0].end_id], ANY_TOOL, index):
            raise UserError(f"The tool name {tool.name!r} has the same tokens as another.", "Rename one of them.")
    if allow_null:
        heads[0].trie.insert([null_id], ANY_TOOL, NO_TOOL)
    for k in range(max((len(s) for s in slots), default=0)):
        local = {i: s[k] for i, s in enumerate(slots) if k < len(s)}
        free = {i: s.domain for i, s in local.items() if isinstance(s.domain, FreeDomain)}
        heads.append(active := _head(tokenizer, ARGUMENTS[k], free))
        for index, slot in local.items():
            if isinstance(slot.domain, ClosedDomain):
                for value, text in zip(slot.domain.values, slot.domain.texts, strict=True):
                    path = [*tokenizer.encode(text), active.end_id]
                    if len(path) ** 2 // 2 > room:
                        names = ", ".join(quoted_name(p.name) for p in slot.parameters)
                        where = f"Tool {quoted_name(tools[index].name)}, {names}"
                        raise UserError(f"{where}: its listed values are too long, or too many.", "Give fewer values.")
                    before = active.trie.path_tokens
                    if not active.trie.insert(path, index, value):
                        where = f"Tool {quoted_name(tools[index].name)}, argument {k + 1}"
                        problem = f"{where}: {value!r} has the same tokens as another value."
                        raise UserError(problem, "Remove or rename one of them.")
                    room -= active.trie.path_tokens - before
            for null in slot.null:
                active.trie.insert([null_id], index, null)
    return SchemaPlan(tuple(tools), slots, tuple(heads), allow_null)


def _head(tokenizer: STTokenizer, name: str, free: Mapping[int, FreeDomain]) -> HeadPlan:
    start, end, null = map(tokenizer.special_id, (head_start(name), head_end(name), NULL))
    return HeadPlan(name, start, end, null, TokenTrie(start), free)
