"""Groups to one batch: a packed tree, or the paper's separate sequences, padded to the longest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from rtcontrol.models.train.packing import PackedBatch, pack, pad_together, separate
from rtcontrol.models.train.rows import EncodedRow


class GroupCollator:
    """Called with groups; gives what `TreeLM` takes. Both layouts have the same loss and gradients."""

    def __init__(self, prefix: Sequence[int], layout: Literal["packed", "separate"] = "packed") -> None:
        self._prefix, self._layout = tuple(prefix), layout

    def __call__(self, groups: Sequence[EncodedRow]) -> dict[str, Any]:
        return {"batch": self.batch(groups)}

    def batch(self, groups: Sequence[EncodedRow]) -> PackedBatch:
        if self._layout == "separate":
            return pad_together(separate(self._prefix, groups))
        # Rows of the same tools become neighbours, and share what their prompts begin with.
        return pack(self._prefix, sorted(groups, key=lambda group: group.suffix))
