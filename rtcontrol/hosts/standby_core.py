"""Which of two warm decoders decides (`--standby`): where it is lost, the other one is asked from the next request on.

The session stays with that one, and the lost one comes back as the standby. The standby decides the first requests too,
and one in so many seconds: its first decisions after a takeover would be slow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rtcontrol.hosts.host_core import Action, HostCore, HostView, Notify, Submit
from rtcontrol.hosts.protocol import DecisionReply, DecisionRequest, HostEvent

PAIR = ("a", "b")
WARM_REQUESTS, WARM_EVERY_NS = 8, 5_000_000_000
OWED = 64  # so many answers of the standby are waited for
TOOK_OVER = "the standby decides"


class StandbyCore(HostCore):
    """Two hosts of one session, PAIR; `main` is the one that decides."""

    name = "ray"

    def __init__(self) -> None:
        super().__init__(PAIR, PAIR[0])
        self.standby = PAIR[1]
        self._seen = 0  # the main one's incarnation
        self._lost_ns: int | None = None
        self._mirrored = self._mirrored_ns = 0
        self._owed: dict[str, set[int]] = {name: set() for name in PAIR}  # ticks that each answers for nothing

    def info(self, infos: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """Return what the one that decides says, and the standby's process."""
        return {**infos[self.main], "standby": infos[self.standby].get("pid")}

    def requested(self, request: DecisionRequest, now_ns: int) -> list[Action]:
        actions: list[Action] = [Submit(self.main, request)]
        if self.views[self.standby].alive and self._is_due(now_ns):
            owed = self._owed[self.standby]
            owed.add(request.tick)
            if len(owed) > OWED:
                owed.remove(min(owed))  # newer requests took its place
            return [*actions, Submit(self.standby, request)]
        return actions

    def _is_due(self, now_ns: int) -> bool:
        """Return whether the standby is to decide this request, too."""
        if self._mirrored >= WARM_REQUESTS and now_ns - self._mirrored_ns < WARM_EVERY_NS:
            return False
        self._mirrored, self._mirrored_ns = self._mirrored + 1, now_ns
        return True

    def replied(self, host: str, reply: DecisionReply, now_ns: int) -> list[Action]:
        nothing = host != self.main or reply.tick in self._owed[host]
        self._owed[host].discard(reply.tick)
        return [] if nothing else [reply]

    def changed(self, views: Mapping[str, HostView], now_ns: int) -> list[Action]:
        """Take over where the main one is lost, and note what was lost and when it was back."""
        for name, view in views.items():
            if not view.alive or view.incarnation != self.views[name].incarnation:
                self._owed[name].clear()  # what a lost one had to answer it will not
        self.views, main, standby = views, views[self.main], views[self.standby]
        if main.alive and main.incarnation == self._seen and self._lost_ns is None:
            return []
        if self._lost_ns is None:
            self._lost_ns = next((e.t_ns for e in reversed(main.events) if e.event == "lost"), now_ns)
            self.events.append(HostEvent(self._lost_ns, "lost", 0.0))
        actions: list[Action] = []
        if not main.alive and standby.alive:
            self.main, self.standby = self.standby, self.main
            actions.append(Notify(TOOK_OVER))
        self._returned(now_ns)
        return actions

    def _returned(self, now_ns: int) -> None:
        """Note that the main one decides again, or why none will."""
        main, standby = self.views[self.main], self.views[self.standby]
        if self._lost_ns is not None and main.alive:
            self._seen = main.incarnation
            self.incarnation += 1
            self.events.append(HostEvent(now_ns, "restarted", (now_ns - self._lost_ns) / 1e9))
            self._lost_ns = None
        elif not main.alive:
            self.gave_up = standby.gave_up and main.gave_up
