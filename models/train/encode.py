"""Encode training rows as token ids: the prompt after the shared prefix, and the ids, labels and weights of each
head."""

from __future__ import annotations

import hashlib
import random
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rtcontrol.models.checkpoint.prompt import HISTORY_LIMIT, PromptTemplate
from rtcontrol.models.checkpoint.special_tokens import ARGUMENTS, NULL, head_start
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.data.convert import check_row
from rtcontrol.models.data.row import Quote, Row, Tools, json_value, raw_lines
from rtcontrol.models.data.sample import UnusableSample
from rtcontrol.models.decode.plan import SchemaPlan, compile_plan
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.tool_schema import MAX_HEADS

KEPT = 64  # sets of tools whose encoders are kept


@dataclass(frozen=True)
class HeadTarget:
    """The training target of one head of a row. `ids` start with the head's token, `labels[i]` follows `ids[i]`; a
    label of weight 0 is not trained. A `probe` is not part of the call and does not count for accuracy. `early` is the
    target of the head's token half way through the model: the last token of the thing that the instruction names."""

    ids: tuple[int, ...]
    labels: tuple[int, ...]
    weights: tuple[float, ...]
    probe: bool = False
    early: int | None = None


@dataclass(frozen=True)
class EncodedRow:
    """A row as token ids: the suffix after the shared prefix, and the heads. `early` has positions in the suffix with
    their targets half way through the model."""

    suffix: tuple[int, ...]
    heads: tuple[HeadTarget, ...]
    early: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class LossWeights:
    """The weights of labels (paper, appendix "Training Hyperparameters") for the function head and each argument head.
    `end` scales the label of the end token, which is nearly always forced; `quote` is for quotes; `focal` scales, by
    argument head, values that are not null (the paper's token-level weights). With `all_heads` a row has the eight
    heads of published checkpoints, with null beyond its tools' parameters; `content` is the weight of the content
    head."""

    function: float = 2.0
    arguments: tuple[float, ...] = (1.1, 1.2, 1.3, 1.4, 1.5, 1.6)
    end: float = 0.1
    quote: float = 1.0
    focal: tuple[float, ...] = (1.0,) * MAX_HEADS
    all_heads: bool = False
    content: float = 0.0

    def of(self, head: int, null: bool = True) -> float:
        """Return the weight of a label of head number `head` (0 is the function). `null` says if the value is null."""
        if head == 0:
            return self.function
        return self.arguments[head - 1] * (1.0 if null else self.focal[head - 1])


class RowEncoder:
    """An encoder of rows for one template, tokenizer and plan."""

    def __init__(
        self,
        template: PromptTemplate,
        tokenizer: STTokenizer,
        plan: SchemaPlan,
        weights: LossWeights | None = None,
    ) -> None:
        self.prefix = tuple(template.prefix_ids(plan.tools))
        self.plan, self.tokenizer = plan, tokenizer
        self._template = template
        self._weights = weights or LossWeights()
        self._heads: dict[tuple[str, str | None], HeadTarget] = {}
        self._ends: dict[str, int] = {}  # tokens of instructions, see `_meaning`
        slots = zip(plan.tools, plan.slots, strict=True)
        with_head = {(tool.name, p.name) for tool, own in slots for slot in own for p in slot.parameters}
        self._headless = {(tool.name, p.name) for tool in plan.tools for p in tool.parameters} - with_head

    def of(self, plan: SchemaPlan) -> RowEncoder:
        """Return an encoder for another plan of the same tools."""
        return RowEncoder(self._template, self.tokenizer, plan, self._weights)

    def encode(self, row: Row, forced: bool = True) -> EncodedRow:
        """Return ids and labels of one row; without `forced`, leave out labels that the constrained walk never needs
        (from a value's last branching token on, and of heads that cannot branch). Raises UserError for an argument
        without a head in a cut schema."""
        tool = "" if row.call is None else row.call.name
        for name in row.call.arguments if row.call is not None else ():
            if (tool, name) in self._headless:
                cut = f"{tool}: {name} has no head (the template cuts tools to {MAX_HEADS})."
                raise UserError(f"{row.where or 'A row'}: {cut}", "Correct the call, or leave the row out.")
        heads = [self._head(k, text) for k, (_, text) in enumerate(self.plan.head_values(row.call))]
        if not forced:
            if row.call is not None:  # heads beyond the tool's arity are not read
                heads = heads[: 1 + len(self.plan.slots[self.plan.tool_index(tool)])]
            heads = [head for k, whole in enumerate(heads) if (head := self._branching(k, whole)).ids]
        elif self._weights.all_heads:
            heads = [*self._null_heads(row), *heads]
        if row.named:
            early = self.tokenizer.encode(row.named)[-1]
            heads = [replace(head, early=early) for head in heads]
        if row.weight != 1.0:
            heads = [replace(head, weights=tuple(w * row.weight for w in head.weights)) for head in heads]
        return EncodedRow(self.suffix(row), (*heads, *map(self._quote, row.quotes)), self._meaning(row))

    def suffix(self, row: Row) -> tuple[int, ...]:
        """Return the ids between the tools prefix and the heads."""
        return tuple(self._template.suffix_ids(row.instruction, row.observation, row.history))

    def _head(self, k: int, text: str | None) -> HeadTarget:
        head = self.plan.heads[k]
        key = (head.name, text)
        if key not in self._heads:
            weight = self._weights.of(k, text is None)
            value = () if text is None else tuple(self.tokenizer.encode(text))
            end = head.null_id if text is None else head.end_id
            end_weight = weight if text is None else weight * self._weights.end
            self._heads[key] = HeadTarget((head.head_id, *value), (*value, end), (*[weight] * len(value), end_weight))
        return self._heads[key]

    def _null_heads(self, row: Row) -> Iterator[HeadTarget]:
        """Yield null heads beyond those of the row's plan; a null call has the function head alone."""
        beyond = len(self.plan.heads) - 1 if row.call is not None else MAX_HEADS
        names = ("content", *ARGUMENTS[beyond:])
        for name, weight in zip(names, (self._weights.content, *self._weights.arguments[beyond:]), strict=True):
            if weight:
                head, null = (self.tokenizer.special_id(token) for token in (head_start(name), NULL))
                yield HeadTarget((head,), (null,), (weight,))

    def _branching(self, k: int, target: HeadTarget) -> HeadTarget:
        """Return a head up to the last label at which the head's trie branches."""
        head = self.plan.heads[k]
        if head.free:
            return target
        branches = [i for i in range(len(target.labels)) if len(head.trie.children(target.labels[:i])) > 1]
        last = branches[-1] + 1 if branches else 0
        return HeadTarget(target.ids[:last], target.labels[:last], target.weights[:last])

    def _quote(self, quote: Quote) -> HeadTarget:
        start, rest = self.tokenizer.encode(quote.start), self.tokenizer.encode(quote.rest)
        weight = self._weights.quote
        first = (weight if quote.named else 0.0, *[weight] * (len(start) - 1))
        ids = (self.tokenizer.special_id(head_start("content")), *start, *rest)
        return HeadTarget(ids[:-1], ids[1:], (*first, *[weight] * len(rest)), probe=True)

    def _meaning(self, row: Row) -> tuple[tuple[int, int], ...]:
        """Return pairs of the position of the instruction's last token and each token of the meaning of the row."""
        if row.meant is None:
            return ()
        if row.instruction not in self._ends:
            a, b = (self._template.suffix_ids(row.instruction, text) for text in "01")
            differ = (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
            self._ends[row.instruction] = next(differ, len(a)) - 1
        words = dict.fromkeys(self.tokenizer.encode(f" {row.meant}")) if row.meant else (self.plan.function.null_id,)
        return tuple((self._ends[row.instruction], word) for word in words)


class ToolsEncoder:
    """An encoder that uses a `RowEncoder` for the `tools` of each row. `prefix` is the first token of all prompts. With
    `allow_null` a row may have no call."""

    def __init__(
        self,
        template: PromptTemplate,
        tokenizer: STTokenizer,
        weights: LossWeights | None = None,
        allow_null: bool = False,
    ) -> None:
        self.tokenizer, self.allow_null = tokenizer, allow_null
        self._template, self._weights = template, weights
        self.prefix = tuple(template.prefix_ids(())[:1])
        self._encoders: dict[int, tuple[Tools, RowEncoder]] = {}

    def of(self, tools: Tools) -> RowEncoder:
        """Return the encoder for these tools; recent ones are cached, as rows of one set come together."""
        if (known := self._encoders.get(id(tools))) is None or known[0] is not tools:
            plan = compile_plan(tools, self.tokenizer, self.allow_null, self._template.overflow)
            encoder = RowEncoder(self._template, self.tokenizer, plan, self._weights)
            known = self._encoders[id(tools)] = tools, encoder
            if len(self._encoders) > KEPT:
                del self._encoders[next(iter(self._encoders))]
        return known[1]

    def encode(self, row: Row, forced: bool = True) -> EncodedRow:
        """Return ids and labels of one row, with the tools as a part of the suffix. Raises UserError as
        `RowEncoder.encode` does."""
        encoder = self.of(row.tools)
        encoded, tools = encoder.encode(row, forced), encoder.prefix[1:]
        early = tuple((len(tools) + index, label) for index, label in encoded.early)
        return replace(encoded, suffix=(*tools, *encoded.suffix), early=early)


# -- files of rows ----------------------------------------------------------------------------------------------------

SETS = 64  # sets of tools that a checkpoint lists as learnt; with more sets it counts as able to read any tools


@dataclass
class EncodedRows:
    """The encoded rows of some files in order, and the metadata of a checkpoint that is trained on these rows."""

    files: dict[str, str] = field(default_factory=dict)  # sha256 by path
    lines: int = 0
    dropped: Counter[str] = field(default_factory=Counter)  # by reason
    tool_sets: dict[tuple[str, ...], tuple[Any, ...]] = field(default_factory=dict)
    history: int = 0
    null: bool = False
    suffixes: list[array[int]] = field(default_factory=list)  # a tuple of Python's integers takes eight times as much
    heads: list[tuple[HeadTarget, ...]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.heads)

    def __getitem__(self, index: int) -> EncodedRow:
        return EncodedRow(tuple(self.suffixes[index]), self.heads[index])

    def append(self, row: Row, encoded: EncodedRow) -> None:
        self.suffixes.append(array("i", encoded.suffix))
        self.heads.append(encoded.heads)
        self.history = max(self.history, min(len(row.history), HISTORY_LIMIT))
        self.null |= row.call is None
        if len(self.tool_sets) <= SETS:
            key = tuple(tool.canonical_json() for tool in row.tools)
            self.tool_sets.setdefault(key, tuple(tool.to_openai() for tool in row.tools))


def load(files: Sequence[Path], encoder: ToolsEncoder, length: int, drop_bad: bool = False) -> EncodedRows:
    """Read and encode all rows of some files. A row whose prompt and longest head have more than `length` tokens is
    left out and counted. With `drop_bad`, a row that cannot be represented is left out and counted, too.

    Raises UserError for a file that cannot be read, for a row that cannot be represented, with file and line and how
    many there are, and if no row is left.
    """
    rows, bad = EncodedRows(), list[UserError]()
    for file in files:
        for line, raw in raw_lines(file):
            rows.lines += 1
            where = f"{file}:{line}"
            try:
                row = Row.from_dict(json_value(raw, where), where)
                check_row(row)
                encoded = encoder.encode(row)
            except (UserError, UnusableSample) as error:
                bad.append(_named(error, where))
                rows.dropped[bad[-1].what.removeprefix(f"{where}: ")] += 1
                continue
            if len(encoder.prefix) + len(encoded.suffix) + max(len(h.ids) for h in encoded.heads) > length:
                rows.dropped[f"longer than {length} tokens"] += 1
            elif not any(weight for head in encoded.heads for weight in head.weights):
                rows.dropped["all its labels have weight 0"] += 1
            else:
                rows.append(row, encoded)
        with file.open("rb") as content:
            rows.files[str(file)] = hashlib.file_digest(content, "sha256").hexdigest()
    if bad and not drop_bad:
        more = f" {len(bad)} rows cannot be represented; this is the first." if len(bad) > 1 else ""
        raise UserError(bad[0].what + more, f"{bad[0].remedy} Or leave such rows out with --drop-bad.")
    if not len(rows):
        why = "; ".join(f"{count} {reason}" for reason, count in rows.dropped.most_common(3)) or "they are empty"
        raise UserError(f"{', '.join(map(str, files))}: no row is left ({why}).", "Give rows, or a larger length.")
    return rows


def _named(error: UserError | UnusableSample, where: str) -> UserError:
    if isinstance(error, UnusableSample):
        return UserError(f"{where}: {error.reason}: {error.detail}.", "Correct the call, or leave the row out.")
    return error if error.what.startswith(where) else UserError(f"{where}: {error.what}", error.remedy)


# -- word probes ------------------------------------------------------------------------------------------------------
# A row also trains quotes of its observation. A call is a weak signal for where the model must look; a word that
# follows another one is a strong signal. So the content head, which no controller waits for, quotes the observation:
# after a given word, the next words; without one, from the word that the instruction names. This costs a few tokens per
# row, after a prompt that is computed anyway.
_SPAN = re.compile(r"\s*\S+")
_BARE = re.compile(r"^\W+|\W+$")
# Words that occur in sentences about anything.
COMMON = {*re.findall(r"\w+", "a an the of to at in on is it its and or what where which one that this go")}
QUOTED = 3  # words of a quote


def with_word_probes(rows: Iterable[Row], rng: random.Random, quotes: int = 2) -> Iterator[Row]:
    """Yield the same rows with up to `quotes` passages of the observation to quote, each from a random word that occurs
    once. If the instruction names a thing of the observation, add a passage from the first word of that thing,
    unprompted, and `named`, a target for all heads half way through the model."""
    for row in rows:
        spans = _SPAN.findall(row.observation)
        words = [_BARE.sub("", span).lower() for span in spans]
        counts = Counter(words)
        once = [i for i, word in enumerate(words[:-1]) if word and counts[word] == 1]
        instruction = (_BARE.sub("", word).lower() for word in row.instruction.split())
        name = _place(words, counts, [word for word in instruction if word not in COMMON])
        starts = dict.fromkeys([*name[:1], *rng.sample(once, min(quotes, len(once)))])
        passages = (
            Quote(spans[i], "".join(spans[i + 1 : i + QUOTED]), i in name[:1]) for i in starts if i + 1 < len(spans)
        )
        yield replace(row, quotes=(*row.quotes, *passages), named=f" {words[name[-1]]}" if name else "")


def _place(words: Sequence[str], counts: Counter[str], instruction: Sequence[str]) -> range:
    """Return the range of words of the first thing that the instruction names. At least one of these words occurs
    once."""
    first = next((word for word in instruction if counts[word] == 1), None)
    if first is None:
        return range(0)
    start = words.index(first)
    stop = start + 1
    while start > 0 and words[start - 1] in instruction:
        start -= 1
    while stop < len(words) and words[stop] in instruction:
        stop += 1
    return range(start, stop)
