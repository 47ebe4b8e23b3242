"""Interpret free sentences as goals of an agent, by a decider whose tools are the goals, on a background thread."""

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
from rtcontrol.models.in_flight import run_to_end

GATE, LIMIT_S = 0.5, 5.0
CANONICAL = "itself"  # recorded as the interpreter if the sentence is already a canonical instruction
EXAMPLES, DETAIL = 4, 200  # a message shows at most 4 example sentences, and 200 characters of an error
POLL_S = 0.02  # seconds between two checks whether the caller gave up
# Texts for users about why a sentence is not understood, by reason. All other reasons are failures of the decider.
REASONS = {
    "none": "it asks for none of the goals",
    "unsure": "the interpreter is not confident enough about its meaning",
    "illegal": "it asks for something that is not a goal",
    "timeout": "the interpreter did not answer in time",
    "overtaken": "a newer sentence replaced it",
}


@dataclass(frozen=True, slots=True)
class InterpretedSentence:
    """The interpretation of a sentence. `text`: the canonical instruction, or None if the sentence was not understood;
    `why` (a key of REASONS, or an error) and `detail` then have the reason. `by`: the name of the interpreter.
    `confidence`: the lowest confidence of a part of the instruction (None: unknown)."""

    sentence: str
    text: str | None
    by: str
    why: str | None = None
    detail: str = ""
    confidence: float | None = None
    took_ms: float = 0.0

    @property
    def reason(self) -> str:
        """Return a text for the user with the reason why the sentence was not understood."""
        reason = REASONS.get(self.why or "", f"the interpreter failed ({self.why})")
        return f"{reason} ({self.detail})" if self.detail else reason

    def record_line(self, t_s: float) -> dict[str, Any]:
        """Return the record's line for this result."""
        line = {"said": self.sentence, "understood": self.text, "by": self.by, "took_ms": round(self.took_ms, 3)}
        if self.why is not None:
            line |= {"not_understood": self.why, **({"detail": self.detail} if self.detail else {})}
        if self.confidence is not None:
            line["sure"] = round(self.confidence, 4)
        return {**line, "t_s": t_s}


class Interpreter:
    """An interpreter that maps sentences to `goals` by a decider, one sentence at a time. Any thread may use it.

    A sentence counts as not understood if a part of the answer has less confidence than `gate`, or if the answer does
    not arrive within `limit_s` seconds."""

    def __init__(
        self, name: str, goals: GoalTools, source: DeciderSource, gate: float = GATE, limit_s: float = LIMIT_S
    ) -> None:
        self.name, self.goals, self.gate, self.limit_s = name, goals, gate, limit_s
        self._source = source
        self._decider: Decider | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Build the decider if necessary. Raises UserError if that fails."""
        with self._lock:
            self._build_decider()

    def understand(self, sentence: str, gave_up: Callable[[], bool] = lambda: False) -> InterpretedSentence | None:
        """Return the interpretation of a sentence, or None if the caller gave up (`gave_up()` is true). Blocks for at
        most `limit_s`; a canonical instruction is returned at once. Never raises: the result's `why` has any error."""
        if (goal := self.goals.canonical_goal(sentence)) is not None:
            return InterpretedSentence(sentence, goal.text(), CANONICAL, confidence=1.0)
        began = time.monotonic()
        understood: InterpretedSentence | None = None

        def over(_: int = 0) -> bool:
            return gave_up() or time.monotonic() > began + self.limit_s

        while not (turn := self._lock.acquire(timeout=POLL_S)) and not over():
            pass
        if turn:
            try:
                understood = self._ask_decider(sentence, over)
            except Exception as error:
                detail = error.what if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
                understood = InterpretedSentence(sentence, None, self.name, "error", detail[:DETAIL])
            finally:
                self._lock.release()
        if understood is not None:
            return replace(understood, took_ms=(time.monotonic() - began) * 1e3)
        limit_ms = self.limit_s * 1e3
        return None if gave_up() else InterpretedSentence(sentence, None, self.name, "timeout", took_ms=limit_ms)

    def examples(self) -> str:
        """Return example sentences for the user, separated by semicolons."""
        return "; ".join(self.goals.examples(EXAMPLES))

    def _build_decider(self) -> Decider:
        if self._decider is None:
            self._decider = deciders.build_decider(self._source)
        return self._decider

    def _ask_decider(self, sentence: str, over: Callable[[int], bool]) -> InterpretedSentence | None:
        """Return the decider's interpretation, or None if `over` became true before the decider answered."""
        request = DecisionRequest(0, 0, "", sentence, within_ns=round(self.limit_s * 1e9))
        (reply,) = run_to_end(deciders.answer_batch([(self._build_decider(), request)], over))
        return None if reply is None or over(0) else self._read_reply(sentence, reply)

    def _read_reply(self, sentence: str, reply: DecisionReply) -> InterpretedSentence:
        decision = reply.decision
        if decision is None:
            error = (reply.user_error or (reply.error or "",))[0]
            why = reply.loss or "error"
            return InterpretedSentence(sentence, None, self.name, why, " ".join(error.split())[:DETAIL])
        sure = min(decision.confidence.values(), default=None)
        if decision.call is None:
            return InterpretedSentence(sentence, None, self.name, "none", confidence=sure)
        try:
            goal = self.goals.goal_of(decision.call)
        except (InvalidCall, UserError) as error:
            return InterpretedSentence(sentence, None, self.name, "illegal", str(error)[:DETAIL], sure)
        if sure is not None and sure < self.gate:
            detail = f"confidence {sure:.2f} for {goal.text()!r}, but at least {self.gate:g} is required"
            return InterpretedSentence(sentence, None, self.name, "unsure", detail, sure)
        return InterpretedSentence(sentence, goal.text(), self.name, confidence=sure)


class InterpreterThread:
    """A background thread that interprets sentences. A newer sentence replaces a waiting sentence.

    The thread calls `set_instruction` with each canonical instruction, `on_result` with each interpretation, `emit`
    with lines for the record, and `notify` with texts for the user."""

    def __init__(
        self,
        interpreter: Interpreter,
        set_instruction: Callable[[str], None],
        emit: Callable[[dict[str, Any]], None],
        notify: Callable[[str], None],
        elapsed_s: Callable[[], float],
        on_result: Callable[[InterpretedSentence], None] = lambda understood: None,
    ) -> None:
        self.interpreter = interpreter
        self._instruct, self._emit, self._notify = set_instruction, emit, notify
        self._elapsed_s, self._on_result = elapsed_s, on_result
        self._sentences: SimpleQueue[str] = SimpleQueue()
        self._closed = False
        threading.Thread(target=self._run_thread, name="interpreter", daemon=True).start()

    def interpret_first(self, sentence: str, stopped: Callable[[], bool]) -> str:
        """Return the canonical instruction for the first sentence of a run. Blocks. Raises UserError if the sentence is
        not understood, because there is no previous instruction."""
        understood = self.interpreter.understand(instruction_text(sentence), stopped)
        if understood is None:  # the run ended meanwhile
            return sentence
        if understood.text is None:
            self._emit(understood.record_line(0.0))
            message = f'The instruction "{echo(sentence)}" is not understood: {understood.reason}.'
            raise UserError(message, f"Use other words, such as: {self.interpreter.examples()}.")
        self._report_result(understood)
        return understood.text

    def submit(self, sentence: str) -> bool:
        """Enqueue a sentence without blocking. Return False if the run is over. Raises UserError if it is too long."""
        self._sentences.put(instruction_text(sentence))
        return not self._closed

    def close(self) -> None:
        """Drop the pending sentence and stop the thread."""
        self._closed = True
        self._sentences.put("")

    def _is_replaced(self) -> bool:
        return self._closed or not self._sentences.empty()

    def _run_thread(self) -> None:
        while not self._closed:
            sentence = self._sentences.get()
            understood = None if self._is_replaced() else self.interpreter.understand(sentence, self._is_replaced)
            if self._closed:
                return
            if understood is None or self._is_replaced():
                understood = InterpretedSentence(sentence, None, self.interpreter.name, "overtaken")
            self._report_result(understood)
            self._on_result(understood)
            if understood.text is not None:
                self._instruct(understood.text)

    def _report_result(self, result: InterpretedSentence) -> None:
        self._emit(result.record_line(self._elapsed_s()))
        if result.text is None and result.why != "overtaken":
            text = f'"{echo(result.sentence)}" is not understood: {result.reason}.'
            self._notify(f"{text} The previous instruction stays active. You can say: {self.interpreter.examples()}.")
        elif result.text is not None and result.text != result.sentence:
            sure = "" if result.confidence is None else f", {100 * result.confidence:.0f} % sure"
            by = "" if result.by == CANONICAL else f" ({result.by}{sure}, {result.took_ms:.0f} ms)"
            self._notify(f'"{echo(result.sentence)}" is understood as: {result.text}{by}')
