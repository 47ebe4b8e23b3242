"""Map sentences to the goals of an agent outside the ticks, with a decider whose tools are the goals."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any

from rtcontrol.agents import InvalidCall
from rtcontrol.agents.goal_tools import GoalTools
from rtcontrol.hosts import deciders
from rtcontrol.hosts.protocol import Decider, DeciderSource, DecisionReply, DecisionRequest
from rtcontrol.loop.active import echo
from rtcontrol.loop.config import instruction_text
from rtcontrol.models.errors import UserError
from rtcontrol.models.in_flight import result

GATE, LIMIT_S = 0.5, 5.0
ITSELF = "itself"  # canonical words need no decider
EXAMPLES, DETAIL = 4, 200
LOOK_S = 0.02  # seconds between two checks whether the caller gave up
# Texts for people. Other reasons are failures, with the names that hosts use.
WHY = {
    "none": "it asks for none of the goals",
    "unsure": "nobody can be sure enough what it asks for",
    "illegal": "what it asks for is no goal",
    "timeout": "no answer came in time",
    "overtaken": "something newer was said",
}


@dataclass(frozen=True, slots=True)
class Understood:
    """The result for a sentence. `text`: the canonical instruction, or None with the reason `why` and the `detail`.
    `by`: the interpreter; `sure`: the confidence of its least confident part (None: unknown)."""

    said: str
    text: str | None
    by: str
    why: str | None = None
    detail: str = ""
    sure: float | None = None
    took_ms: float = 0.0

    @property
    def reason(self) -> str:
        """Return for people why the sentence was not understood."""
        reason = WHY.get(self.why or "", f"the interpreter failed ({self.why})")
        return f"{reason} ({self.detail})" if self.detail else reason

    def event(self, t_s: float) -> dict[str, Any]:
        """Return the record's line for this result."""
        line = {"said": self.said, "understood": self.text, "by": self.by, "took_ms": round(self.took_ms, 3)}
        if self.why is not None:
            line |= {"not_understood": self.why, **({"detail": self.detail} if self.detail else {})}
        if self.sure is not None:
            line["sure"] = round(self.sure, 4)
        return {**line, "t_s": t_s}


class Interpreter:
    """An interpreter that maps a sentence to one of `goals` with a decider, one at a time. Any thread may use it.

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
        """Build the decider if that was not done yet. Raises UserError if the decider cannot be built."""
        with self._turn:
            self._built()

    def understand(self, sentence: str, given_up: Callable[[], bool] = lambda: False) -> Understood | None:
        """Return the result for a sentence, or None if the caller gave up. Blocks for at most `limit_s`, and not at all
        for canonical words. Never raises: `why` has the error."""
        if (goal := self.goals.canonical_goal(sentence)) is not None:
            return Understood(sentence, goal.text(), ITSELF, sure=1.0)
        began = time.monotonic()
        understood: Understood | None = None

        def over(_: int = 0) -> bool:
            return given_up() or time.monotonic() > began + self.limit_s

        while not (turn := self._turn.acquire(timeout=LOOK_S)) and not over():
            pass
        if turn:
            try:
                understood = self._ask(sentence, over)
            except Exception as error:
                detail = error.what if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
                understood = Understood(sentence, None, self.name, "error", detail[:DETAIL])
            finally:
                self._turn.release()
        if understood is not None:
            return replace(understood, took_ms=(time.monotonic() - began) * 1e3)
        limit_ms = self.limit_s * 1e3
        return None if given_up() else Understood(sentence, None, self.name, "timeout", took_ms=limit_ms)

    def examples(self) -> str:
        """Return sentences that are understood."""
        return "; ".join(self.goals.examples(EXAMPLES))

    def _built(self) -> Decider:
        if self._decider is None:
            self._decider = deciders.build(self._source)
        return self._decider

    def _ask(self, sentence: str, over: Callable[[int], bool]) -> Understood | None:
        """Return the reply of the decider, or None if the caller gave up or the time is over."""
        request = DecisionRequest(0, 0, "", sentence, within_ns=round(self.limit_s * 1e9))
        (reply,) = result(deciders.answer_together([(self._built(), request)], over))
        return None if reply is None or over(0) else self._read(sentence, reply)

    def _read(self, sentence: str, reply: DecisionReply) -> Understood:
        decision = reply.decision
        if decision is None:
            error = (reply.mistake or (reply.error or "",))[0]
            return Understood(sentence, None, self.name, reply.loss or "error", " ".join(error.split())[:DETAIL])
        sure = min(decision.confidence.values(), default=None)
        if decision.call is None:
            return Understood(sentence, None, self.name, "none", sure=sure)
        try:
            goal = self.goals.goal_of(decision.call)
        except (InvalidCall, UserError) as error:
            return Understood(sentence, None, self.name, "illegal", str(error)[:DETAIL], sure)
        if sure is not None and sure < self.gate:
            detail = f"{sure:.2f} that it is {goal.text()!r}, and {self.gate:g} is asked for"
            return Understood(sentence, None, self.name, "unsure", detail, sure)
        return Understood(sentence, goal.text(), self.name, sure=sure)


class Interpretation:
    """A worker that passes the newest interpreted instruction to `take`, and the result for each sentence to
    `answered`.

    Any thread may call `hear`, which never waits. One thread interprets, and a newer sentence replaces a waiting one.
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
        self._sentences: SimpleQueue[str] = SimpleQueue()
        self._closed = False
        threading.Thread(target=self._work, name="interpreter", daemon=True).start()

    def first(self, sentence: str, stopped: Callable[[], bool]) -> str:
        """Return the first instruction in canonical words. Blocks. Raises UserError if the sentence is not understood,
        since there is no older instruction to follow."""
        understood = self.interpreter.understand(instruction_text(sentence), stopped)
        if understood is None:  # the run is over
            return sentence
        if understood.text is None:
            self._emit(understood.event(0.0))
            what = f'The instruction "{echo(sentence)}" is not understood: {understood.reason}.'
            raise UserError(what, f"Say it in other words, such as: {self.interpreter.examples()}.")
        self._report(understood)
        return understood.text

    def hear(self, sentence: str) -> bool:
        """Interpret a sentence in the background. Return False if the run is over. Raises UserError if it is too
        long."""
        self._sentences.put(instruction_text(sentence))
        return not self._closed

    def close(self) -> None:
        """Drop the pending sentence and stop."""
        self._closed = True
        self._sentences.put("")

    def _newer(self) -> bool:
        return self._closed or not self._sentences.empty()

    def _work(self) -> None:
        while not self._closed:
            sentence = self._sentences.get()
            understood = None if self._newer() else self.interpreter.understand(sentence, self._newer)
            if self._closed:
                return
            if understood is None or self._newer():
                understood = Understood(sentence, None, self.interpreter.name, "overtaken")
            self._report(understood)
            self._answered(understood)
            if understood.text is not None:
                self._take(understood.text)

    def _report(self, result: Understood) -> None:
        self._emit(result.event(self._now_s()))
        if result.text is None and result.why != "overtaken":
            text = f'"{echo(result.said)}" is not understood: {result.reason}. The instruction before stays active.'
            self._notify(f"{text} It can be said so: {self.interpreter.examples()}.")
        elif result.text is not None and result.text != result.said:
            sure = "" if result.sure is None or result.by == ITSELF else f", {100 * result.sure:.0f} % sure"
            by = "" if result.by == ITSELF else f" ({result.by}{sure}, {result.took_ms:.0f} ms)"
            self._notify(f'"{echo(result.said)}" is understood as: {result.text}{by}')
