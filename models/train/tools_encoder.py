"""Encodes rows that each bring their own tools, as a base model is taught: nothing is shared but what they share."""

from __future__ import annotations

from dataclasses import replace

from rtcontrol.models.plan import compile_plan
from rtcontrol.models.prompt import PromptTemplate
from rtcontrol.models.schema import ToolSchema
from rtcontrol.models.tokenizer import STTokenizer
from rtcontrol.models.train.rows import EncodedRow, LossWeights, Row, RowEncoder

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
