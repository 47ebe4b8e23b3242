"""From a state and questions about it to probabilities: checkpoint, wording and engine behind one method."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.decoding import in_time, learn, prefill_in_slices, result
from rtcontrol.models.engines.base import NotFinite, Work
from rtcontrol.models.errors import UserError
from rtcontrol.models.prompt import PromptTemplate
from rtcontrol.models.questions import MOST_NODES, Branch, ChatWording, StateQuestion, STWording, Wording, packed

KEPT, SHORT = 1024, 2048  # encoded questions, of at most so many characters; longer ones take their time each
TOGETHER = 128  # tokens that one pass may carry however long it takes


@dataclass(frozen=True, slots=True)
class Answers:
    """Of each question the probabilities of its options, in order: `math.fsum` of them is 1. `tokens` went through the
    model, `kept` of these are the state's; `reused_tokens` came from the cache."""

    probabilities: list[list[float]]
    forward_passes: int
    tokens: int
    kept: int
    reused_tokens: int


class QuestionDecider:
    """Answers questions with a checkpoint, whose weights all deciders of it share. The last state stays cached. Not
    thread-safe."""

    def __init__(self, spec: DeciderSpec) -> None:
        began = time.perf_counter()
        self.spec, (checkpoint, self.runner) = spec, spec.load()
        template, tokenizer = checkpoint.template, checkpoint.tokenizer
        self.wording: Wording = (
            STWording(template, tokenizer) if isinstance(template, PromptTemplate) else ChatWording(template, tokenizer)
        )
        self._kept = lru_cache(KEPT)(lambda question: Branch(question, self.wording))
        self.handle, self.prefix = self.runner.open(self.wording.prefix)
        self.load_ms = (time.perf_counter() - began) * 1e3

    def answer(self, state: str, questions: Sequence[StateQuestion]) -> Answers:
        """All in one pass, where they fit the context together. Raises UserError, and NotFinite."""
        return result(self.answer_in_steps(state, questions, sliced=False))

    def answer_in_steps(
        self, state: str, questions: Sequence[StateQuestion], sliced: bool = True
    ) -> Generator[None, None, Answers]:
        """`answer`, which may be left alone, or given up, wherever it yields; `sliced` now and then within a long
        state and behind a long question, and between passes that take a few milliseconds each."""
        runner, handle, prompt = self.runner, self.handle, self.wording.state(state)
        branches: list[Branch] = []
        for question in questions:
            short = len(question.text) + sum(map(len, question.options)) <= SHORT
            branches.append(self._kept(question) if short else Branch(question, self.wording))
            if sliced and not short:
                yield
        self._check(len(prompt), branches)
        reused = handle.start(prompt, reserve=0)
        tokens = fresh = len(prompt) - reused
        found: list[list[float]] = []
        passes = 0
        while len(found) < len(branches):
            room = handle.slots - len(prompt)
            now = _first(branches[len(found) :], min(room, max(in_time(runner), TOGETHER)) if sliced else room)
            tree, rows = packed(now)
            handle.start([*prompt, *now[0].lead], reserve=len(tree.tokens))
            if sliced:
                yield from prefill_in_slices(runner, handle)
            began, count = time.perf_counter(), handle.fresh + len(tree.tokens)
            (answers,) = runner.run([Work(handle, tree)])
            if count >= TOGETHER:  # of fewer the pass itself takes most
                learn(runner, count, time.perf_counter() - began)
            by_ids = {ask.ids: answer for ask, answer in zip(tree.asks, answers, strict=True)}
            for branch, own in zip(now, rows, strict=True):
                scores = {path: by_ids[ids][row] for path, (ids, row) in own.items()}
                if not math.isfinite(sum(map(sum, scores.values()))):
                    handle.forget()
                    raise NotFinite
                found.append(branch.probabilities(scores))
            tokens, passes = tokens + len(now[0].lead) + len(tree.tokens), passes + 1
            yield
        return Answers(found, passes, tokens, fresh, reused)

    def _check(self, state: int, branches: Sequence[Branch]) -> None:
        """UserError where one of them does not fit behind the state, or its options hold up others."""
        slots = self.handle.slots
        for i, branch in enumerate(branches, start=1):
            if branch.parting > MOST_NODES:
                raise UserError(
                    f"The options of question {i} part after {branch.parting} tokens, more than {MOST_NODES}.",
                    "Give shorter options, or such as differ in their first words.",
                )
        if branches and state + (most := max(map(len, branches))) > slots:
            where = f"question {list(map(len, branches)).index(most) + 1}"
            raise UserError(
                f"The state of {state} tokens and the {most} of {where} are {state + most - slots} more than the "
                f"model's context of {slots}.",
                "Shorten them, or give fewer options.",
            )

    def info(self) -> dict[str, Any]:
        """What answers: for the report and for people."""
        told = {"model": str(self.spec.model), **self.runner.caps.told()}
        return {**told, "prefix_tokens": self.prefix.tokens, "load_ms": round(self.load_ms, 1)}


def _first(branches: Sequence[Branch], most: int) -> Sequence[Branch]:
    """So many of the first that their nodes are no more than `most`; at least one, and a long one alone."""
    count, nodes = 1, len(branches[0])
    while count < len(branches) and not (branches[0].lead or branches[count].lead):
        nodes += len(branches[count])
        if nodes > most:
            break
        count += 1
    return branches[:count]
