"""What it will cost to have rows made up, before anything is asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rtcontrol.models.data.synthesis.asking import drawn
from rtcontrol.models.data.synthesis.tool_sets import ToolSet

TRIED = 32  # requests whose prompts are counted
ROW_TOKENS = 90  # of an instruction, its call as JSON and what is around them
CHARACTERS = 4.0  # a token has about so many where there is no tokenizer


@dataclass(frozen=True)
class Prices:
    """Of a million tokens, in whatever money they are given in."""

    prompt: float = 0.0
    completion: float = 0.0

    def of(self, prompt_tokens: float, completion_tokens: float) -> float:
        return (prompt_tokens * self.prompt + completion_tokens * self.completion) / 1e6


@dataclass(frozen=True)
class CostEstimate:
    """Of what is still to be asked; `cost` by the prices."""

    requests: int
    prompt_tokens: int
    completion_tokens: int
    cost: float


def characters(text: str) -> float:
    """Tokens of a text where no tokenizer is at hand."""
    return len(text) / CHARACTERS


def estimate(
    sets: Sequence[ToolSet],
    shares: dict[int, float],
    rows: int,
    per_request: int,
    seed: int,
    prices: Prices,
    tokens_of: Callable[[str], float] = characters,
) -> CostEstimate:
    """Of so many rows more, should each one be good: prompts as they will be (a part of them counted), answers as long
    as rows usually are."""
    requests = math.ceil(rows / per_request)
    tried = [drawn(sets, shares, per_request, seed, n).messages() for n in range(min(requests, TRIED))]
    each = sum(tokens_of(message["content"]) for one in tried for message in one) / max(len(tried), 1)
    prompt, completion = each * requests, float(ROW_TOKENS * rows)
    return CostEstimate(requests, round(prompt), round(completion), prices.of(prompt, completion))
