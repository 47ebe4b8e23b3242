"""`rtcontrol bench decide`: one packed pass against its own floor and against decoding token by token.

All ways decide the same observations, interleaved, each from the same cached tokens: those that the prompt shares with
the tick before. Times run from observation text to typed call, tokenising and parsing included; the floor is the bare
forward that holds the uncached prompt tokens and the nodes that this call's own walk goes by, and no other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rtcontrol.bench.hf_json import HFJson
from rtcontrol.models.call import Call
from rtcontrol.models.decider import DeciderSpec, STDecider
from rtcontrol.models.engines.base import Budget
from rtcontrol.models.packed import Node, common_start
from rtcontrol.report.series import Series

WARM_UP = 10
HELD = 100.0  # logits
INSTRUCTION = "hover at 0.7"
TOKEN_BY_TOKEN = {"token_by_token": Budget(1, forced=True), "token_by_token_skip_forced": Budget(1)}
WAYS = ("bare_forward", "one_pass", *TOKEN_BY_TOKEN, "hf_json")
Progress = Callable[[int], None]


@dataclass
class SchemaBench:
    """All ways of deciding for one schema, on one decider."""

    decider: STDecider
    hf: HFJson
    function: str | None = None  # hold every way to this function

    def __post_init__(self) -> None:
        engine: Any = self.decider.engine
        self.engine, self.sequence, self.core = engine, engine.sequence, engine.core
        self.prefix = self.decider.template.prefix_ids(self.decider.plan.tools)
        self._budget = self.core.passes.budget
        self._previous: list[int] = list(self.prefix)
        if self.function is not None:
            hold_to(engine, self.function)

    def measure(self, observation: str, with_hf: bool) -> tuple[dict[str, float], dict[str, Any]]:
        """(milliseconds by way, counts) for one observation; advances to the next tick."""
        prompt = [*self.prefix, *self.decider.template.suffix_ids(INSTRUCTION, observation)]
        shared = common_start(prompt, self._previous)
        times: dict[str, float] = {}

        def clock(way: str, run: Callable[[], Any]) -> Any:
            self.sequence.start(self._previous, 1)
            if shared > self.sequence._done:
                self.sequence.run([])
            self.sequence.keep(shared)
            began = time.perf_counter()
            result = run()
            times[way] = (time.perf_counter() - began) * 1e3
            return result

        def decide() -> Any:
            return self.decider.decide(observation, INSTRUCTION)

        decision = clock("one_pass", decide)
        walked = self._walked()
        clock("bare_forward", self._bare(prompt, shared, walked))
        calls, passes = [decision.call], {}
        for way, budget in TOKEN_BY_TOKEN.items():
            self.core.set_budget(budget)
            found = clock(way, decide)
            calls.append(found.call)
            passes[f"{way}_passes"] = found.forward_passes
        self.core.set_budget(self._budget)
        if with_hf:
            self.hf.warm(prompt[:shared])
            clock("hf_json", lambda: self._hf_json(observation, decision.call))
        self._previous = prompt
        counts = {
            "agree": all(c == calls[0] for c in calls),
            "uncached_prompt_tokens": len(prompt) - shared,
            "packed_tokens": decision.tokens,
            "floor_tokens": len(prompt) - shared + len(walked),
            "forward_passes": decision.forward_passes,
            **passes,
            "json_tokens": len(self.hf.json_ids(decision.call)),
        }
        return times, counts

    def _walked(self) -> list[Node]:
        """The nodes that the last call's walk chose at, and what leads to them."""
        nodes: list[Node] = []
        placed: dict[tuple[int, int], tuple[int, ...]] = {}
        for k, n in self.engine.visited:
            trie = self.decider.plan.heads[k].trie
            path = [n]
            while trie.parents[path[-1]] >= 0:
                path.append(trie.parents[path[-1]])
            above: tuple[int, ...] = ()
            for node in reversed(path):
                if (k, node) not in placed:
                    placed[k, node] = (*above, len(nodes))
                    nodes.append(Node(trie.tokens[node], trie.depths[node], above))
                above = placed[k, node]
        return nodes

    def _bare(self, prompt: Sequence[int], shared: int, nodes: Sequence[Node]) -> Callable[[], Any]:
        # Everything but the forward itself is prepared outside the clock: tokens, positions, mask.
        saved, self.sequence.prompt, self.sequence._done = self.sequence.prompt, list(prompt), shared
        mask = self.sequence._mask(shared, len(prompt) - shared, nodes)
        self.sequence.prompt = saved
        tokens = torch.tensor([*prompt[shared:], *(n.token for n in nodes)])
        positions = torch.tensor([*range(shared, len(prompt)), *(len(prompt) + n.depth for n in nodes)])
        return lambda: self.engine.model.forward(tokens, positions, shared, mask, len(prompt) - shared)

    def _hf_json(self, observation: str, call: Call) -> Call:
        suffix = self.decider.template.suffix_ids(INSTRUCTION, observation)
        return self.hf.generate([*self.prefix, *suffix], call)


def hold_to(engine: Any, function: str) -> None:
    """Make the engine prefer `function`, whatever the model says: its tokens' scores are raised in every row.

    All ways read their scores here, so all decide by the same ones.
    """
    plan, column = engine.core.plan, engine.core.walker.column
    trie = plan.function.trie
    node = next(n for n, value in trie.leaves.items() if value[0] == plan.tool_index(function))
    columns = []
    while node >= 0:
        if trie.tokens[node] in column:
            columns.append(column[trie.tokens[node]])
        node = trie.parents[node]
    plain = engine.answers

    def answers(hidden: Any, asks: Any) -> Any:
        found = plain(hidden, asks)
        for ask, rows in zip(asks, found, strict=True):
            for row in rows if ask.masks is None else ():
                for i in columns:
                    row[i] += HELD
        return found

    engine.answers = answers


def bench_schema(
    model: str,
    tools: Sequence[dict[str, Any]],
    observations: Sequence[str],
    every_hf: int,
    progress: Progress,
    function: str | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """Raw milliseconds, percentiles and ratios for one schema; `function` holds all ways to one function."""
    decider = DeciderSpec(model, tuple(tools), **spec).build()
    bench = SchemaBench(decider, HFJson(decider.checkpoint.folder, decider.tokenizer), function)
    raw: dict[str, list[float]] = {way: [] for way in WAYS}
    counts: list[dict[str, Any]] = []
    for i, observation in enumerate(observations):
        times, count = bench.measure(observation, i < WARM_UP or i % every_hf == 0)
        progress(1)
        if i >= WARM_UP:
            counts.append(count)
            for way, value in times.items():
                raw[way].append(value)
    summary: dict[str, Any] = {way: Series(values).summary() for way, values in raw.items()}
    p50 = {way: s["p50"] for way, s in summary.items()}
    return {
        "ms": summary,
        "raw_ms": raw,
        "ratios": {
            "one_pass_over_bare_forward": p50["one_pass"] / p50["bare_forward"],
            "token_by_token_over_one_pass": p50["token_by_token"] / p50["one_pass"],
            "token_by_token_skip_forced_over_one_pass": p50["token_by_token_skip_forced"] / p50["one_pass"],
            "hf_json_over_one_pass": p50["hf_json"] / p50["one_pass"],
        },
        "tokens": {k: float(np.median([c[k] for c in counts])) for k in counts[0] if k != "agree"},
        "agreement": float(np.mean([c["agree"] for c in counts])),
        "decisions": len(counts),
        "info": decider.info(),
    }
