"""A large vocabulary in training: a few tokens' rows are trained, a part of it is scored, all others stay as they are.

Of a vocabulary of 262,144 tokens a task meets a few thousand. To score all of them at every label, and to keep AdamW's
two moments for each, costs more than the rest of a small model. Rows that a base knows are frozen: a part of them,
moved away from what is never scored, would hand every free text to the others.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.nn.functional as F

M_MMAP_THRESHOLD, BLOCK = -3, 2_000_000  # of glibc's malloc.h; bytes
COMMON = 8_192  # the lowest ids, a tokenizer's earliest merges: what a label is told apart from beside what was seen


class SeenEmbedding(torch.nn.Module):
    """Embeds like the table `full` [vocabulary, hidden], whose rows `trained` are trained: `weight` [trained, hidden].
    `place`: int64 [vocabulary], where the logits have a token, -1 for one that is not scored."""

    full: torch.Tensor
    place: torch.Tensor

    def __init__(self, before: tuple[Any, Any], trained: Sequence[int], scored: Sequence[int]) -> None:
        super().__init__()
        self.before = before  # the model's own embeddings and head
        table = before[0]
        self.ids = torch.tensor([*trained, *scored])
        self.trained = len(trained)
        place = torch.full((len(table.weight),), -1, dtype=torch.int64)
        place[self.ids] = torch.arange(len(self.ids))
        self.register_buffer("full", table.weight.data, persistent=False)
        self.register_buffer("place", place, persistent=False)
        self.weight = torch.nn.Parameter(self.full[self.ids[: self.trained]].clone())
        self._scale = float(getattr(table, "embed_scale", 1.0))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """[..., hidden]."""
        at = self.place[tokens]
        own = (at >= 0) & (at < self.trained)
        rest = F.embedding(tokens, self.full)
        made = torch.where(own[..., None], F.embedding(at * own, self.weight).to(rest.dtype), rest)
        return made if self._scale == 1.0 else made * self._scale


class SeenHead(torch.nn.Module):
    """Scores what a `SeenEmbedding` lists: logits [..., trained + scored]. `weight` [trained, hidden] is trained, that
    of the embeddings where the two are tied."""

    rest: torch.Tensor

    def __init__(self, table: SeenEmbedding, head: Any) -> None:
        super().__init__()
        first, rest = table.ids[: table.trained], table.ids[table.trained :]
        tied = head.weight is table.before[0].weight
        self.weight = table.weight if tied else torch.nn.Parameter(head.weight.data[first].clone())
        self.register_buffer("rest", head.weight.data[rest], persistent=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.cat([F.linear(hidden, self.weight.to(hidden.dtype)), F.linear(hidden, self.rest)], -1)


def see(model: Any, trained: Iterable[int], scored: Iterable[int], common: int = COMMON) -> int:
    """From now on `model`, a Hugging Face causal LM, has the rows of the tokens `trained` as its only embeddings that
    can be trained, and scores these, those `scored` and the lowest `common` ids alone; gives how many. Raises
    ValueError for a head with a bias."""
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    if getattr(head, "bias", None) is not None:
        raise ValueError("a head with a bias is trained with its whole vocabulary")
    own = sorted({*trained})
    others = sorted({*scored, *range(min(common, len(table.weight)))} - {*own})
    made = SeenEmbedding((table, head), own, others)
    model.set_input_embeddings(made)
    model.set_output_embeddings(SeenHead(made, head))
    return len(own) + len(others)


def seen_by(model: Any) -> SeenEmbedding | None:
    """What `see` has put into a model."""
    table = model.get_input_embeddings()
    return table if isinstance(table, SeenEmbedding) else None


def score(model: Any, tokens: Iterable[int]) -> None:
    """Of a model that sees a part of its vocabulary: these tokens are scored, too, from now on."""
    if (seen := seen_by(model)) is None:
        return
    more = [token for token in dict.fromkeys(tokens) if seen.place[token] < 0]
    if more:
        new, head = torch.tensor(more), model.get_output_embeddings()
        seen.place[new] = len(seen.ids) + torch.arange(len(new), device=seen.place.device)
        seen.ids = torch.cat([seen.ids, new])
        head.rest = torch.cat([head.rest, seen.before[1].weight.data[new].to(head.rest)])


def scored(model: Any) -> list[int]:
    """The tokens that such a model scores, in the order of its logits; of any other none."""
    return [] if (seen := seen_by(model)) is None else seen.ids.tolist()


def whole(model: Any) -> None:
    """Put what was learnt into the model's own embeddings and head, which it has again."""
    if (seen := seen_by(model)) is None:
        return
    (table, head), ids = seen.before, seen.ids[: seen.trained]
    for own in (table, head):  # the model may have moved meanwhile, these have not
        own.to(seen.weight.device)
    with torch.no_grad():
        table.weight[ids] = seen.weight.to(table.weight.dtype)
        if head.weight is not table.weight:
            head.weight[ids] = model.get_output_embeddings().weight.to(head.weight.dtype)
    model.set_input_embeddings(table)
    model.set_output_embeddings(head)


def labels_of(model: Any, labels: torch.Tensor) -> torch.Tensor:
    """The labels by which its logits are asked. Raises ValueError for one that is not scored."""
    if (seen := seen_by(model)) is None:
        return labels
    found = seen.place[labels]
    if (found < 0).any():
        raise ValueError(f"token {int(labels[found < 0][0])} is a label, and not among those that are scored")
    return found


def whole_logits(model: Any, logits: torch.Tensor) -> torch.Tensor:
    """[rows, vocabulary] of a model's logits; of what it does not score -inf."""
    if (seen := seen_by(model)) is None:
        return logits
    return logits.new_full((len(logits), len(seen.full)), -torch.inf).index_copy(1, seen.ids.to(logits.device), logits)


def columns_of(model: Any, ids: list[int]) -> list[int]:
    """Where a model's logits have these tokens. Raises ValueError for one that is not scored."""
    return labels_of(model, torch.tensor(ids)).tolist()


def return_blocks() -> None:
    """Let glibc give blocks of 2 MB and more back as soon as they are free. By itself it keeps ever larger ones in its
    heap, which batches of many sizes cut into pieces."""
    if sys.platform.startswith("linux"):
        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL("libc.so.6").mallopt(M_MMAP_THRESHOLD, BLOCK)
