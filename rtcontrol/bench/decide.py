"""`rtcontrol bench decide`: one packed pass against its own floor and against decoding token by token.

All ways decide the same observations, interleaved, each from the same cached tokens: those that the prompt shares with
the tick before. Times run from observation text to typed call, tokenising and parsing included; the floor is the bare
forward over the uncached prompt tokens and the active heads' tokens, without any trie node.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from rtcontrol.bench.hf_json import HFJson
from rtcontrol.models.call import Call
from rtcontrol.models.decider import DeciderSpec, STDecider
from rtcontrol.models.packed import Node, common_start
from rtcontrol.models.token_by_token import token_by_token
from rtcontrol.report.series import Series

WARM_UP = 10
HELD = 100.0  # logits
INSTRUCTION = "hover at 0.7"
WAYS = ("bare_forward", "one_pass", "token_by_token", "token_by_token_skip_forced", "hf_json")
Progress = Callable[[int], None]


@dataclass
class SchemaBench:
    """All ways of deciding for one schema, on one decider."""

    decider: STDecider
    hf: HFJson
    function: str | None = None  # hold every way to this function

    def __post_init__(self) -> None:
        engine: Any = self.decider.engine
        self.engine, self.sequence, self.decoder = engine, engine.sequence, engine._decoder
        self.prefix = self.decider.template.prefix_ids(self.decider.plan.tools)
        self._previous: list[int] = list(self.prefix)
        if self.function is not None:
            hold_to(self.decoder, self.function)

    def measure(self, observation: str, with_hf: bool) -> tuple[dict[str, float], dict[str, Any]]:
        """(milliseconds by way, counts) for one observation; advances to the next tick."""
        prompt = [*self.prefix, *self.decider.template.suffix_ids(INSTRUCTION, observation)]
        shared = common_start(prompt, self._previous)
        times: dict[str, float] = {}
        calls: list[Call | None] = []

        def clock(way: str, run: Callable[[], Any]) -> Any:
            self.sequence.start(self._previous, 1)
            if shared > self.sequence._done:
                self.sequence.run([])
            self.sequence.keep(shared)
            began = time.perf_counter()
            result = run()
            times[way] = (time.perf_counter() - began) * 1e3
            return result

        clock("bare_forward", self._bare(prompt, shared))
        decision = clock("one_pass", lambda: self.decider.decide(observation, INSTRUCTION))
        calls.append(decision.call)
        for way, skip in (("token_by_token", False), ("token_by_token_skip_forced", True)):
            (call, _), passes = clock(way, partial(self._token_by_token, observation, skip))
            calls.append(call)
            times[f"{way}_passes"] = passes
        if with_hf:
            self.hf.warm(prompt[:shared])
            clock("hf_json", lambda: self._hf_json(observation, decision.call))
        self._previous = prompt
        counts = {
            "agree": all(c == calls[0] for c in calls),
            "uncached_prompt_tokens": len(prompt) - shared,
            "packed_tokens": decision.tokens,
            "forward_passes": decision.forward_passes,
            "token_by_token_passes": times.pop("token_by_token_passes"),
            "token_by_token_skip_forced_passes": times.pop("token_by_token_skip_forced_passes"),
            "json_tokens": len(self.hf.json_ids(decision.call)),
        }
        return times, counts

    def _bare(self, prompt: Sequence[int], shared: int) -> Callable[[], Any]:
        heads = [h.head_id for h in self.decider.plan.heads if h.trie.needed(self.decider.plan.all_tools)]
        nodes = [Node(h, 0, ()) for h in heads]
        # Everything but the forward itself is prepared outside the clock: tokens, positions, mask.
        saved, self.sequence.prompt, self.sequence._done = self.sequence.prompt, list(prompt), shared
        mask = self.sequence._mask(shared, len(prompt) - shared, nodes)
        self.sequence.prompt = saved
        tokens = torch.tensor([*prompt[shared:], *heads])
        positions = torch.tensor([*range(shared, len(prompt)), *[len(prompt)] * len(heads)])
        return lambda: self.engine.model.forward(tokens, positions, shared, mask, len(prompt) - shared)

    def _token_by_token(self, observation: str, skip: bool) -> tuple[tuple[Call | None, int], int]:
        suffix = self.decider.template.suffix_ids(INSTRUCTION, observation)
        self.sequence.start([*self.prefix, *suffix], 64)
        return token_by_token(self.decoder, skip), self.sequence.forward_passes

    def _hf_json(self, observation: str, call: Call) -> Call:
        suffix = self.decider.template.suffix_ids(INSTRUCTION, observation)
        return self.hf.generate([*self.prefix, *suffix], call)


def hold_to(decoder: Any, function: str) -> None:
    """Make the decoder prefer `function`, whatever the model says: its tokens' logits are raised in every row.

    All ways read their logits here, so all decide by the same ones.
    """
    trie = decoder.plan.function.trie
    node = next(n for n, value in trie.leaves.items() if value[0] == decoder.plan.tool_index(function))
    columns = []
    while node >= 0:
        if trie.tokens[node] in decoder.walker.column:
            columns.append(decoder.walker.column[trie.tokens[node]])
        node = trie.parents[node]
    logits = decoder.logits

    def raised(hidden: Any) -> Any:
        rows = logits(hidden)
        for row in rows:
            for column in columns:
                row[column] += HELD
        return rows

    decoder.logits = raised


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
