"""Where vLLM makes scores: a logits processor that keeps them, and what is asked of it in the engine's worker."""

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
    """Keeps what each step makes: by the number of a request, the scores and its row of them."""

    of: ClassVar[weakref.WeakValueDictionary[str, ScoreTap]] = weakref.WeakValueDictionary()  # by engine

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.places: dict[int, int] = {}  # in the batch, and which request's it is
        self.kept: dict[int, tuple[torch.Tensor, int]] = {}
        self.of[vllm_config.instance_id] = self

    def is_argmax_invariant(self) -> bool:
        """No: those that are, are passed over where nothing is drawn."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Which requests are in the next step, and where."""
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
        """Changes nothing: what is sampled is of no use to anybody."""
        for place, number in self.places.items():
            self.kept[number] = logits, place
        return logits


Asked = tuple[Sequence[Ask], Mapping[int, int]]  # of one work, and the number of each node's request


def gather(worker: Any, works: Sequence[Asked]) -> list[list[Any]]:
    """Runs in the engine's worker, where the scores are: of each work what it asks for. No score is kept any longer."""
    tap = ScoreTap.of[worker.vllm_config.instance_id]
    kept, tap.kept = tap.kept, {}

    def rows(numbers: Mapping[int, int], nodes: Sequence[int], ids: Sequence[int] | None) -> torch.Tensor:
        found = torch.stack([scores[row] for scores, row in (kept[numbers[n]] for n in nodes)])
        return found if ids is None else found[:, list(ids)]

    return answered([(asks, partial(rows, numbers)) for asks, numbers in works])
