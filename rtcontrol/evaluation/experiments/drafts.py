"""What a small trained ST model's draft saves a large one, by how many of its tokens a pass verifies.

Both decide the same held-out rows whose call has a text, which no list holds. The target's calls are the same with any
draft (checked); what differs is how many passes they take.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rtcontrol.evaluation.experiments import corpus
from rtcontrol.evaluation.experiments.corpus import CorpusOptions, CorpusSample
from rtcontrol.evaluation.experiments.judging import HELD
from rtcontrol.evaluation.experiments.kept import KeptRun
from rtcontrol.models.call import Call
from rtcontrol.models.decider import DeciderSpec, STDecider
from rtcontrol.models.decode.core import Drafts
from rtcontrol.models.in_flight import InFlightDecode, evaluate, result

# By way: of a draft so many tokens a pass (None: all); "prompt" guesses from the instruction's own text,
# and the target's own call is the best of all drafts.
WAYS: dict[str, int | None] = {"none": None, "draft, 2": 2, "draft, 3": 3, "draft, 4": 4, "draft, all": None}
PROMPT, BEST = "prompt, all", "the call itself, all"
ROWS = 100


class _Session:
    def __init__(self, folder: Path) -> None:
        self.decider = STDecider(DeciderSpec(str(folder), tuple(corpus.tools()), threads=1))
        self.core: Any = self.decider.decoding.core
        self._prefix = self.decider.template.prefix_ids(self.decider.plan.tools)

    def decide(self, sample: CorpusSample, drafts: Drafts | None, depth: int | None, prompt: bool = False) -> Any:
        """The decision, done."""
        self.core.depth, handle = depth, self.decider.decoding.handle
        suffix = self.decider.template.suffix_ids(sample.instruction, sample.observation)
        told = [*self._prefix, *suffix]
        reused = handle.start(told, self.core.reserve)
        begun = self.core.begin(drafts, suffix if prompt else ())
        one = InFlightDecode(begun, handle, threading.Event(), reused, len(told) - reused)
        result(evaluate(self.decider.runner, [one]))
        one.decision()  # raises what ended it
        return begun


def run(target: KeptRun, draft: KeptRun, folder: Path) -> dict[str, Any]:
    """Of each way the mean passes and tokens of the target's decision, the guessed tokens that were right of all, and
    how many of the target's, and of the draft's, texts are right."""
    large, small = (_Session(one.checkpoint()) for one in (target, draft))
    samples = list(itertools.islice(_texts(), ROWS))
    seen: dict[str, list[tuple[int, int, int, int]]] = {way: [] for way in (*WAYS, BEST, PROMPT)}
    right, same = [0, 0], 0
    for sample in samples:
        own = small.decide(sample, None, None).decision.call
        plain: Call | None = None
        for way in seen:
            guess = {"none": None, PROMPT: None, BEST: plain}.get(way, own)
            drafts = None if way == "none" else Drafts(call=guess)
            made = large.decide(sample, drafts, WAYS.get(way), prompt=way == PROMPT)
            if way == "none":
                plain = made.decision.call
            assert made.decision.call == plain, "a draft changes no call"
            seen[way].append((made.passes, made.nodes, *made.guesses))
        right[0] += plain in sample.allowed
        right[1] += own in sample.allowed
        same += own == plain
    ways = {way: _mean(found) for way, found in seen.items()}
    return {"rows": ROWS, "ways": ways, "target_right": right[0], "draft_right": right[1], "same": same}


def _texts() -> Iterator[CorpusSample]:
    return (s for s in corpus.samples(HELD, CorpusOptions(held_out=True)) if s.call.name == "label")


def _mean(found: Sequence[tuple[int, int, int, int]]) -> dict[str, float]:
    passes, tokens, guessed, right = np.array(found).T
    accepted = float(right.sum() / guessed.sum()) if guessed.sum() else 0.0
    told = {"passes": float(passes.mean()), "tokens": float(tokens.mean()), "accepted": accepted}
    return {name: round(value, 4) for name, value in told.items()}
