"""Which answers of a policy server there were: an earlier one again is of no later question."""

from __future__ import annotations

import threading
from collections import deque
from hashlib import blake2b
from typing import Any

REMEMBERED = 64  # answers that are known again


class AnswerMemory:
    """Of all connections to one server, from any thread. A copy that travels begins empty."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked = b""
        self._answers: deque[bytes] = deque(maxlen=REMEMBERED)
        self._chunks: deque[bytes] = deque(maxlen=REMEMBERED)
        self._repeats = 0

    def __reduce__(self) -> Any:
        return AnswerMemory, ()

    def note(self, answer: bytes, actions: bytes | None) -> None:
        """One that nobody waited for any more: it may come again, too."""
        with self._lock:
            self._answers.append(_digest(answer))
            if actions is not None:
                self._chunks.append(_digest(actions))

    def fault(self, asked: bytes, answer: bytes, actions: bytes, timed: bool, most: int | None) -> str | None:
        """Why an answer is an earlier one again; else it is noted. One whose timing is that of an earlier one, byte for
        byte, is; and the actions of others may not be so more than `most` times in a row, for new questions."""
        question, whole, chunk = _digest(asked), _digest(answer), _digest(actions)
        with self._lock:
            same, self._asked = question == self._asked, question
            if timed and whole in self._answers:
                return "the policy's answer is an earlier one, byte for byte with its timing"
            self._answers.append(whole)
            if chunk not in self._chunks:
                self._repeats = 0
            elif not same:
                self._repeats += 1
            self._chunks.append(chunk)
            if most is None or self._repeats <= most:
                return None
            return (
                f"the policy's actions are earlier ones, bit for bit, for new observations ({self._repeats} in a row)"
            )


def _digest(data: bytes) -> bytes:
    return blake2b(data).digest()
