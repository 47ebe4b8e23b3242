"""Rows as encoded groups: a row with all its heads, its tools and prefix its own; kept as ids alone."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

import torch
from torch.utils.data import Sampler

from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.prompt import HISTORY_LIMIT, PromptTemplate
from rtcontrol.models.checkpoint.special_tokens import ARGUMENTS, NULL, opening
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decode.plan import SchemaPlan
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.tool_schema import ToolSchema
from rtcontrol.models.train.finetune.config import FinetuneRecipe
from rtcontrol.models.train.finetune.model import BadRow, read_rows
from rtcontrol.models.train.packing import PackedBatch, pack, pad_together, separate
from rtcontrol.models.train.rows import EncodedRow, HeadTarget, Row, ToolsEncoder, json_row

SETS = 64  # of tools that a checkpoint lists as learnt; of more it says that it reads tools


@dataclass
class SeenRows:
    """What the rows of some files were: counts, and what a checkpoint says that it learnt."""

    files: dict[str, str] = field(default_factory=dict)  # sha256 by path
    rows: int = 0
    dropped: Counter[str] = field(default_factory=Counter)  # by reason
    tokens: int = 0  # of a row's prompt and all its heads
    tool_sets: dict[tuple[str, ...], tuple[Any, ...]] = field(default_factory=dict)
    history: int = 0
    null: bool = False


class GroupEncoder:
    """Rows to groups, for one template and tokenizer."""

    def __init__(self, template: PromptTemplate, tokenizer: STTokenizer, recipe: FinetuneRecipe) -> None:
        self.recipe, self._template, self._tokenizer = recipe, template, tokenizer
        self._rows = ToolsEncoder(template, tokenizer, recipe.weights(), allow_null=True)
        self.prefix = self._rows.prefix
        self._null = tokenizer.special_id(NULL)

    def encode(self, row: Row) -> EncodedRow:
        """The row's ids, what of its prompt is behind `prefix` as the suffix. Raises UserError, and ValueError for a
        call that the heads cannot hold."""
        plan = self._rows.of(row.tools).plan
        if row.call is not None:
            self._check_heads(plan, row)
        found = self._rows.encode(row)
        if self.recipe.way == "json":
            return self._json(found, row)
        return replace(found, heads=(*self._beyond(plan, row), *found.heads)) if self.recipe.all_heads else found

    def _json(self, heads: EncodedRow, row: Row) -> EncodedRow:
        if row.call is None:
            raise ValueError("a row without a call has no JSON")
        given = row.call.arguments
        tool = next(tool for tool in row.tools if tool.name == row.call.name)
        # In the grammar's order.
        call = Call(tool.name, {p.name: given[p.name] for p in tool.parameters if p.name in given})
        found = json_row(heads, self._tokenizer, call)
        (text,) = found.heads
        return replace(found, heads=(replace(text, weights=tuple(w * row.weight for w in text.weights)),))

    def _check_heads(self, plan: SchemaPlan, row: Row) -> None:
        assert row.call is not None
        slots = plan.slots[plan.tool_index(row.call.name)]
        held = {p.name for slot in slots for p in slot.parameters}
        if cut := [name for name in row.call.arguments if name not in held]:
            raise ValueError(f"{row.call.name}: {cut[0]} has no head (the template cuts tools to {len(held)} of them)")

    def _beyond(self, plan: SchemaPlan, row: Row) -> Iterator[HeadTarget]:
        """The null heads that the row's plan has not."""
        more = [("content", self.recipe.content)]
        if row.call is not None:  # of a null call the function head alone is read
            behind = len(plan.heads) - 1
            more += zip(ARGUMENTS[behind:], self.recipe.arguments[behind:], strict=True)
        for name, weight in more:
            if weight:
                head = self._tokenizer.special_id(opening(name))
                yield HeadTarget((head,), (self._null,), (weight * row.weight,))


class Groups:
    """A dataset of encoded groups, in the order of their files; `sets` has the number of each one's set of tools."""

    def __init__(self) -> None:
        self.sets = array("i")
        self._numbers: dict[bytes, int] = {}  # by the sha256 of a set
        self._suffixes: list[array[int]] = []  # a long tuple of Python's integers takes eight times as much
        self._heads: list[tuple[HeadTarget, ...]] = []
        self.seen = SeenRows()

    def __len__(self) -> int:
        return len(self._heads)

    def __getitem__(self, index: int) -> EncodedRow:
        return EncodedRow(tuple(self._suffixes[index]), self._heads[index])

    def ids(self) -> set[int]:
        """All tokens of all rows, asked for or given."""
        found = {token for suffix in self._suffixes for token in suffix}
        for heads in self._heads:
            for head in heads:
                found.update(head.ids, head.labels)
        return found

    def append(self, row: EncodedRow, tools: Sequence[ToolSchema]) -> None:
        key = hashlib.sha256("\n".join(tool.canonical_json() for tool in tools).encode()).digest()
        self.sets.append(self._numbers.setdefault(key, len(self._numbers)))
        self._suffixes.append(array("i", row.suffix))
        self._heads.append(row.heads)


def load(files: Sequence[Path], encoder: GroupEncoder, drop_bad: bool = False) -> Groups:
    """All rows of these files. A row that is too long is left out and counted, and so is one that cannot be
    represented where `drop_bad` is set.

    Raises UserError for a file that cannot be read, for a row that cannot be represented, with file and line and how
    many there are, and where no row is left.
    """
    groups, seen, bad = Groups(), SeenRows(), list[BadRow]()
    groups.seen = seen
    for file in files:
        for where, row in read_rows(file):
            seen.rows += 1
            encoded = row if isinstance(row, BadRow) else _encoded(row, where, encoder)
            if isinstance(row, BadRow) or isinstance(encoded, BadRow):
                assert isinstance(encoded, BadRow)
                bad.append(encoded)
                seen.dropped[encoded.reason] += 1
                continue
            size = len(encoder.prefix) + len(encoded.suffix)
            if size + max(len(h.ids) for h in encoded.heads) > encoder.recipe.length:
                seen.dropped[f"longer than {encoder.recipe.length} tokens"] += 1
                continue
            if not any(w for h in encoded.heads for w in h.weights):
                seen.dropped["its weight is 0"] += 1
                continue
            groups.append(encoded, row.tools)
            _learn(seen, row, size + sum(len(h.ids) for h in encoded.heads))
        seen.files[str(file)] = digest(file)
    if bad and not drop_bad:
        more = f" {len(bad)} rows cannot be represented; this is the first." if len(bad) > 1 else ""
        raise UserError(bad[0].what + more, f"{bad[0].remedy} Or leave such rows out with --drop-bad.")
    if not len(groups):
        why = "; ".join(f"{count} {reason}" for reason, count in seen.dropped.most_common(3)) or "they are empty"
        raise UserError(f"{', '.join(map(str, files))}: no row is left ({why}).", "Give rows, or a larger length.")
    return groups


def _encoded(row: Row, where: str, encoder: GroupEncoder) -> EncodedRow | BadRow:
    try:
        return encoder.encode(row)
    except UserError as error:
        return BadRow(where, error.what, error.remedy)
    except ValueError as error:
        return BadRow(where, f"{error}.", "Correct the call, or leave the row out.")


def _learn(seen: SeenRows, row: Row, tokens: int) -> None:
    seen.tokens += tokens
    seen.history = max(seen.history, min(len(row.history), HISTORY_LIMIT))
    seen.null |= row.call is None
    if len(seen.tool_sets) <= SETS:
        seen.tool_sets.setdefault(tuple(t.canonical_json() for t in row.tools), tuple(t.to_openai() for t in row.tools))


def digest(file: Path) -> str:
    """The sha256 of a file. Raises UserError."""
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror}).", "Give a file that can.") from None


class SameToolsSampler(Sampler[int]):
    """Each row once an epoch, in an order of its own: cut into batches of `size`, as many of them as there can be hold
    rows of one set of tools; what is left of the sets stands in batches together, rows of a set next to each other.

    `sets`: of each row the number of its set. The order follows from `seed` and `epoch` alone, so that a run that goes
    on, and every process of a run, draws the same; whoever draws sets `epoch` before.
    """

    def __init__(self, sets: Sequence[int], size: int, seed: int) -> None:
        self._sets, self._size, self._seed = sets, size, seed
        self.epoch = 0

    def __len__(self) -> int:
        return len(self._sets)

    def __iter__(self) -> Iterator[int]:
        drawn = torch.Generator()
        drawn.manual_seed((self._seed << 20) + self.epoch)
        by_set: dict[int, list[int]] = {}  # in the shuffled order of their first rows
        for row in torch.randperm(len(self), generator=drawn).tolist():
            by_set.setdefault(self._sets[row], []).append(row)
        batches: list[list[int]] = []
        left: list[int] = []
        for rows in by_set.values():
            whole = len(rows) // self._size * self._size
            batches += (rows[i : i + self._size] for i in range(0, whole, self._size))
            left += rows[whole:]
        batches += (left[i : i + self._size] for i in range(0, len(left), self._size))
        # The one that is not full stays the last: all others are cut where they end.
        last = [batches.pop()] if batches and len(batches[-1]) < self._size else []
        for k in torch.randperm(len(batches), generator=drawn).tolist():
            yield from batches[k]
        for batch in last:
            yield from batch


class GroupCollator:
    """Called with groups; gives what `TreeLM` takes. Both layouts have the same loss and gradients."""

    def __init__(self, prefix: Sequence[int], layout: Literal["packed", "separate"] = "packed") -> None:
        self._prefix, self._layout = tuple(prefix), layout

    def __call__(self, groups: Sequence[EncodedRow]) -> dict[str, Any]:
        return {"batch": self.batch(groups)}

    def batch(self, groups: Sequence[EncodedRow]) -> PackedBatch:
        if self._layout == "separate":
            return pad_together(separate(self._prefix, groups))
        # What all have in common, as the tools of rows of one set, stands there once; of others rows of the same tools
        # become neighbours, and share what their prompts begin with.
        alike = takewhile(lambda tokens: len({*tokens}) == 1, zip(*(g.suffix for g in groups), strict=False))
        shared = min(sum(1 for _ in alike), *(len(g.suffix) - 1 for g in groups))
        rest = [replace(g, suffix=g.suffix[shared:]) for g in groups]
        return pack((*self._prefix, *groups[0].suffix[:shared]), sorted(rest, key=lambda group: group.suffix))
