"""Compile tools to the legal calls of a chat model: a graph of choices, which are tries with leaves to the next choice.

Names, values and the texts between them are encoded separately. The path of a value in its trie ends with the first
token of the text after the value, which distinguishes 7 from 70.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from rtcontrol.models.checkpoint.chat_template import CallSyntax, call_value_text, encode_value
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decode.plan import TokenTrie, TrieNode
from rtcontrol.models.errors import UserError, quoted_name
from rtcontrol.models.schema.domain import FreeDomain
from rtcontrol.models.schema.parameters import Parameter
from rtcontrol.models.schema.tool_schema import ToolSchema


@dataclass(eq=False)
class Choice:
    """The alternatives at one position in a call's text, as a trie of tokens.

    A leaf has the chosen value, and the position where the text continues: a node of another choice, or None at the end
    of the call. `decides` says whose confidence the choice affects: 0 for the function, k for the k-th parameter.
    `is_value` is True if the alternatives are values, and False if they are texts between two values.
    """

    tool: int
    decides: int
    is_value: bool = False
    trie: TokenTrie = field(default_factory=lambda: TokenTrie(-1))
    _sorted: dict[TrieNode, list[tuple[int, TrieNode]]] = field(default_factory=dict)

    def insert(self, path: Sequence[int], value: Any, then: Place | None) -> bool:
        """Add a leaf for `value`, after which the text continues at `then`. Return False, and add nothing, if the path
        equals the path of another leaf, or one of them starts with the other."""
        leaf = tuple(path)
        if self.trie.children(leaf) or any(leaf[:end] in self.trie.leaves for end in range(len(leaf) + 1)):
            return False
        return self.trie.insert(leaf, 0, (value, then))

    def leaf(self, node: TrieNode) -> tuple[Any, Place | None] | None:
        """Return the value of a leaf and the position where the text continues; None if the node is not a leaf."""
        return self.trie.leaves[node][0] if node in self.trie.leaves else None

    def is_branching(self, node: TrieNode) -> bool:
        """Return whether more than one leaf is below a node."""
        return bool(self.trie.tool_masks(node)[1])

    def needed_nodes(self, start: TrieNode, limit: int) -> list[TrieNode]:
        """Return at most `limit` + 1 of the nodes below `start` whose scores may be needed, parents first."""
        return self.trie.needed_nodes(1, start, limit + 2)[1:]

    def children(self, node: TrieNode) -> list[tuple[int, TrieNode]]:
        """Return the (token, node) pairs of the children, sorted by token id, so that ties go to the lowest id."""
        children = self._sorted.get(node)
        if children is None:
            children = self._sorted[node] = self.trie.legal_children(node, 1)
        return children


@dataclass(frozen=True)
class FreeText:
    """A value that is not listed, but decoded under a `grammar`. The value ends before one of the tokens `ends`, with
    which the choice `then` starts."""

    tool: int
    decides: int
    domain: FreeDomain
    grammar: str
    ends: np.ndarray
    then: Choice


Place = tuple[Choice | FreeText, TrieNode]


class ChatPlan:
    """All legal calls of some tools in one syntax. Each call starts with the tokens `opening`, followed by the choice
    `function`. `grammars` compiles the grammars of values that are not listed (None if all are). Raises UserError for
    values that cannot be distinguished by their tokens."""

    def __init__(self, tools: Sequence[ToolSchema], tokenizer: STTokenizer, syntax: CallSyntax, grammars: Any) -> None:
        self.tools, self.syntax = tuple(tools), syntax
        self._tokenizer, self._grammars = tokenizer, grammars
        self.opening = tokenizer.encode_marked(syntax.opening)
        self.function = Choice(-1, 0)
        self.all: list[Choice] = [self.function]
        self.free: list[FreeText] = []
        self._follows: dict[tuple[int, int, bool], Choice] = {}
        self._values: dict[tuple[int, int], Place] = {}
        for i, tool in enumerate(self.tools):
            follow = self._choice_after(i, tool, -1, False)
            for first, _ in follow.children(()):
                path = [*tokenizer.encode(_escaped(syntax, tool.name)), first]
                if not self.function.insert(path, i, (follow, (first,))):
                    raise UserError(f"The tool name {tool.name!r} has the same tokens as another.", "Rename one.")
        self.columns = tuple(sorted({t for choice in self.all for t in choice.trie.branching_tokens}))
        self.column = {token: i for i, token in enumerate(self.columns)}

    def where(self, free: FreeText) -> str:
        """Return the tool and parameter of a free value, for error messages."""
        tool = self.tools[free.tool]
        return f"Tool {quoted_name(tool.name)}, parameter {quoted_name(tool.parameters[free.decides - 1].name)}"

    def _is_quoted(self, p: Parameter) -> bool:
        """Return whether all values are strings. The quote before a value is then a part of the key's text."""
        if p.nullable:
            return False
        domain = p.domain
        return domain.is_string if isinstance(domain, FreeDomain) else all(isinstance(v, str) for v in domain.values)

    def _key_text(self, p: Parameter) -> str:
        written = self.syntax.key.replace("{}", _escaped(self.syntax, p.name))
        return f"{written}{self.syntax.space}{self.syntax.quote}" if self._is_quoted(p) else written

    def _insert_end(self, follow: Choice, quoted: bool, empty: bool = False) -> None:
        text = self.syntax.quote * quoted + (self.syntax.empty if empty else self.syntax.closing)
        follow.insert(self._tokenizer.encode_marked(text), None, None)

    def _choice_after(self, i: int, tool: ToolSchema, k: int, quoted: bool) -> Choice:
        """Return the choice after the k-th value (-1: after the name): the next key, or the end of the call. `quoted`
        says whether that value is a string."""
        if (known := self._follows.get((i, k, quoted))) is not None:
            return known
        follow = self._follows[i, k, quoted] = Choice(i, k + 2)
        for n in range(k + 1, len(tool.parameters)):
            p = tool.parameters[n]
            between = self.syntax.arguments if k < 0 else self.syntax.quote * quoted + self.syntax.separator
            if (i, n) not in self._values:
                self._values[i, n] = self._value_place(i, tool, n, partial(self._choice_after, i, tool, n))
            if not follow.insert(self._tokenizer.encode_marked(between + self._key_text(p)), n, self._values[i, n]):
                where = f"Tool {quoted_name(tool.name)}, {quoted_name(p.name)}"
                raise UserError(f"{where}: its name has the same tokens as another.", "Rename it.")
            if p.required:
                break
        else:
            self._insert_end(follow, quoted, empty=k < 0)
        self.all.append(follow)
        return follow

    def _value_place(self, i: int, tool: ToolSchema, k: int, then: Callable[[bool], Choice]) -> Place:
        """Return the position where the k-th value is chosen. `then(is_string)` returns the choice after the value."""
        p, quoted = tool.parameters[k], self._is_quoted(tool.parameters[k])
        where = f"Tool {quoted_name(tool.name)}, parameter {quoted_name(p.name)}"
        choice = Choice(i, k + 1, is_value=True)
        if isinstance(p.domain, FreeDomain):
            free = self._free_text(i, k, p, where, then)
            if quoted or not p.domain.is_string:
                return free, ()
            quote = encode_value(self._tokenizer, f"{self.syntax.space}{self.syntax.quote}", self.syntax)
            choice.insert(quote, None, (free, ()))
            values: list[Any] = [None]
        else:
            values = [*p.domain.values, *[None] * p.nullable]
        for value in values:
            text = call_value_text(self.syntax, value, quoted)
            follow = then(isinstance(value, str))
            for first, _ in follow.children(()):
                path = [*encode_value(self._tokenizer, text, self.syntax), first]
                if not choice.insert(path, value, (follow, (first,))):
                    raise UserError(
                        f"{where}: {value!r} has the same tokens as another value, or starts with them.",
                        "Remove or rename one of them.",
                    )
        self.all.append(choice)
        return choice, ()

    def _free_text(self, i: int, k: int, p: Parameter, where: str, then: Callable[[bool], Choice]) -> FreeText:
        """Return a value that is not listed. Its grammar includes null if the value may be null and is not a string."""
        domain = p.domain
        assert isinstance(domain, FreeDomain)
        text = domain.is_string
        if p.nullable and not text:
            domain = FreeDomain({"anyOf": [domain.schema, {"type": "null"}]}, rules=p.rules)
        grammar = self._grammars.compile(domain, where, text and self.syntax.escaped, self.syntax.space)
        ends = np.array([token for token, _ in then(text).children(())])
        self.free.append(free := FreeText(i, k + 1, domain, grammar, ends, then(text)))
        return free


def _escaped(syntax: CallSyntax, name: str) -> str:
    return json.dumps(name, ensure_ascii=False)[1:-1] if syntax.escaped else name
