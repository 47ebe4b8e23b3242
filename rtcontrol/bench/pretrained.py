"""`rtcontrol bench pretrained`: one packed pass of a pretrained model beside bare forwards of the same tokens.

All ways and dtypes decide the same situations in turns, in one process, each right after a forward of its own weights.
*One pass* is a whole decision, text to typed call. Its floor, the *bare forward*, takes the same tokens behind the same
cached ones through our layers, without masks and without scores; what the last layer leaves out, it leaves out, too.
Hugging Face's forwards take these tokens as a plain sequence behind a cache of the same length: as they come (sdpa, no
gradients), and with the scores of one token.
"""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rtcontrol.bench.dtype import TOLERANCE, margin
from rtcontrol.bench.situations import Situation
from rtcontrol.bench.timing import Progress, Stopwatch, Turns, like, rotated, stepped, summaries
from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.checkpoint import Checkpoint
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.decode.core import common_start
from rtcontrol.models.errors import UserError
from rtcontrol.models.in_flight import evaluate
from rtcontrol.models.runners.hf_runner import cache_name
from rtcontrol.models.runners.linear import has_int8
from rtcontrol.models.runners.packed import Node
from rtcontrol.models.runners.torch_runner import DTYPES, TorchRunner
from rtcontrol.telemetry.histogram import Series

WARM_UP = 5
VARIABLE = "RTCONTROL_GEMMA"
CUTS = (3, 4, 6, 9, 18)  # layers of Gemma 3 270M
SPEEDS = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")


def gemma_file() -> Path:
    """The GGUF file of Gemma 3 270M. Raises UserError where none is named."""
    path = Path(os.environ.get(VARIABLE, ""))
    if not path.is_file():
        raise UserError(f"{VARIABLE} names no GGUF file of Gemma 3 270M.", f"{VARIABLE}=FILE.gguf, or name models.")
    return path


@contextmanager
def gemmas(cuts: Sequence[int] = CUTS) -> Iterator[list[str]]:
    """Folders of Gemma 3 270M as a base, cut to so many layers, for as long as they are needed."""
    from rtcontrol.models.train.base import adopt_base

    path = gemma_file()
    with tempfile.TemporaryDirectory(prefix="rtcontrol-bench-") as folder:
        for layers in cuts:
            adopt_base(path, Path(folder) / str(layers), layers)
        yield [str(Path(folder) / str(layers)) for layers in cuts]


def dtypes_here() -> tuple[str, ...]:
    """What the torch engine computes in on this CPU."""
    return tuple(name for name in DTYPES if name != "int8" or has_int8())


def check_dtypes(names: Sequence[str]) -> tuple[str, ...]:
    """They. Raises UserError for one that this CPU or the engine has not."""
    here = dtypes_here()
    if unknown := [name for name in names if name not in here]:
        raise UserError(f"The torch engine has no dtype {unknown[0]!r} on this CPU.", f"Choose {', '.join(here)}.")
    return tuple(dict.fromkeys(names))


def instructions() -> list[str]:
    """What of this CPU decides how fast which dtype is; empty where it does not tell."""
    try:
        flags = Path("/proc/cpuinfo").read_text("utf-8").partition("flags")[2].partition("\n")[0].split()
    except OSError:
        return []
    return [name for name in SPEEDS if name in flags]


class HFForward:
    """Plain forwards of Hugging Face's model behind a cache."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        told: dict[str, Any] = {"dtype": dtype, "attn_implementation": "sdpa"}
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, **told, trust_remote_code=False).eval()
        self._whole, self._layers = cache_name(self._model), cache_name(self._model.base_model)
        self._cache: Any = None
        self._cached: list[int] = []

    @torch.inference_mode()
    def start(self, ids: Sequence[int]) -> None:
        """Put these tokens into the cache, and no others."""
        from transformers import DynamicCache

        common = min(common_start(self._cached, ids), len(ids) - 1)
        if self._cache is None or not common:
            self._cache, self._cached, common = DynamicCache(), [], 0
        self._crop(len(self._cached) - common)
        told = {self._layers: self._cache}
        self._model.base_model(torch.tensor([list(ids[common:])]), use_cache=True, **told)
        self._cached = list(ids)

    def _crop(self, count: int) -> None:
        if count:
            self._cache.crop(-count)

    def drop(self, count: int) -> None:
        """Of the last forward."""
        self._crop(count)

    @torch.inference_mode()
    def states(self, tokens: Sequence[int]) -> Any:
        """Of all tokens, without a score."""
        told = {self._layers: self._cache}
        return self._model.base_model(torch.tensor([list(tokens)]), use_cache=True, **told)[0]

    @torch.inference_mode()
    def scores(self, tokens: Sequence[int]) -> Any:
        """Of the last token: the whole vocabulary's."""
        told = {self._whole: self._cache, "logits_to_keep": 1}
        return self._model(torch.tensor([list(tokens)]), use_cache=True, **told)[0]


class OneDtype:
    """One model in one dtype: a session, what tells its nodes, and its floor."""

    def __init__(self, spec: DeciderSpec) -> None:
        self.session, self._scout = spec.build(), spec.build()
        assert isinstance(self.session.runner, TorchRunner)
        self.runner = self.session.runner
        self._prefix = self.session.template.prefix_ids(self.session.plan.tools)
        self._floor = self.runner.copy(self.session.decoding.handle, self._prefix)
        self.tokens: list[int] = []  # those that are not cached: of the prompt, and the nodes
        self.past: list[int] = []

    def prepare(self, one: Situation) -> tuple[Callable[[], Any], Call | None, float]:
        """(the bare forward, the call, its margin) for a situation; whatever goes before them is not measured."""
        begun = self._scout.begin(one.observation, one.instruction)
        for _ in evaluate(self.runner, [begun]):
            pass
        call, heads = begun.decision().call, begun.deciding.heads
        tries = [head.trie for head in self._scout.plan.heads]
        placed = sorted((slot, k, n) for k, head in enumerate(heads) for n, slot in head.slots.items())
        nodes = [Node(tries[k].token(n), len(n), tuple(range(len(n)))) for _, k, n in placed]
        prompt = [*self._prefix, *self.session.template.suffix_ids(one.instruction, one.observation)]
        self._floor.start(prompt, len(nodes))
        self.tokens, places, rows = self._floor.rows(nodes)
        self.past = prompt[: len(prompt) - self._floor.fresh]
        rows = replace(rows, mask=None)
        run = partial(self.runner.model.forward, self.tokens, places, [rows])
        self._floor.ran(nodes)
        return run, call, margin(self._scout, begun, call)


def bench_model(
    folder: str,
    tools: Sequence[dict[str, Any]],
    dtypes: Sequence[str],
    asked: Sequence[Situation],
    threads: int | None,
    step: Callable[[], None],
) -> dict[str, Any]:
    """Milliseconds by dtype and way, ratios, and how many calls of each dtype equal the first one's."""
    spec = DeciderSpec(folder, tuple(tools), threads=threads)
    ours = {dtype: OneDtype(replace(spec, dtype=dtype)) for dtype in dtypes}
    first = ours[dtypes[0]]
    checkpoint = Checkpoint.open(folder)
    theirs = {d: HFForward(checkpoint.folder, DTYPES[d]) for d in dtypes if DTYPES[d].is_floating_point}
    watch = Stopwatch(first.runner.model.device)
    turns = Turns([f"{d} {way}" for d in dtypes for way in ("one_pass", "bare_forward", "hf", "hf_scores")], WARM_UP)
    cpu: dict[str, list[float]] = {way: [] for way in turns.raw}
    equal, ties, differ, counts = dict.fromkeys(dtypes, 0), 0, dict.fromkeys(dtypes, 0), list[tuple[int, int, int]]()
    with like(first.runner) as used:
        for i, one in turns.over(asked):
            runs: dict[str, Callable[[], Any]] = {}
            calls, near = dict[str, Call | None](), False
            for dtype, own in ours.items():
                runs[f"{dtype} bare_forward"], calls[dtype], lead = own.prepare(one)
                runs[f"{dtype} one_pass"] = partial(own.session.decide, one.observation, one.instruction)
                near = near or (own is first and lead <= TOLERANCE)
            for dtype, model in theirs.items():
                model.start(first.past)
                runs[f"{dtype} hf"] = partial(model.states, first.tokens)
                runs[f"{dtype} hf_scores"] = partial(model.scores, first.tokens)
            took: dict[str, float] = {}
            for way in rotated(runs, i):
                dtype, _, kind = way.partition(" ")
                # The one before had other weights: each begins with its own in the processor's caches.
                runs[f"{dtype} hf" if kind.startswith("hf") else f"{dtype} bare_forward"]()
                if kind.startswith("hf"):
                    theirs[dtype].drop(len(first.tokens))
                found, clock = watch.time(runs[way])
                took[way] = clock.wall_ms
                if turns.counted:
                    cpu[way].append(clock.cpu_ms)
                if kind.startswith("hf"):
                    theirs[dtype].drop(len(first.tokens))
                elif kind == "one_pass":
                    calls[dtype] = found.call
                    if dtype == dtypes[0] and turns.counted:
                        counts.append((found.forward_passes, len(first.tokens), len(first.past)))
            turns.add(took)
            if turns.counted:
                ties += near
                for dtype, call in calls.items():
                    equal[dtype] += call == calls[dtypes[0]]
                    differ[dtype] += call != calls[dtypes[0]] and not near
            step()
    p50 = {way: Series(raw).percentile(50.0) for way, raw in turns.raw.items() if raw}
    own_p50 = {way: Series(raw).percentile(50.0) for way, raw in cpu.items() if raw}

    def over(by: dict[str, float], dtype: str, other: str) -> float | None:
        below = by.get(f"{dtype} {other}")
        return None if below is None else round(by[f"{dtype} one_pass"] / below, 3)

    ratios = {
        dtype: {
            "bare_forward": over(p50, dtype, "bare_forward"),
            "bare_forward_own_compute": over(own_p50, dtype, "bare_forward"),
            "hf": over(p50, dtype, "hf"),
        }
        for dtype in dtypes
    }
    middle = [sorted(part)[len(counts) // 2] for part in zip(*counts, strict=True)]
    config = checkpoint.config
    return {
        "layers": config.get("num_hidden_layers"),
        "parameters": first.runner.caps.parameters,
        "ms": {way: {p: one[p] for p in ("p50", "p99")} for way, one in summaries(turns.raw).items()},
        "raw_ms": turns.raw,
        "raw_cpu_ms": cpu,
        "ratios": ratios,
        "forward_passes": middle[0],
        "tokens": middle[1],
        "cached_tokens": middle[2],
        "equal": equal,
        "near_ties": ties,
        "differ_without_near_tie": differ,
        "decisions": len(counts),
        "threads": used,
    }


def bench_pretrained(
    models: Sequence[str],
    tools: Sequence[dict[str, Any]],
    asked: Sequence[Situation],
    dtypes: Sequence[str],
    threads: int | None,
    progress: Progress,
    ready: Callable[[dict[str, Any]], None] = lambda found: None,
) -> dict[str, Any]:
    """By model (its number of layers where they are Gemma's cuts); `ready` is given what is measured so far."""
    step = stepped(progress, len(models) * len(asked))
    found: dict[str, Any] = {}
    for model in models:
        found[Path(model).name] = bench_model(model, tools, dtypes, asked, threads, step)
        gc.collect()
        ready(found)
    return found
