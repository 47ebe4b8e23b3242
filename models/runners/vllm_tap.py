"""Keep the scores that vLLM computes, with a logits processor, and read them in vLLM's worker."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor

from rtcontrol.models.decode.protocol import ScoreQuery
from rtcontrol.models.runners.packed import compute_answers


class ScoreTap(LogitsProcessor):
    """A logits processor that keeps the scores of each request. `by_engine` has the instance of each engine."""

    by_engine: ClassVar[weakref.WeakValueDictionary[str, ScoreTap]] = weakref.WeakValueDictionary()

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.places: dict[int, int] = {}  # by row of the batch: the number of its request
        self.kept: dict[int, tuple[torch.Tensor, int]] = {}  # by number of a request: (scores of the batch, row)
        self.by_engine[vllm_config.instance_id] = self

    def is_argmax_invariant(self) -> bool:
        """Return False, because vLLM skips invariant processors in greedy sampling."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Update which request is in which row of the next step's batch."""
        if batch_update is None:
            return
        for place in batch_update.removed:
            self.places.pop(place, None)
        for place, params, _, _ in batch_update.added:
            self.places[place] = params.extra_args["number"]
        for a, b, way in batch_update.moved:
            number, other = self.places.pop(a, None), self.places.pop(b, None)
            if number is not None:
                self.places[b] = number
            if other is not None and way.name == "SWAP":
                self.places[a] = other

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Keep the logits, and return them unchanged."""
        for place, number in self.places.items():
            self.kept[number] = logits, place
        return logits


RequestedNodes = tuple[Sequence[ScoreQuery], Mapping[int, int]]  # (queries of a work item, request number of each node)


def gather_answers(worker: Any, works: Sequence[RequestedNodes]) -> list[list[Any]]:
    """Return the answers to each work item, and discard the scores. vLLM calls this function in its worker."""
    tap = ScoreTap.by_engine[worker.vllm_config.instance_id]
    kept, tap.kept = tap.kept, {}

    def logits(numbers: Mapping[int, int], nodes: Sequence[int], ids: Sequence[int] | None) -> torch.Tensor:
        rows = torch.stack([scores[row] for scores, row in (kept[numbers[n]] for n in nodes)])
        return rows if ids is None else rows[:, list(ids)]

    return compute_answers([(queries, partial(logits, numbers)) for queries, numbers in works])
