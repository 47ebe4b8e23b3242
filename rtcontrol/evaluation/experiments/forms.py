"""The forms a call may be written in: heads beside each other, heads one after the other, or JSON."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from rtcontrol.models.decode.plan import SchemaPlan
from rtcontrol.models.train.rows import EncodedRow, HeadTarget, Row, RowEncoder, ToolsEncoder, json_row

Form = Literal["heads", "sequential", "json"]
FORMS: tuple[Form, ...] = ("heads", "sequential", "json")
END = "<|im_end|>"


class FormEncoder:
    """Rows in one form, for `Trainer`: an encoder of heads, whose rows are rewritten.

    "heads": as they are, those beyond the tool's own only with `all_heads`. "sequential": the tool's heads in one
    chain, where each sees those before; what starts a head is not asked for. "json": the text, then the end of a turn.
    Labels of the two chains weigh 1, of JSON's `punctuation` so much.
    """

    def __init__(
        self,
        heads: RowEncoder | ToolsEncoder,
        form: Form = "heads",
        all_heads: bool = False,
        punctuation: float = 1.0,
    ) -> None:
        self.prefix, self.tokenizer = heads.prefix, heads.tokenizer
        self._heads, self._form, self._all, self._punctuation = heads, form, all_heads, punctuation

    def encode(self, row: Row, forced: bool = True) -> EncodedRow:
        """Ids and labels of one row; without `forced` heads leave out what a constrained walk never asks for."""
        assert row.call is not None
        found, plan = self._heads.encode(row, forced or self._form != "heads"), self._plan(row)
        if not forced and self._form == "heads":
            return found
        own = found.heads[: 1 + len(plan.slots[plan.tool_index(row.call.name)])]
        if self._form == "json":
            return json_row(found, self.tokenizer, row.call, self._punctuation, END)
        if self._form == "sequential":
            return replace(found, heads=(_chain(own),))
        return found if self._all else replace(found, heads=own)

    def _plan(self, row: Row) -> SchemaPlan:
        heads = self._heads
        return (heads.of(row.tools) if isinstance(heads, ToolsEncoder) else heads).plan


def _chain(heads: tuple[HeadTarget, ...]) -> HeadTarget:
    ids, labels, weights = list[int](), list[int](), list[float]()
    for head in heads:
        if ids:  # what starts this head follows what ended the one before
            ids.append(labels[-1])
            labels.append(head.ids[0])
            weights.append(0.0)
        ids += head.ids
        labels += head.labels
        weights += [1.0] * len(head.labels)
    return HeadTarget(tuple(ids), tuple(labels), tuple(weights))
