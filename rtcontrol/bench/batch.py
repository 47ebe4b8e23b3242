"""`rtcontrol bench batch`: many decisions together, beside one alone and beside the bare forward of the same tokens."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rtcontrol.bench.situations import Situation
from rtcontrol.bench.timing import Stopwatch, like, summaries
from rtcontrol.models.decider import DeciderSpec, STDecider, decide_together
from rtcontrol.models.decode.protocol import Work
from rtcontrol.models.runners.packed import Node, PackedSequence
from rtcontrol.models.runners.torch_runner import TorchRunner
from rtcontrol.telemetry.histogram import Series

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
WARM_UP = 2
STRIDE = 7  # situations between one session's and the next one's
WAYS = ("sessions", "situations", "bare")
# The paper's table "Batch scaling efficiency (%)", its average over six models of 0.5 to 14 B parameters: time of a
# decoding step at B = 1 over that at B, on the authors' GPUs.
PAPER = dict(zip(SIZES, (100.0, 96.5, 96.3, 93.0, 87.9, 79.8, 66.8, 52.5), strict=True))


class BatchBench:
    """As many sessions as the largest batch, each at a tick of its own and with a second sequence for the floor."""

    def __init__(self, spec: DeciderSpec, asked: Sequence[Situation], most: int) -> None:
        self._asked = asked
        self.lone, self._many = spec.build(), spec.build()
        assert isinstance(self.lone.runner, TorchRunner)
        self.runner = self.lone.runner
        self.watch = Stopwatch(self.runner.model.device)
        self._sessions = [spec.build() for _ in range(most)]
        self._prefix = self.lone.template.prefix_ids(self.lone.plan.tools)
        self._floors = [self.runner.copy(self.lone.decoding.handle, self._prefix) for _ in range(most)]
        self._ticks = [STRIDE * i for i in range(most)]
        self._lone_tick = self._many_tick = 0
        tree = self.lone.decoding.core.begin().work
        assert tree is not None
        self._tree = tree

    def alone(self) -> float:
        """One session decides."""
        told = self._at(self._lone_tick)
        self._lone_tick += 1
        _, took = self.watch.time(lambda: self.lone.decide(*told))
        return took.wall_ms

    def together(self, size: int) -> dict[str, float]:
        """Milliseconds of `size` decisions: different `sessions`, `situations` of one, and the `bare` forward over the
        uncached tokens and first trees of the former."""
        told = [self._at(tick) for tick in self._ticks[:size]]
        for i in range(size):
            self._ticks[i] += 1
        pairs: list[tuple[STDecider, tuple[str, str, Sequence[str]]]] = [
            (session, (*one, ())) for session, one in zip(self._sessions, told, strict=False)
        ]
        found, took = self.watch.time(lambda: decide_together(pairs))
        for one in found:
            if isinstance(one, Exception):
                raise one
        passes, work = self._bare(told)
        _, bare = self.watch.time(lambda: [forward() for forward in passes])
        for floor, nodes in work:
            floor.ran(nodes)
        many = [self._at(self._many_tick + STRIDE * i) for i in range(size)]
        self._many_tick += 1
        _, one_session = self.watch.time(lambda: self._many.decide_many(many))
        return {"sessions": took.wall_ms, "bare": bare.wall_ms, "situations": one_session.wall_ms}

    def _at(self, tick: int) -> tuple[str, str]:
        one = self._asked[tick % len(self._asked)]
        return one.observation, one.instruction

    def _bare(
        self, told: Sequence[tuple[str, str]]
    ) -> tuple[list[Callable[[], Any]], list[tuple[PackedSequence, list[Node]]]]:
        model, most = self.runner.model, self.runner.caps.batch
        work, passes = [], list[Callable[[], Any]]()
        for floor, (seen, instruction) in zip(self._floors, told, strict=False):
            floor.start([*self._prefix, *self.lone.template.suffix_ids(instruction, seen)], len(self._tree.tokens))
            work.append((floor, floor.placed(Work(floor, self._tree))))
        for i in range(0, len(work), most):
            each = [floor.rows(nodes) for floor, nodes in work[i : i + most]]
            tokens = [t for own, _, _ in each for t in own]
            places = [p for _, own, _ in each for p in own]
            passes.append(partial(model.forward, tokens, places, [rows for _, _, rows in each]))
        self.tokens_each = round(
            sum(rows.count for floor, nodes in work for rows in [floor.rows(nodes)[2]]) / len(work)
        )
        return passes, work


def bench_batch(
    spec: DeciderSpec, asked: Sequence[Situation], sizes: Sequence[int], rounds: int, progress: Callable[[], None]
) -> dict[str, Any]:
    """Milliseconds by size and way, all taking turns in every round; `alone` is one session's decision."""
    bench = BatchBench(spec, asked, max(sizes))
    raw: dict[str, dict[str, list[float]]] = {way: {str(n): [] for n in sizes} for way in WAYS}
    alone: list[float] = []
    with like(bench.runner) as threads:
        for turn in range(rounds + WARM_UP):
            one = bench.alone()
            sized = {str(n): bench.together(n) for n in sizes}
            gc.collect(1)
            if turn >= WARM_UP:
                alone.append(one)
                for n, took in sized.items():
                    for way, ms in took.items():
                        raw[way][n].append(ms)
                progress()
    return {
        "alone_ms": Series(alone).summary(),
        "ms": summaries(raw),
        "raw_ms": {"alone": alone, **raw},
        "tokens_each": bench.tokens_each,
        "together": bench.runner.caps.batch,
        "threads": threads,
        "rounds": rounds,
        "info": bench.lone.info(),
    }
