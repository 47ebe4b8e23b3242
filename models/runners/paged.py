"""Keys and values of all sequences of a model, in one pool of reference-counted pages."""

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
from rtcontrol.models.runners.lean import SLOTS, LeanModel, Rows, zeros
from rtcontrol.models.runners.packed import TOGETHER, PackedSequence
from rtcontrol.models.runners.weights import ModelConfig, Weights

PAGE = 16  # slots
ZEROS, SCRATCH = 0, 1  # reserved slots: padding reads one, and writes the other, which is never read


class PagePool:
    """Keys and values [layers, slots, kv_heads, head_dim] for `tokens`, in pages of PAGE slots; page 0 stays unused.
    The pool never grows or moves, since recorded GPU graphs point into it."""

    def __init__(self, config: ModelConfig, tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        self.pages = -(-tokens // PAGE)
        shape = (config.layers, (1 + self.pages) * PAGE, config.kv_heads, config.head_dim)
        self.both = zeros(shape, dtype, device), zeros(shape, dtype, device)
        self.layers = list(zip(*(values.unbind(0) for values in self.both), strict=True))
        self.holders = [0] * (1 + self.pages)
        self.dropped: deque[int] = deque()  # pages of deleted sequences, appended by any thread
        self._free = list(range(self.pages, 0, -1))
        # Sessions are opened, and drafts are made, on other threads than those that decide.
        self.lock = threading.RLock()

    @property
    def used(self) -> int:
        """Return how many pages sequences hold."""
        self.give(self.dropped.popleft() for _ in range(len(self.dropped)))
        return self.pages - len(self._free)

    def take(self, count: int, spare: int = 0) -> list[int]:
        """Return `count` free pages with one holder each. Raises UserError, and takes none, if fewer than `spare` pages
        would be left."""
        with self.lock:
            if self.used + count + spare > self.pages:
                raise UserError(
                    f"The model's memory for prompts is full: of {self.pages * PAGE} tokens that it has room for, open "
                    f"sessions hold {self.used * PAGE}, and {(count + spare) * PAGE} more are needed.",
                    "Close sessions, shorten observations, or describe fewer tools.",
                )
            return self.hold([self._free.pop() for _ in range(count)])

    def hold(self, pages: list[int]) -> list[int]:
        """Add one holder to these pages."""
        for page in pages:
            self.holders[page] += 1
        return pages

    def give(self, pages: Iterable[int]) -> None:
        """Remove one holder from these pages."""
        for page in pages:
            self.holders[page] -= 1
            if not self.holders[page]:
                self._free.append(page)


class PagedCache:
    """The keys and values of a sequence. A page with other holders is copied before it is written."""

    def __init__(self, pool: PagePool, slots: int) -> None:
        self.pool, self.slots, self.pages = pool, slots, list[int]()
        finalize(self, pool.dropped.extend, self.pages).atexit = False

    def places(self, first: int, total: int) -> list[int]:
        """Return the places in the pool of this sequence's slots from `first` to `total`."""
        return [self.pages[i // PAGE] * PAGE + i % PAGE for i in range(first, total)]

    def first(self, count: int) -> list[torch.Tensor]:
        """Return keys and values [layers, 1, kv_heads, count, head_dim] of the first slots."""
        return [values[:, self.places(0, count)].transpose(1, 2)[:, None] for values in self.pool.both]

    def fill(self, *layers: torch.Tensor) -> None:
        """Set the first slots to these keys and values."""
        self.reserve(0, count := layers[0].shape[-2])
        for values, others in zip(self.pool.both, layers, strict=True):
            values[:, self.places(0, count)] = others[:, 0].transpose(1, 2).to(values.device)

    def share(self, other: PagedCache, count: int) -> None:
        """Share the pages of another cache's first `count` slots."""
        with self.pool.lock:
            pages = self.pool.hold(other.pages[: -(-count // PAGE)])
            self.pool.give(self.pages)
            self.pages[:] = pages

    def reserve(self, first: int, total: int, only: bool = False) -> None:
        """Make slots up to `total` available, and hold those from `first` on alone; with `only`, release all further
        pages. Raises UserError, and changes nothing, if the pool is full."""
        with self.pool.lock:
            pool, pages, end = self.pool, self.pages, -(-total // PAGE)
            shared = [i for i in range(first // PAGE, min(end, len(pages))) if pool.holders[pages[i]] > 1]
            new = pool.take(len(shared) + max(end - len(pages), 0))
            for i in shared:
                to, old = new[-1] * PAGE, pages[i] * PAGE
                for both in pool.both if i * PAGE < first else ():
                    both[:, to : to + PAGE] = both[:, old : old + PAGE]
                pool.give([pages[i]])
                pages[i] = new.pop()
            pages += new
            if only:
                pool.give(pages[end:])
                del pages[end:]


LEAST = 256  # columns
MOST = 1 << 20  # tokens * columns of a graph
RAGGED = 4  # how many times the tokens of the others one sequence of a batch may have
GRAPHS = 128
POOL = 0.5  # share of a GPU's free memory
USUAL = (16, 32, 64, 128)  # tokens of a session's passes
EARLY = 8  # sessions


class Shape(NamedTuple):
    """The size of a pass in powers of two: `tokens` of `batch` sequences that see up to `columns` slots, of which up to
    `tree` follow the prompt."""

    tokens: int
    columns: int
    batch: int
    tree: int

    @classmethod
    def of(cls, tokens: int, columns: int, batch: int, tree: int, longest: int) -> Shape:
        """Return the smallest shape for these sizes; `longest` is the most tokens of one sequence."""
        share = max(_power(batch), RAGGED) // RAGGED
        rows = _power(max(longest, -(-tokens // share), USUAL[0]))
        return cls(rows * share, _power(max(columns, LEAST)), _power(batch), _power(max(tree, LEAST)))

    @property
    def rows(self) -> int:
        """Return the most tokens of one sequence."""
        return self.tokens * RAGGED // max(self.batch, RAGGED)


def _power(count: int) -> int:
    return 1 << (count - 1).bit_length()


class StaticPass:
    """A pass of one shape, whose inputs stay at one address on the device; `graph` (if recorded) turns the inputs into
    `states`. Per token: id, position, slot for keys and values, number of visible columns, sequence, and (in order)
    which states are wanted. Per sequence: first token, length, pages. A bit mask has the further visible slots."""

    def __init__(self, shape: Shape, device: torch.device, pinned: bool) -> None:
        self.shape = shape
        self._sizes = [shape.tokens] * 6 + [shape.batch] * 2 + [shape.batch * shape.columns // PAGE]
        ints = 8 * sum(self._sizes)
        self._here = torch.zeros(ints + shape.tokens * shape.tree // 8, dtype=torch.uint8, pin_memory=pinned)
        self._bytes, self._there = self._here.numpy().data, self._here.to(device)
        self.values = self._there[:ints].view(torch.int64).split(self._sizes)
        self.tree = self._there[ints:].view(shape.tokens, -1)
        self.graph: Any = None
        self.states: Any = None

    def fill(self, tokens: Sequence[int], positions: Sequence[int], parts: Sequence[Rows]) -> None:
        """Write the inputs of the next pass. Padding reads zeros, and writes to slots that no sequence reads."""
        slots, sees, owners, wanted, starts, lengths, pages, numbers = (list[int]() for _ in range(8))
        tree, most = bytearray(), self.shape.columns // PAGE
        for i, part in enumerate(parts):
            (prompt, ancestors), start, total = part.mask, len(slots), part.past + part.count
            first = total - len(ancestors)  # of the nodes
            starts.append(start)
            lengths.append(total)
            pages += [*part.cache.pages, *[0] * most][:most]
            slots += part.cache.places(part.past, total)
            sees += [*range(part.past + 1, first + 1), *[prompt] * len(ancestors)]
            owners += [i] * part.count
            wanted += range(start + part.hidden, start + part.count)
            tree += bytes((first - part.past) * self.shape.tree // 8)
            for node, above in enumerate(ancestors, start=first - prompt):
                tree += sum(1 << slot for slot in (*above, node)).to_bytes(self.shape.tree // 8, "little")
        inputs = (tokens, positions, slots, sees, owners, wanted, starts, lengths, pages)
        for values, size, pad in zip(inputs, self._sizes, (0, 0, SCRATCH, 1, 0, 0, 0, 0, 0), strict=True):
            numbers += [*values, *[pad] * (size - len(values))]
        self._bytes[:] = (array("q", numbers).tobytes() + tree).ljust(len(self._bytes), b"\0")
        self._there.copy_(self._here, non_blocking=True)


class PagedModel(LeanModel):
    """A dense decoder over one pool of pages. `passes` are recorded shapes; `missed` are shapes that were needed and
    not recorded."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        super().__init__(config, weights)
        tokens, self._gpu = TOGETHER * min(SLOTS, config.context), self.device.type == "cuda"
        if self._gpu:
            size = 2 * config.layers * config.kv_heads * config.head_dim * self.dtype.itemsize
            tokens = min(tokens, int(torch.cuda.mem_get_info(self.device)[0] * POOL) // size)
        self.pool = PagePool(config, tokens, self.dtype, self.device)
        self.passes: dict[Shape, StaticPass] = {}
        self.missed: set[Shape] = set()
        self._memory: Any = None  # memory of all graphs
        self._graphs = self._gpu
        self.opened: WeakSet[PackedSequence] = WeakSet()

    def cache(self, slots: int) -> Any:
        """Return an empty cache for a sequence."""
        return PagedCache(self.pool, slots)

    def mask(self, past: int, fresh: int, earlier: int, ancestors: Sequence[tuple[int, ...]]) -> Any:
        """Return where the prompt ends, and the visible nodes after it."""
        return past + fresh - earlier, ancestors

    def wait(self) -> None:
        """Wait for the GPU."""
        if self._gpu:
            torch.cuda.synchronize(self.device)

    @torch.inference_mode()
    def forward(self, tokens: Sequence[int], positions: Sequence[int], parts: Sequence[Rows]) -> torch.Tensor:
        """Run `tokens` at `positions`, the rows of all `parts` in turn; return normalised states [rows, hidden] of
        those that are not `hidden`. Nothing is recorded here: a pass of an unknown shape runs kernel by kernel."""
        ends = [part.past + part.count for part in parts]
        tree = max(end - part.mask[0] for end, part in zip(ends, parts, strict=True))
        shape = Shape.of(len(tokens), max(ends), len(parts), tree, max(part.count for part in parts))
        count = sum(part.count - part.hidden for part in parts)
        with self.pool.lock:  # all sequences share the inputs and states of a recorded pass
            ready = self.passes.get(shape)
            if ready is None:
                ready = StaticPass(shape, self.device, pinned=False)
                self.missed |= {shape} if count else set()  # not for a prompt alone, which is computed once
            self.wait()  # do not overwrite the inputs of the last pass before the GPU has read them
            ready.fill(tokens, positions, parts)
            if ready.graph is None:
                ready.states = self._states(ready)
            else:
                ready.graph.replay()
            states: torch.Tensor = ready.states[:count].clone()
            return states

    @torch.inference_mode()
    def prepare(self, shapes: Iterable[Shape]) -> None:
        """Record graphs of these shapes and of the missed ones, except very large shapes, at most GRAPHS in all."""
        with self.pool.lock:
            for shape in (*shapes, *self.missed):
                if shape not in self.passes and shape.tokens * shape.columns <= MOST and len(self.passes) < GRAPHS:
                    self.passes[shape] = ready = StaticPass(shape, self.device, pinned=self._gpu)
                    ready.fill((), (), ())  # the pass has only padding, so no sequence changes
                    if self._graphs:
                        self._record(ready)
            self.missed.clear()

    def _record(self, ready: StaticPass) -> None:
        try:
            graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream(self.device)
            self.wait()
            with torch.cuda.stream(side):
                for _ in range(2):  # run once before recording, since one-time setup must not be recorded
                    self._states(ready)
            self.wait()
            with torch.cuda.graph(graph, self._memory, side, capture_error_mode="thread_local"):
                ready.states = self._states(ready)
            ready.graph, self._memory = graph, graph.pool()
        except RuntimeError as fault:
            self._graphs = False
            problem = f"No CUDA graphs ({fault}): passes are sent to the GPU kernel by kernel, which is slower."
            warnings.warn(problem, RuntimeWarning, stacklevel=4)

    def _states(self, ready: StaticPass) -> torch.Tensor:
        """Return normalised states [tokens, hidden], the wanted ones first."""
        c, shape, longest = self.config, ready.shape, ready.shape.rows
        tokens, positions, slots, sees, owners, wanted, starts, lengths, pages = ready.values
        column = torch.arange(shape.columns, device=self.device)
        # Masked values must be finite, so zeros replace what the last page holds after a sequence's end.
        at = pages.view(shape.batch, -1)[:, column // PAGE] * PAGE + column % PAGE
        at = at.masked_fill(column >= lengths[:, None], ZEROS)
        beyond = column - sees[:, None]
        bits = ready.tree.gather(1, (beyond // 8).clamp(0, shape.tree // 8 - 1)) >> (beyond % 8)
        visible = (beyond < 0) | (beyond < shape.tree) & (bits % 2 > 0)
        # Attention works on sequences, so the tokens become [batch, longest], and then tokens again.
        rows = (starts[:, None] + torch.arange(longest, device=self.device)).clamp(max=shape.tokens - 1)
        place = owners * longest + torch.arange(shape.tokens, device=self.device) - starts[owners]
        bias = torch.zeros(shape.batch, longest, shape.columns, dtype=self.dtype, device=self.device)
        bias = bias.masked_fill_(~visible[rows], -torch.inf)[:, None, :, None]
        bias = bias.expand(-1, -1, -1, self.group, -1).flatten(2, 3)  # query heads become further rows
        cos, sin = self._cos[positions], self._sin[positions]
        x = F.embedding(tokens, self.weights.embedding)
        for layer, (keys, values) in zip(self.weights.layers, self.pool.layers, strict=True):
            q, k, v = self._projected(layer, x, cos, sin)
            keys.index_copy_(0, slots, k)
            values.index_copy_(0, slots, v)
            q = q[rows].view(shape.batch, longest, c.kv_heads, self.group, c.head_dim).transpose(1, 2)
            q = q.reshape(shape.batch, c.kv_heads, longest * self.group, c.head_dim)
            out = F.scaled_dot_product_attention(q, keys[at].transpose(1, 2), values[at].transpose(1, 2), bias)
            out = out.reshape(shape.batch, c.kv_heads, longest, self.group, c.head_dim).transpose(1, 2)
            x = self._behind(layer, x, out.reshape(shape.batch * longest, -1)[place])
        return self.norm(x, self.weights.norm)[wanted]
