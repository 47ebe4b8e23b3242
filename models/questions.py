"""Answer questions about one state in one packed pass: a probability for every option, without text.

All questions share the state as their prompt. A question is a branch after it: its text, the token before an answer,
and a trie of its options as the tokenizer writes them, each with its end. An option's probability is the product of the
softmax over the alternatives at each branching node on its path.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

from rtcontrol.models.checkpoint.chat_template import ChatTemplate
from rtcontrol.models.checkpoint.prompt import PromptTemplate
from rtcontrol.models.checkpoint.special_tokens import ARGUMENTS, closing, opening
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.decode.core import common_start
from rtcontrol.models.decode.protocol import Ask, NotFinite, Tree, Work
from rtcontrol.models.errors import UserError
from rtcontrol.models.in_flight import in_time, learn, prefill_in_slices, result

LONG = 256  # tokens of a question that is asked alone, as a part of the prompt: a tree has no room for so many
MOST_NODES = 2048  # of one question's options, in one pass: other sessions wait for it
ANSWER = "Answer with one of these options, and nothing else."
Path = tuple[int, ...]  # the tokens that were written of an answer


@dataclass(frozen=True, slots=True)
class StateQuestion:
    """The text of a question, and the texts of its options, at least two."""

    text: str
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wording:
    """A checkpoint's ids for a state (they start with `prefix`), for a question up to its answer, and for an option
    with its `end`."""

    tokenizer: STTokenizer
    prefix: list[int]
    state: Callable[[str], list[int]]
    question: Callable[[str], list[int]]
    end: int

    def option(self, text: str) -> list[int]:
        return [*self.tokenizer.encode(text), self.end]


def wording_of(template: PromptTemplate | ChatTemplate, tokenizer: STTokenizer) -> Wording:
    """Return the wording of a checkpoint. Raises UserError.

    For an ST checkpoint an answer is the first argument's head; for a chat checkpoint it is the model's turn, after a
    user's turn with state and question.
    """
    encode, special_id = tokenizer.encode, tokenizer.special_id
    if isinstance(template, PromptTemplate):
        head = special_id(opening(ARGUMENTS[0]))
        return Wording(
            tokenizer,
            template.prefix_ids(()),
            template.state_ids,
            lambda text: [*template.question_ids(text), head],
            special_id(closing(ARGUMENTS[0])),
        )
    turn = template.user_turn()
    return Wording(
        tokenizer,
        turn.prefix,
        lambda text: [*turn.prefix, *encode(f"{turn.before}{text}")],
        lambda text: [*encode(f"\n\n{text}\n\n{ANSWER}{turn.behind}"), *turn.rest],
        template.ending(),
    )


class Branch:
    """A question in tokens: the path to its answer (`lead` is all but the last token of a long one), the path of each
    option, and the tokens that may follow where there are several. `nodes` lead there, parents first; there are
    `parting` of them, and none where these are more than MOST_NODES.

    Raises UserError for options with the same tokens.
    """

    def __init__(self, question: StateQuestion, wording: Wording) -> None:
        chain = wording.question(question.text)
        cut = len(chain) - 1 if len(chain) > LONG else 0
        self.lead, self.chain = chain[:cut], chain[cut:]
        self.paths: list[Path] = [tuple(wording.option(text)) for text in question.options]
        if len(set(self.paths)) < len(self.paths):
            twice = next(o for o, p in zip(question.options, self.paths, strict=True) if self.paths.count(p) > 1)
            raise UserError(f"Two options are written like {twice[:80]!r}, in the same tokens.", "Rename one of them.")
        # In order, each shares most with one of its neighbours; where it is alone nothing is chosen any more.
        ordered = sorted(self.paths)
        ends = [0, *map(common_start, ordered, ordered[1:]), 0]
        self.parting = sum(max(0, b - a) for a, b in pairwise(ends))
        follows: dict[Path, dict[int, None]] = {}
        for path, (above, below) in zip(ordered, pairwise(ends), strict=True):
            for i in range(above, max(above, below) + 1) if self.parting <= MOST_NODES else ():
                follows.setdefault(path[:i], {})[path[i]] = None
        self.choices = {path: tuple(sorted(ids)) for path, ids in follows.items() if len(ids) > 1}
        self.nodes = sorted(filter(None, follows), key=len)

    def __len__(self) -> int:
        return len(self.lead) + len(self.chain) + len(self.nodes)

    def probabilities(self, scores: Mapping[Path, Sequence[float]]) -> list[float]:
        """Return the probability of each option from the finite scores at each choice."""
        shares: dict[Path, dict[int, float]] = {}
        for path, ids in self.choices.items():
            best = max(scores[path])
            weights = [math.exp(score - best) for score in scores[path]]
            total = math.fsum(weights)
            shares[path] = {i: weight / total for i, weight in zip(ids, weights, strict=True)}
        deep = max(map(len, shares), default=0) + 1
        products = [math.prod(shares[p[:i]][t] for i, t in enumerate(p[:deep]) if p[:i] in shares) for p in self.paths]
        # Once or twice: numbers below 1 are closer to another than those above.
        while rounded := 1.0 - math.fsum(products):
            products[products.index(max(products))] += rounded
        return products


def packed(branches: Sequence[Branch]) -> tuple[Tree, list[dict[Path, tuple[Path, int]]]]:
    """Return one tree of all branches, with common starts merged; and for each branch where the scores of its choices
    are among the tree's answers: the ids, and the row."""
    placed: dict[tuple[int, int], int] = {}
    depths: list[int] = []

    def place(above: int, token: int) -> int:
        node = placed.setdefault((above, token), len(placed))
        if node == len(depths):
            depths.append(depths[above] + 1 if above >= 0 else 0)
        return node

    asks: dict[Path, list[int]] = {}
    rows = []
    for branch in branches:
        at = -1
        for token in branch.chain:
            at = place(at, token)
        where: dict[Path, int] = {(): at}
        for path in branch.nodes:
            where[path] = place(where[path[:-1]], path[-1])
        rows.append({path: (ids, len(asks.setdefault(ids, []))) for path, ids in branch.choices.items()})
        for path, ids in branch.choices.items():
            asks[ids].append(where[path])
    return (
        Tree([t for _, t in placed], [n for n, _ in placed], depths, [Ask(at, ids) for ids, at in asks.items()]),
        rows,
    )


KEPT, SHORT = 1024, 2048  # encoded questions, of at most so many characters; longer ones take their time each
TOGETHER = 128  # tokens that one pass may carry however long it takes


@dataclass(frozen=True, slots=True)
class Answers:
    """The probabilities of each question's options, in order, with a `math.fsum` of 1. `tokens` went through the model,
    `kept` of them for the state; `reused_tokens` came from the cache."""

    probabilities: list[list[float]]
    forward_passes: int
    tokens: int
    kept: int
    reused_tokens: int


class QuestionDecider:
    """Answers questions with a checkpoint, whose weights are shared by all its deciders. The last state stays cached.
    Not thread-safe."""

    def __init__(self, spec: DeciderSpec) -> None:
        began = time.perf_counter()
        self.spec, (checkpoint, self.runner) = spec, spec.load()
        self.wording = wording_of(checkpoint.template, checkpoint.tokenizer)
        self._kept = lru_cache(KEPT)(lambda question: Branch(question, self.wording))
        self.handle, self.prefix = self.runner.open(self.wording.prefix)
        self.load_ms = (time.perf_counter() - began) * 1e3

    def answer(self, state: str, questions: Sequence[StateQuestion]) -> Answers:
        """Answer all questions, in one pass if they fit the context together. Raises UserError, and NotFinite."""
        return result(self.answer_in_steps(state, questions, sliced=False))

    def answer_in_steps(
        self, state: str, questions: Sequence[StateQuestion], sliced: bool = True
    ) -> Generator[None, None, Answers]:
        """Answer as `answer`; the caller may stop at any yield, with `sliced` also within a long state, after a long
        question, and between passes of a few milliseconds."""
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
        probabilities: list[list[float]] = []
        passes = 0
        while len(probabilities) < len(branches):
            room = handle.slots - len(prompt)
            now = _first(branches[len(probabilities) :], min(room, max(in_time(runner), TOGETHER)) if sliced else room)
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
                probabilities.append(branch.probabilities(scores))
            tokens, passes = tokens + len(now[0].lead) + len(tree.tokens), passes + 1
            yield
        return Answers(probabilities, passes, tokens, fresh, reused)

    def _check(self, state: int, branches: Sequence[Branch]) -> None:
        """Raise UserError for a question that does not fit after the state, or whose options take too many nodes."""
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
        """Return model and engine for the report."""
        info = {"model": str(self.spec.model), **self.runner.caps.to_dict()}
        return {**info, "prefix_tokens": self.prefix.tokens, "load_ms": round(self.load_ms, 1)}


def _first(branches: Sequence[Branch], most: int) -> Sequence[Branch]:
    """Return the first branches with at most `most` nodes in all; at least one, and a long one alone."""
    count, nodes = 1, len(branches[0])
    while count < len(branches) and not (branches[0].lead or branches[count].lead):
        nodes += len(branches[count])
        if nodes > most:
            break
        count += 1
    return branches[:count]
