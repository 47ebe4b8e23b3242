"""How long the calls of the forms take, each decoded by what would serve it, and how often they are right so: heads by
the tree decoder, JSON a token a pass, and JSON under the tools' grammar, whose forced text takes no pass."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rtcontrol.evaluation.answerers import HeadsAnswerer
from rtcontrol.evaluation.experiments import corpus
from rtcontrol.evaluation.experiments.corpus import CorpusOptions, CorpusSample
from rtcontrol.evaluation.experiments.judging import HELD
from rtcontrol.evaluation.experiments.kept import KeptRun
from rtcontrol.evaluation.json_calls import JsonAnswerer
from rtcontrol.evaluation.options import ModelOptions
from rtcontrol.models.data.row import DataRow
from rtcontrol.models.data.stats import Tokens, call_json, head_texts
from rtcontrol.models.schema.tool_schema import ToolSchema, tool_schemas

WARM_UP = 5
ROWS = 200
HEADS, JSON, GRAMMAR = "heads", "JSON", "JSON, grammar"


def run(heads: KeptRun, json: KeptRun, folder: Path) -> dict[str, Any]:
    """The ways take turns on the same rows, one thread. Of each: milliseconds from text to typed call (p50, p90, p99),
    mean passes, how many are right; and the tokens of the longest head and of the JSON call, means."""
    ways: Mapping[str, Any] = {
        HEADS: HeadsAnswerer(ModelOptions(str(heads.checkpoint()), threads=1)),
        JSON: JsonAnswerer(ModelOptions(str(json.checkpoint()), "json", threads=1)),
        GRAMMAR: JsonAnswerer(ModelOptions(str(json.checkpoint()), "json", threads=1, grammar=True)),
    }
    samples = list(itertools.islice(corpus.samples(HELD, CorpusOptions(held_out=True)), ROWS + WARM_UP))
    seen: dict[str, list[Any]] = {way: [] for way in ways}
    right = dict.fromkeys(ways, 0)
    for n, sample in enumerate(samples):
        row, order = _row(n, sample), [*ways]
        for way in (*order[n % 3 :], *order[: n % 3]):
            began = time.perf_counter()
            made = ways[way].answer(row)
            took_ms = (time.perf_counter() - began) * 1e3
            if n >= WARM_UP:
                seen[way].append((took_ms, made.passes))
                right[way] += any(call in sample.allowed for call in made.calls)
    tools = {tool.name: tool for tool in tool_schemas(corpus.tools())}
    counted = [_tokens(ways[HEADS].tokens, ways[JSON].tokens, s, tools) for s in samples[WARM_UP:]]
    longest, written = np.array(counted).mean(0)
    found = {way: _told(values, right[way]) for way, values in seen.items()}
    return {
        "rows": ROWS,
        "ways": found,
        "longest_head": round(float(longest), 3),
        "json_tokens": round(float(written), 3),
    }


def _row(n: int, sample: CorpusSample) -> DataRow:
    name = f"corpus_{n}"
    return DataRow(name, name, "corpus", sample.instruction, sample.observation, tuple(corpus.tools()), (), sample.call)


def _tokens(heads: Tokens, json: Tokens, sample: CorpusSample, tools: Mapping[str, ToolSchema]) -> tuple[int, int]:
    texts = head_texts(sample.call, tools[sample.call.name], compact=True)
    return max(map(heads.of, texts)), json.of(call_json(sample.call))


def _told(values: list[tuple[float, int]], right: int) -> dict[str, float]:
    ms, passes = np.array(values, float).T
    p50, p90, p99 = np.percentile(ms, (50, 90, 99))
    told = {"p50_ms": p50, "p90_ms": p90, "p99_ms": p99, "passes": passes.mean(), "right": right}
    return {name: round(float(value), 3) for name, value in told.items()}
