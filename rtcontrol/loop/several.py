"""Further calls of a tick (`calls_per_tick`): of the same observation, each decided with those before it in its
history, and by the same deadline. What becomes of them changes nothing of their tick: its first call settled it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rtcontrol.loop.deadline import Cause, Tick
from rtcontrol.loop.orders import Completion

if TYPE_CHECKING:
    from rtcontrol.loop.ticks import Ticks
    from rtcontrol.loop.unsteady import Ordered
    from rtcontrol.loop.witness import Fault


def following(ticks: Ticks, ordered: Ordered, done: Completion) -> Tick | None:
    """The tick again, to decide the call after the one that acted; None where that was the last. It is cut where the
    decoder is lost, or less time is left than that call's decision took: not to begin what would be dropped keeps the
    decoder free for the next tick. After a safe call that was demanded meanwhile nothing follows."""
    last, config = ordered.tick, ticks.config
    request, took_ns = last.request, last.replied_ns - last.submitted_ns
    if len(last.calls) + 1 == config.calls_per_tick or not done.stands or ticks.actuator.shut or ticks.over:
        return None
    now = time.monotonic_ns()
    history = (*request.history, ordered.text)[-(ticks.agent.history or 1) :]
    asked = replace(request, history=history, within_ns=last.deadline_ns - now)
    tick = replace(last, calls=(*last.calls, ordered.text), replied_ns=0, request=asked)
    if not (config.clock == "wall" and now + took_ns > tick.deadline_ns) and ticks.host.alive():
        return tick
    ticks.outcomes.miss(tick, None)
    return None


def fields(tick: Tick, kind: str, t_s: float) -> dict[str, Any]:
    """What the event of a further call begins with."""
    return {"further": tick.k, "n": len(tick.calls), "t_s": t_s, "outcome": "acted" if kind == "call" else kind}


def verdict(fault: Fault | None) -> dict[str, Any]:
    """Why there is no further call: it is cut where it was not there, or not begun, by the deadline."""
    if fault is None or fault == (Cause.EXECUTE, "busy"):
        return {"outcome": "cut"}
    cause, subcause = fault
    return {"outcome": "failed", "cause": cause.value} | ({} if subcause is None else {"subcause": subcause})
