"""The unit of training data: what the model saw, and the call it should have made."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.prompt import PromptTemplate
from rtcontrol.models.checkpoint.special_tokens import opening
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decode.plan import SchemaPlan, compile_plan
from rtcontrol.models.schema.tool_schema import MAX_HEADS, ToolSchema


@dataclass(frozen=True, slots=True)
class Quote:
    """A passage of a row's observation that the content head shall quote: behind `start` (asked for too where it is
    `named` by the instruction) it goes on with `rest`."""

    start: str
    rest: str
    named: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One decision to imitate; `call` None trains the null function head; `quotes`, `named`, the words of the
    instruction that the observation holds, and `meant`, what the instruction asks for in its canonical words ("":
    nothing), are for training alone; `tools` are those of the row where an encoder takes rows of many sets
    (`ToolsEncoder`); `weight` scales its share of the loss. For checks and scores: `allowed` are
    other calls that are right, `where` is the row's place."""

    instruction: str
    observation: str
    call: Call | None
    history: tuple[str, ...] = ()
    quotes: tuple[Quote, ...] = ()
    named: str = ""
    tools: tuple[ToolSchema, ...] = ()
    weight: float = field(default=1.0, kw_only=True)
    meant: str | None = field(default=None, kw_only=True)
    allowed: tuple[Call, ...] = field(default=(), kw_only=True, repr=False)
    where: str = field(default="", kw_only=True, repr=False, compare=False)

    @property
    def question(self) -> tuple[str, str, tuple[str, ...]]:
        """What the model is asked: rows with the same question are the same state."""
        return self.instruction, self.observation, self.history


@dataclass(frozen=True)
class HeadTarget:
    """One head of one row: input ids start with the head token, `labels[i]` is what follows `ids[i]`; where its weight
    is 0 nothing is asked. A `probe` is no part of the call, and does not count for accuracy. `early` is what the head's
    token should hold half way through the model: the last token of what is named."""

    ids: tuple[int, ...]
    labels: tuple[int, ...]
    weights: tuple[float, ...]
    probe: bool = False
    early: int | None = None


@dataclass(frozen=True)
class EncodedRow:
    """A row as ids: the suffix after the shared tools prefix, and its heads; `early` are places in the suffix with what
    they should hold half way through the model."""

    suffix: tuple[int, ...]
    heads: tuple[HeadTarget, ...]
    early: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class LossWeights:
    """Head loss weights (paper, appendix "Training Hyperparameters"); `end` scales the label of the end token, which is
    nearly always forced; `quote` the words of the observation that a row quotes; `focal`, by argument head, the labels
    of a value that is not null (the paper's token-level weights)."""

    function: float = 2.0
    arguments: tuple[float, ...] = (1.1, 1.2, 1.3, 1.4, 1.5, 1.6)
    end: float = 0.1
    quote: float = 1.0
    focal: tuple[float, ...] = (1.0,) * MAX_HEADS

    def of(self, head: int, null: bool = True) -> float:
        """The weight of a label of the plan's head number `head` (0 is the function), whose value is null or not."""
        if head == 0:
            return self.function
        return self.arguments[head - 1] * (1.0 if null else self.focal[head - 1])


class RowEncoder:
    """Encodes rows for one template, tokenizer and plan."""

    def __init__(
        self, template: PromptTemplate, tokenizer: STTokenizer, plan: SchemaPlan, weights: LossWeights | None = None
    ) -> None:
        self.prefix = tuple(template.prefix_ids(plan.tools))
        self.plan = plan
        self._template = template
        self.tokenizer = tokenizer
        self._weights = weights or LossWeights()
        self._heads: dict[tuple[str, str | None], HeadTarget] = {}
        self._told: dict[str, int] = {}

    def of(self, plan: SchemaPlan) -> RowEncoder:
        """The same for another plan of the same tools."""
        return RowEncoder(self._template, self.tokenizer, plan, self._weights)

    def encode(self, row: Row, forced: bool = True) -> EncodedRow:
        """Ids and labels of one row; without `forced` those that the constrained walk never asks for are left out
        (labels from a value's last branching token on, heads that cannot branch)."""
        heads = [self._head(k, text) for k, (_, text) in enumerate(self.plan.head_values(row.call))]
        if not forced:
            if row.call is not None:  # heads beyond the tool's arity are not read
                heads = heads[: 1 + len(self.plan.slots[self.plan.tool_index(row.call.name)])]
            heads = [h for k, head in enumerate(heads) if (h := self._asked(k, head)).ids]
        if row.named:
            early = self.tokenizer.encode(row.named)[-1]
            heads = [replace(h, early=early) for h in heads]
        if row.weight != 1.0:
            heads = [replace(h, weights=tuple(w * row.weight for w in h.weights)) for h in heads]
        return EncodedRow(self.suffix(row), (*heads, *map(self._quote, row.quotes)), self._meaning(row))

    def suffix(self, row: Row) -> tuple[int, ...]:
        """The ids between the tools prefix and the heads."""
        return tuple(self._template.suffix_ids(row.instruction, row.observation, row.history))

    def _meaning(self, row: Row) -> tuple[tuple[int, int], ...]:
        if row.meant is None:
            return ()
        if row.instruction not in self._told:
            self._told[row.instruction] = self._end_of(row.instruction)
        words = dict.fromkeys(self.tokenizer.encode(f" {row.meant}")) if row.meant else (self.plan.function.null_id,)
        return tuple((self._told[row.instruction], word) for word in words)

    def _end_of(self, instruction: str) -> int:
        """Where a suffix has its last token before what is seen."""
        one, other = (self._template.suffix_ids(instruction, seen) for seen in "01")
        return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one)) - 1

    def _quote(self, quote: Quote) -> HeadTarget:
        start, rest = self.tokenizer.encode(quote.start), self.tokenizer.encode(quote.rest)
        weight = self._weights.quote
        first = (weight if quote.named else 0.0, *[weight] * (len(start) - 1))
        ids = (self.tokenizer.special_id(opening("content")), *start, *rest)
        return HeadTarget(ids[:-1], ids[1:], (*first, *[weight] * len(rest)), probe=True)

    def _asked(self, k: int, target: HeadTarget) -> HeadTarget:
        head = self.plan.heads[k]
        if head.free:
            return target
        branches = [i for i in range(len(target.labels)) if len(head.trie.children(target.labels[:i])) > 1]
        last = branches[-1] + 1 if branches else 0
        return HeadTarget(target.ids[:last], target.labels[:last], target.weights[:last])

    def _head(self, k: int, text: str | None) -> HeadTarget:
        head = self.plan.heads[k]
        key = (head.name, text)
        if key not in self._heads:
            weight = self._weights.of(k, text is None)
            if text is None:
                target = HeadTarget((head.head_id,), (head.null_id,), (weight,))
            else:
                value = self.tokenizer.encode(text)
                ends = (*[weight] * len(value), weight * self._weights.end)
                target = HeadTarget((head.head_id, *value), (*value, head.end_id), ends)
            self._heads[key] = target
        return self._heads[key]


def json_row(
    row: EncodedRow, tokenizer: STTokenizer, call: Call, punctuation: float = 1.0, end: str | None = None
) -> EncodedRow:
    """The row in the baseline's form: the call as JSON behind the prompt, whose last token the first one of the text
    follows; then the token `end`. Labels of its marks weigh `punctuation`, all others 1."""
    text = tuple(tokenizer.encode(json.dumps(call.to_dict(), ensure_ascii=False)))
    weights = [1.0 if re.search(r"\w", tokenizer.decode([token])) else punctuation for token in text]
    if end is not None:
        text, weights = (*text, tokenizer.special_id(end)), [*weights, punctuation]
    chain = HeadTarget((row.suffix[-1], *text[:-1]), text, tuple(weights))
    return replace(row, suffix=row.suffix[:-1], heads=(chain,))


KEPT = 64  # sets of tools


class ToolsEncoder:
    """A `RowEncoder` for each row's `tools`; `prefix` is what all prompts begin with, one token. With `allow_null` a
    row may have no call."""

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
        self._found: dict[int, tuple[tuple[ToolSchema, ...], RowEncoder]] = {}

    def of(self, tools: tuple[ToolSchema, ...]) -> RowEncoder:
        """The encoder for these tools; that of the last few sets is kept, since rows of the same tools are near each
        other."""
        if (known := self._found.get(id(tools))) is None or known[0] is not tools:
            known = self._found[id(tools)] = tools, self._made(tools, self.allow_null)
            if len(self._found) > KEPT:
                del self._found[next(iter(self._found))]
        return known[1]

    def acting(self, tools: tuple[ToolSchema, ...]) -> RowEncoder:
        """One whose plan always calls something."""
        return self._made(tools, False)

    def nullable(self) -> ToolsEncoder:
        """The same for rows that may have no call."""
        return ToolsEncoder(self._template, self.tokenizer, self._weights, allow_null=True)

    def encode(self, row: Row, forced: bool = True) -> EncodedRow:
        """Ids and labels of one row, its tools a part of the suffix."""
        encoder = self.of(row.tools)
        found, more = encoder.encode(row, forced), encoder.prefix[1:]
        early = tuple((len(more) + at, label) for at, label in found.early)
        return replace(found, suffix=(*more, *found.suffix), early=early)

    def _made(self, tools: tuple[ToolSchema, ...], allow_null: bool) -> RowEncoder:
        plan = compile_plan(tools, self.tokenizer, allow_null, self._template.overflow)
        return RowEncoder(self._template, self.tokenizer, plan, self._weights)


# Word probes: beside its call, a row asks for words of its own observation. A call says little about where the model
# must look; a word that follows another one says it at once. So the content head, which no controller waits for, quotes
# the observation: told a word, the next ones; told nothing, from the word that the instruction names. It costs a few
# tokens a row, behind a prompt that is computed anyway.
_SPAN = re.compile(r"\s*\S+")
_BARE = re.compile(r"^\W+|\W+$")
# Words that a sentence holds whatever it names.
COMMON = {*re.findall(r"\w+", "a an the of to at in on is it its and or what where which one that this go")}
QUOTED = 3  # words of a quote


def with_word_probes(rows: Iterable[Row], rng: random.Random, quotes: int = 2) -> Iterator[Row]:
    """The same rows, each with up to `quotes` passages of its observation to quote, from a random word on that stands
    there once; and, where the instruction names a thing there (a word, or several in a row), from the first one on,
    unprompted; and with what is `named`, for all heads to hold half way through the model."""
    for row in rows:
        spans = _SPAN.findall(row.observation)
        words = [_BARE.sub("", span).lower() for span in spans]
        counted = Counter(words)
        once = [i for i, word in enumerate(words[:-1]) if word and counted[word] == 1]
        told = [w for w in (_BARE.sub("", word).lower() for word in row.instruction.split()) if w not in COMMON]
        name = _named(words, counted, told)
        starts = dict.fromkeys([*name[:1], *rng.sample(once, min(quotes, len(once)))])
        found = (
            Quote(spans[i], "".join(spans[i + 1 : i + QUOTED]), i in name[:1]) for i in starts if i + 1 < len(spans)
        )
        yield replace(row, quotes=(*row.quotes, *found), named=f" {words[name[-1]]}" if name else "")


def _named(words: Sequence[str], counted: Counter[str], told: Sequence[str]) -> range:
    """Where the thing stands that is told first: words in a row of which one at least stands nowhere else."""
    first = next((word for word in told if counted[word] == 1), None)
    if first is None:
        return range(0)
    start = words.index(first)
    stop = start + 1
    while start > 0 and words[start - 1] in told:
        start -= 1
    while stop < len(words) and words[stop] in told:
        stop += 1
    return range(start, stop)
