"""Answer multiple-choice questions about a state text: compute a probability for every option in one forward pass.

The state is the common prompt of all questions. Each question is a branch after this prompt: the question's tokens, the
token that starts an answer, and a trie (prefix tree) of the options' tokens, each with an end token. An option's
probability is the product of the softmax probabilities of its tokens at the branching nodes of its path."""

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
from rtcontrol.models.checkpoint.special_tokens import ARGUMENTS, head_end, head_start
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.decode.core import common_prefix_length
from rtcontrol.models.decode.protocol import NotFinite, ScoreQuery, Tree, WorkItem
from rtcontrol.models.errors import UserError
from rtcontrol.models.in_flight import prefill_in_slices, record_slice_time, run_to_end, slice_tokens

LONG_TOKENS = 256  # a longer question gets a separate pass, with its text in the prompt, not in the tree
MAX_NODES = 2048  # maximum nodes of the trie of a question's options; other sessions wait during a pass
ANSWER = "Answer with one of these options, and nothing else."
Path = tuple[int, ...]  # the first tokens of an answer


@dataclass(frozen=True, slots=True)
class StateQuestion:
    """A multiple-choice question with at least two options."""

    text: str
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QuestionEncoder:
    """Encodes states, questions and options as token ids. Ids of a state start with `prefix`; ids of a question end at
    the start of its answer. `end` is the id of the token that ends an option."""

    tokenizer: STTokenizer
    prefix: list[int]
    state_ids: Callable[[str], list[int]]
    question_ids: Callable[[str], list[int]]
    end: int

    def option_ids(self, text: str) -> list[int]:
        return [*self.tokenizer.encode(text), self.end]


def question_encoder(template: PromptTemplate | ChatTemplate, tokenizer: STTokenizer) -> QuestionEncoder:
    """Return the encoder of questions for a checkpoint. Raises UserError.

    An ST (SimpleTool) checkpoint answers where it decodes the first argument. A chat checkpoint answers in an assistant
    message, after a user message with the state and the question.
    """
    encode, special_id = tokenizer.encode, tokenizer.special_id
    if isinstance(template, PromptTemplate):
        head = special_id(head_start(ARGUMENTS[0]))
        return QuestionEncoder(
            tokenizer,
            template.prefix_ids(()),
            template.state_ids,
            lambda text: [*template.question_ids(text), head],
            special_id(head_end(ARGUMENTS[0])),
        )
    turn = template.user_turn()
    return QuestionEncoder(
        tokenizer,
        turn.prefix,
        lambda text: [*turn.prefix, *encode(f"{turn.before}{text}")],
        lambda text: [*encode(f"\n\n{text}\n\n{ANSWER}{turn.after}"), *turn.rest],
        template.end_token_id(),
    )


class QuestionBranch:
    """The token trie (prefix tree) of a question. `chain` has the tokens up to the answer. A long question has only its
    last token in `chain`, and the other tokens in `prompt_part`. `paths` has each option's tokens, and `choices` the
    tokens that may follow each branching node.

    `branching` is the number of trie nodes to evaluate. `nodes` has these nodes with parents first; it is empty if
    there are more than MAX_NODES. Raises UserError for options with the same tokens."""

    def __init__(self, question: StateQuestion, encoder: QuestionEncoder) -> None:
        chain = encoder.question_ids(question.text)
        cut = len(chain) - 1 if len(chain) > LONG_TOKENS else 0
        self.prompt_part, self.chain = chain[:cut], chain[cut:]
        self.paths: list[Path] = [tuple(encoder.option_ids(text)) for text in question.options]
        if len(set(self.paths)) < len(self.paths):
            repeated = next(o for o, p in zip(question.options, self.paths, strict=True) if self.paths.count(p) > 1)
            raise UserError(f"Two options have the same tokens as {repeated[:80]!r}.", "Rename one of them.")
        # After sorting, each path has its longest common prefix with the path before or after it.
        ordered = sorted(self.paths)
        ends = [0, *map(common_prefix_length, ordered, ordered[1:]), 0]
        self.branching = sum(max(0, b - a) for a, b in pairwise(ends))
        follows: dict[Path, dict[int, None]] = {}
        for path, (above, below) in zip(ordered, pairwise(ends), strict=True):
            for i in range(above, max(above, below) + 1) if self.branching <= MAX_NODES else ():
                follows.setdefault(path[:i], {})[path[i]] = None
        self.choices = {path: tuple(sorted(ids)) for path, ids in follows.items() if len(ids) > 1}
        self.nodes = sorted(filter(None, follows), key=len)

    def __len__(self) -> int:
        return len(self.prompt_part) + len(self.chain) + len(self.nodes)

    def probabilities(self, scores: Mapping[Path, Sequence[float]]) -> list[float]:
        """Return the probability of each option. `scores` has the finite scores of the `choices` at each node."""
        shares: dict[Path, dict[int, float]] = {}
        for path, ids in self.choices.items():
            best = max(scores[path])
            weights = [math.exp(score - best) for score in scores[path]]
            total = math.fsum(weights)
            shares[path] = {i: weight / total for i, weight in zip(ids, weights, strict=True)}
        deep = max(map(len, shares), default=0) + 1
        products = [math.prod(shares[p[:i]][t] for i, t in enumerate(p[:deep]) if p[:i] in shares) for p in self.paths]
        # Adjust the largest product for rounding errors until the sum is exactly 1, which takes one or two steps.
        while rounding_error := 1.0 - math.fsum(products):
            products[products.index(max(products))] += rounding_error
        return products


def pack_branches(branches: Sequence[QuestionBranch]) -> tuple[Tree, list[dict[Path, tuple[Path, int]]]]:
    """Merge branches into one tree with shared prefixes. Return the tree and, for each branch, a dict from each
    branching node to the place of its scores in the answers: (token ids of the query, row)."""
    placed: dict[tuple[int, int], int] = {}
    depths: list[int] = []

    def add_node(above: int, token: int) -> int:
        node = placed.setdefault((above, token), len(placed))
        if node == len(depths):
            depths.append(depths[above] + 1 if above >= 0 else 0)
        return node

    queries: dict[Path, list[int]] = {}
    rows = []
    for branch in branches:
        at = -1
        for token in branch.chain:
            at = add_node(at, token)
        where: dict[Path, int] = {(): at}
        for path in branch.nodes:
            where[path] = add_node(where[path[:-1]], path[-1])
        rows.append({path: (ids, len(queries.setdefault(ids, []))) for path, ids in branch.choices.items()})
        for path, ids in branch.choices.items():
            queries[ids].append(where[path])
    return (
        Tree(
            [t for _, t in placed], [n for n, _ in placed], depths, [ScoreQuery(at, ids) for ids, at in queries.items()]
        ),
        rows,
    )


MAX_CACHED = 1024  # maximum number of cached encoded questions
SHORT_CHARACTERS = 2048  # questions with more characters are not cached
MIN_PASS_TOKENS = 128  # a pass may always have this number of tokens, even if it is slow


@dataclass(frozen=True, slots=True)
class Answers:
    """The probabilities of each question's options, which sum to 1. `tokens` counts the tokens that the model computed.
    Of these, `kept` tokens of the state stay cached. `reused_tokens` counts the tokens that were already cached."""

    probabilities: list[list[float]]
    forward_passes: int
    tokens: int
    kept: int
    reused_tokens: int


class QuestionDecider:
    """Answers questions about a state with a checkpoint. The tokens of the last state stay cached. The model's weights
    are shared with other deciders. Not thread-safe."""

    def __init__(self, spec: DeciderSpec) -> None:
        started = time.perf_counter()
        self.spec, (checkpoint, self.runner) = spec, spec.load()
        self.encoder = question_encoder(checkpoint.template, checkpoint.tokenizer)
        self._cached_branch = lru_cache(MAX_CACHED)(lambda question: QuestionBranch(question, self.encoder))
        self.handle, self.prefix = self.runner.open(self.encoder.prefix)
        self.load_ms = (time.perf_counter() - started) * 1e3

    def answer(self, state: str, questions: Sequence[StateQuestion]) -> Answers:
        """Answer all questions, in one pass if they fit the context together. Raises UserError for questions that do
        not fit the context, and NotFinite."""
        return run_to_end(self.answer_in_steps(state, questions, in_slices=False))

    def answer_in_steps(
        self, state: str, questions: Sequence[StateQuestion], in_slices: bool = True
    ) -> Generator[None, None, Answers]:
        """Do the same as `answer`, as a generator that yields between passes, so that the caller may stop there. With
        `in_slices`, long states and questions are computed in several passes of a few milliseconds."""
        runner, handle, prompt = self.runner, self.handle, self.encoder.state_ids(state)
        branches: list[QuestionBranch] = []
        for question in questions:
            short = len(question.text) + sum(map(len, question.options)) <= SHORT_CHARACTERS
            branches.append(self._cached_branch(question) if short else QuestionBranch(question, self.encoder))
            if in_slices and not short:
                yield
        self._check_sizes(len(prompt), branches)
        reused = handle.start(prompt, reserve=0)
        tokens = fresh = len(prompt) - reused
        probabilities: list[list[float]] = []
        passes = 0
        while len(probabilities) < len(branches):
            room = handle.slots - len(prompt)
            max_nodes = min(room, max(slice_tokens(runner), MIN_PASS_TOKENS)) if in_slices else room
            batch = _next_batch(branches[len(probabilities) :], max_nodes)
            tree, rows = pack_branches(batch)
            handle.start([*prompt, *batch[0].prompt_part], reserve=len(tree.tokens))
            if in_slices:
                yield from prefill_in_slices(runner, handle)
            started, count = time.perf_counter(), handle.uncomputed_count + len(tree.tokens)
            (answers,) = runner.run([WorkItem(handle, tree)])
            if count >= MIN_PASS_TOKENS:  # most time of a smaller pass is a fixed cost, so it is not recorded
                record_slice_time(runner, count, time.perf_counter() - started)
            by_ids = {query.ids: answer for query, answer in zip(tree.queries, answers, strict=True)}
            for branch, places in zip(batch, rows, strict=True):
                scores = {path: by_ids[ids][row] for path, (ids, row) in places.items()}
                if not math.isfinite(sum(map(sum, scores.values()))):
                    handle.invalidate()
                    raise NotFinite
                probabilities.append(branch.probabilities(scores))
            tokens, passes = tokens + len(batch[0].prompt_part) + len(tree.tokens), passes + 1
            yield
        return Answers(probabilities, passes, tokens, fresh, reused)

    def _check_sizes(self, state: int, branches: Sequence[QuestionBranch]) -> None:
        """Raise UserError if a question does not fit the context after the state, or its options have too many
        nodes."""
        slots = self.handle.slots
        for i, branch in enumerate(branches, start=1):
            if branch.branching > MAX_NODES:
                raise UserError(
                    f"The options of question {i} differ only after {branch.branching} tokens, more than {MAX_NODES}.",
                    "Give shorter options, or options that differ in their first words.",
                )
        if branches and state + (max_nodes := max(map(len, branches))) > slots:
            where = f"question {list(map(len, branches)).index(max_nodes) + 1}"
            raise UserError(
                f"The state has {state} tokens and {where} has {max_nodes}: together {state + max_nodes - slots} more "
                f"than the model's context of {slots}.",
                "Shorten them, or give fewer options.",
            )

    def info(self) -> dict[str, Any]:
        """Return figures about model and engine for the report."""
        info = {"model": str(self.spec.model), **self.runner.caps.to_dict()}
        return {**info, "prefix_tokens": self.prefix.tokens, "load_ms": round(self.load_ms, 1)}


def _next_batch(branches: Sequence[QuestionBranch], max_nodes: int) -> Sequence[QuestionBranch]:
    """Return the first branches with at most `max_nodes` nodes in all, but at least one branch. A branch with a
    `prompt_part` is returned alone."""
    count, nodes = 1, len(branches[0])
    while count < len(branches) and not (branches[0].prompt_part or branches[count].prompt_part):
        nodes += len(branches[count])
        if nodes > max_nodes:
            break
        count += 1
    return branches[:count]
