"""Run a model with a paged KV cache: all its sequences share one pool of reference-counted pages."""

from __future__ import annotations

import threading
import warnings
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from weakref import WeakSet, finalize

import torch
import torch.nn.functional as F

from rtcontrol.models.errors import UserError
from rtcontrol.models.runners.lean import SLOTS, LeanModel, SequenceRows, zeros
from rtcontrol.models.runners.packed import MAX_BATCH, PackedSequence
from rtcontrol.models.runners.weights import ModelConfig, Weights

PAGE = 16  # slots per page
ZEROS, SCRATCH = 0, 1  # reserved slots: padding reads ZEROS, which is always zero, and writes to SCRATCH


class PagePool:
    """A pool of pages with PAGE slots each: the `tensors` are keys and values [layers, slots, kv_heads, head_dim]. Page
    0 is reserved. The pool never grows or moves, since recorded GPU graphs contain its addresses."""

    def __init__(self, config: ModelConfig, tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        self.pages = -(-tokens // PAGE)
        shape = (config.layers, (1 + self.pages) * PAGE, config.kv_heads, config.head_dim)
        self.tensors = zeros(shape, dtype, device), zeros(shape, dtype, device)
        self.layers = list(zip(*(values.unbind(0) for values in self.tensors), strict=True))
        self.ref_counts = [0] * (1 + self.pages)
        self.orphaned: deque[int] = deque()  # pages of garbage-collected sequences; any thread appends to it
        self._free = list(range(self.pages, 0, -1))
        # Guards the pages, because other threads open sessions while one thread decides.
        self.lock = threading.RLock()

    @property
    def used_pages(self) -> int:
        """Return how many pages are in use."""
        self.release(self.orphaned.popleft() for _ in range(len(self.orphaned)))
        return self.pages - len(self._free)

    def allocate(self, count: int, spare: int = 0) -> list[int]:
        """Allocate `count` pages with one reference each. Raises UserError, and allocates none, if fewer than `spare`
        pages would remain free."""
        with self.lock:
            if self.used_pages + count + spare > self.pages:
                raise UserError(
                    f"The model's memory for prompts is full. It has room for {self.pages * PAGE} tokens. Open "
                    f"sessions use {self.used_pages * PAGE} of them, and {(count + spare) * PAGE} more are needed.",
                    "Close sessions, shorten observations, or describe fewer tools.",
                )
            return self.retain([self._free.pop() for _ in range(count)])

    def retain(self, pages: list[int]) -> list[int]:
        """Add one reference to each of these pages, and return them."""
        for page in pages:
            self.ref_counts[page] += 1
        return pages

    def release(self, pages: Iterable[int]) -> None:
        """Remove one reference from each of these pages, and free those without references."""
        for page in pages:
            self.ref_counts[page] -= 1
            if not self.ref_counts[page]:
                self._free.append(page)


class PagedCache:
    """The keys and values of one sequence, in pages of a pool. A shared page is copied before it is written."""

    def __init__(self, pool: PagePool, slots: int) -> None:
        self.pool, self.slots, self.pages = pool, slots, list[int]()
        finalize(self, pool.orphaned.extend, self.pages).atexit = False

    def pool_slots(self, first: int, total: int) -> list[int]:
        """Return the slots of the pool that contain this sequence's slots from `first` to `total`."""
        return [self.pages[i // PAGE] * PAGE + i % PAGE for i in range(first, total)]

    def first_slots(self, count: int) -> list[torch.Tensor]:
        """Return keys and values [layers, 1, kv_heads, count, head_dim] of the first `count` slots."""
        return [values[:, self.pool_slots(0, count)].transpose(1, 2)[:, None] for values in self.pool.tensors]

    def fill(self, *layers: torch.Tensor) -> None:
        """Set the first slots to these keys and values."""
        self.reserve(0, count := layers[0].shape[-2])
        for values, others in zip(self.pool.tensors, layers, strict=True):
            values[:, self.pool_slots(0, count)] = others[:, 0].transpose(1, 2).to(values.device)

    def copy_from(self, other: PagedCache, count: int) -> None:
        """Replace the content by the first `count` slots of another cache, whose pages are shared."""
        with self.pool.lock:
            pages = self.pool.retain(other.pages[: -(-count // PAGE)])
            self.pool.release(self.pages)
            self.pages[:] = pages

    def reserve(self, first: int, total: int, release_rest: bool = False) -> None:
        """Allocate pages for the slots up to `total`. Slots from `first` on get pages that are not shared. With
        `release_rest`, release the pages after `total`. Raises UserError, and changes nothing, if the pool is full."""
        with self.pool.lock:
            pool, pages, end = self.pool, self.pages, -(-total // PAGE)
            shared = [i for i in range(first // PAGE, min(end, len(pages))) if pool.ref_counts[pages[i]] > 1]
            new = pool.allocate(len(shared) + max(end - len(pages), 0))
            for i in shared:
                to, old = new[-1] * PAGE, pages[i] * PAGE
                for both in pool.tensors if i * PAGE < first else ():
                    both[:, to : to + PAGE] = both[:, old : old + PAGE]
                pool.release([pages[i]])
                pages[i] = new.pop()
            pages += new
            if release_rest:
                pool.release(pages[end:])
                del pages[end:]


MIN_COLUMNS = 256  # minimum of `PassShape.columns` and `PassShape.tree`
MAX_GRAPH_SIZE = 1 << 20  # larger passes (tokens times columns) are not recorded as graphs
MAX_RAGGED = 4  # maximum ratio of a sequence's tokens to the average of its batch
MAX_GRAPHS = 128  # maximum number of recorded graphs
POOL_SHARE = 0.5  # share of the GPU's free memory that the pool allocates
USUAL_TOKENS = (16, 32, 64, 128)  # graphs are recorded in advance for these numbers of tokens per session
MIN_SESSIONS = 8  # graphs are recorded in advance for at least this number of sessions


class PassShape(NamedTuple):
    """The size of a pass in powers of two: `tokens` of `batch` sequences, which see up to `columns` slots, with up to
    `tree` slots after the prompt."""

    tokens: int
    columns: int
    batch: int
    tree: int

    @classmethod
    def smallest(cls, tokens: int, columns: int, batch: int, tree: int, longest: int) -> PassShape:
        """Return the smallest shape for a pass of this size. `longest` is the longest sequence's number of tokens."""
        share = max(power_of_two(batch), MAX_RAGGED) // MAX_RAGGED
        rows = power_of_two(max(longest, -(-tokens // share), USUAL_TOKENS[0]))
        columns, tree = (power_of_two(max(count, MIN_COLUMNS)) for count in (columns, tree))
        return cls(rows * share, columns, power_of_two(batch), tree)

    @property
    def rows(self) -> int:
        """Return the maximum number of tokens of one sequence."""
        return self.tokens * MAX_RAGGED // max(self.batch, MAX_RAGGED)


def power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()


class StaticPass:
    """A pass of one shape, whose inputs have fixed addresses on the device. Replaying the `graph`, if it was recorded,
    computes `states` from them. Inputs per token: id, position, slot, number of visible columns, sequence, index of a
    requested state; per sequence: first token, length, pages. `tree` masks the visible slots after the prompt."""

    def __init__(self, shape: PassShape, device: torch.device, pinned: bool) -> None:
        self.shape = shape
        self._sizes = [shape.tokens] * 6 + [shape.batch] * 2 + [shape.batch * shape.columns // PAGE]
        ints = 8 * sum(self._sizes)
        self._host = torch.zeros(ints + shape.tokens * shape.tree // 8, dtype=torch.uint8, pin_memory=pinned)
        self._bytes, self._device_input = self._host.numpy().data, self._host.to(device)
        self.values = self._device_input[:ints].view(torch.int64).split(self._sizes)
        self.tree = self._device_input[ints:].view(shape.tokens, -1)
        self.graph: Any = None
        self.states: Any = None

    def fill(self, tokens: Sequence[int], positions: Sequence[int], parts: Sequence[SequenceRows]) -> None:
        """Write the inputs of the next pass, and copy them to the device. Padding reads ZEROS and writes SCRATCH."""
        slots, sees, owners, wanted, starts, lengths, pages, numbers = (list[int]() for _ in range(8))
        tree, max_pages = bytearray(), self.shape.columns // PAGE
        for i, part in enumerate(parts):
            (prompt, ancestors), start, total = part.mask, len(slots), part.past + part.count
            first = total - len(ancestors)  # index of the first node
            starts.append(start)
            lengths.append(total)
            pages += [*part.cache.pages, *[0] * max_pages][:max_pages]
            slots += part.cache.pool_slots(part.past, total)
            sees += [*range(part.past + 1, first + 1), *[prompt] * len(ancestors)]
            owners += [i] * part.count
            wanted += range(start + part.skipped, start + part.count)
            tree += bytes((first - part.past) * self.shape.tree // 8)
            for node, above in enumerate(ancestors, start=first - prompt):
                tree += sum(1 << slot for slot in (*above, node)).to_bytes(self.shape.tree // 8, "little")
        inputs = (tokens, positions, slots, sees, owners, wanted, starts, lengths, pages)
        for values, size, pad in zip(inputs, self._sizes, (0, 0, SCRATCH, 1, 0, 0, 0, 0, 0), strict=True):
            numbers += [*values, *[pad] * (size - len(values))]
        self._bytes[:] = (array("q", numbers).tobytes() + tree).ljust(len(self._bytes), b"\0")
        self._device_input.copy_(self._host, non_blocking=True)


class PagedModel(LeanModel):
    """A dense decoder model with a paged KV cache, which records CUDA graphs. `passes` has the recorded shapes, and
    `missed` the shapes that were needed, but were not recorded."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        super().__init__(config, weights)
        tokens, self._gpu = MAX_BATCH * min(SLOTS, config.context), self.device.type == "cuda"
        if self._gpu:
            size = 2 * config.layers * config.kv_heads * config.head_dim * self.dtype.itemsize
            tokens = min(tokens, int(torch.cuda.mem_get_info(self.device)[0] * POOL_SHARE) // size)
        self.pool = PagePool(config, tokens, self.dtype, self.device)
        self.passes: dict[PassShape, StaticPass] = {}
        self.missed: set[PassShape] = set()
        self._memory: Any = None  # all graphs share this memory pool
        self._graphs = self._gpu
        self.open_sequences: WeakSet[PackedSequence] = WeakSet()

    def cache(self, slots: int) -> Any:
        """Return an empty cache for a sequence of at most `slots` tokens."""
        return PagedCache(self.pool, slots)

    def mask(self, past: int, fresh: int, earlier: int, ancestors: Sequence[tuple[int, ...]]) -> Any:
        """Return (end of the prompt, `ancestors`), which `StaticPass.fill` turns into a mask."""
        return past + fresh - earlier, ancestors

    def synchronize(self) -> None:
        """Wait until the GPU is idle."""
        if self._gpu:
            torch.cuda.synchronize(self.device)

    @torch.inference_mode()
    def forward(self, tokens: Sequence[int], positions: Sequence[int], parts: Sequence[SequenceRows]) -> torch.Tensor:
        """Run `tokens` at `positions` as `LeanModel.forward` does. If a graph for the shape of this pass was recorded,
        replay it; otherwise launch the kernels one by one, and add the shape to `missed`."""
        ends = [part.past + part.count for part in parts]
        tree = max(end - part.mask[0] for end, part in zip(ends, parts, strict=True))
        shape = PassShape.smallest(len(tokens), max(ends), len(parts), tree, max(part.count for part in parts))
        count = sum(part.count - part.skipped for part in parts)
        with self.pool.lock:  # all sequences share the inputs and states of a recorded pass
            ready = self.passes.get(shape)
            if ready is None:
                ready = StaticPass(shape, self.device, pinned=False)
                self.missed |= {shape} if count else set()  # a pass without nodes is rare, so do not record it
            self.synchronize()  # the GPU may still read the inputs of the last pass
            ready.fill(tokens, positions, parts)
            if ready.graph is None:
                ready.states = self._compute_states(ready)
            else:
                ready.graph.replay()
            states: torch.Tensor = ready.states[:count].clone()
            return states

    @torch.inference_mode()
    def record_graphs(self, shapes: Iterable[PassShape]) -> None:
        """Record graphs for `shapes` and `missed` shapes, unless they are too large, up to MAX_GRAPHS in all."""
        with self.pool.lock:
            for shape in (*shapes, *self.missed):
                small = shape.tokens * shape.columns <= MAX_GRAPH_SIZE
                if small and shape not in self.passes and len(self.passes) < MAX_GRAPHS:
                    self.passes[shape] = ready = StaticPass(shape, self.device, pinned=self._gpu)
                    ready.fill((), (), ())  # recording runs the pass: with only padding, it changes no sequence
                    if self._graphs:
                        self._record(ready)
            self.missed.clear()

    def _record(self, ready: StaticPass) -> None:
        try:
            graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream(self.device)
            self.synchronize()
            with torch.cuda.stream(side):
                for _ in range(2):  # the first run initialises kernels, which must not be recorded
                    self._compute_states(ready)
            self.synchronize()
            with torch.cuda.graph(graph, self._memory, side, capture_error_mode="thread_local"):
                ready.states = self._compute_states(ready)
            ready.graph, self._memory = graph, graph.pool()
        except RuntimeError as fault:
            self._graphs = False
            problem = f"CUDA graphs cannot be recorded ({fault}): forward passes are slower without them."
            warnings.warn(problem, RuntimeWarning, stacklevel=4)

    def _compute_states(self, ready: StaticPass) -> torch.Tensor:
        """Compute a pass from its inputs; return normalised states [tokens, hidden], the requested states first."""
        c, shape, longest = self.config, ready.shape, ready.shape.rows
        tokens, positions, slots, sees, owners, wanted, starts, lengths, pages = ready.values
        column = torch.arange(shape.columns, device=self.device)
        # Even masked values must be finite, so read ZEROS instead of the unused slots of the last page.
        at = pages.view(shape.batch, -1)[:, column // PAGE] * PAGE + column % PAGE
        at = at.masked_fill(column >= lengths[:, None], ZEROS)
        beyond = column - sees[:, None]
        bits = ready.tree.gather(1, (beyond // 8).clamp(0, shape.tree // 8 - 1)) >> (beyond % 8)
        visible = (beyond < 0) | (beyond < shape.tree) & (bits % 2 > 0)
        # `rows` arranges the tokens as [sequence, token] for the attention; `place` flattens them afterwards.
        rows = (starts[:, None] + torch.arange(longest, device=self.device)).clamp(max=shape.tokens - 1)
        place = owners * longest + torch.arange(shape.tokens, device=self.device) - starts[owners]
        bias = torch.zeros(shape.batch, longest, shape.columns, dtype=self.dtype, device=self.device)
        bias = bias.masked_fill_(~visible[rows], -torch.inf)[:, None, :, None]
        bias = bias.expand(-1, -1, -1, self.group, -1).flatten(2, 3)  # query heads become additional rows
        cos, sin = self._cos[positions], self._sin[positions]
        x = F.embedding(tokens, self.weights.embedding)
        for layer, (keys, values) in zip(self.weights.layers, self.pool.layers, strict=True):
            q, k, v = self._project(layer, x, cos, sin)
            keys.index_copy_(0, slots, k)
            values.index_copy_(0, slots, v)
            q = q[rows].view(shape.batch, longest, c.kv_heads, self.group, c.head_dim).transpose(1, 2)
            q = q.reshape(shape.batch, c.kv_heads, longest * self.group, c.head_dim)
            out = F.scaled_dot_product_attention(q, keys[at].transpose(1, 2), values[at].transpose(1, 2), bias)
            out = out.reshape(shape.batch, c.kv_heads, longest, self.group, c.head_dim).transpose(1, 2)
            x = self._after_attention(layer, x, out.reshape(shape.batch * longest, -1)[place])
        return self.norm(x, self.weights.norm)[wanted]
