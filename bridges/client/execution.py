"""Hands what begins to be in force to handlers, and tells the server once what became of each of its calls."""

from __future__ import annotations

from collections import deque
from typing import Literal

from rtcontrol.bridges.client.inforce import InForce, Standing
from rtcontrol.bridges.client.options import Options
from rtcontrol.bridges.client.outgoing import QUEUE, Outgoing, forget
from rtcontrol.bridges.wire.messages import Executed

What = Literal["executed", "expired", "failed", "refused"]


class Execution:
    """`handled` waits for `on_call`; `handled_safe` is safe, where it has a handler of its own."""

    def __init__(self, options: Options, force: InForce, out: Outgoing) -> None:
        self.handled: deque[Standing] = deque(maxlen=QUEUE)
        self.handled_safe: deque[Standing] = deque(maxlen=QUEUE)
        self.owed: dict[int, None] = {}  # ticks of this epoch that are not acknowledged yet
        self._options, self._force, self._out = options, force, out

    def begin(self, now_ns: int) -> None:
        """What is in force now has just begun."""
        standing = self._force.at(now_ns)
        if standing.tick is not None:
            self.owed[standing.tick] = None
            forget(self.owed)
        if self._options.on_safe is not None and standing.status == "safe":
            self.handled_safe.append(standing)
        elif self._options.on_call is not None:
            self.handled.append(standing)

    def acknowledge(
        self, tick: int | None, outcome: What, now_ns: int, result: str | None = None, error: str | None = None
    ) -> None:
        """Say what became of a call of this epoch, once, where the server was told that it would be. None is no call of
        the server's."""
        if tick is None:
            return
        said = {"result": result, "error": error, "session": self._out.token, "tick": tick, "epoch": self._force.epoch}
        told = Executed.model_validate({**said, "outcome": outcome, "t_ns": now_ns})
        if tick in self.owed:
            del self.owed[tick]
            if self._options.acknowledges:
                self._out.say(told)

    def take(self, queue: deque[Standing], now_ns: int) -> Standing | None:
        """The newest that waits in a queue, if it is in force at this instant. What is older, or is not, is
        acknowledged as expired."""
        if not queue:
            return None
        *skipped, newest = queue
        queue.clear()
        for old in skipped:
            self.acknowledge(old.tick, "expired", now_ns, error="superseded while the handler was busy")
        now = self._force.at(now_ns)
        if now.status == "safe" if newest.status == "safe" else now.call is newest.call:
            return newest
        self.acknowledge(newest.tick, "expired", now_ns, error="no longer in force when the handler could begin")
        return None
