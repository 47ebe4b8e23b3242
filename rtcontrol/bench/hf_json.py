"""The baseline that writes JSON: Hugging Face generate, greedy, prompt prefix cached, the call forced token by token.

A model trained for ST heads writes no JSON of its own, so its greedy choice is replaced by the tokens of the call that
was decided: the cost is that of a model which writes exactly this call and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LogitsProcessor, LogitsProcessorList
from transformers.utils import logging

from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.runners.hf_runner import cache_name


class _Forced(LogitsProcessor):
    def __init__(self, prompt: int, tokens: Sequence[int]) -> None:
        self._prompt, self._tokens = prompt, list(tokens)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        step = input_ids.shape[1] - self._prompt
        scores[:, self._tokens[step]] = torch.inf
        return scores


class HFJson:
    """Generates the JSON call after a prompt whose first part is kept in a KV cache."""

    def __init__(self, folder: Path, tokenizer: STTokenizer, dtype: torch.dtype, device: torch.device) -> None:
        logging.disable_progress_bar()
        self._model: Any = (
            AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, trust_remote_code=False).eval().to(device)
        )
        self._device, self._name = device, cache_name(self._model)
        self._model.generation_config.pad_token_id = 0
        self._tokenizer = tokenizer
        self._cache: Any = None
        self._cached: list[int] = []

    @torch.inference_mode()
    def warm(self, ids: Sequence[int]) -> None:
        """Put the part of the prompt that does not change into the cache."""
        self._cached = list(ids)
        self._cache = self._model(torch.tensor([self._cached], device=self._device), use_cache=True)[self._name]

    def json_ids(self, call: Call) -> list[int]:
        return self._tokenizer.encode(json.dumps(call.to_dict()))

    @torch.inference_mode()
    def generate(self, prompt: Sequence[int], call: Call) -> Call:
        """Write `call` as JSON after `prompt`, parse it back."""
        tokens = self.json_ids(call)
        out = self._model.generate(
            torch.tensor([list(prompt)], device=self._device),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long, device=self._device),
            logits_processor=LogitsProcessorList([_Forced(len(prompt), tokens)]),
            max_new_tokens=len(tokens),
            do_sample=False,
            **{self._name: self._cache},
        )
        self._cache.crop(len(self._cached) - self._cache.get_seq_length())
        return Call.from_dict(json.loads(self._tokenizer.decode(out[0, len(prompt) :].tolist())))
