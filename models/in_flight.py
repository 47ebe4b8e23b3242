"""Run decisions pass by pass: a plan's core on a handle of the model's runner."""

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
from rtcontrol.models.decode.protocol import Budget, Cancelled, NotFinite, Runner, Work
from rtcontrol.models.decode.walk import Entry

T = TypeVar("T")
# A long prompt in slices: so many tokens, and fewer where they take longer than so many seconds.
SLICE, LEAST_SLICE, SLICE_S = 64, 4, 0.008
_slices: WeakKeyDictionary[Runner, int] = WeakKeyDictionary()  # what was in time last


@dataclass
class InFlightDecode:
    """A decision in progress on a handle; `fresh` tokens of its prompt are computed for it. `fault` is the error that
    ended it."""

    deciding: Any  # a core's
    handle: Any
    stop: threading.Event
    reused: int
    fresh: int
    fault: Exception | None = None

    @property
    def working(self) -> bool:
        if self.fault is None and self.deciding.work is not None and self.stop.is_set():
            self.fault = Cancelled()
        return self.fault is None and self.deciding.work is not None

    def feed(self, answers: Sequence[Any]) -> None:
        try:
            self.deciding.feed(answers)
        except Exception as fault:
            self.fault = fault
            if isinstance(fault, NotFinite):
                self.handle.forget()  # what such scores came from is not used again

    def decision(self) -> Decision:
        """Return the decision, or raise the error that ended it."""
        if self.fault is not None:
            raise self.fault
        decision = self.deciding.decision
        assert decision is not None
        fresh = self.fresh if decision.forward_passes else 0
        return replace(decision, tokens=decision.tokens + fresh, reused_tokens=self.reused)


def evaluate(runner: Runner, decisions: Sequence[InFlightDecode]) -> Generator[None, None, None]:
    """Run passes, each for all open decisions, until all are complete; yield between passes. An error of one decision
    is stored as its `fault` and does not affect the others."""
    while working := [d for d in decisions if d.working]:
        for i in range(0, len(working), runner.caps.batch):
            now = working[i : i + runner.caps.batch]
            for decode, answers in zip(now, _answers(runner, now), strict=True):
                if not isinstance(answers, Exception):
                    decode.feed(answers)
                else:
                    decode.fault = answers
            yield


def _answers(runner: Runner, decisions: Sequence[InFlightDecode]) -> Sequence[Any]:
    work = [Work(d.handle, d.deciding.work, d.stop) for d in decisions if d.deciding.work is not None]
    try:
        return runner.run(work)
    except Exception as fault:
        if len(work) == 1:
            return [fault]
    half = len(work) // 2
    return [*_answers(runner, decisions[:half]), *_answers(runner, decisions[half:])]


def in_time(runner: Runner) -> int:
    """Return how many tokens a slice of a prompt has; few for an unknown runner, which may be slow."""
    return max(_slices.get(runner, 0), LEAST_SLICE)


def learn(runner: Runner, tokens: int, seconds: float) -> None:
    """Record how long so many tokens took."""
    _slices[runner] = int(tokens * SLICE_S / seconds)


def prefill_in_slices(runner: Runner, handle: Any) -> Iterator[None]:
    """Compute a long prompt except its last slice; yield between slices."""
    while handle.fresh > (size := min(in_time(runner), SLICE)):
        began = time.perf_counter()
        runner.prefill(handle, size)
        learn(runner, size, time.perf_counter() - began)
        yield


def result(steps: Generator[None, None, T]) -> T:
    """Run a generator to its end and return its value."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return cast("T", done.value)


class Decoding:
    """Decides after one prefix, one decision at a time; `cancel` may be called from another thread.

    Without a `budget` the layout of passes is chosen by the cost of a pass on the runner.
    """

    def __init__(
        self, runner: Runner, core: DecoderCore | ChatCore, prefix: Sequence[int], budget: Budget | None = None
    ) -> None:
        self.runner, self._prefix = runner, list(prefix)
        self.core: Any = core
        self.handle, self.prefix = runner.open(prefix)
        if not runner.caps.tree:
            budget = replace(budget or Budget(), per_head=1, paths=not (budget and budget.forced))
        self.layout = core.adapt(budget, lambda: runner.cost(self.handle))  # for people
        self._others: list[Any] = []  # of decisions that are made together
        self._stop = threading.Event()
        self._drafts = Drafts()
        self._last: InFlightDecode | None = None

    def begin(self, suffix: Sequence[int], standing: Call | None = None) -> InFlightDecode:
        """Start a decision after prefix + `suffix`, for `evaluate`; `standing` is the active call, for hysteresis.

        Raises UserError where the context is too long.
        """
        self._stop.clear()
        self._last = self.begin_on(self.handle, suffix, self._drafts, self._stop, standing)
        return self._last

    def another(self) -> Any:
        """Return another handle with the same prefix, for `begin_on`."""
        return self.runner.copy(self.handle, self._prefix)

    def begin_on(
        self,
        handle: Any,
        suffix: Sequence[int],
        drafts: Drafts | None,
        stop: threading.Event,
        standing: Call | None = None,
    ) -> InFlightDecode:
        """Start a decision on a handle of `another`; `stop` ends it before its next pass. Raises UserError where the
        context is too long."""
        if drafts is not None and handle.slots - len(self._prefix) - len(suffix) < self.core.most:
            drafts = None
        prompt = [*self._prefix, *suffix]
        reused = handle.start(prompt, reserve=self.core.reserve)
        steady = {} if standing is None else {"standing": standing}
        return InFlightDecode(self.core.begin(drafts, suffix, **steady), handle, stop, reused, len(prompt) - reused)

    def in_steps(self, decode: InFlightDecode, sliced: bool) -> Generator[None, None, None]:
        """Evaluate a started decision; the caller may stop at any yield: between passes, and with `sliced` every few
        milliseconds of a long prompt."""
        if sliced:
            yield from prefill_in_slices(self.runner, self.handle)
        yield from evaluate(self.runner, [decode])

    def decided(self, suffixes: Sequence[Sequence[int]]) -> list[InFlightDecode]:
        """Decide after prefix + each suffix in the same passes, each with the result or error that it has alone."""
        self._stop.clear()
        batch, decodes = self.runner.caps.batch, list[InFlightDecode]()
        while len(self._others) < min(len(suffixes), batch):
            self._others.append(self.another())
        for i in range(0, len(suffixes), batch):
            each = zip(self._others, suffixes[i : i + batch], strict=False)
            now = [self.begin_on(handle, suffix, None, self._stop) for handle, suffix in each]
            result(evaluate(self.runner, now))
            decodes += now
        return decodes

    @property
    def visited(self) -> Sequence[Entry]:
        """Return (head, trie node) of the choices of the last call."""
        return () if self._last is None else self._last.deciding.visited

    def cancel(self) -> None:
        """Stop the current decision before its next pass."""
        self._stop.set()
