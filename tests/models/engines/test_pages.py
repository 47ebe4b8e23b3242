"""Pages are counted, given back, and never written by one sequence for another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.models.errors import UserError
from rtcontrol.models.runners.paged import PAGE, SCRATCH, ZEROS, PagedCache, PagePool
from rtcontrol.models.runners.weights import ModelConfig
from tests.models.small import law

CPU = torch.device("cpu")
STEP = st.tuples(
    st.sampled_from(("open", "share", "write", "write", "cut", "drop")),
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(0, 3 * PAGE),
    st.integers(0, 2 * PAGE),
)
BEGUN = [("open", 0, 0, 0, 0)] * 3 + [("write", 0, 0, 0, 2 * PAGE + 3), ("share", 1, 0, 2 * PAGE + 1, 0)]


class Sequences:
    """Caches of one small pool, and beside each the numbers that it wrote."""

    def __init__(self, config: ModelConfig, tokens: int) -> None:
        self.pool = PagePool(config, tokens, torch.float32, CPU)
        self.caches: list[PagedCache] = []
        self.wrote: list[list[int]] = []
        self.next = 1

    def step(self, what: str, i: int, j: int, first: int, more: int) -> None:
        if what == "open" or not self.caches:
            self.caches.append(PagedCache(self.pool, 1000))
            self.wrote.append([])
            return
        i, j = i % len(self.caches), j % len(self.caches)
        if what == "drop":
            del self.caches[i], self.wrote[i]
        elif what == "share" and i != j:
            count = min(first, len(self.wrote[j]))
            self.caches[i].share(self.caches[j], count)
            self.wrote[i] = self.wrote[j][:count]
        elif what == "write":
            first = min(first, len(self.wrote[i]))
            self.caches[i].reserve(first, first + more)
            at = self.caches[i].places(first, first + more)
            new = list(range(self.next, self.next + more))
            for sign, own in zip((1.0, -1.0), self.pool.both, strict=True):
                own[:, at] = sign * torch.tensor(new, dtype=torch.float32)[None, :, None, None]
            self.wrote[i], self.next = self.wrote[i][:first] + new, self.next + more
        elif what == "cut":
            first = min(first, len(self.wrote[i]))
            self.caches[i].reserve(first, first + more, only=True)
            assert len(self.caches[i].pages) == -(-(first + more) // PAGE)
            self.wrote[i] = self.wrote[i][:first]

    def check(self) -> None:
        held = [page for cache in self.caches for page in cache.pages]
        assert self.pool.used == len(set(held))
        assert [held.count(page) for page in range(len(self.pool.holders))] == self.pool.holders
        assert 0 not in held
        for cache, wrote in zip(self.caches, self.wrote, strict=True):
            keys, values = cache.first(len(wrote))
            assert keys[-1, 0, -1, :, -1].tolist() == wrote
            assert torch.equal(values, -keys)


@pytest.fixture(scope="module")
def config(folder: Path) -> ModelConfig:
    return ModelConfig.load(folder)


@law(150)
@given(steps=st.lists(STEP, min_size=3, max_size=40), pages=st.integers(3, 12))
def test_every_sequence_keeps_what_it_wrote_whoever_shares_its_pages(
    config: ModelConfig, steps: list[Any], pages: int
) -> None:
    made = Sequences(config, pages * PAGE)
    for step in [*BEGUN, *steps]:
        before = [list(cache.pages) for cache in made.caches]
        try:
            made.step(*step)
        except UserError as full:
            assert "memory for prompts is full" in str(full)
            assert [list(cache.pages) for cache in made.caches] == before
        made.check()
    made.caches.clear()
    assert made.pool.used == 0
    assert made.pool.take(pages) != []
    assert not any(own[:, [ZEROS, SCRATCH]].any() for own in made.pool.both)


def test_what_is_restored_is_what_was_there(config: ModelConfig) -> None:
    pool = PagePool(config, 10 * PAGE, torch.float32, CPU)
    one, other = PagedCache(pool, 1000), PagedCache(pool, 1000)
    given_ = [torch.randn(config.layers, 1, config.kv_heads, 2 * PAGE + 3, config.head_dim) for _ in range(2)]
    other.reserve(0, PAGE)  # so that pages do not lie in order
    one.fill(*given_)
    assert all(torch.equal(a, b) for a, b in zip(one.first(2 * PAGE + 3), given_, strict=True))
