"""Rows as encoded groups: a row with all its heads, its tools and prefix its own; kept as ids alone."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from rtcontrol.models.checkpoint.prompt import HISTORY_LIMIT, PromptTemplate
from rtcontrol.models.checkpoint.special_tokens import ARGUMENTS, NULL, opening
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.data.convert import check_call
from rtcontrol.models.data.row import DataRow, json_value, raw_lines
from rtcontrol.models.data.sample import Unusable
from rtcontrol.models.decode.plan import SchemaPlan
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.tool_schema import ToolSchema, tool_schemas
from rtcontrol.models.train.packing import PackedBatch, pack
from rtcontrol.models.train.recipe import FinetuneRecipe
from rtcontrol.models.train.rows import EncodedRow, HeadTarget, Row, ToolsEncoder

SETS = 64  # of tools that a checkpoint lists as learnt; of more it says that it reads tools
CORRECT = "Correct the call, or leave the row out."


def _row(value: Any, where: str) -> Row:
    given = DataRow.from_dict(value, where)
    tools = _tools(json.dumps(given.tools))
    if given.call is not None:
        check_call(given.call, next(tool for tool in tools if tool.name == given.call.name))
    return Row(given.instruction, given.observation, given.call, given.history, tools=tools, weight=given.weight)


@lru_cache(maxsize=64)  # an encoder is kept for as many
def _tools(text: str) -> tuple[ToolSchema, ...]:
    return tool_schemas(json.loads(text))


class GroupEncoder:
    """Rows to groups, for one template and tokenizer."""

    def __init__(self, template: PromptTemplate, tokenizer: STTokenizer, recipe: FinetuneRecipe) -> None:
        self.recipe, self.tokenizer = recipe, tokenizer
        self._rows = ToolsEncoder(template, tokenizer, recipe.weights(), allow_null=True)
        self.prefix = self._rows.prefix
        self._null = tokenizer.special_id(NULL)

    def encode(self, row: Row) -> EncodedRow:
        """The row's ids, what of its prompt is behind `prefix` as the suffix. Raises UserError, and ValueError for a
        call that the heads cannot hold."""
        plan = self._rows.of(row.tools).plan
        if row.call is not None:
            slots = plan.slots[plan.tool_index(row.call.name)]
            held = {p.name for slot in slots for p in slot.parameters}
            if cut := [name for name in row.call.arguments if name not in held]:
                raise ValueError(
                    f"{row.call.name}: {cut[0]} has no head (the template cuts tools to {len(held)} of them)"
                )
        found = self._rows.encode(row)
        return replace(found, heads=(*self._beyond(plan, row), *found.heads)) if self.recipe.all_heads else found

    def _beyond(self, plan: SchemaPlan, row: Row) -> Iterator[HeadTarget]:
        """The null heads that the row's plan has not."""
        more = [("content", self.recipe.content)]
        if row.call is not None:  # of a null call the function head alone is read
            behind = len(plan.heads) - 1
            more += zip(ARGUMENTS[behind:], self.recipe.arguments[behind:], strict=True)
        for name, weight in more:
            if weight:
                head = self.tokenizer.special_id(opening(name))
                yield HeadTarget((head,), (self._null,), (weight * row.weight,))


@dataclass
class Groups:
    """Encoded groups, in the order of their files; what their rows were, and what a checkpoint says that it learnt."""

    files: dict[str, str] = field(default_factory=dict)  # sha256 by path
    rows: int = 0
    dropped: Counter[str] = field(default_factory=Counter)  # by reason
    tokens: int = 0  # of a row's prompt and all its heads
    tool_sets: dict[tuple[str, ...], tuple[Any, ...]] = field(default_factory=dict)
    history: int = 0
    null: bool = False
    suffixes: list[array[int]] = field(default_factory=list)  # a tuple of Python's integers takes eight times as much
    heads: list[tuple[HeadTarget, ...]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.heads)

    def __getitem__(self, index: int) -> EncodedRow:
        return EncodedRow(tuple(self.suffixes[index]), self.heads[index])

    def append(self, group: EncodedRow, row: Row, tokens: int) -> None:
        """Add the group of a row, of so many tokens."""
        self.suffixes.append(array("i", group.suffix))
        self.heads.append(group.heads)
        self.tokens += tokens
        self.history = max(self.history, min(len(row.history), HISTORY_LIMIT))
        self.null |= row.call is None
        if len(self.tool_sets) <= SETS:
            key = tuple(t.canonical_json() for t in row.tools)
            self.tool_sets.setdefault(key, tuple(t.to_openai() for t in row.tools))


def load(files: Sequence[Path], encoder: GroupEncoder, drop_bad: bool = False) -> Groups:
    """All rows of these files. A row that is too long is left out and counted, and so is one that cannot be
    represented where `drop_bad` is set.

    Raises UserError for a file that cannot be read, for a row that cannot be represented, with file and line and how
    many there are, and where no row is left.
    """
    groups, bad = Groups(), list[UserError]()
    for file in files:
        for line, raw in raw_lines(file):
            groups.rows += 1
            where = f"{file}:{line}"
            try:
                row = _row(json_value(raw, where), where)
                encoded = encoder.encode(row)
            except (UserError, Unusable, ValueError) as error:
                reason, remedy = _reason(error, where)
                bad.append(UserError(f"{where}: {reason}", remedy))
                groups.dropped[reason] += 1
                continue
            size = len(encoder.prefix) + len(encoded.suffix)
            if size + max(len(h.ids) for h in encoded.heads) > encoder.recipe.length:
                groups.dropped[f"longer than {encoder.recipe.length} tokens"] += 1
            elif not any(w for h in encoded.heads for w in h.weights):
                groups.dropped["its weight is 0"] += 1
            else:
                groups.append(encoded, row, size + sum(len(h.ids) for h in encoded.heads))
        groups.files[str(file)] = digest(file)
    if bad and not drop_bad:
        more = f" {len(bad)} rows cannot be represented; this is the first." if len(bad) > 1 else ""
        raise UserError(bad[0].what + more, f"{bad[0].remedy} Or leave such rows out with --drop-bad.")
    if not len(groups):
        why = "; ".join(f"{count} {reason}" for reason, count in groups.dropped.most_common(3)) or "they are empty"
        raise UserError(f"{', '.join(map(str, files))}: no row is left ({why}).", "Give rows, or a larger length.")
    return groups


def _reason(error: Exception, where: str) -> tuple[str, str]:
    """Return what is wrong with a row, without file and line, and what to do."""
    if isinstance(error, UserError):
        return error.what.removeprefix(f"{where}: "), error.remedy
    return (f"{error.reason}: {error.detail}." if isinstance(error, Unusable) else f"{error}."), CORRECT


def digest(file: Path) -> str:
    """The sha256 of a file. Raises UserError."""
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror}).", "Give a file that can.") from None


def pack_groups(prefix: Sequence[int], groups: Sequence[EncodedRow]) -> PackedBatch:
    """One tree of all groups. What all have in common, as the tools of rows of one set, stands there once; of others
    rows of the same tools become neighbours, and share what their prompts begin with."""
    alike = takewhile(lambda tokens: len({*tokens}) == 1, zip(*(g.suffix for g in groups), strict=False))
    shared = min(sum(1 for _ in alike), *(len(g.suffix) - 1 for g in groups))
    rest = [replace(g, suffix=g.suffix[shared:]) for g in groups]
    return pack((*prefix, *groups[0].suffix[:shared]), sorted(rest, key=lambda group: group.suffix))
