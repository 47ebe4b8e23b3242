"""`rtcontrol bench decide`: one packed pass against its own floor and against decoding token by token.

Every way is a session of its own on one model; all decide the same situations in turns (who begins changes from one to
the next), each from the tokens that the prompt shares with its tick before. Times run from observation text to typed
call, tokenising and parsing included; the floor is the bare forward that holds the uncached prompt tokens and the nodes
that this call's own walk goes by, and no other, with everything but the forward prepared outside the clock.
"""

from __future__ import annotations

import gc
import importlib
import json
from collections.abc import Callable, Sequence
from functools import partial
from importlib import resources
from itertools import cycle
from typing import Any

import numpy as np
import torch

from rtcontrol.bench.json_writer import HFJson, JsonWriter
from rtcontrol.bench.situations import Situation
from rtcontrol.bench.timing import Stopwatch, Took, Turns, like, rotated, tail
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.decider import DeciderSpec, STDecider
from rtcontrol.models.decode.core import common_start
from rtcontrol.models.decode.protocol import Budget, Work
from rtcontrol.models.decode.walk import Entry
from rtcontrol.models.runners.packed import Node
from rtcontrol.models.runners.torch_runner import DTYPES, TorchRunner
from rtcontrol.telemetry.run_folder import version

SIMTHINKD = "simthinkd"


def simthinkd() -> Callable[[], Any] | None:
    """One decision of its bundled model on the next of its own recorded states, text to choice; None where it is not
    installed (`pip install simthinkd`)."""
    if version(SIMTHINKD) is None:
        return None
    decider = importlib.import_module(SIMTHINKD).Decider("doom-defend")
    states = resources.files(SIMTHINKD).joinpath("data/doom_defend_states.json").read_text("utf-8")
    bodies = cycle([row["body"] for row in json.loads(states)["rows"]])
    return lambda: decider.predict(next(bodies))


WARM_UP = 10
HELD = 100.0  # logits
TOKEN_BY_TOKEN = {"token_by_token": Budget(1, forced=True), "token_by_token_skip_forced": Budget(1)}
SLOW = ("json", "json_skip_forced", "hf_json")  # measured with every so manieth situation
WAYS = ("bare_forward", "one_pass", *TOKEN_BY_TOKEN, *SLOW, "simthinkd")
Progress = Callable[[int], None]


class HeldRunner:
    """A runner that makes a session prefer one function, whatever the model says: its tokens' scores are raised."""

    def __init__(self, decider: STDecider, function: str) -> None:
        self._inner = decider.runner
        plan, column = decider.plan, decider.decoding.core.walker.column
        trie = plan.function.trie
        leaf = next(n for n, value in trie.leaves.items() if value[0] == plan.tool_index(function))
        self._columns = [column[token] for token in leaf if token in column]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def run(self, batch: Sequence[Work]) -> list[list[Any]]:
        """The runner's answers, with the scores raised."""
        found = self._inner.run(batch)
        for work, answers in zip(batch, found, strict=True):
            for ask, rows in zip(work.tree.asks, answers, strict=True):
                for row in rows if ask.ids else ():
                    for i in self._columns:
                        row[i] += HELD
        return found


class DecideBench:
    """All ways of deciding for one list of tools; `function` holds every way to one of them."""

    def __init__(self, spec: DeciderSpec, function: str | None = None) -> None:
        self.decider, self._scout = self._session(spec, function), self._session(spec, function)
        assert isinstance(self.decider.runner, TorchRunner)
        self.runner = self.decider.runner
        self.prefix = self.decider.template.prefix_ids(self.decider.plan.tools)
        self._ways = {"one_pass": self.decider}
        for way, budget in TOKEN_BY_TOKEN.items():
            self._ways[way] = self._session(spec, function)
            self._ways[way].decoding.core.set_budget(budget)
        self._floor = self.runner.copy(self.decider.decoding.handle, self.prefix)
        told, tools = self.decider.tokenizer, self.decider.plan.tools
        self._json = {
            "json": JsonWriter(self.runner, told, tools, self.prefix, skip=False),
            "json_skip_forced": JsonWriter(self.runner, told, tools, self.prefix, skip=True),
        }
        model = self.runner.model
        dtype = DTYPES[self.runner.caps.dtype]
        dtype = dtype if dtype.is_floating_point else torch.float32
        self._hf = HFJson(self.decider.checkpoint.folder, told, dtype, model.device)
        self._neighbour = simthinkd()
        self._watch = Stopwatch(model.device)
        self._previous: list[int] = list(self.prefix)
        self._round = 0

    @staticmethod
    def _session(spec: DeciderSpec, function: str | None) -> STDecider:
        made = spec.build()
        if function is not None:
            made.decoding.runner = HeldRunner(made, function)
        return made

    def worst(self, situation: Situation) -> dict[str, Took]:
        """What one pass and its floor took for one situation."""
        told = (situation.observation, situation.instruction)
        self._scout.decide(*told)
        self._floor.start(self._prompt(situation), len(walked := self._walked()))
        runs: dict[str, Callable[[], Any]] = {"bare_forward": self._bare(walked)}
        runs["one_pass"] = partial(self.decider.decide, *told)
        took = {way: self._watch.time(run)[1] for way, run in runs.items()}
        self._floor.ran(walked)
        return took

    def measure(self, situation: Situation, slow: bool) -> tuple[dict[str, Took], dict[str, Any]]:
        """(what each way took, counts) for one situation; advances to the next tick."""
        told = (situation.observation, situation.instruction)
        prompt = self._prompt(situation)
        shared = min(common_start(prompt, self._previous), len(prompt) - 1)
        known = self._scout.decide(*told)  # which nodes the floor holds, before anything is measured
        walked, call = self._walked(), known.call
        assert call is not None, "the benches' agents always call"
        self._floor.start(prompt, len(walked))
        runs: dict[str, Callable[[], Any]] = {"bare_forward": self._bare(walked)}
        for way, decider in self._ways.items():
            runs[way] = partial(decider.decide, *told)
        if slow:
            self._hf.warm(prompt[:shared])
            for way, writer in self._json.items():
                runs[way] = partial(self._write, writer.write, situation, call)
            runs["hf_json"] = partial(self._write, self._hf.generate, situation, call)
        if self._neighbour is not None:
            runs["simthinkd"] = self._neighbour
        order = rotated(runs, -self._round)
        self._round += 1
        took: dict[str, Took] = {}
        found: dict[str, Any] = {}
        for way in order:
            found[way], took[way] = self._watch.time(runs[way])
        self._floor.ran(walked)
        self._previous = prompt
        decided: dict[str, Decision] = {way: found[way] for way in self._ways}
        written: list[Call] = [found[way] for way in SLOW if way in found]
        counts = {
            "agree": all(c == call for c in (*(d.call for d in decided.values()), *written)),
            "uncached_prompt_tokens": len(prompt) - decided["one_pass"].reused_tokens,
            "packed_tokens": decided["one_pass"].tokens,
            "floor_tokens": len(prompt) - decided["one_pass"].reused_tokens + len(walked),
            **{f"{way}_passes": decision.forward_passes for way, decision in decided.items()},
            "least_tokens": decided["token_by_token_skip_forced"].tokens,
            **{f"{way}_passes": self._json[way].passes for way in self._json if slow},
            **({"hf_json_passes": len(self._hf.json_ids(call))} if slow else {}),
        }
        return took, counts

    def _write(self, write: Callable[..., Call], situation: Situation, call: Call) -> Call:
        return write(self._prompt(situation), call)

    def _prompt(self, situation: Situation) -> list[int]:
        return [*self.prefix, *self.decider.template.suffix_ids(situation.instruction, situation.observation)]

    def _walked(self) -> list[Node]:
        """The nodes that the scout's walk chose at, and what leads to them."""
        nodes: list[Node] = []
        placed: dict[Entry, tuple[int, ...]] = {}
        for k, n in self._scout.decoding.visited:
            trie = self.decider.plan.heads[k].trie
            above: tuple[int, ...] = ()
            for node in (n[:end] for end in range(len(n) + 1)):
                if (k, node) not in placed:
                    placed[k, node] = (*above, len(nodes))
                    nodes.append(Node(trie.token(node), len(node), above))
                above = placed[k, node]
        return nodes

    def _bare(self, nodes: Sequence[Node]) -> Callable[[], Any]:
        tokens, places, rows = self._floor.rows(nodes)
        return lambda: self.runner.model.forward(tokens, places, [rows])


def bench_tools(
    spec: DeciderSpec,
    asked: Sequence[Situation],
    every_slow: int,
    progress: Progress,
    function: str | None = None,
    full: int | None = None,
) -> dict[str, Any]:
    """Raw milliseconds, percentiles, ratios and the tail for one list of tools; `function` holds all ways to one. What
    comes after the first `full` situations is decided by one pass and its floor alone, for the tail."""
    full = len(asked) if full is None else full
    bench = DecideBench(spec, function)
    turns = Turns(WAYS, WARM_UP)
    raw = turns.raw
    cpu: dict[str, list[float]] = {way: [] for way in WAYS}
    counts: list[dict[str, Any]] = []
    with like(bench.runner) as threads:
        for i, situation in turns.over(asked[:full]):
            took, count = bench.measure(situation, i < WARM_UP or i % every_slow == 0)
            progress(1)
            turns.add({way: one.wall_ms for way, one in took.items()})
            if turns.counted:
                counts.append(count)
                for way, one in took.items():
                    cpu[way].append(one.cpu_ms)
        worst = {way: ([*raw[way]], [*cpu[way]]) for way in ("one_pass", "bare_forward")}
        for situation in asked[full:]:
            for way, one in bench.worst(situation).items():
                worst[way][0].append(one.wall_ms)
                worst[way][1].append(one.cpu_ms)
            gc.collect(1)
            progress(1)
    figures = turns.figures()
    p50 = {way: one["p50"] for way, one in figures["ms"].items()}
    names = dict.fromkeys(name for count in counts for name in count if name != "agree")
    return {
        **figures,
        "raw_cpu_ms": cpu,
        "raw_worst_ms": worst,
        "ratios": {
            "one_pass_over_bare_forward": round(p50["one_pass"] / p50["bare_forward"], 3),
            **{f"{way}_over_one_pass": round(p50[way] / p50["one_pass"], 3) for way in p50 if way in WAYS[2:]},
        },
        "tail": {way: tail(*both) for way, both in worst.items()},
        "tokens": {k: float(np.median([c[k] for c in counts if k in c])) for k in names},
        "agreement": float(np.mean([c["agree"] for c in counts])),
        "decisions": len(counts),
        "threads": threads,
        "info": bench.decider.info(),
    }
