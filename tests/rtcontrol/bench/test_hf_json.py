"""The baseline that writes JSON by Hugging Face's generate."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

from rtcontrol.bench.json_writer import HFJson
from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.checkpoint import Checkpoint
from tests.models.small import build_checkpoint


def test_it_goes_on_behind_the_cached_prompt_and_asks_for_nothing_that_will_be_gone(tmp_path: Path) -> None:
    folder = build_checkpoint(tmp_path / "m")
    tokenizer = Checkpoint.open(str(folder)).tokenizer
    baseline = HFJson(folder, tokenizer, torch.float32, torch.device("cpu"))
    prefix, suffix = tokenizer.encode("go turn stop left right fast slow"), tokenizer.encode("red and green")
    call, sizes = Call("go", {"a": "left", "b": 3}), list[int]()
    model: Any = baseline._model
    model.get_input_embeddings().register_forward_pre_hook(lambda _, given: sizes.append(given[0].shape[1]))
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        baseline.warm(prefix)
        for _ in range(2):
            sizes.clear()
            assert baseline.generate([*prefix, *suffix], call) == call
            assert sizes == [len(suffix)] + [1] * (len(baseline.json_ids(call)) - 1)
