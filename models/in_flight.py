"""Run decisions pass by pass: decoder cores request the scores of tokens, and a runner (engine) computes them."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from rtcontrol.models.call import Call, Decision
from rtcontrol.models.decode.chat_core import ChatCore
from rtcontrol.models.decode.core import DecoderCore, Drafts
from rtcontrol.models.decode.protocol import Budget, Cancelled, NotFinite, Runner, WorkItem
from rtcontrol.models.decode.walk import HeadNode

T = TypeVar("T")
# A long prompt is computed in slices of at most MAX_SLICE tokens, or fewer if a slice takes over SLICE_S seconds.
MAX_SLICE, MIN_SLICE, SLICE_S = 64, 4, 0.008
_slices: WeakKeyDictionary[Runner, int] = WeakKeyDictionary()  # by runner: number of tokens that it computes in SLICE_S


@dataclass
class InFlightDecode:
    """A decision in progress. `handle` is its sequence in the runner's cache. Of the prompt's tokens, `reused` were
    cached and `new` must be computed. Setting `stop` cancels the decision. `error` is the exception that ended it."""

    steps: Any  # a `DecisionSteps` of the decoder core
    handle: Any
    stop: threading.Event
    reused: int
    new: int
    error: Exception | None = None

    @property
    def in_progress(self) -> bool:
        if self.error is None and self.steps.work is not None and self.stop.is_set():
            self.error = Cancelled()
        return self.error is None and self.steps.work is not None

    def feed(self, answers: Sequence[Any]) -> None:
        try:
            self.steps.feed(answers)
        except Exception as error:
            self.error = error
            if isinstance(error, NotFinite):
                self.handle.invalidate()  # the cached keys and values may also be NaN

    def decision(self) -> Decision:
        """Return the finished decision, or raise the error that ended it."""
        if self.error is not None:
            raise self.error
        decision = self.steps.decision
        assert decision is not None
        new = self.new if decision.forward_passes else 0
        return replace(decision, tokens=decision.tokens + new, reused_tokens=self.reused)


def evaluate(runner: Runner, decisions: Sequence[InFlightDecode]) -> Generator[None, None, None]:
    """Run shared forward passes until all decisions are complete, and yield after each pass. The error of a decision is
    stored in its `error`, and does not affect the other decisions."""
    while in_progress := [d for d in decisions if d.in_progress]:
        for i in range(0, len(in_progress), runner.caps.batch):
            batch = in_progress[i : i + runner.caps.batch]
            for decode, answers in zip(batch, _run_pass(runner, batch), strict=True):
                if not isinstance(answers, Exception):
                    decode.feed(answers)
                else:
                    decode.error = answers
            yield


def _run_pass(runner: Runner, decisions: Sequence[InFlightDecode]) -> Sequence[Any]:
    """Return for each decision the runner's answers, or the exception. After an exception, retry each half of the batch
    separately, to find the decision that causes it."""
    work = [WorkItem(d.handle, d.steps.work, d.stop) for d in decisions if d.steps.work is not None]
    try:
        return runner.run(work)
    except Exception as error:
        if len(work) == 1:
            return [error]
    half = len(work) // 2
    return [*_run_pass(runner, decisions[:half]), *_run_pass(runner, decisions[half:])]


def slice_tokens(runner: Runner) -> int:
    """Return how many tokens the runner computed in SLICE_S at the last measurement, but at least MIN_SLICE."""
    return max(_slices.get(runner, 0), MIN_SLICE)


def record_slice_time(runner: Runner, tokens: int, seconds: float) -> None:
    """Record that the runner computed `tokens` tokens in `seconds`, to choose the size of the next slices."""
    _slices[runner] = int(tokens * SLICE_S / seconds)


def prefill_in_slices(runner: Runner, handle: Any) -> Iterator[None]:
    """Compute a long prompt in slices, and yield after each slice. The last slice is left for the next pass."""
    while handle.uncomputed_count > (size := min(slice_tokens(runner), MAX_SLICE)):
        started = time.perf_counter()
        runner.prefill(handle, size)
        record_slice_time(runner, size, time.perf_counter() - started)
        yield


def run_to_end(steps: Generator[None, None, T]) -> T:
    """Run a generator to its end, ignoring what it yields, and return its return value."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return cast("T", done.value)


class Decoding:
    """Runs decisions whose prompts have one common prefix. Any thread may call `cancel`.

    Without a `budget`, the number of nodes in a pass is chosen by the measured cost of a pass.
    """

    def __init__(
        self, runner: Runner, core: DecoderCore | ChatCore, prefix: Sequence[int], budget: Budget | None = None
    ) -> None:
        self.runner, self._prefix = runner, list(prefix)
        self.core: Any = core
        self.handle, self.prefix = runner.open(prefix)
        if not runner.caps.tree:
            budget = replace(budget or Budget(), per_head=1, paths=not (budget and budget.forced))
        self.layout = core.choose_budget(budget, lambda: runner.cost(self.handle))  # layout of a pass, for the report
        self._batch_handles: list[Any] = []  # handles for `decide_all`
        self._stop = threading.Event()
        self._drafts = Drafts()
        self._last: InFlightDecode | None = None

    def start(self, suffix: Sequence[int], active_call: Call | None = None) -> InFlightDecode:
        """Start a decision for the prompt prefix + `suffix`; the function `evaluate` then runs it. `active_call` is for
        hysteresis. Raises UserError if the prompt is too long."""
        self._stop.clear()
        self._last = self.start_on_handle(self.handle, suffix, self._drafts, self._stop, active_call)
        return self._last

    def copy_handle(self) -> Any:
        """Return another handle with the same prefix, for `start_on_handle`."""
        return self.runner.copy(self.handle, self._prefix)

    def start_on_handle(
        self,
        handle: Any,
        suffix: Sequence[int],
        drafts: Drafts | None,
        stop: threading.Event,
        active_call: Call | None = None,
    ) -> InFlightDecode:
        """Start a decision on a handle from `copy_handle`. Setting `stop` cancels it before its next pass. Without
        `drafts` no tokens are guessed. Raises UserError if the prompt is too long."""
        if drafts is not None and handle.slots - len(self._prefix) - len(suffix) < self.core.max_nodes:
            drafts = None
        prompt = [*self._prefix, *suffix]
        reused = handle.start(prompt, reserve=self.core.reserve)
        options = {} if active_call is None else {"active_call": active_call}
        return InFlightDecode(self.core.start(drafts, suffix, **options), handle, stop, reused, len(prompt) - reused)

    def evaluate_in_steps(self, decode: InFlightDecode, in_slices: bool) -> Generator[None, None, None]:
        """Evaluate a started decision, and yield between forward passes, so that the caller may stop there. With
        `in_slices`, a long prompt is computed in several passes of a few milliseconds."""
        if in_slices:
            yield from prefill_in_slices(self.runner, self.handle)
        yield from evaluate(self.runner, [decode])

    def decide_all(self, suffixes: Sequence[Sequence[int]]) -> list[InFlightDecode]:
        """Decide for each prompt (prefix + suffix) in shared passes. Return the completed decodes, each with a decision
        or an error."""
        self._stop.clear()
        batch, decodes = self.runner.caps.batch, list[InFlightDecode]()
        while len(self._batch_handles) < min(len(suffixes), batch):
            self._batch_handles.append(self.copy_handle())
        for i in range(0, len(suffixes), batch):
            pairs = zip(self._batch_handles, suffixes[i : i + batch], strict=False)
            batch_decodes = [self.start_on_handle(handle, suffix, None, self._stop) for handle, suffix in pairs]
            run_to_end(evaluate(self.runner, batch_decodes))
            decodes += batch_decodes
        return decodes

    @property
    def visited_nodes(self) -> Sequence[HeadNode]:
        """Return the (head index, trie node) of each choice that led to the last call."""
        return () if self._last is None else self._last.steps.visited

    def cancel(self) -> None:
        """Cancel the current decision before its next forward pass."""
        self._stop.set()
