"""How often a trained model's calls are right, on rows that training never has.

Decoded freely, each token the likeliest of the whole vocabulary, a call is right where every token of a right call is
the likeliest after those before it: so one forward over the right calls tells. With the constraint the decoder itself
decides (`TreeDecider`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch

from rtcontrol.evaluation.experiments.corpus import CorpusSample
from rtcontrol.evaluation.experiments.forms import FormEncoder
from rtcontrol.evaluation.experiments.training import GROUP, FormLearner
from rtcontrol.models.call import Call
from rtcontrol.models.decode.protocol import DecodeError
from rtcontrol.models.train.loss import label_logits
from rtcontrol.models.train.packing import pack
from rtcontrol.models.train.policy import TreeDecider
from rtcontrol.models.train.rows import Row

JUDGED = 1_000  # rows a run is judged by
HELD = 7  # their seed


def free(model: Any, encoder: FormEncoder, allowed: Sequence[Sequence[Row]]) -> list[bool]:
    """Of each situation (a row for each of its right calls) whether what is decoded greedily, without a constraint, is
    one of these."""
    asked = [(i, row) for i, some in enumerate(allowed) for row in some]
    right = [False] * len(allowed)
    model.eval()
    for at in range(0, len(asked), GROUP):
        part = asked[at : at + GROUP]
        encoded = [encoder.encode(row) for _, row in part]
        with torch.no_grad():
            batch = pack(encoder.prefix, encoded)
            best = (label_logits(model, batch).argmax(-1) == batch.labels).tolist()
        begin = 0
        for (i, _), row in zip(part, encoded, strict=True):
            count = sum(bool(w) for head in row.heads for w in head.weights)
            right[i] = right[i] or all(best[begin : begin + count])
            begin += count
    model.train()
    return right


def allowed(samples: Sequence[CorpusSample]) -> list[list[Row]]:
    """As `free` takes them."""
    return [[Row(s.instruction, s.observation, call) for call in s.allowed] for s in samples]


def constrained(made: FormLearner, samples: Sequence[CorpusSample]) -> list[bool]:
    """The same of heads under the tools' constraint."""
    decide, found = TreeDecider(made.model, made.heads), []
    for at in range(0, len(samples), GROUP):
        some = samples[at : at + GROUP]
        made_calls = decide([Row(s.instruction, s.observation, None) for s in some])
        found += [_same(call, s.allowed) for call, s in zip(made_calls, some, strict=True)]
    return found


def _same(call: Call | DecodeError | None, allowed: Sequence[Call]) -> bool:
    return isinstance(call, Call) and call in allowed


def counted(samples: Sequence[CorpusSample], right: Sequence[bool]) -> dict[str, Any]:
    """Right ones and all, together, by kind and by number of arguments."""
    parts: dict[str, list[bool]] = defaultdict(list)
    for sample, ok in zip(samples, right, strict=True):
        parts["all"].append(ok)
        parts[f"kind {sample.kind}"].append(ok)
        parts[f"arguments {len(sample.call.arguments)}"].append(ok)
        if "x" in sample.call.arguments:
            parts["with a place"].append(ok)
    return {name: [sum(oks), len(oks)] for name, oks in sorted(parts.items())}
