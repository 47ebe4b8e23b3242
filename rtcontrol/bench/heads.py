"""`rtcontrol bench heads`: what a decision costs by its number of heads, the same values in all.

All heads in one packed pass, beside a sequence of its own for each head (as engines without tree attention have it):
all of these in one ragged pass, or in turns. The values are whole numbers of three digits, shared out evenly; the
prompt's fresh tokens are those of a tick. What is timed is the runner's pass and reading every head's value off it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

from rtcontrol.bench.situations import Situation
from rtcontrol.bench.timing import Stopwatch, like, summaries
from rtcontrol.models.checkpoint.special_tokens import HEADS, closing, opening
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.decode.plan import ROOT, TokenTrie, TrieNode
from rtcontrol.models.decode.protocol import Ask, Tree, Work
from rtcontrol.models.runners.torch_runner import TorchRunner

WARM_UP = 5
VALUES = 120  # in all heads together
FIRST = 300  # the least of them
WAYS = ("packed", "separate_together", "separate_in_turn")
MOST = len(HEADS)


def tries(tokenizer: STTokenizer, heads: int) -> list[TokenTrie]:
    """Of so many heads, VALUES numbers in all."""
    found, value = [], FIRST
    for k in range(heads):
        name = HEADS[(k + 1) % len(HEADS)]  # content last
        trie = TokenTrie(tokenizer.special_id(opening(name)))
        for _ in range((VALUES - value + FIRST) // (heads - k)):
            trie.insert([*tokenizer.encode(str(value)), tokenizer.special_id(closing(name))], 0, value)
            value += 1
        found.append(trie)
    return found


class HeadsBench:
    """One model, sequences for each way."""

    def __init__(self, spec: DeciderSpec) -> None:
        self.decider = decider = spec.build()
        assert isinstance(decider.runner, TorchRunner)
        self.runner = decider.runner
        self.watch = Stopwatch(self.runner.model.device)
        self._prefix = decider.template.prefix_ids(decider.plan.tools)
        self._packed = self._handles(1)[0]
        self._together, self._in_turn = self._handles(MOST), self._handles(MOST)
        self._tries = {n: tries(decider.tokenizer, n) for n in range(1, MOST + 1)}
        self.nodes = {n: sum(len(trie.needed(1)) for trie in found) for n, found in self._tries.items()}

    def _handles(self, count: int) -> list[Any]:
        return [self.runner.copy(self.decider.decoding.handle, self._prefix) for _ in range(count)]

    def measure(self, heads: int, situation: Situation, before: Situation) -> tuple[dict[str, float], bool]:
        """(milliseconds by way, whether all ways gave the same values) for one situation after another one."""
        found, values = self._tries[heads], []
        columns = sorted({t for trie in found for leaf in trie.leaves for t in leaf})
        whole = _tree(found, columns)
        alone = [_tree([trie], columns) for trie in found]
        for handle in (self._packed, *self._together[:heads], *self._in_turn[:heads]):
            handle.start(self._prompt(before), 1)
            if handle.fresh:
                handle.prefill(handle.fresh)
        prompt = self._prompt(situation)
        for handle in (self._packed, *self._together[:heads], *self._in_turn[:heads]):
            handle.start(prompt, len(whole.tokens))

        def packed() -> list[Any]:
            rows = self.runner.run([Work(self._packed, whole)])[0][0]
            return _read(found, columns, rows)

        def together() -> list[Any]:
            work = [Work(handle, tree) for handle, tree in zip(self._together, alone, strict=False)]
            answers = self.runner.run(work)
            return [_read([trie], columns, own[0])[0] for trie, own in zip(found, answers, strict=True)]

        def in_turn() -> list[Any]:
            answers = [self.runner.run([Work(h, tree)]) for h, tree in zip(self._in_turn, alone, strict=False)]
            return [_read([trie], columns, own[0][0])[0] for trie, own in zip(found, answers, strict=True)]

        took = {}
        for way, run in zip(WAYS, (packed, together, in_turn), strict=True):
            value, one = self.watch.time(run)
            values.append(value)
            took[way] = one.wall_ms
        return took, values[0] == values[1] == values[2]

    def _prompt(self, situation: Situation) -> list[int]:
        return [*self._prefix, *self.decider.template.suffix_ids(situation.instruction, situation.observation)]


def _tree(found: Sequence[TokenTrie], columns: Sequence[int]) -> Tree:
    tokens: list[int] = []
    parents: list[int] = []
    depths: list[int] = []
    for trie in found:
        placed: dict[TrieNode, int] = {}
        for n in trie.needed(1):
            placed[n] = len(tokens)
            tokens.append(trie.token(n))
            parents.append(placed[n[:-1]] if n else -1)
            depths.append(len(n))
    return Tree(tokens, parents, depths, [Ask(range(len(tokens)), columns)])


def _read(found: Sequence[TokenTrie], columns: Sequence[int], rows: Sequence[Sequence[float]]) -> list[Any]:
    """The value that each head's trie leads to."""
    column, values, first = {t: i for i, t in enumerate(columns)}, list[Any](), 0
    for trie in found:
        needed = trie.needed(1)
        place = {n: first + i for i, n in enumerate(needed)}
        first += len(needed)
        node = ROOT
        while children := trie.legal_children(node, 1):
            scores = [rows[place[node]][column[t]] for t, _ in children] if len(children) > 1 else [0.0]
            node = children[scores.index(max(scores))][1]
        values.append(trie.leaves[node][0])
    return values


def bench_heads(
    spec: DeciderSpec, asked: Sequence[Situation], rounds: int, progress: Callable[[], None]
) -> dict[str, Any]:
    """Milliseconds by number of heads and way, taking turns in every round."""
    bench = HeadsBench(spec)
    raw: dict[str, dict[str, list[float]]] = {w: {str(n): [] for n in bench.nodes} for w in WAYS}
    same = list[bool]()
    with like(bench.runner) as threads:
        for turn in range(rounds + WARM_UP):
            for n in bench.nodes:
                at = turn % (len(asked) - 1)
                took, equal = bench.measure(n, asked[at + 1], asked[at])
                if turn >= WARM_UP:
                    same.append(equal)
                    for way, ms in took.items():
                        raw[way][str(n)].append(ms)
            gc.collect(1)
            if turn >= WARM_UP:
                progress()
    return {
        "ms": summaries(raw),
        "raw_ms": raw,
        "nodes": {str(n): count for n, count in bench.nodes.items()},
        "values": VALUES,
        "agreement": sum(same) / len(same),
        "threads": threads,
        "rounds": rounds,
        "info": bench.decider.info(),
    }
