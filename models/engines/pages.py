"""Keys and values of all sequences of a model: one pool of pages, counted by how many sequences hold each."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from weakref import finalize

import torch

from rtcontrol.models.engines.lean import zeros
from rtcontrol.models.engines.weights import ModelConfig
from rtcontrol.models.errors import UserError

PAGE = 16  # slots
ZEROS, SCRATCH = 0, 1  # slots of no sequence: one is read for what is not there, the other is written and never read


class PagePool:
    """Keys and values [layers, slots, kv_heads, head_dim] for `tokens`, in pages of PAGE slots; page 0 is nobody's. It
    never grows or moves: what a GPU recorded points into it."""

    def __init__(self, config: ModelConfig, tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        self.pages = -(-tokens // PAGE)
        shape = (config.layers, (1 + self.pages) * PAGE, config.kv_heads, config.head_dim)
        self.both = zeros(shape, dtype, device), zeros(shape, dtype, device)
        self.layers = list(zip(*(own.unbind(0) for own in self.both), strict=True))
        self.holders = [0] * (1 + self.pages)
        self.dropped: deque[int] = deque()  # pages of sequences that are gone, on whichever thread
        self._free = list(range(self.pages, 0, -1))
        # Sessions are opened, and drafts made, on other threads than those that decide.
        self.lock = threading.RLock()

    @property
    def used(self) -> int:
        """Pages that somebody holds."""
        self.give(self.dropped.popleft() for _ in range(len(self.dropped)))
        return self.pages - len(self._free)

    def take(self, count: int, spare: int = 0) -> list[int]:
        """Free pages, held once. Raises UserError, and takes none, where that leaves fewer than `spare` ones."""
        with self.lock:
            if self.used + count + spare > self.pages:
                raise UserError(
                    f"The model's memory for prompts is full: of {self.pages * PAGE} tokens that it has room for, open "
                    f"sessions hold {self.used * PAGE}, and {(count + spare) * PAGE} more are needed.",
                    "Close sessions, shorten observations, or describe fewer tools.",
                )
            return self.hold([self._free.pop() for _ in range(count)])

    def hold(self, pages: list[int]) -> list[int]:
        """By one sequence more."""
        for page in pages:
            self.holders[page] += 1
        return pages

    def give(self, pages: Iterable[int]) -> None:
        """Back, by one sequence."""
        for page in pages:
            self.holders[page] -= 1
            if not self.holders[page]:
                self._free.append(page)


class PagedCache:
    """A sequence's keys and values. A page that others hold, too, is copied before it is written."""

    def __init__(self, pool: PagePool, slots: int) -> None:
        self.pool, self.slots, self.pages = pool, slots, list[int]()
        finalize(self, pool.dropped.extend, self.pages).atexit = False

    def places(self, first: int, total: int) -> list[int]:
        """The pool's slots of its own ones from `first` on."""
        return [self.pages[i // PAGE] * PAGE + i % PAGE for i in range(first, total)]

    def first(self, count: int) -> list[torch.Tensor]:
        """Keys and values [layers, 1, kv_heads, count, head_dim] of the first slots."""
        return [own[:, self.places(0, count)].transpose(1, 2)[:, None] for own in self.pool.both]

    def fill(self, *given: torch.Tensor) -> None:
        """The first slots become these keys and values."""
        self.reserve(0, count := given[0].shape[-2])
        for own, others in zip(self.pool.both, given, strict=True):
            own[:, self.places(0, count)] = others[:, 0].transpose(1, 2).to(own.device)

    def share(self, other: PagedCache, count: int) -> None:
        """The first slots are another one's, too."""
        with self.pool.lock:
            pages = self.pool.hold(other.pages[: -(-count // PAGE)])
            self.pool.give(self.pages)
            self.pages[:] = pages

    def reserve(self, first: int, total: int, only: bool = False) -> None:
        """Slots up to `total` are there, those from `first` on nobody else's; `only`: and no page more than they take.
        Raises UserError, and changes nothing, where the pool is full."""
        with self.pool.lock:
            pool, pages, end = self.pool, self.pages, -(-total // PAGE)
            shared = [i for i in range(first // PAGE, min(end, len(pages))) if pool.holders[pages[i]] > 1]
            new = pool.take(len(shared) + max(end - len(pages), 0))
            for i in shared:
                to, own = new[-1] * PAGE, pages[i] * PAGE
                for both in pool.both if i * PAGE < first else ():
                    both[:, to : to + PAGE] = both[:, own : own + PAGE]
                pool.give([pages[i]])
                pages[i] = new.pop()
            pages += new
            if only:
                pool.give(pages[end:])
                del pages[end:]
