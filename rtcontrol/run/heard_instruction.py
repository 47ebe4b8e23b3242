"""What a session of the Python API is told: understood off the clock, as a run's instructions are."""

from __future__ import annotations

import threading

from rtcontrol.loop.interpretation import Interpretation
from rtcontrol.loop.interpreter import Interpreter, Understood
from rtcontrol.models.errors import UserError


class HeardInstruction:
    """`text` is the canonical instruction in force, None before anything was understood; `understood` what came of the
    sentence that was answered last."""

    def __init__(self, interpreter: Interpreter) -> None:
        self.text: str | None = None
        self.understood: Understood | None = None
        self._answers = 0
        self._changed = threading.Condition()
        self._interpretation = Interpretation(
            interpreter, self._take, lambda event: None, lambda line: None, lambda: 0.0
        )
        self._interpretation.answered = self._answered

    def instruct(self, said: str, wait: bool = False) -> Understood | None:
        """Somebody says it: the instruction before stays in force until it is understood. With `wait` the answer is
        waited for, for the interpreter's time at most. Raises UserError for what is no text, or too long."""
        if not isinstance(said, str) or not said.strip():
            raise UserError(f"{str(said)[:80]!r} says nothing.", "Say in words what to do.")
        with self._changed:
            answers = self._answers
        self._interpretation.hear(said)
        if not wait:
            return None
        with self._changed:
            self._changed.wait_for(lambda: self._answers > answers, self._interpretation.interpreter.limit_s + 1.0)
            return self.understood

    def close(self) -> None:
        self._interpretation.close()

    def _take(self, text: str) -> None:
        self.text = text

    def _answered(self, found: Understood) -> None:
        with self._changed:
            self.understood = found
            if found.text is not None:
                self.text = found.text
            self._answers += 1
            self._changed.notify_all()
