"""A sample of K parallel calls as K rows: one call each, with those before it in the history (paper, appendix "Handling
Parallel Tool Invocations")."""

from __future__ import annotations

import random
from typing import Literal

from rtcontrol.models.data.row import DataRow
from rtcontrol.models.data.sample import Sample

Purpose = Literal["train", "eval"]


def decompose(sample: Sample, purpose: Purpose, seed: int = 0) -> list[DataRow]:
    """One row a call. For evaluation in the order given; for training the list of calls is shuffled before its prefixes
    are taken, the same way each time for a sample's id and `seed`: so that a history may hold any of the other calls,
    and never the row's own."""
    order = list(range(len(sample.calls)))
    if purpose == "train":
        random.Random(f"{seed}:{sample.id}").shuffle(order)
    history, rows = list(sample.history), []
    for n, at in enumerate(order, 1):
        call = sample.calls[at]
        rows.append(
            DataRow(
                id=sample.id if len(order) == 1 else f"{sample.id}/{n}",
                sample=sample.id,
                source=sample.source,
                instruction=sample.instruction,
                observation=sample.observation,
                tools=sample.tools,
                history=tuple(history),
                call=call,
                weight=sample.weight,
                check=sample.checks[at] if sample.checks else None,
            )
        )
        history.append(call.text())
    return rows
