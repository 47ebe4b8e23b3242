"""Map sentences to goals of an agent off the clock, by a decider whose tools are the goals."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rtcontrol.agents import InvalidCall
from rtcontrol.agents.goal_tools import GoalTools
from rtcontrol.hosts import deciders
from rtcontrol.hosts.protocol import Decider, DeciderSource, DecisionReply, DecisionRequest
from rtcontrol.loop.config import instruction_text
from rtcontrol.loop.instructions import echo
from rtcontrol.models.errors import UserError
from rtcontrol.models.in_flight import result

GATE, LIMIT_S = 0.5, 5.0
ITSELF = "itself"  # canonical words need no decider
LONGEST = 1_000  # characters
EXAMPLES, DETAIL = 4, 200
LOOK_S = 0.02  # between two looks whether the caller gave up
# For people; other reasons are failures, named as hosts name them.
WHY = {
    "none": "it asks for none of the goals",
    "unsure": "nobody can be sure enough what it asks for",
    "illegal": "what it asks for is no goal",
    "timeout": "no answer came in time",
    "too_long": "it is longer than an instruction for one goal",
    "overtaken": "something newer was said",
}


@dataclass(frozen=True, slots=True)
class Understood:
    """The result for a sentence. `text` is the canonical instruction, None if there is none: `why`, in a word, and
    `detail`. `by` is the interpreter, `sure` its least confident part (None: unknown).
    """

    said: str
    text: str | None
    by: str
    why: str | None = None
    detail: str = ""
    sure: float | None = None
    took_ms: float = 0.0

    @property
    def reason(self) -> str:
        """Return why it was not understood, for people."""
        told = WHY.get(self.why or "", f"the interpreter failed ({self.why})")
        return f"{told} ({self.detail})" if self.detail else told

    def event(self, t_s: float) -> dict[str, Any]:
        """Return its event for the record."""
        told = {"said": self.said, "understood": self.text, "by": self.by, "took_ms": round(self.took_ms, 3)}
        if self.why is not None:
            told |= {"not_understood": self.why, **({"detail": self.detail} if self.detail else {})}
        if self.sure is not None:
            told["sure"] = round(self.sure, 4)
        return {**told, "t_s": t_s}


class Interpreter:
    """Maps sentences to one of `goals` by a decider of them, one at a time; any thread may ask.

    An answer below the confidence `gate`, in any part, counts as not understood, and so does one after `limit_s`.
    """

    def __init__(
        self, name: str, goals: GoalTools, source: DeciderSource, gate: float = GATE, limit_s: float = LIMIT_S
    ) -> None:
        self.name, self.goals, self.gate, self.limit_s = name, goals, gate, limit_s
        self._source = source
        self._decider: Decider | None = None
        self._turn = threading.Lock()

    def start(self) -> None:
        """Build the decider, unless it is there. Raises UserError."""
        with self._turn:
            self._built()

    def known(self, said: str) -> Understood | None:
        """Return what needs no decider: canonical words; None for other sentences."""
        if len(said) > LONGEST:
            return Understood(said[:LONGEST], None, ITSELF, "too_long")
        goal = self.goals.canonical(said)
        return None if goal is None else Understood(said, goal.text(), ITSELF, sure=1.0)

    def understand(self, said: str, given_up: Callable[[], bool] = lambda: False) -> Understood | None:
        """Block for at most `limit_s`. None if the caller gave up. Never raises: `why` has the error."""
        if (known := self.known(said)) is not None:
            return known
        began = time.monotonic()

        def over(_: int = 0) -> bool:
            return given_up() or time.monotonic() > began + self.limit_s

        while not self._turn.acquire(timeout=LOOK_S):
            if over():
                return self._late(said, given_up())
        try:
            found = self._ask(said, over)
        except Exception as error:
            what = error.what if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            found = Understood(said, None, self.name, "error", what[:DETAIL])
        finally:
            self._turn.release()
        if found is None:
            return self._late(said, given_up())
        return replace(found, took_ms=(time.monotonic() - began) * 1e3)

    def examples(self) -> str:
        """Return sentences that are understood."""
        return "; ".join(self.goals.examples(EXAMPLES))

    def _late(self, said: str, given_up: bool) -> Understood | None:
        took_ms = self.limit_s * 1e3
        return None if given_up else Understood(said, None, self.name, "timeout", f"{self.limit_s:g} s", None, took_ms)

    def _built(self) -> Decider:
        if self._decider is None:
            self._decider = deciders.build(self._source)
        return self._decider

    def _ask(self, said: str, over: Callable[[int], bool]) -> Understood | None:
        """Return None where the caller gave up, or the time is over."""
        request = DecisionRequest(0, 0, "", said, within_ns=round(self.limit_s * 1e9))
        (reply,) = result(deciders.answer_together([(self._built(), request)], over))
        return None if reply is None or over(0) else self._read(said, reply)

    def _read(self, said: str, reply: DecisionReply) -> Understood:
        decision = reply.decision
        if decision is None:
            why, what = reply.loss or "error", (reply.mistake or (reply.error or "",))[0]
            return Understood(said, None, self.name, why, " ".join(what.split())[:DETAIL])
        sure = min(decision.confidence.values(), default=None)
        if decision.call is None:
            return Understood(said, None, self.name, "none", sure=sure)
        try:
            goal = self.goals.goal(decision.call)
        except (InvalidCall, UserError) as error:
            return Understood(said, None, self.name, "illegal", str(error)[:DETAIL], sure)
        if sure is not None and sure < self.gate:
            what = f"{sure:.2f} that it is {goal.text()!r}, and {self.gate:g} is asked for"
            return Understood(said, None, self.name, "unsure", what, sure)
        return Understood(said, goal.text(), self.name, sure=sure)


class Interpretation:
    """Passes interpreted instructions to `take`, the newest alone, and the result for each sentence to `answered`.

    `hear` never waits; any thread may call it. One worker interprets; a sentence that it has not begun gives way to a
    newer one.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        take: Callable[[str], None],
        emit: Callable[[dict[str, Any]], None],
        notify: Callable[[str], None],
        now_s: Callable[[], float],
        answered: Callable[[Understood], None] = lambda understood: None,
    ) -> None:
        self.interpreter = interpreter
        self._take, self._emit, self._notify = take, emit, notify
        self._now_s, self._answered = now_s, answered
        self._heard = 0  # sentences so far, without the first instruction
        self._box: str | None = None  # the newest, until the worker takes it
        self._worker: threading.Thread | None = None
        self._lock = threading.Condition()
        self._closed = False

    def first(self, said: str, stopped: Callable[[], bool]) -> str:
        """Return the first instruction in canonical words. Blocks. UserError if it is not understood: there is no older
        one to follow."""
        found = self.interpreter.understand(instruction_text(said), stopped)
        if found is None:  # the run is over
            return said
        if found.text is None:
            self._emit(found.event(0.0))
            what = f'The instruction "{echo(said)}" is not understood: {found.reason}.'
            raise UserError(what, f"Say it in other words, such as: {self.interpreter.examples()}.")
        self._tell(found)
        return found.text

    def hear(self, said: str) -> bool:
        """Interpret a sentence. Return False after the end. UserError if it is too long."""
        said = instruction_text(said)
        known = self.interpreter.known(said)
        with self._lock:
            if self._closed:
                return False
            self._heard += 1
            if self._box is not None:
                self._done(0, self._overtaken(self._box))
            self._box = said if known is None else None
            if known is not None:
                self._done(self._heard, known)
            elif self._worker is None:
                self._worker = threading.Thread(target=self._work, name="interpreter", daemon=True)
                self._worker.start()
            self._lock.notify()
        return True

    def close(self) -> None:
        """Drop what is pending."""
        with self._lock:
            self._closed = True
            self._lock.notify()

    def _work(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._closed or self._box is not None)
                said, number, self._box = self._box, self._heard, None
            if self._closed or said is None:
                return
            self._done(number, self._understood(said, number))

    def _understood(self, said: str, number: int) -> Understood:
        found = self.interpreter.understand(said, lambda: self._closed or number != self._heard)
        return found or self._overtaken(said)

    def _overtaken(self, said: str) -> Understood:
        return Understood(said, None, self.interpreter.name, "overtaken")

    def _done(self, number: int, found: Understood) -> None:
        with self._lock:  # results are passed on in the order of their sentences
            if self._closed:
                return
            if number != self._heard:
                found = self._overtaken(found.said)
            self._tell(found)
            self._answered(found)
            if found.text is not None:
                self._take(found.text)

    def _tell(self, found: Understood) -> None:
        self._emit(found.event(self._now_s()))
        if found.text is None and found.why != "overtaken":
            what = f'"{echo(found.said)}" is not understood: {found.reason}. What was said before goes on.'
            self._notify(f"{what} It can be said so: {self.interpreter.examples()}.")
        elif found.text is not None and found.text != found.said:
            sure = "" if found.sure is None or found.by == ITSELF else f", {100 * found.sure:.0f} % sure"
            by = "" if found.by == ITSELF else f" ({found.by}{sure}, {found.took_ms:.0f} ms)"
            self._notify(f'"{echo(found.said)}" is understood as: {found.text}{by}')
