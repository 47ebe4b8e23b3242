"""What is called for a place, where several are told and any of them is right: one of them, x of one and y of another,
or something else."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rtcontrol.evaluation.experiments import corpus
from rtcontrol.evaluation.experiments.corpus import CorpusOptions
from rtcontrol.evaluation.experiments.judging import HELD, JUDGED, allowed, free
from rtcontrol.evaluation.experiments.kept import KeptRun
from rtcontrol.evaluation.experiments.training import GROUP, Setting, loaded
from rtcontrol.models.call import Call
from rtcontrol.models.train.policy import TreeDecider
from rtcontrol.models.train.rows import Row


def run(one: KeptRun, setting: Setting, folder: Path) -> dict[str, Any]:
    """Of the held-out rows with a place: whole calls that are right, decoded freely; and of heads, which the tree
    decoder decodes, how many places are one of those told, mixed, or neither."""
    options = CorpusOptions(setting.corpus.shares, setting.corpus.places, held_out=True)
    judged = itertools.islice(corpus.samples(HELD, options), JUDGED)
    samples = [sample for sample in judged if "x" in sample.call.arguments]
    made = loaded(setting, one.checkpoint())
    found: dict[str, Any] = {"of": len(samples), "right": sum(free(made.model, made.encoder, allowed(samples)))}
    if setting.form == "heads":
        decide, calls = TreeDecider(made.model, made.heads), list[Any]()
        for at in range(0, len(samples), GROUP):
            calls += decide([Row(s.instruction, s.observation, None) for s in samples[at : at + GROUP]])
        kinds = [_kind(call, sample.allowed) for call, sample in zip(calls, samples, strict=True)]
        found |= {kind: kinds.count(kind) for kind in ("told", "mixed", "neither")}
    return found


def _kind(call: Any, calls: Sequence[Call]) -> str:
    places = [(one.arguments["x"], one.arguments["y"]) for one in calls]
    own = (call.arguments.get("x"), call.arguments.get("y")) if isinstance(call, Call) else (None, None)
    if own in places:
        return "told"
    xs, ys = zip(*places, strict=True)
    return "mixed" if own[0] in xs and own[1] in ys else "neither"
