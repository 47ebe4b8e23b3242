"""The safe calls, from a demand until they are in force: a state machine without thread, lock or clock.

One that fails is tried again every `retry_ns` (None: when `retry` says so) until it is in force or a newer call of its
tool acted. One that acted in a world that has yet to step with it is not called again: the world is asked so often
whether it has, unless a newer call acts first. Several start in order, on a thread each: one that hangs or fails holds
up none of the others. Where the world could not be told of the demand, its calls have failed too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rtcontrol.envs.base import Effect, Emission
from rtcontrol.models.call import Call
from rtcontrol.records import SafeAttempt

# Between two attempts on the way out where no clock of the world's says when.
EXIT_RETRY_NS = 50_000_000
# So long one of several safe calls is waited for before the next one starts; and where the world waits.
PATIENCE_NS, PATIENCE_LOCKSTEP_NS = 20_000_000, 1_000_000_000


@dataclass(slots=True, eq=False)
class SafeCall:
    """One of the agent's safe calls, and how far it is.

    `call`: None where the agent has none, and the world is only told. `wanted`: demanded and not in force; `acted_ns`,
    `number`: when it acted, and with which attempt, while the world has yet to step with it."""

    call: Call | None
    wanted: bool = False
    under_way: bool = False
    acted_ns: int | None = None
    number: int = 0


@dataclass(frozen=True, slots=True)
class Attempt:
    """Execute a safe call, unless it has acted (`acted_ns`); then ask a stepping world to settle it. Result:
    `attempted`. `threaded`: on its own thread; `error`: what telling the world of its demand raised."""

    safe: SafeCall
    demand: int
    why: str
    number: int
    acted_ns: int | None
    error: BaseException | None
    threaded: bool


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """The result of an attempt. `stepped`: what the world's `settle` returned; True where it has none."""

    effect: Effect = "acted"
    acted_ns: int | None = None
    stepped: bool | None = True
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Emit:
    """Tell the world what became of a tick. `demand`: the demand of the safe calls that it tells of. Result: `told`."""

    emission: Emission
    demand: int = 0


@dataclass(slots=True, eq=False)
class Round:
    """One attempt at each safe call that is wanted and not under way. `left` are to start; None: the world is told
    first, and `error` is what that raised. `last` started last, at `last_ns`."""

    left: deque[SafeCall] | None = None
    started_ns: int = 0
    error: BaseException | None = None
    last: SafeCall | None = None
    last_ns: int = 0

    @property
    def started(self) -> bool:
        """Whether all its attempts have started."""
        return self.left is not None and not self.left


class SafeCalls:
    """The safe calls, from a demand until they are in force.

    `demand` counts demands, `number` the attempts since the last one. `due_ns`: when the next round opens, 0 at once;
    `untold`: the demand's emission waits among the jobs; `again`: it could not be told. `over`: the world took no calls
    any more, or made no step with one, since the last demand."""

    def __init__(self, calls: Sequence[Call], retry_ns: int | None, post: Callable[[SafeAttempt], None]) -> None:
        self.calls = [SafeCall(call) for call in calls] or [SafeCall(None)]
        self._retry_ns, self._post = retry_ns, post
        self.demand = self.number = 0
        self._why = ""
        self.due_ns: int | None = None
        self.round: Round | None = None
        self.untold = False
        self.again: Emit | None = None
        self.over = self.in_force = False

    @property
    def wanted(self) -> bool:
        """Whether one was demanded that is not in force."""
        return any(safe.wanted for safe in self.calls)

    @property
    def busy(self) -> bool:
        """Whether an attempt is under way, or a round open."""
        return self.round is not None or any(safe.under_way for safe in self.calls)

    @property
    def patience_ns(self) -> int | None:
        """Until when the attempt that started last holds up the next one; None: it does not."""
        round_ = self.round
        if round_ is None or round_.last is None or not round_.last.under_way:
            return None
        return round_.last_ns + (PATIENCE_LOCKSTEP_NS if self._retry_ns is None else PATIENCE_NS)

    def require(self, why: str, untold: bool) -> int:
        """Demand all of them, whatever became of the demand before. Return the demand's number."""
        self._overtake(None)
        self.in_force = self.over = False
        self.round, self.number, self._why, self.untold = None, 0, why, untold
        for safe in self.calls:
            safe.wanted = True
        self.due_ns = 0
        self.demand += 1
        return self.demand

    def replace(self, tool: str) -> None:
        """Drop the safe call of this tool, of which a newer call acted."""
        self._overtake(tool)
        for safe in self.calls:
            if safe.call is None or safe.call.name == tool:
                safe.wanted = False
        if not self.wanted:
            self.due_ns = self.again = None

    def _overtake(self, tool: str | None) -> None:
        """Report the calls that acted and give way before the world stepped with them: to a newer call of the tool (of
        any tool, where there is one safe call), or to a newer demand (None)."""
        for safe in self.calls:
            ours = tool is None or len(self.calls) == 1 or (safe.call is not None and safe.call.name == tool)
            if ours and safe.wanted and safe.acted_ns is not None:
                self._post(SafeAttempt(safe.call, self._why, safe.number, safe.acted_ns, False, True))
                safe.wanted, safe.acted_ns = False, None

    def open(self, now_ns: int) -> Round | None:
        """Open a round if one is due. Return the round that is open."""
        if self.due_ns is not None and self.due_ns <= now_ns:
            self.round, self.due_ns = Round(), None
        return self.round

    def start(self, now_ns: int, looks: bool = False) -> bool:
        """Start a round of all that is wanted and not under way, and return whether there is any. `looks`: only of
        those that have acted; the world is asked about them."""
        left = deque(s for s in self.calls if s.wanted and not s.under_way and (s.acted_ns is not None or not looks))
        self.number += any(safe.acted_ns is None for safe in left)
        self.round = Round(left, now_ns, None if self.round is None else self.round.error)
        return bool(left)

    def look(self, now_ns: int) -> bool:
        """Start a round that asks whether the world has stepped with the calls that acted, and return whether there
        are any."""
        for safe in self.calls:
            if safe.wanted and safe.acted_ns is not None:
                return self.start(now_ns, looks=True)
        return False

    def next_attempt(self, now_ns: int) -> Attempt | None:
        """Return the round's next attempt; None: the one before is waited for, or the round is over."""
        while self.round is not None and self.round.left:
            if now_ns < (self.patience_ns or 0):
                return None
            attempt = self._attempt(self.round, self.round.left.popleft(), now_ns)
            if attempt.safe.call is not None:
                return attempt
            self.ended(attempt, AttemptResult(), now_ns)  # the world was told, which is all
        self._close(now_ns)
        return None

    def _attempt(self, round_: Round, safe: SafeCall, now_ns: int) -> Attempt:
        safe.under_way = True
        round_.last, round_.last_ns = safe, now_ns
        number = self.number if safe.acted_ns is None else safe.number
        return Attempt(safe, self.demand, self._why, number, safe.acted_ns, round_.error, len(self.calls) > 1)

    def ended(self, attempt: Attempt, result: AttemptResult, now_ns: int) -> None:
        """An attempt ended. One of an older demand is made again for the newest."""
        safe, error = attempt.safe, result.error or attempt.error
        current, acted = attempt.demand == self.demand, result.effect == "acted"
        over = error is None and (not acted or result.stepped is None)
        waits = current and error is None and acted and result.stepped is False
        safe.acted_ns, safe.number = (result.acted_ns, attempt.number) if waits else (None, 0)
        if not current:
            self.due_ns = 0
        elif error is None and not waits:
            safe.wanted = False
            self.over |= over
        if not waits and (current or attempt.acted_ns is None):  # else it was reported when it gave way
            in_force = current and not self.wanted and not self.over
            self._post(SafeAttempt(safe.call, attempt.why, attempt.number, now_ns, in_force, acted, error, over))
        safe.under_way = False
        self._close(now_ns)

    def _close(self, now_ns: int) -> None:
        """End the round once all its attempts have started, and the last one ended or was waited for."""
        round_ = self.round
        if round_ is not None and round_.started and now_ns >= (self.patience_ns or 0):
            self.round = None
            if self.wanted and self.due_ns is None and (self._retry_ns is not None or self._why == "exit"):
                self.due_ns = round_.started_ns + (self._retry_ns or EXIT_RETRY_NS)
        if not self.busy and not self.wanted and self.due_ns != 0:
            self.in_force = True
