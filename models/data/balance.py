"""Balance rows by the number of arguments of their calls, as the paper does."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from rtcontrol.models.data.row import DataRow
from rtcontrol.models.data.sample import Dropped, Tally
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.tool_schema import MAX_HEADS

PAPER = "18,20,18,17,15,12"
OVER = "over its share of rows with as many arguments"


def shares_of(text: str) -> dict[int, float]:
    """`18,20,18,17,15,12`: shares of 1 to 6 arguments; with a seventh number in front, of 0 to 6. Raises UserError."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    whole = len(numbers) in (MAX_HEADS, MAX_HEADS + 1) and all(0 <= n < math.inf for n in numbers)
    if not whole or sum(numbers) <= 0:
        raise UserError(f"{text!r} are no shares.", f"Write six numbers (1 to 6 arguments) or seven (0 to 6): {PAPER}.")
    first = MAX_HEADS + 1 - len(numbers)
    return {first + n: number / sum(numbers) for n, number in enumerate(numbers)}


def balanced(rows: Sequence[DataRow], shares: dict[int, float], seed: int, tally: Tally) -> list[DataRow]:
    """The rows, in their order, so that calls of each number of arguments have their share: others are dropped, drawn
    by `seed`, as few as can be. More than six arguments count as six; rows without a call, and those of counts that
    have no share, stay as they are.

    Raises UserError where there is no row of a count that is to have some.
    """
    classes: dict[int, list[int]] = {count: [] for count, share in shares.items() if share}
    outside = set(range(len(rows)))
    for at, row in enumerate(rows):
        if row.call is not None and (count := min(len(row.call.arguments), MAX_HEADS)) in shares:
            classes.setdefault(count, []).append(at)
            outside.discard(at)
    if empty := [count for count, found in classes.items() if not found]:
        raise UserError(
            f"No row has a call of {empty[0]} arguments, which shall have {shares[empty[0]]:.0%}.",
            "Add rows that do (rtcontrol data synthesise), or give other shares.",
        )
    together = min(len(found) / shares[count] for count, found in classes.items() if shares[count])
    drawn, kept = random.Random(seed), set(outside)
    for count, found in sorted(classes.items()):
        # Of a share that is no whole number of rows the floor, short of what rounding takes away.
        kept |= set(drawn.sample(found, min(len(found), math.floor(together * shares[count] + 1e-9))))
    for at in sorted({*range(len(rows))} - kept):
        tally.drop(Dropped(OVER, rows[at].id, "", rows[at].source))
        tally.rows[rows[at].source] -= 1
    return [row for at, row in enumerate(rows) if at in kept]
