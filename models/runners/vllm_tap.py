"""A logits processor that keeps vLLM's scores, and the function that reads them in the engine's worker."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor

from rtcontrol.models.decode.protocol import Ask
from rtcontrol.models.runners.packed import answered


class ScoreTap(LogitsProcessor):
    """A logits processor that keeps the scores of each step, and the row of each request."""

    of: ClassVar[weakref.WeakValueDictionary[str, ScoreTap]] = weakref.WeakValueDictionary()  # by engine

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.places: dict[int, int] = {}  # the request of each row of the batch
        self.kept: dict[int, tuple[torch.Tensor, int]] = {}
        self.of[vllm_config.instance_id] = self

    def is_argmax_invariant(self) -> bool:
        """Return False: invariant processors are skipped for greedy sampling."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Record which requests are in the next step, and their rows."""
        if batch_update is None:
            return
        for place in batch_update.removed:
            self.places.pop(place, None)
        for place, params, _, _ in batch_update.added:
            self.places[place] = params.extra_args["number"]
        for a, b, way in batch_update.moved:
            one, other = self.places.pop(a, None), self.places.pop(b, None)
            if one is not None:
                self.places[b] = one
            if other is not None and way.name == "SWAP":
                self.places[a] = other

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Keep the logits and return them unchanged; the sampled token is not used."""
        for place, number in self.places.items():
            self.kept[number] = logits, place
        return logits


Asked = tuple[Sequence[Ask], Mapping[int, int]]  # asks of one work item, and the request number of each node


def gather(worker: Any, works: Sequence[Asked]) -> list[list[Any]]:
    """Return the answers of each work item and drop the scores. This runs in the engine's worker, which has the
    scores."""
    tap = ScoreTap.of[worker.vllm_config.instance_id]
    kept, tap.kept = tap.kept, {}

    def rows(numbers: Mapping[int, int], nodes: Sequence[int], ids: Sequence[int] | None) -> torch.Tensor:
        found = torch.stack([scores[row] for scores, row in (kept[numbers[n]] for n in nodes)])
        return found if ids is None else found[:, list(ids)]

    return answered([(asks, partial(rows, numbers)) for asks, numbers in works])
