"""Rows from a model's answers, request after request until there are enough: checked, each once, its cost in sight."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.data.row import DataRow
from rtcontrol.models.data.sample import Dropped, Unusable
from rtcontrol.models.data.stats import Tally
from rtcontrol.models.data.synthesis.endpoint import ChatAnswer, drawn, read_rows
from rtcontrol.models.data.synthesis.ledger import Ledger, Prices
from rtcontrol.models.data.synthesis.tool_sets import ToolSet
from rtcontrol.models.errors import UserError

REPEATED = "an instruction that was there before"
GRACE_S = 10.0  # for what was asked when a run ends
FRUITLESS = 20  # answers in a row without a row
Ask = Callable[[list[dict[str, str]], int], ChatAnswer]


@dataclass(frozen=True)
class SynthesisOptions:
    """`shares` of numbers of arguments; `per_request` rows are asked for at once, `parallel` requests at a time. Above
    `max_cost`, by the tokens that the endpoint counts, no more is asked (0: no bound)."""

    rows: int
    shares: dict[int, float]
    per_request: int = 8
    parallel: int = 4
    seed: int = 0
    source: str = "synthetic"
    prices: Prices = field(default_factory=Prices)
    max_cost: float = 0.0


@dataclass
class Spent:
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def to_dict(self, prices: Prices) -> dict[str, Any]:
        cost = prices.of(self.prompt_tokens, self.completion_tokens)
        return {
            "requests": self.requests,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cost": cost,
        }


def synthesise(
    sets: Sequence[ToolSet], ask: Ask, options: SynthesisOptions, ledger: Ledger, tally: Tally, spent: Spent
) -> Iterator[DataRow]:
    """The rows, those of the ledger first. Each answer is in the ledger before its rows are given, so that whatever
    ends the run costs no answer that was paid for.

    Raises UserError for an endpoint that gives none, for one that gives nonsense, and above `max_cost`.
    """
    seen: set[str] = set()
    made, empty = 0, 0
    for n, text in _answers(sets, ask, options, ledger, spent):
        asked = drawn(sets, options.shares, options.per_request, options.seed, n)
        before = made
        for found in read_rows(text, asked.tools):
            tally.samples[options.source] += 1
            reason = _reason(found, seen)
            if reason is not None or isinstance(found, Unusable):
                detail = found.detail if isinstance(found, Unusable) else found[0][:80]
                tally.drop(Dropped(reason or "", f"request {n}", detail, options.source))
                continue
            instruction, observation, call = found
            name = f"synthetic_{options.seed}_{made}"
            tools = tuple(tool.to_openai() for tool in asked.tools)
            tally.rows[options.source] += 1
            made += 1
            yield DataRow(name, name, options.source, instruction, observation, tools, (), call)
            if made == options.rows:
                return
        empty = 0 if made > before else empty + 1
        if empty == FRUITLESS:
            (_, reason), count = tally.dropped.most_common(1)[0]
            raise UserError(
                f"{FRUITLESS} answers in a row gave no row; most often ({count} times) {reason}: "
                f"{tally.places[options.source, reason][0]}.",
                "Ask another --model, or give more tools. What is done is kept.",
            )


def _reason(found: tuple[str, str, Call] | Unusable, seen: set[str]) -> str | None:
    if isinstance(found, Unusable):
        return found.reason
    key = re.sub(r"\W+", " ", found[0]).strip().casefold() or found[0]
    if key in seen:
        return REPEATED
    seen.add(key)
    return None


def _answers(
    sets: Sequence[ToolSet], ask: Ask, options: SynthesisOptions, ledger: Ledger, spent: Spent
) -> Iterator[tuple[int, str]]:
    """Numbered answers in order, those of the ledger first; the others are asked for some at a time."""
    under_way: dict[int, Future[ChatAnswer]] = {}
    n = 0
    pool = ThreadPoolExecutor(options.parallel)
    try:
        while True:
            if (known := ledger.entries.get(n)) is None:
                for k in range(n, n + options.parallel):
                    if k not in under_way and k not in ledger.entries:
                        _check_cost(options, spent)
                        messages = drawn(sets, options.shares, options.per_request, options.seed, k).messages()
                        under_way[k] = pool.submit(ask, messages, options.seed + k)
                answer = under_way.pop(n).result()
                tokens = (answer.prompt_tokens, answer.completion_tokens)
                ledger.add(n, text=answer.text, tokens=tokens)
                known = ledger.entries[n]
            spent.requests += 1
            spent.prompt_tokens += known["tokens"][0]
            spent.completion_tokens += known["tokens"][1]
            yield n, known["text"]
            n += 1
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        wait(under_way.values(), GRACE_S)
        for k, one in sorted(under_way.items()):
            if one.done() and not one.cancelled() and one.exception() is None:  # paid for: kept for the next run
                found = one.result()
                ledger.add(k, text=found.text, tokens=(found.prompt_tokens, found.completion_tokens))


def _check_cost(options: SynthesisOptions, spent: Spent) -> None:
    cost = options.prices.of(spent.prompt_tokens, spent.completion_tokens)
    if options.max_cost and cost >= options.max_cost:
        raise UserError(
            f"{cost:.2f} is spent, and --max-cost is {options.max_cost:.2f}.",
            "Raise it and run the same command again: what is done is kept.",
        )
