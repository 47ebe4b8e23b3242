"""Drafts: somebody's quick guess of each call, verified by the model in the same forward pass."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from rtcontrol.models.call import Call
from rtcontrol.models.decode.protocol import Cancelled

log = logging.getLogger("rtcontrol.draft")
# What is seen and told, and the calls before: to the call that is guessed, None where none is.
Draft = Callable[[str, str, Sequence[str]], Call | None]


class Drafter:
    """Asks `draft` on a thread of its own, and waits for it at most `limit_s`: a guess that comes later, fails, or is
    no call is done without. One that is late is told so (`cancel`), and not asked again before it has returned."""

    def __init__(self, draft: Draft, limit_s: float, cancel: Callable[[], None] = lambda: None) -> None:
        self._draft, self._limit_s, self._cancel = draft, limit_s, cancel
        self._thread: threading.Thread | None = None
        self._found: list[Call | None] = []  # of the newest question: a late answer goes to the list of its own
        self._until_s = 0.0
        self._said = False

    def ask(self, text: str, instruction: str, history: Sequence[str]) -> None:
        found = self._found = list[Call | None]()
        if self._thread is not None and self._thread.is_alive():
            return
        self._until_s = time.monotonic() + self._limit_s
        told = text, instruction, tuple(history)
        self._thread = threading.Thread(target=self._ask, args=(told, found), name="draft", daemon=True)
        self._thread.start()

    def call(self) -> Call | None:
        """The guess asked for last, as soon as it is there."""
        if self._thread is not None:
            self._thread.join(max(0.0, self._until_s - time.monotonic()))
            if self._thread.is_alive():
                self._cancel()
        return self._found[0] if self._found else None

    def _ask(self, told: tuple[str, str, Sequence[str]], found: list[Call | None]) -> None:
        try:
            call = self._draft(*told)
            if call is not None and not (isinstance(call, Call) and isinstance(call.arguments, Mapping)):
                raise TypeError(f"{call!r:.80} is no Call")
            found.append(call)
        except Cancelled:
            pass
        except Exception as error:
            if not self._said:
                self._said = True
                log.warning("A draft failed (%s: %s): it is done without; said once.", type(error).__name__, error)
