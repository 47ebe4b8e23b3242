"""Encode training rows: token ids of the prompt after the prefix, and token ids, labels and weights of each head."""

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
from rtcontrol.models.data.row import STDIN, Quote, Row, Tools, parse_json_value, read_raw_lines
from rtcontrol.models.data.sample import UnusableSample
from rtcontrol.models.decode.plan import SchemaPlan, compile_plan
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.tool_schema import MAX_HEADS

MAX_ENCODERS = 64  # maximum number of cached encoders, one per set of tools


@dataclass(frozen=True)
class HeadTarget:
    """The training target of one head. `ids` start with the head token; `labels[i]` is the token that follows `ids[i]`,
    with the loss weight `weights[i]`. A `probe` is not a part of the call, and does not count for accuracy. `early` is
    the head token's label after an early layer, namely the last token of the thing that the instruction names."""

    ids: tuple[int, ...]
    labels: tuple[int, ...]
    weights: tuple[float, ...]
    probe: bool = False
    early: int | None = None


@dataclass(frozen=True)
class EncodedRow:
    """An encoded row: the prompt `suffix` after the shared prefix, and the heads. `early` has (position in the suffix,
    label) pairs, which are trained after an early layer."""

    suffix: tuple[int, ...]
    heads: tuple[HeadTarget, ...]
    early: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class LossWeights:
    """The loss weights of labels for the `function` head and the `arguments` heads (SimpleTool paper, appendix
    "Training Hyperparameters"). `end` is a factor for end tokens, which are mostly forced, and `focal` a factor for
    values of argument heads that are not null. `quote` is the weight of quotes. With `all_heads`, rows have all eight
    heads of published checkpoints, with null values in unused ones; `content` is then the weight of the content
    head."""

    function: float = 2.0
    arguments: tuple[float, ...] = (1.1, 1.2, 1.3, 1.4, 1.5, 1.6)
    end: float = 0.1
    quote: float = 1.0
    focal: tuple[float, ...] = (1.0,) * MAX_HEADS
    all_heads: bool = False
    content: float = 0.0

    def label_weight(self, head: int, null: bool = True) -> float:
        """Return the weight of a label of head number `head` (0: the function); `null` says whether the value is
        null."""
        if head == 0:
            return self.function
        return self.arguments[head - 1] * (1.0 if null else self.focal[head - 1])


class RowEncoder:
    """Encodes rows for one prompt template, tokenizer and set of tools (`plan`)."""

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
        self._ends: dict[str, int] = {}  # by instruction: the position of its last token
        slots = zip(plan.tools, plan.slots, strict=True)
        with_head = {(tool.name, p.name) for tool, own in slots for slot in own for p in slot.parameters}
        self._without_head = {(tool.name, p.name) for tool in plan.tools for p in tool.parameters} - with_head

    def with_plan(self, plan: SchemaPlan) -> RowEncoder:
        """Return a copy of this encoder with another plan for the same tools."""
        return RowEncoder(self._template, self.tokenizer, plan, self._weights)

    def encode(self, row: Row, forced: bool = True) -> EncodedRow:
        """Encode a row. Without `forced`, leave out labels that constrained decoding never needs: those after the last
        choice of a head, and those of heads without a choice. Raises UserError if an argument of the call has no head,
        because the template limits the number of heads."""
        tool = "" if row.call is None else row.call.name
        for name in row.call.arguments if row.call is not None else ():
            if (tool, name) in self._without_head:
                cut = f"{tool}: {name} has no head (the template cuts tools to {MAX_HEADS})."
                raise UserError(f"{row.where or 'A row'}: {cut}", "Correct the call, or remove the row.")
        heads = [self._head_target(k, text) for k, (_, text) in enumerate(self.plan.head_values(row.call))]
        if not forced:
            if row.call is not None:  # without the heads that the tool does not use, as in the decoder
                heads = heads[: 1 + len(self.plan.slots[self.plan.tool_index(tool)])]
            heads = [head for k, whole in enumerate(heads) if (head := self._until_last_branch(k, whole)).ids]
        elif self._weights.all_heads:
            heads = [*self._null_targets(row), *heads]
        if row.named:
            early = self.tokenizer.encode(row.named)[-1]
            heads = [replace(head, early=early) for head in heads]
        if row.weight != 1.0:
            heads = [replace(head, weights=tuple(w * row.weight for w in head.weights)) for head in heads]
        return EncodedRow(self.suffix(row), (*heads, *map(self._quote_target, row.quotes)), self._meaning_labels(row))

    def suffix(self, row: Row) -> tuple[int, ...]:
        """Return the prompt's token ids between prefix and heads."""
        return tuple(self._template.suffix_ids(row.instruction, row.observation, row.history))

    def _head_target(self, k: int, text: str | None) -> HeadTarget:
        head = self.plan.heads[k]
        key = (head.name, text)
        if key not in self._heads:
            weight = self._weights.label_weight(k, text is None)
            value = () if text is None else tuple(self.tokenizer.encode(text))
            end = head.null_id if text is None else head.end_id
            end_weight = weight if text is None else weight * self._weights.end
            self._heads[key] = HeadTarget((head.head_id, *value), (*value, end), (*[weight] * len(value), end_weight))
        return self._heads[key]

    def _null_targets(self, row: Row) -> Iterator[HeadTarget]:
        """Yield null values for the heads that the plan does not use, and for the content head."""
        beyond = len(self.plan.heads) - 1 if row.call is not None else MAX_HEADS
        names = ("content", *ARGUMENTS[beyond:])
        for name, weight in zip(names, (self._weights.content, *self._weights.arguments[beyond:]), strict=True):
            if weight:
                head, null = (self.tokenizer.special_id(token) for token in (head_start(name), NULL))
                yield HeadTarget((head,), (null,), (weight,))

    def _until_last_branch(self, k: int, target: HeadTarget) -> HeadTarget:
        """Return a head's target up to the last label at which its trie branches."""
        head = self.plan.heads[k]
        if head.free:
            return target
        branches = [i for i in range(len(target.labels)) if len(head.trie.children(target.labels[:i])) > 1]
        last = branches[-1] + 1 if branches else 0
        return HeadTarget(target.ids[:last], target.labels[:last], target.weights[:last])

    def _quote_target(self, quote: Quote) -> HeadTarget:
        start, rest = self.tokenizer.encode(quote.start), self.tokenizer.encode(quote.rest)
        weight = self._weights.quote
        first = (weight if quote.named else 0.0, *[weight] * (len(start) - 1))
        ids = (self.tokenizer.special_id(head_start("content")), *start, *rest)
        return HeadTarget(ids[:-1], ids[1:], (*first, *[weight] * len(rest)), probe=True)

    def _meaning_labels(self, row: Row) -> tuple[tuple[int, int], ...]:
        """Return (position of the instruction's last token, label) pairs for all tokens of the row's meaning."""
        if row.meant is None:
            return ()
        if row.instruction not in self._ends:
            a, b = (self._template.suffix_ids(row.instruction, text) for text in "01")
            differ = (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
            self._ends[row.instruction] = next(differ, len(a)) - 1
        words = dict.fromkeys(self.tokenizer.encode(f" {row.meant}")) if row.meant else (self.plan.function.null_id,)
        return tuple((self._ends[row.instruction], word) for word in words)


class ToolsEncoder:
    """Encodes rows with different tools, with a `RowEncoder` for each set of tools. `prefix` is the first token of all
    prompts. With `allow_null`, rows without a call are allowed."""

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

    def encoder_for(self, tools: Tools) -> RowEncoder:
        """Return the encoder for these tools (cached)."""
        if (known := self._encoders.get(id(tools))) is None or known[0] is not tools:
            plan = compile_plan(tools, self.tokenizer, self.allow_null, self._template.overflow)
            encoder = RowEncoder(self._template, self.tokenizer, plan, self._weights)
            known = self._encoders[id(tools)] = tools, encoder
            if len(self._encoders) > MAX_ENCODERS:
                del self._encoders[next(iter(self._encoders))]
        return known[1]

    def encode(self, row: Row, forced: bool = True) -> EncodedRow:
        """Encode a row, with the tools as a part of the suffix. Raises UserError as `RowEncoder.encode` does."""
        encoder = self.encoder_for(row.tools)
        encoded, tools = encoder.encode(row, forced), encoder.prefix[1:]
        early = tuple((len(tools) + index, label) for index, label in encoded.early)
        return replace(encoded, suffix=(*tools, *encoded.suffix), early=early)


# -- files of rows ----------------------------------------------------------------------------------------------------

MAX_TOOL_SETS = 64  # maximum tool sets that a checkpoint's metadata list; after training on more, it accepts any


@dataclass
class EncodedRows:
    """The encoded rows of some files, and facts about them for the checkpoint's metadata."""

    files: dict[str, str] = field(default_factory=dict)  # SHA-256 of each file, by path
    lines: int = 0
    dropped: Counter[str] = field(default_factory=Counter)  # number of dropped rows by reason
    tool_sets: dict[tuple[str, ...], tuple[Any, ...]] = field(default_factory=dict)
    history: int = 0
    null: bool = False
    suffixes: list[array[int]] = field(default_factory=list)  # arrays: tuples would take eight times the memory
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
        if len(self.tool_sets) <= MAX_TOOL_SETS:
            key = tuple(tool.canonical_json() for tool in row.tools)
            self.tool_sets.setdefault(key, tuple(tool.to_openai() for tool in row.tools))


def load_rows(files: Sequence[Path], encoder: ToolsEncoder, length: int, drop_bad: bool = False) -> EncodedRows:
    """Read and encode all rows of some files. Rows whose prompt and longest head have more than `length` tokens are
    dropped and counted. With `drop_bad`, invalid rows are dropped and counted, too.

    Raises UserError for a file that cannot be read, for an invalid row (with its place, and the number of such rows),
    and if no row is left.
    """
    rows, bad = EncodedRows(), list[UserError]()
    if STDIN & {*files}:
        raise UserError("Training reads its rows twice, which standard input does not allow.", "Give a file of rows.")
    for file in files:
        for line, raw in read_raw_lines(file):
            rows.lines += 1
            where = f"{file}:{line}"
            try:
                row = Row.from_dict(parse_json_value(raw, where), where)
                check_row(row)
                encoded = encoder.encode(row)
            except (UserError, UnusableSample) as error:
                bad.append(_with_place(error, where))
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
        more = f" This is the first of {len(bad)} invalid rows." if len(bad) > 1 else ""
        raise UserError(bad[0].what + more, f"{bad[0].remedy} Or drop invalid rows with --drop-bad.")
    if not len(rows):
        why = "; ".join(f"{count} {reason}" for reason, count in rows.dropped.most_common(3)) or "they are empty"
        raise UserError(f"{', '.join(map(str, files))}: no row is left ({why}).", "Give rows, or a larger length.")
    return rows


def _with_place(error: UserError | UnusableSample, where: str) -> UserError:
    if isinstance(error, UnusableSample):
        return UserError(f"{where}: {error.reason}: {error.detail}.", "Correct the call, or remove the row.")
    return error if error.what.startswith(where) else UserError(f"{where}: {error.what}", error.remedy)


# -- word probes ------------------------------------------------------------------------------------------------------
# Rows can also train the content head (which the control loop does not decode) to quote the observation. It quotes the
# words after a certain word, or around the thing that the instruction names. Quotes train attention much more strongly
# than calls, and add only a few tokens per row to the prompt, which is computed anyway.
_SPAN = re.compile(r"\s*\S+")
_BARE = re.compile(r"^\W+|\W+$")
# Words that do not name a thing.
COMMON = {*re.findall(r"\w+", "a an the of to at in on is it its and or what where which one that this go")}
QUOTE_SIZE = 3  # number of words in a quote


def with_word_probes(rows: Iterable[Row], rng: random.Random, quotes: int = 2) -> Iterator[Row]:
    """Yield each row with up to `quotes` passages of its observation to quote, each of which starts at a random word
    that occurs only once. If the instruction names a thing of the observation, add the passage that starts there, and
    set `Row.named`, which becomes an early label of all heads."""
    for row in rows:
        spans = _SPAN.findall(row.observation)
        words = [_BARE.sub("", span).lower() for span in spans]
        counts = Counter(words)
        unique_places = [i for i, word in enumerate(words[:-1]) if word and counts[word] == 1]
        instruction = (_BARE.sub("", word).lower() for word in row.instruction.split())
        name = _named_range(words, counts, [word for word in instruction if word not in COMMON])
        starts = dict.fromkeys([*name[:1], *rng.sample(unique_places, min(quotes, len(unique_places)))])
        passages = (
            Quote(spans[i], "".join(spans[i + 1 : i + QUOTE_SIZE]), i in name[:1]) for i in starts if i + 1 < len(spans)
        )
        yield replace(row, quotes=(*row.quotes, *passages), named=f" {words[name[-1]]}" if name else "")


def _named_range(words: Sequence[str], counts: Counter[str], instruction: Sequence[str]) -> range:
    """Return the range of words of the first thing in the observation that the instruction names; empty if it names
    none. At least one of these words occurs only once."""
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
