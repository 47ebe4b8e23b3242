"""Baselines that use vLLM, each in its fastest form: SimpleTool's heads in parallel, and a JSON call with a grammar."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from copy import copy
from itertools import count
from pathlib import Path
from typing import Any

from rtcontrol.models.call import Call

# vLLM reads these variables when it is imported.
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB of memory for the cache
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from vllm import EngineArgs, LLMEngine, SamplingParams
from vllm.config import StructuredOutputsConfig
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

from rtcontrol.bench.decide import json_schema
from rtcontrol.bench.situations import Situation
from rtcontrol.models.checkpoint.special_tokens import HEADS, NULL, head_end
from rtcontrol.models.decider import STDecider
from rtcontrol.models.runners.torch_runner import thread_limit
from rtcontrol.models.runners.vllm_runner import omp_threads

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
END = "<|im_end|>"
STOPS = (NULL, *map(head_end, HEADS), END)
MOST = 32  # maximum tokens of a head, as in SimpleTool's server
JSON_MOST = 256
BLOCK = 32  # tokens per cache block (on CPUs, attention supports no smaller blocks)


class VllmEngine:
    """vLLM's engine in this process, with its fastest settings: token ids, small blocks, only final outputs."""

    def __init__(self, folder: Path, dtype: str, threads: int) -> None:
        # Copy only the tokenizer's files: if the folder had a `config.json`, transformers 5 would use the default
        # tokenizer of the architecture, which splits text differently (458 tokens instead of the lander's 138).
        with omp_threads(threads) as self.threads, tempfile.TemporaryDirectory(prefix="rtcontrol-bench-") as tokenizer:
            for name in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copy(folder / name, tokenizer)
            args = EngineArgs(
                model=str(folder),
                tokenizer=tokenizer,
                dtype=DTYPES[dtype],
                block_size=BLOCK,
                max_num_seqs=16,
                max_num_batched_tokens=8192,
                disable_log_stats=True,
                use_tqdm_on_load=False,
                structured_outputs_config=StructuredOutputsConfig(backend="xgrammar", disable_any_whitespace=True),
            )
            self._engine = LLMEngine.from_engine_args(args)
        self._numbers = count()
        self.steps = 0  # number of the engine's steps in the last `run`

    def run(self, prompts: Sequence[list[int]], params: SamplingParams, salt: str) -> list[list[int]]:
        """Return the tokens generated for each prompt. Methods with a different `salt` have separate prompt caches."""
        outputs: dict[str, list[int]] = {}
        self.steps = 0
        with thread_limit(self.threads):
            for prompt in prompts:
                name = str(next(self._numbers))
                outputs[name] = []
                request = {"type": "token", "prompt_token_ids": prompt, "cache_salt": salt}
                self._engine.add_request(name, request, copy(params))
            while self._engine.has_unfinished_requests():
                self.steps += 1
                for out in self._engine.step():
                    outputs[out.request_id] = list(out.outputs[0].token_ids)
        return list(outputs.values())


def _params(most: int, stops: list[int], **more: Any) -> SamplingParams:
    final = RequestOutputKind.FINAL_ONLY
    return SamplingParams(
        temperature=0.0, max_tokens=most, stop_token_ids=stops, detokenize=False, output_kind=final, **more
    )


class SimpleToolHeads:
    """SimpleTool's heads as parallel requests, which start in the same engine step and end at stop tokens."""

    def __init__(self, decider: STDecider, engine: VllmEngine) -> None:
        self._decider, self._engine = decider, engine
        stops = [decider.tokenizer.special_id(stop) for stop in STOPS]
        self._params = _params(MOST, stops, skip_special_tokens=False)
        self._prefix = decider.template.prefix_ids(decider.plan.tools)

    def decide(self, one: Situation) -> list[list[int]]:
        """Return the tokens of each head, without building a call from them."""
        return self._engine.run(self.prompts(one), self._params, "heads")

    def prompts(self, one: Situation) -> list[list[int]]:
        suffix = self._decider.template.suffix_ids(one.instruction, one.observation)
        return [[*self._prefix, *suffix, head.head_id] for head in self._decider.plan.heads]


class JsonCalls:
    """A method that generates a call as JSON. vLLM's grammar allows only calls of the tools."""

    def __init__(self, decider: STDecider, engine: VllmEngine) -> None:
        self._decider, self._engine = decider, engine
        grammar = StructuredOutputsParams(json=json.dumps(json_schema(decider.plan.tools)))
        self._params = _params(JSON_MOST, [decider.tokenizer.special_id(END)], structured_outputs=grammar)
        self._prefix = decider.template.prefix_ids(decider.plan.tools)

    def decide(self, one: Situation) -> Call | None:
        """Return the call that is generated after SimpleTool's prompt, or None if the text is not a valid call."""
        suffix = self._decider.template.suffix_ids(one.instruction, one.observation)
        (ids,) = self._engine.run([[*self._prefix, *suffix]], self._params, "json")
        text = self._decider.tokenizer.decode(ids).removesuffix(END)
        try:
            return Call.from_dict(json.loads(text))
        except ValueError:
            return None
