"""Words understood off the clock: each instruction is asked about once, on a thread of its own, while the one before
stays in force."""

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
END_S = 1.0  # a thread that asks hears of the end within


class Interpretation:
    """`hear` may be called from any thread and never waits. A newer sentence takes the place of an older one that
    nobody has understood yet. What is understood is given to `take`; with a `question` that is asked first (text, what
    follows a yes, what follows none: why, in a word). The owner may set `answered`, which is told what came of each
    sentence, and once more, of one that got no yes, why."""

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
        self._take, self._emit, self._notify, self._now_s = take, emit, notify, now_s
        self._question, self._withdraw = question, withdraw
        self._changed = threading.Condition()
        self._newest = 0  # of what was said
        self._waiting: tuple[str, Told | None] | None = None
        self._asking = False  # somebody is asked about a sentence now
        self._closed = False
        self._thread: threading.Thread | None = None

    def first(self, said: str, stopped: Callable[[], bool]) -> tuple[str, bool]:
        """The instruction to begin with, in canonical words, and whether a person must say yes to it; waits for it, and
        is no answer to anybody. UserError where it is not understood: there is no other to go on by."""
        found = self.interpreter.understand(instruction_text(said), stopped)
        if found is None:  # the run ends before it began
            return said, False
        if found.text is not None:
            self._tell(found)
        else:
            self._emit(found.event(0.0))
            what = f'The instruction "{echo(said)}" is not understood: {found.reason}.'
            raise UserError(what, f"Say it in other words, such as: {self.interpreter.examples()}.")
        return found.text, self._question is not None and found.by != ITSELF

    def hear(self, said: str, told: Told | None = None) -> bool:
        """Somebody says it, who is `told` what comes of it. False after the end: nobody hears it. Raises UserError for
        what is too long."""
        said = instruction_text(said)
        known = self.interpreter.known(said)
        with self._changed:
            if self._closed:
                return False
            self._newest += 1
            dropped, self._waiting = self._waiting, None if known is not None else (said, told)
            if self._thread is None and known is None:
                self._thread = threading.Thread(target=self._work, name="interpreter", daemon=True)
                self._thread.start()
            self._changed.notify()
            self._withdraw()  # a question about an older one; under the lock, so that it is never a newer one's
            if dropped is not None:
                self._drop(*dropped)
            if known is not None:
                self._done(self._newest, known, told)
            return True

    @property
    def heard(self) -> int:
        """So many sentences so far, without the first."""
        return self._newest

    @property
    def busy(self) -> bool:
        """Whether something that was heard is not answered yet."""
        with self._changed:
            return self._asking or self._waiting is not None

    def ask_first(self, text: str, yes: Callable[[], None], heard: int) -> bool:
        """Ask people about what the run is to begin with, unless more than so many sentences were heard meanwhile."""
        with self._changed:
            if self._question is None or heard != self._newest or self.busy:
                return False
            self._question(text, yes, lambda why: None)
            return True

    def close(self) -> None:
        """Nothing more is understood; whoever is asked is closed."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(END_S)
        self.interpreter.close()

    # -- on the interpreter's thread ----------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is not None or self._closed)
                if self._closed:
                    return
                assert self._waiting is not None, "it was waited for"
                (said, told), self._waiting, number, self._asking = self._waiting, None, self._newest, True
            found = self.interpreter.understand(said, lambda number=number: self._stale(number))  # type: ignore[misc]
            with self._changed:
                self._asking = False
                if self._closed:
                    return
                if found is None:
                    self._drop(said, told)
                else:
                    self._done(number, found, told)

    def _stale(self, number: int) -> bool:
        return self._closed or number != self._newest

    def _done(self, number: int, found: Understood, told: Told | None) -> None:
        with self._changed:  # what is given here is in the order in which it was said
            if self._stale(number):
                self._drop(found.said, told)
                return
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
        if found.text is None:
            what = f'"{echo(found.said)}" is not understood: {found.reason}. What was said before goes on.'
            self._notify(f"{what} It can be said so: {self.interpreter.examples()}.")
        elif found.text != found.said:
            sure = "" if found.sure is None or found.by == ITSELF else f", {100 * found.sure:.0f} % sure"
            by = "" if found.by == ITSELF else f" ({found.by}{sure}, {found.took_ms:.0f} ms)"
            self._notify(f'"{echo(found.said)}" is understood as: {found.text}{by}')

    def _drop(self, said: str, told: Told | None) -> None:
        overtaken = Understood(said, None, self.interpreter.name, "overtaken")
        self._emit(overtaken.event(self._now_s()))
        self.answered(overtaken)
        if told is not None:
            told(overtaken)
