"""What a session of the Python API is told: understood off the clock, as a run's instructions are."""

from __future__ import annotations

import threading
import weakref

from rtcontrol.loop.interpretation import Interpretation
from rtcontrol.loop.interpreter import Interpreter, Understood
from rtcontrol.models.errors import UserError


class HeardInstruction:
    """`text` is the canonical instruction in force, None before anything was understood; `understood` what came of the
    sentence that was answered last."""

    def __init__(self, interpreter: Interpreter) -> None:
        self.text: str | None = None
        self.understood: Understood | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._interpretation = Interpretation(
            interpreter, self._take, lambda event: None, lambda line: None, lambda: 0.0
        )
        self._interpretation.answered = self._answered

    def start(self) -> None:
        """Build whoever is asked now: the first sentence has no time for it. Raises UserError."""
        asked = self._interpretation.interpreter
        try:
            asked.start()
        except OSError as error:
            raise UserError(f"The interpreter {asked.name} cannot be started ({error}).", "Free resources.") from None

    def instruct(self, said: str, wait: bool = False) -> Understood | None:
        """Somebody says it: the instruction before stays in force until it is understood. With `wait` the answer is
        waited for, for the interpreter's time at most. Raises UserError for what is no text, or too long, and where it
        is closed."""
        if not isinstance(said, str) or not said.strip():
            raise UserError(f"{str(said)[:80]!r} says nothing.", "Say in words what to do.")
        answers: list[Understood] = []  # to this sentence
        if not self._interpretation.hear(said, lambda found: self._give(answers, found)):
            raise _closed()
        if not wait:
            return None
        asked = self._interpretation.interpreter
        with self._changed:
            self._changed.wait_for(lambda: answers or self._closed, asked.limit_s + 1.0)
            if not answers and self._closed:
                raise _closed()
            return answers[0] if answers else Understood(said, None, asked.name, "timeout", f"{asked.limit_s:g} s")

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._interpretation.close()

    def _give(self, answers: list[Understood], found: Understood) -> None:
        with self._changed:
            answers.append(found)
            self._changed.notify_all()

    def _take(self, text: str) -> None:
        self.text = text

    def _answered(self, found: Understood) -> None:
        if found.why != "overtaken":  # then there is a newer answer, or there will be
            self.understood = found


def end_with(owner: object, told: HeardInstruction) -> None:
    """Close it when its owner is gone; on a thread of its own, for that may be found out under any lock. What is left
    at the end of this process ends with it."""
    weakref.finalize(owner, lambda: threading.Thread(target=told.close, daemon=True).start()).atexit = False


def _closed() -> UserError:
    return UserError("The session is closed: nobody hears it.", "Open another one.")
