"""A checkpoint's gate: how sure the function head must be that it was told something, found on what it never learnt.

Measured on a paddle of 1.4 M parameters after 90,000 samples, 6 % of them nonsense: of canonical instructions it is
never less than 0.999 sure; a gate at 0.98 holds 88 % of 232 sentences of held-out nonsense, and 8 % of what people say
that was held out too; 0.995 holds 92 and 15 %.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

from rtcontrol.models.call import Decision
from rtcontrol.models.train.policy import TreeDecider
from rtcontrol.models.train.rows import Row

HELD = 0.95  # of nonsense, at least
SPARED = 0.02  # of canonical instructions, at most
ROWS = 1024  # of each


def sureness(decision: object) -> float:
    """How sure a decision's function head is that it was told something; 0 for null, and where none was made."""
    if not isinstance(decision, Decision) or decision.call is None:
        return 0.0
    return decision.confidence.get("function", 1.0)


def gate_between(nonsense: Sequence[float], understood: Sequence[float]) -> float:
    """The gate that holds HELD of the nonsense, by how sure a model is of each: half way to what would hold more than
    SPARED of what it understands, which it never does."""
    enough = sorted(nonsense)[math.ceil(HELD * len(nonsense)) - 1]
    most = sorted(understood)[math.floor(SPARED * len(understood))]
    # What is held is below the gate: at `enough` itself that one is not. Nor is it rounded: up, it would hold what is
    # understood.
    return most if enough >= most else (enough + most) / 2


def heard(
    decide: TreeDecider, rows: Sequence[Row], nonsense: Sequence[str], rng: random.Random
) -> tuple[list[float], list[float]]:
    """How sure a model that sees what these rows saw is of `nonsense` that it was not taught with, and of the rows."""
    asked = decide.decisions([replace(row, instruction=rng.choice(nonsense)) for row in rows])
    return [sureness(d) for d in asked], [sureness(d) for d in decide.decisions(rows)]


def fit_gate(decide: TreeDecider, rows: Sequence[Row], nonsense: Sequence[str], seed: int) -> float:
    """The gate of a model, by rows that are told canonical words, and by nonsense in their place."""
    return gate_between(*heard(decide, rows, nonsense, random.Random(f"gate {seed}")))
