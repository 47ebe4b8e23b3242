"""Interpret instructions off the clock: each on its own thread, while the loop follows the instruction before."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rtcontrol.loop.config import instruction_text
from rtcontrol.loop.interpreter import ITSELF, Interpreter, Understood
from rtcontrol.loop.requests import echo
from rtcontrol.models.errors import UserError

Told = Callable[[Understood], None]
Question = Callable[[str, Callable[[], None], Callable[[str], None]], None]


class Interpretation:
    """Passes interpreted instructions to `take`, the newest alone. `hear` never waits; any thread may call it.

    With a `question` a person is asked first: it gets the text, what follows a yes, and what follows a refusal (with
    the reason in a word). The owner may set `answered`: it gets the result for each sentence, and a second one for a
    sentence that was refused.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        take: Callable[[str], None],
        emit: Callable[[dict[str, Any]], None],
        notify: Callable[[str], None],
        now_s: Callable[[], float],
        question: Question | None = None,
        withdraw: Callable[[], None] = lambda: None,
    ) -> None:
        self.interpreter = interpreter
        self.answered: Told = lambda understood: None
        self.heard = 0  # sentences so far, without the first instruction
        self._take, self._emit, self._notify, self._now_s = take, emit, notify, now_s
        self._question, self._withdraw = question, withdraw
        self._lock = threading.RLock()
        self._pending = 0  # sentences without a result
        self._closed = False

    def first(self, said: str, stopped: Callable[[], bool]) -> tuple[str, bool]:
        """Return the first instruction in canonical words, and whether a person must confirm it. Blocks. UserError if
        it is not understood: there is no older one to follow."""
        found = self.interpreter.understand(instruction_text(said), stopped)
        if found is None:  # the run is over
            return said, False
        if found.text is None:
            self._emit(found.event(0.0))
            what = f'The instruction "{echo(said)}" is not understood: {found.reason}.'
            raise UserError(what, f"Say it in other words, such as: {self.interpreter.examples()}.")
        self._tell(found)
        return found.text, self._question is not None and found.by != ITSELF

    def hear(self, said: str, told: Told | None = None) -> bool:
        """Interpret a sentence; `told` gets the result. False after the end. UserError if it is too long."""
        said = instruction_text(said)
        known = self.interpreter.known(said)
        with self._lock:
            if self._closed:
                return False
            self.heard += 1
            self._pending += 1
            self._withdraw()  # a question about an older sentence; under the lock, so never a newer one's
            if known is not None:
                self._done(self.heard, known, told)
                return True
            arguments = (self.heard, said, told)
        threading.Thread(target=self._work, args=arguments, name="interpreter", daemon=True).start()
        return True

    @property
    def busy(self) -> bool:
        """Whether a sentence has no result yet."""
        return self._pending > 0

    def ask_first(self, text: str, yes: Callable[[], None], heard: int) -> bool:
        """Ask a person about the first instruction, unless more than `heard` sentences arrived meanwhile."""
        with self._lock:
            if self._question is None or heard != self.heard or self.busy:
                return False
            self._question(text, yes, lambda why: None)
            return True

    def close(self) -> None:
        """Drop what is pending, and close the interpreter."""
        with self._lock:
            self._closed = True
        self.interpreter.close()

    def _work(self, number: int, said: str, told: Told | None) -> None:
        found = self.interpreter.understand(said, lambda: self._closed or number != self.heard)
        self._done(number, found or Understood(said, None, self.interpreter.name, "overtaken"), told)

    def _done(self, number: int, found: Understood, told: Told | None) -> None:
        with self._lock:  # results are passed on in the order of their sentences
            self._pending -= 1
            if self._closed:
                return
            if number != self.heard:
                found = Understood(found.said, None, self.interpreter.name, "overtaken")
            self._tell(found)
            self.answered(found)
            text, ask = found.text, self._question
            if text is not None and (ask is None or found.by == ITSELF):
                self._take(text)
            elif text is not None and ask is not None:
                ask(text, lambda: self._take(text), lambda why: self.answered(replace(found, text=None, why=why)))
            if told is not None:
                told(found)

    def _tell(self, found: Understood) -> None:
        self._emit(found.event(self._now_s()))
        if found.text is None and found.why != "overtaken":
            what = f'"{echo(found.said)}" is not understood: {found.reason}. What was said before goes on.'
            self._notify(f"{what} It can be said so: {self.interpreter.examples()}.")
        elif found.text is not None and found.text != found.said:
            sure = "" if found.sure is None or found.by == ITSELF else f", {100 * found.sure:.0f} % sure"
            by = "" if found.by == ITSELF else f" ({found.by}{sure}, {found.took_ms:.0f} ms)"
            self._notify(f'"{echo(found.said)}" is understood as: {found.text}{by}')
