"""Off the steady way: calls that gave way or did not end in time, late decisions, calls never made before."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Container
from dataclasses import dataclass, field
from enum import Enum

from rtcontrol.agents import Tools
from rtcontrol.envs.base import Acknowledgement
from rtcontrol.hosts.base import DecisionReply, Host
from rtcontrol.loop.clock import LoopClock
from rtcontrol.loop.deadline import Cause, Tick
from rtcontrol.loop.outcomes import Outcomes
from rtcontrol.models.call import Call

# So many different calls are known to be legal; a schema of free values has no end of them.
MAX_KNOWN = 1024
PLAIN = (int, float, str, Enum, type(None))


@dataclass(slots=True, eq=False)
class Ordered:
    """A tick whose call was given to the actuator. `late`: its deadline was over before the decision came; `settled`:
    it was over before the call ended."""

    tick: Tick
    reply: DecisionReply
    call: Call
    text: str
    late: bool
    settled: bool = False
    given_ns: int = field(default_factory=time.monotonic_ns)


class LegalCalls:
    """The calls that were found legal, by name and arguments as text: (ready to act, text)."""

    def __init__(self, tools: Tools) -> None:
        self.known: dict[str, tuple[Call, str]] = {}
        self._tools = tools

    def check(self, key: str, call: Call) -> tuple[Call, str]:
        """A legal call with its arguments as the annotated types, and its text. Raises InvalidCall. What was legal once
        is known from then on, if its arguments are values that nobody can change."""
        tools = self._tools
        ready = Call(call.name, tools.convert(tools.validate(call)))
        checked = ready, call.text()
        if len(self.known) < MAX_KNOWN and all(isinstance(v, PLAIN) for v in ready.arguments.values()):
            self.known[key] = checked
        return checked


def replaced(outcomes: Outcomes, ordered: Ordered, period_ns: int) -> None:
    """A call that waited for the world gave way to a newer one: overtaken, or kept waiting by a world that is busy."""
    if ordered.late:
        outcomes.late(ordered.tick, ordered.reply, None, time.monotonic_ns())
    elif time.monotonic_ns() - ordered.given_ns >= max(period_ns // 4, 1_000_000):
        overrun(outcomes, ordered, "the call could not begin, and gave way to a newer one")
    else:
        outcomes.tell(ordered.tick, "held", ordered.reply)
        outcomes.settle(ordered.tick, ordered.reply, "overtaken", ordered.text)


def cleared(outcomes: Outcomes, ordered: Ordered) -> None:
    """A call that waited for the world gave way to the safe call."""
    if ordered.late:
        outcomes.late(ordered.tick, ordered.reply, None, time.monotonic_ns())
    else:
        overrun(outcomes, ordered, "the call could not begin, and gave way to the safe call")


def overrun(outcomes: Outcomes, ordered: Ordered, what: str, which: str = "busy") -> None:
    """The call did not act in time: the world was `busy`, or the call is under way and `slow`."""
    outcomes.miss(ordered.tick, (Cause.EXECUTE, which), ordered.reply, error=what, call=ordered.text)


def withhold(outcomes: Outcomes, ordered: Ordered, withdrawn: bool) -> bool:
    """The deadline is here, and the call has not ended: it is dropped if it was `withdrawn` before it began. Whether
    its tick is settled by that; the word of a world that does not block is on the way."""
    if withdrawn:
        overrun(outcomes, ordered, "the call could not begin by its deadline, and is dropped")
        return True
    if outcomes.emits:
        return False
    overrun(outcomes, ordered, "the call has not ended by its deadline", "slow")
    return True


def lost(host: Host, tick: Tick) -> bool:
    """Whether the decoder that was asked is not there any more."""
    return not host.alive() or host.incarnation != tick.incarnation


def was_late(outcomes: Outcomes, tick: Tick, skipped: int, period_ns: int) -> None:
    """Releases before this tick's were skipped: name why."""
    why = outcomes.witness.why_skipped(tick, tick.release_ns - skipped * period_ns)
    tick.skip = {"skipped": skipped, **{f"skip_{name}": value for name, value in why.items()}}


def overdue(outcomes: Outcomes, clock: LoopClock, deadline_ns: int, period_ns: int, now_ns: int) -> None:
    """The loop was away when the run ended: what was due meanwhile, and was never begun, is missed all the same. The
    safe call is demanded by then."""
    if outcomes.t0_ns and clock.enforced and clock.due(now_ns - period_ns):
        outcomes.suspend(outcomes.newest_k)
        k, release_ns, skipped = clock.take(now_ns)
        tick = Tick(k, release_ns, release_ns + deadline_ns, now_ns)
        was_late(outcomes, tick, skipped, period_ns)
        outcomes.miss(tick, None)


def acknowledge(outcomes: Outcomes, heard: deque[Acknowledgement], under_way: Container[int] = ()) -> None:
    """What the world says became of calls, but of those whose tick is not over."""
    for _ in range(len(heard)):
        said = heard.popleft()
        if said.tick in under_way:
            heard.append(said)
        else:
            outcomes.acknowledged(said)


def usable_until(outcomes: Outcomes, tick: Tick, max_age_ns: int, now_ns: int) -> int | None:
    """Until when the call of a late decision may begin: while it may be held and its observation is not stale. None:
    not any more, or a newer epoch is on, or the safe call took over for a newer tick's sake."""
    policy = outcomes.policy
    not_after_ns = min(policy.limit_ns, tick.capture_ns + max_age_ns)
    taken_over = policy.safe and outcomes.safe_k > tick.k
    return not_after_ns if tick.epoch == outcomes.epoch and now_ns <= not_after_ns and not taken_over else None
