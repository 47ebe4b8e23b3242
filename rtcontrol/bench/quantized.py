"""How a quantised checkpoint decides, beside the original."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rtcontrol.bench.dtype import TOLERANCE, decide
from rtcontrol.bench.situations import Situation
from rtcontrol.models.decider import DeciderSpec, STDecider
from rtcontrol.models.quantize import size


def compare(original: STDecider, quantized: DeciderSpec, asked: Sequence[Situation]) -> dict[str, Any]:
    """Of all situations: how many calls are the `same`, and of the others how many are `ties`, near-ties of the
    original's; of both the MiB of their weights in the files, and what the engine computes with."""
    other = quantized.build()
    same = ties = 0
    for one in asked:
        own, theirs = decide(original, one), decide(other, one)
        same += own.call == theirs.call
        ties += own.call != theirs.call and own.margin <= TOLERANCE
    sides = {
        name: {
            "mib": round(size(decider.checkpoint.folder) / 2**20, 2),
            "weights": decider.info().get("weights", "plain"),
        }
        for name, decider in (("original", original), ("quantized", other))
    }
    return {"asked": len(asked), "same": same, "ties": ties, **sides}
