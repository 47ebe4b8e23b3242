"""The default engine: our own lean forward over safetensors, one packed pass a decision."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from rtcontrol.models.call import Decision
from rtcontrol.models.core import Ask, Deciding, DecoderCore, Drafts
from rtcontrol.models.engines.base import Budget, Cancelled, NotFinite, PrefixInfo
from rtcontrol.models.engines.lean import LeanModel
from rtcontrol.models.engines.prefix_store import PrefixStore, prefix_key
from rtcontrol.models.engines.ragged import Part, RaggedBatch
from rtcontrol.models.engines.weights import ModelConfig, fingerprint, load_weights
from rtcontrol.models.errors import UserError
from rtcontrol.models.free import MAX_TOKENS
from rtcontrol.models.layout import choose_layout, has_choice, measure_cost
from rtcontrol.models.packed import Node, PackedSequence
from rtcontrol.models.plan import SchemaPlan
from rtcontrol.models.tokenizer import STTokenizer

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SMALL = 100_000_000  # bytes of fp32 weights below which bf16 gains too little on a CPU to give up exactness
SLOTS = 8192
TOGETHER = 64  # decisions of one batch
# A long prompt in slices: so many tokens, and fewer where they take longer than so many seconds.
SLICE, LEAST_SLICE, SLICE_S = 64, 4, 0.008


def choose_dtype(name: str, folder: Path, device: torch.device) -> torch.dtype:
    """`auto`: bf16 on a GPU and for large models, fp32 for small ones on a CPU."""
    if name == "auto":
        size = sum(p.stat().st_size for p in folder.glob("*.safetensors"))
        name = "bf16" if device.type == "cuda" or size > SMALL else "fp32"
    if name not in DTYPES:
        raise UserError(f"Unknown dtype {name!r}.", f"Choose auto, {', '.join(DTYPES)}.")
    return DTYPES[name]


@dataclass
class Evaluating:
    """A decision under way and what its nodes gave; `fresh` tokens of its prompt are computed for it."""

    deciding: Deciding
    reused: int
    fresh: int
    hidden: list[torch.Tensor] = field(default_factory=list)
    _paths: list[tuple[int, ...]] = field(default_factory=list)

    def nodes(self, base: int) -> list[Node]:
        """The next tree, to be put at the slots from `base`."""
        tree, paths = self.deciding.work, self._paths
        assert tree is not None
        found = []
        for i, (token, parent, depth) in enumerate(zip(tree.tokens, tree.parents, tree.depths, strict=True)):
            above = paths[parent] if parent >= 0 else ()
            paths.append((*above, base + i))
            found.append(Node(token, depth, above))
        return found

    def part(self, suffix: Sequence[int]) -> Part:
        """The next tree behind a suffix, which goes before the first."""
        tree, end = self.deciding.work, len(suffix)
        assert tree is not None
        parents = [p + end if p >= 0 else end - 1 for p in tree.parents]
        depths = [end + d for d in tree.depths]
        if self.hidden:
            return Part(tree.tokens, parents, depths)
        return Part([*suffix, *tree.tokens], [*range(-1, end - 1), *parents], [*range(end), *depths])

    def decision(self) -> Decision:
        made = self.deciding.decision
        assert made is not None
        fresh = self.fresh if made.forward_passes else 0
        return replace(made, tokens=made.tokens + fresh, reused_tokens=self.reused)


class TorchEngine:
    """Qwen2/2.5/3 and Llama dense checkpoints on one CPU or GPU."""

    name = "torch"

    def __init__(
        self,
        folder: Path,
        tokenizer: STTokenizer,
        dtype: str = "auto",
        device: str | None = None,
        budget: Budget | None = None,  # None: its layout is chosen by the measured cost of a pass
        store: PrefixStore | None = None,
    ) -> None:
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.dtype = choose_dtype(dtype, folder, self.device)
        config = ModelConfig.load(folder)
        weights = load_weights(folder, config, self.dtype, self.device)
        self.model = LeanModel(config, weights, min(SLOTS, config.context))
        self.sequence = PackedSequence(self.model)
        self._folder, self._tokenizer, self._budget = folder, tokenizer, budget
        self._store = store or PrefixStore()
        self._stop = threading.Event()
        self._prefix: list[int] = []
        self.core: DecoderCore | None = None
        self._drafts = Drafts()
        self._last: Evaluating | None = None
        self._chosen: dict[str, Any] = {}  # the layout, and what it was chosen by

    def load_prefix(self, ids: Sequence[int], plan: SchemaPlan) -> PrefixInfo:
        """Take the prefix's KV from disk, or compute and store it; compile the plan."""
        config, n = self.model.config, len(ids)
        self._prefix = list(ids)
        self.sequence.forget()
        self.sequence.start(self._prefix, reserve=1)
        key = prefix_key(fingerprint(self._folder), ids, self.dtype, config.settings)
        found = self._store.load(key, (config.layers, 1, config.kv_heads, n, config.head_dim))
        note = found if isinstance(found, str) else None
        if isinstance(found, tuple):
            self.model.keys[..., :n, :] = found[0].to(self.device)
            self.model.values[..., :n, :] = found[1].to(self.device)
            self.sequence.restore(self._prefix)
        elif n:
            self.sequence.run([])
            refused = self._store.save(key, self.model.keys[..., :n, :], self.model.values[..., :n, :])
            note = note or refused
        self.core = core = DecoderCore(plan, self._tokenizer, config.vocabulary, self._budget)
        columns = torch.tensor(core.columns or (0,), device=self.device)
        self._columns, self._rows = columns, self.model.weights.lm_head[columns]
        self._chosen = {} if self._budget else self._choose(core)
        source = "disk" if isinstance(found, tuple) else "computed"
        return PrefixInfo(n, source, note)

    def _choose(self, core: DecoderCore) -> dict[str, Any]:
        limit = Budget()
        if not has_choice(core.plan, core.walker, limit):
            return {"layout": "everything"}
        cost = measure_cost(self.sequence)
        budget, found = choose_layout(core.plan, core.walker, cost, limit)
        core.set_budget(budget)
        return {**found, "pass_ms": round(cost.fixed_ms, 3), "token_ms": round(cost.token_ms, 4)}

    def decode(self, suffix: Sequence[int]) -> Decision:
        """One decision after prefix + `suffix`."""
        under_way = self._begin(suffix)
        for _ in self._evaluate(under_way):
            pass
        return under_way.decision()

    def decode_in_steps(self, suffix: Sequence[int], sliced: bool) -> Generator[None, None, Decision]:
        """`decode`, which may be left alone wherever it yields: between passes, and `sliced` after every few
        milliseconds of a long prompt."""
        under_way, size = self._begin(suffix), SLICE
        while sliced and self.sequence.fresh > size:
            began = time.perf_counter()
            self.sequence.prefill(size)
            took = time.perf_counter() - began
            size = min(max(int(size * SLICE_S / took), LEAST_SLICE), SLICE)
            yield
        yield from self._evaluate(under_way)
        return under_way.decision()

    def decode_many(self, suffixes: Sequence[Sequence[int]]) -> list[Decision]:
        """Decide after prefix + each suffix in the same passes; equal to deciding each alone."""
        core = self._ready()
        self.sequence.start(self._prefix, reserve=1)
        if self.sequence.fresh:
            self.sequence.run(())
        made: list[Decision] = []
        with self._distrusting():
            for i in range(0, len(suffixes), TOGETHER):
                made += self._decode_together(core, suffixes[i : i + TOGETHER])
        return made

    def _decode_together(self, core: DecoderCore, suffixes: Sequence[Sequence[int]]) -> list[Decision]:
        under_way = [Evaluating(core.begin(), len(self._prefix), len(ids)) for ids in suffixes]
        room = max(len(ids) for ids in suffixes) + 2 * len(core.passes.first)
        batch = RaggedBatch(self.model, len(self._prefix), len(suffixes), room)
        while working := [i for i, u in enumerate(under_way) if u.deciding.work is not None]:
            if self._stop.is_set():
                raise Cancelled
            hidden = batch.run([(i, under_way[i].part(suffixes[i])) for i in working])
            for i, rows in zip(working, hidden, strict=True):
                self._feed(under_way[i], rows)
        return [u.decision() for u in under_way]

    def _begin(self, suffix: Sequence[int]) -> Evaluating:
        core, prompt = self._ready(), [*self._prefix, *suffix]
        _, reused = self.sequence.start(prompt, reserve=len(core.passes.first))
        room = self.sequence.room - len(core.passes.first)
        drafts = self._drafts if room > 2 * MAX_TOKENS * len(core.plan.heads) else None  # a guess must not be too long
        self._last = Evaluating(core.begin(drafts), reused, len(prompt) - reused)
        return self._last

    def _ready(self) -> DecoderCore:
        if self.core is None:
            raise RuntimeError("decode before load_prefix")
        self._stop.clear()
        return self.core

    def _evaluate(self, under_way: Evaluating) -> Iterator[None]:
        """Packed passes until it is decided; yields between them."""
        with self._distrusting():
            while under_way.deciding.work is not None:
                if self._stop.is_set():
                    raise Cancelled
                self._feed(under_way, self.sequence.run(under_way.nodes(self.sequence.nodes)))
                yield

    def _feed(self, under_way: Evaluating, hidden: torch.Tensor) -> None:
        """The hidden states [rows, hidden] of a pass; its tree's are the last ones."""
        tree = under_way.deciding.work
        assert tree is not None
        own = hidden[len(hidden) - len(tree.tokens) :]
        under_way.hidden.append(own)
        under_way.deciding.feed(self.answers(own, tree.asks))

    def answers(self, hidden: torch.Tensor, asks: Sequence[Ask]) -> list[Any]:
        """What is asked at hidden states [nodes, hidden]: fp32 scores, or the best of all legal ones."""
        found: list[Any] = []
        masked = sorted({n for ask in asks if ask.masks is not None for n in ask.nodes})
        scores = self.model.logits(hidden[masked]).double() if masked else hidden
        for ask in asks:
            if ask.masks is None:
                found.append(self.model.logits(hidden[: len(ask.nodes)], self._rows).tolist())
                continue
            rows = scores[[masked.index(n) for n in ask.nodes]]
            rows = rows.masked_fill(~torch.from_numpy(ask.masks).to(self.device), -torch.inf)
            best = rows.amax(-1, keepdim=True)
            ids = (rows == best).int().argmax(-1)  # the first of equals, as in every other place
            share = 1.0 / (rows - best).exp().sum(-1)
            found.append(list(zip(ids.tolist(), share.tolist(), strict=True)))
        return found

    @property
    def visited(self) -> Sequence[tuple[int, int]]:
        """(head, trie node) of the choices that led to the last call."""
        return () if self._last is None else self._last.deciding.visited

    def outside_mass(self) -> float:
        """The largest probability outside the union trie over the nodes that led to the last call. Raises NotFinite."""
        if self._last is None or not self._last.deciding.visited:
            return 0.0
        deciding = self._last.deciding
        hidden = torch.cat(self._last.hidden)
        places = [deciding.heads[k].slots[n] for k, n in deciding.visited]
        total = torch.logsumexp(self.model.logits(hidden[places]), -1).tolist()
        if not math.isfinite(sum(total)):
            self.sequence.forget()
            raise NotFinite
        worst = 0.0
        for (k, n), lse in zip(deciding.visited, total, strict=True):
            row, walker = deciding.heads[k].rows[n], deciding.core.walker
            children = deciding.plan.heads[k].trie.children[n]
            worst = max(worst, 1.0 - math.fsum(math.exp(row[walker.column[t]] - lse) for t in children))
        return max(0.0, worst)

    @contextmanager
    def _distrusting(self) -> Iterator[None]:
        """What scores that are not finite came from is not used again: the next decision computes its whole prompt."""
        try:
            yield
        except NotFinite:
            self.sequence.forget()
            raise

    def cancel(self) -> None:
        """Stop the decision in flight before its next pass."""
        self._stop.set()

    def supports(self) -> dict[str, Any]:
        return {
            "device": str(self.device),
            "dtype": next(k for k, v in DTYPES.items() if v == self.dtype),
            "parameters": self.model.weights.parameters,
            "free_values": True,
            "batch": True,
            "exact": True,
            "budget": self._chosen or ({} if self._budget is None else asdict(self._budget)),
        }
