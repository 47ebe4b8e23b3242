"""A lane: one thread that decides turn after turn, for sessions of which it has a decider each."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Hashable, Sequence
from typing import Any

from rtcontrol.hosts.deciders import answer_together, kind, patient
from rtcontrol.hosts.protocol import Decider, DecisionReply, DecisionRequest
from rtcontrol.hosts.scheduler import EdfScheduler, Turn


class DeciderLane:
    """Decides what `rota` says. A patient session's decision gives way to others wherever it can be left alone.

    `decider_of` gives a session's decider, None where the session is over; `cancelled` whether no one waits for a
    request any more; `answer` takes each reply, None of one that was given up.
    """

    def __init__(
        self,
        rota: EdfScheduler,
        decider_of: Callable[[Any], Decider | None],
        cancelled: Callable[[Any, DecisionRequest], bool],
        answer: Callable[[Any, DecisionRequest, DecisionReply | None], None],
    ) -> None:
        self.rota = rota
        self._decider_of, self._cancelled, self._answer = decider_of, cancelled, answer
        self._late: tuple[Any, Generator[None, None, None]] | None = None  # the patient session's under way

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return self._late is None

    def take(self, now_ns: int) -> list[Turn]:
        """Return whose turn it is; empty where nobody waits, or only who can wait for what is under way."""
        return self.rota.take(now_ns, self._kind, self._patient, late=self.idle)

    def run(self, turn: Sequence[Turn]) -> None:
        """Decide the turn; without one, take a step of what is under way."""
        if turn and self._patient(turn[0][0]):
            self._late = turn[0][0], self.decide(turn)
        elif turn:
            began = time.monotonic_ns()
            for _ in self.decide(turn):
                pass
            self.rota.took(self._kind(turn[0][0]), len(turn), time.monotonic_ns() - began)
        elif self._late is not None:
            try:
                next(self._late[1])
            except StopIteration:
                self._late = None

    def forget(self, key: Any) -> None:
        """The session is over."""
        self.rota.remove(key)
        if self._late is not None and self._late[0] == key:
            self._late = None

    def decide(self, turn: Sequence[Turn]) -> Generator[None, None, None]:
        """Decide a turn in steps, of sessions that are not over, and answer."""
        asked = [(key, own, request) for key, request in turn if (own := self._decider_of(key)) is not None]
        if not asked:
            return
        replies = yield from answer_together(
            [(decider, request) for _, decider, request in asked],
            lambda i: self._cancelled(asked[i][0], asked[i][2]),
        )
        for (key, _, request), reply in zip(asked, replies, strict=True):
            self._answer(key, request, reply)

    def _patient(self, key: Any) -> bool:
        decider = self._decider_of(key)
        return decider is not None and patient(decider)

    def _kind(self, key: Any) -> Hashable:
        decider = self._decider_of(key)
        return None if decider is None else kind(decider)
