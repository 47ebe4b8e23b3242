"""Encodes rows that each bring their own tools, as a base model is taught: nothing is shared but what they share."""

from __future__ import annotations

from rtcontrol.models.plan import compile_plan
from rtcontrol.models.prompt import PromptTemplate
from rtcontrol.models.schema import ToolSchema
from rtcontrol.models.tokenizer import STTokenizer
from rtcontrol.models.train.rows import EncodedRow, LossWeights, Row, RowEncoder


class ToolsEncoder:
    """A `RowEncoder` for each row's `tools`; `prefix` is what all prompts begin with, one token."""

    def __init__(self, template: PromptTemplate, tokenizer: STTokenizer, weights: LossWeights | None = None) -> None:
        self.tokenizer = tokenizer
        self._template, self._weights = template, weights
        self.prefix = tuple(template.prefix_ids(())[:1])
        self._last: tuple[tuple[ToolSchema, ...], RowEncoder] | None = None

    def of(self, tools: tuple[ToolSchema, ...]) -> RowEncoder:
        """The encoder for these tools; the last one is kept, since rows of the same tools follow each other."""
        if self._last is None or self._last[0] is not tools:
            plan = compile_plan(tools, self.tokenizer, overflow=self._template.overflow)
            self._last = tools, RowEncoder(self._template, self.tokenizer, plan, self._weights)
        return self._last[1]

    def encode(self, row: Row, forced: bool = True) -> EncodedRow:
        """Ids and labels of one row, its tools a part of the suffix."""
        encoder = self.of(row.tools)
        found = encoder.encode(row, forced)
        return EncodedRow((*encoder.prefix[1:], *found.suffix), found.heads)
