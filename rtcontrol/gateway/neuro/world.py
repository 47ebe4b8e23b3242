"""A game of the Neuro API as the control loop sees it: each question of the game's is a release."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Literal

from rtcontrol.envs.base import Acknowledgement, Barrier, ClockKind, Effect, Emission, Episode, Observation
from rtcontrol.hosts.tool_set_host import ToolOffer
from rtcontrol.models.call import Call

REMEMBERED = 256  # calls that were done, until the loop takes them
WAIT_S = 0.05


class GameLook(dict[str, Any]):
    """What the player sees with a question; `text` as the model reads it, and the `offer` that it may choose from.
    `over`: nobody waits for the answer any more (`ToolSetHost`)."""

    text: str
    offer: ToolOffer
    over = False

    @classmethod
    def of(cls, data: Mapping[str, Any], text: str, offer: ToolOffer) -> GameLook:
        look = cls(data)
        look.text, look.offer = text, offer
        return look


class AnyName(dict[str, Callable[..., Any]]):
    """Bindings of actions that come and go: all of them are the game's."""

    def __contains__(self, name: object) -> bool:
        return True


class QuestionWorld:
    """Implements `Environment`, `Emitting` and `Acknowledging`. `ask` puts a question, one at a time; `answered` is
    told what became of it, on the actuator's thread: the tick, the question's number, and the call (None: none was
    decided in time, or it is held back). `offered` takes a question's tools before it is decided, on the loop's thread
    (False: they cannot be taken), and `check` raises for a call that these do not allow. The rest is the loop's."""

    def __init__(
        self,
        name: str,
        answered: Callable[[int, int, Call | None], None],
        offered: Callable[[ToolOffer], bool],
        check: Callable[[Call], object],
    ) -> None:
        self.name = name
        self.bindings: Mapping[str, Callable[..., Any]] = AnyName()
        self._offered, self._check = offered, check
        self.episodes: list[Episode] = []
        self.finished = False
        self.heard: deque[Acknowledgement] = deque(maxlen=REMEMBERED)
        self._answered = answered
        self._questions = SimpleQueue[tuple[Observation, GameLook]]()
        self._open: Observation | None = None
        self._look: GameLook | None = None  # its
        self._waiting = False  # whether it was only looked at so far
        self._done: deque[Call] = deque(maxlen=REMEMBERED)

    # -- the player's side, from any thread ---------------------------------------------------------------------------

    def ask(self, seq: int, look: GameLook, deadline_ns: int) -> None:
        """Questions are numbered from 1 on."""
        self._questions.put((Observation(seq, 0, time.monotonic_ns(), look, deadline_ns), look))

    def result(self, tick: int, call: Call, success: bool, message: str) -> None:
        """What the game says became of the action that was told for `tick`; of one that nobody decided too."""
        status: Literal["executed", "refused"] = "executed" if success else "refused"
        self.heard.append(Acknowledgement(tick, status, time.monotonic_ns(), error=None if success else message))
        if success:
            self._done.append(call)

    # -- the loop's side ----------------------------------------------------------------------------------------------

    def start(self, clock: ClockKind, seeds: int | Iterable[int] = 0, episodes: int | None = None) -> None:
        """The game begins by itself."""

    def await_first(self) -> None:
        if self._open is None:
            self._waiting = self._next(round(WAIT_S * 1e9)) is not None

    def latest(self) -> Observation | None:
        return self._open

    def arrival(self, timeout_ns: int) -> int | None:
        """When the next question came (CLOCK_MONOTONIC); None where there is none within the time."""
        if self._waiting and self._open is not None:
            self._waiting = False
            return self._open.t_capture_ns
        return self._next(timeout_ns)

    def _next(self, timeout_ns: int) -> int | None:
        try:
            seen, look = self._questions.get(timeout=timeout_ns / 1e9)
        except Empty:
            return None
        if look.over:
            return None
        if not self._offered(look.offer):
            self._answered(-1, seen.seq, None)
            return None
        self._open, self._look = seen, look
        return seen.t_capture_ns

    def execute(
        self, call: Call, epoch: int | None, not_after_ns: int | None = None, barrier: Barrier | None = None
    ) -> Effect:
        """Nothing is done here: `emit` tells the game."""
        if barrier is not None and barrier.shut is not None:
            return "refused"
        if self._look is not None and self._look.over:
            return "epoch_over"
        self._check(call)  # the loop remembers calls that were legal, also those of other questions
        return "too_late" if not_after_ns is not None and time.monotonic_ns() > not_after_ns else "acted"

    def emit(self, emission: Emission) -> None:
        if emission.seq > 0:
            fresh = emission.call if emission.status == "fresh" else None
            self._answered(emission.tick, emission.seq, fresh)

    def acknowledged(self) -> Sequence[Call]:
        done = []
        while self._done:
            done.append(self._done.popleft())
        return done

    def advance(self, dt_ns: int) -> None:
        """Nothing to do: the game runs elsewhere."""

    def conclude(self) -> None:
        """Nothing to do: the game ends by itself."""

    def instruct(self, text: str) -> None:
        """Nothing to do: the game judges by its own rules."""

    def close(self) -> None:
        """The game's connection is another's."""
