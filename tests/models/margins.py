"""How narrowly a decision was made."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rtcontrol.models.call import Call
from rtcontrol.models.decider import STDecider
from rtcontrol.models.decode.walk import FUNCTION_BIT, Entry
from rtcontrol.models.in_flight import InFlightDecode, evaluate

# Of the largest score that a node was asked for: a margin below that is a near-tie. bf16 rounds at 2^-8 of a value;
# after all layers the ways differed by 0.021 at most where it was measured (four architectures at random, the lander).
TOLERANCE = 2.0**-4


@dataclass(frozen=True, slots=True)
class ScoredCall:
    """A call, the smallest margin that led to it, as a part of its row's largest score, and the scores of the children
    of each node (by head and node) that it was chosen at, as parts of that, too."""

    call: Call | None
    margin: float
    scores: dict[Entry, list[float]]


def decide(decider: STDecider, observation: str, instruction: str) -> ScoredCall:
    """Make one decision of closed heads, with its margin."""
    one = decider.begin(observation, instruction)
    for _ in evaluate(decider.runner, [one]):
        pass
    call = one.decision().call
    column, scores = decider.decoding.core.walker.column, {}
    for k, n in one.deciding.visited:
        row = one.deciding.heads[k].rows[n]
        largest = max(map(abs, row))
        scores[k, n] = [row[column[t]] / largest for t in decider.plan.heads[k].trie.children(n) if t in column]
    return ScoredCall(call, _margin(decider, one, call), scores)


def _margin(decider: STDecider, one: InFlightDecode, call: Call | None) -> float:
    """Return the smallest lead of a choice's best score over its second, as a part of the largest score (as a size)
    that was asked for at the same node; infinite where nothing was chosen."""
    walker, least = decider.decoding.core.walker, math.inf
    tool = 0 if call is None else 1 << decider.plan.tool_index(call.name)
    for k, n in one.deciding.visited:
        row = one.deciding.heads[k].rows[n]
        columns, _ = walker.choices(k, n, tool if k else FUNCTION_BIT)
        if len(columns) > 1:
            best, second = sorted((row[c] for c in columns), reverse=True)[:2]
            least = min(least, (best - second) / max(map(abs, row)))
    return least
