"""One session's part of a fleet of decoders: it decides on one, and goes over to another between two ticks."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rtcontrol.hosts.fleet_member import FleetMember
from rtcontrol.hosts.load import DecoderSeat, need_of
from rtcontrol.hosts.protocol import DeciderSource, DecisionReply, DecisionRequest, HostEvent
from rtcontrol.hosts.ray_host import RayHost, WakeFile

log = logging.getLogger("rtcontrol.host")

# An answer that is still owed is waited for, for so many further requests, before the session goes over.
PATIENCE = 4
# A session that asked nothing for so long, and for so many of its periods, does not wait for anything.
IDLE_S, IDLE_PERIODS = 1.0, 3
# So many answers of a new model are looked at before the decider of the old one is given up.
TRIAL = 8
# Why a session does not take a part; the last two are over soon.
OVER, ELSEWHERE, TRIED = "the session is over", "it is going elsewhere already", "it is on trial with a new model"


@dataclass(frozen=True)
class Part:
    """What decides for a session: its decider on a decoder. `model`: the number of the model that it decides by."""

    member: FleetMember
    host: RayHost
    source: DeciderSource
    model: int

    def close(self) -> None:
        self.host.close()


class Mover(Protocol):
    """What a session asks of its fleet. Nothing of it blocks but `seat_of` and `settle`."""

    gave_up: str | None

    def seat_of(self, host: FleetHost, stopped: Callable[[], bool]) -> Part:
        """A place for the session, and its decider there. Raises UserError."""

    def settle(self, host: FleetHost, without: str) -> Part | None:
        """Another place that has room for the session; None where there is none."""

    def leave(self, part: Part) -> None:
        """The session needs it no more."""

    def doubt(self, host: FleetHost, error: str) -> None:
        """The new model failed the session, which went back to the old one."""

    def forget(self, host: FleetHost) -> None: ...


class FleetHost:
    """A host whose decoder changes. Its loop's thread owns what it decides with; the fleet's threads build the next
    one, and `offer` it.

    It goes over when no answer is owed, so that no tick is lost, and none is decided twice: what is asked of one
    decoder is never asked of another, and what an old one says is not read. Where the decoder is lost, it goes over
    with the next request. A part with a new model is on trial: an error in its first answers takes the session back.
    """

    name = "ray"

    def __init__(self, fleet: Mover, source: DeciderSource, session: str, prefix: str, hz: float) -> None:
        self.incarnation = 0
        self.events: list[HostEvent] = []
        self.gave_up: str | None = None
        self.source, self.session, self.prefix, self.hz = source, session, prefix, hz
        self.going: str | None = None  # the decoder that a part is being built on, or offered from
        self.moved_s = float("-inf")
        self.closed = False
        self.woken = WakeFile()  # of all its parts: whoever wakes the loop need not know which of them it waits for
        self._fleet = fleet
        self._part: Part | None = None
        self._offer: Part | None = None
        self._before: Part | None = None  # with the old model, while the new one is on trial
        self._left = 0  # answers of the trial
        self._back = False  # the trial is over: back
        self._lock = threading.Lock()  # of the offer, and of `closed`
        self._owed: set[int] = set()
        self._waited = 0  # requests since the offer
        self._asked_s = 0.0
        self._seen = 0  # the part's incarnation
        self._lost_ns: int | None = None
        self._share_s: float | None = None
        self._failed = False  # the newest answer was an error

    # -- any thread ---------------------------------------------------------------------------------------------------

    @property
    def part(self) -> Part | None:
        return self._part

    @property
    def place(self) -> str:
        """The decoder whose time it takes."""
        return self.going or ("" if self._part is None else self._part.member.decoder)

    @property
    def seated(self) -> str:
        """The name of its seat, which is its own."""
        return f"{self.session}/{id(self)}"

    @property
    def up(self) -> bool:
        return self._part is not None and self._part.host.up

    @property
    def heard(self) -> bool:
        """Whether its decoder is there, and answers."""
        return self._part is not None and self._part.host.up and not self._part.member.silent

    @property
    def idle(self) -> bool:
        """Whether it has somewhere to go, and has asked nothing for long: with its next request it is there."""
        usual_s = 1 / self.hz if self.hz > 0 else 0.0
        quiet_s = time.monotonic() - self._asked_s
        return self._offer is not None and not self._owed and quiet_s > max(IDLE_S, IDLE_PERIODS * usual_s)

    @property
    def on_trial(self) -> bool:
        return self._before is not None

    @property
    def bound(self) -> str:
        """Why it takes no part just now; empty where it would."""
        if self._offer is not None:
            return ELSEWHERE
        before = self._before
        return TRIED if before is not None and before.host.up else ""

    def seat(self) -> DecoderSeat:
        need = None if self._part is None else need_of(self._part.host, self.hz)
        self._share_s = self._share_s if need is None else need.share_s
        return DecoderSeat(self.seated, self.prefix, self.hz, self._share_s, self.moved_s)

    def offer(self, part: Part) -> str:
        """A part that it may go over to. Gives why it does not take it; empty where it does."""
        with self._lock:
            if self.closed or (why := self.bound):
                return OVER if self.closed else why
            self._waited, self._offer = 0, part
            return ""

    def withdraw(self) -> None:
        """The trial of a new model is over for all: back, where it is on trial."""
        self._back = True

    # -- the loop's thread --------------------------------------------------------------------------------------------

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        if self._part is None:
            self._part = part = self._fleet.seat_of(self, stopped)
            self.going = None
            if self.closed:
                part.close()
        return self.info

    @property
    def info(self) -> dict[str, Any]:
        return {} if self._part is None else {**self._part.host.info, "decoder": self._part.member.decoder}

    @property
    def shares(self) -> deque[float]:
        return deque() if self._part is None else self._part.host.shares

    @property
    def threads(self) -> Sequence[tuple[int, int]]:
        return () if self._part is None else self._part.host.threads

    def submit(self, request: DecisionRequest) -> None:
        self._waited += 1
        self._asked_s = time.monotonic()
        self._look()
        if self._part is not None:
            self._owed.add(request.tick)
            self._part.host.submit(request)

    def wait(self, timeout_ns: int) -> DecisionReply | None:
        if self._offer is not None and not self._owed:
            self._look()
        if self._part is None:
            return None
        reply = self._part.host.wait(timeout_ns)
        if reply is not None:
            self._owed.discard(reply.tick)
            self._judge(reply)
        return reply

    def wake(self) -> None:
        self.woken.set()

    def alive(self) -> bool:
        self._look()
        return self.up

    def cancel(self, tick: int) -> None:
        self._owed.discard(tick)
        if self._part is not None:
            self._part.host.cancel(tick)

    def relocate(self) -> bool:
        """Go over to another decoder, at once, where one has room; before the first tick."""
        part = self._part
        if part is None or (other := self._fleet.settle(self, part.member.decoder)) is None:
            return False
        self._go(other)
        return True

    def close(self) -> None:
        with self._lock:
            self.closed = True
        self._fleet.forget(self)
        for part in (self._offer, self._before, self._part):
            if part is not None:
                part.close()
        self._offer = self._before = self._part = None

    def _look(self) -> None:
        """Go where there is somewhere to go; say what was lost, and when it was back."""
        part = self._part
        if part is None:
            return
        if self._before is not None and (self._back or not part.host.up) and self._before.host.up:
            self._return()
        elif (offer := self._offer) is not None:
            if not offer.host.up:  # it was lost in the meantime
                self._offer, self.going = None, None
                self._fleet.leave(offer)
            elif not part.host.up or not self._owed or self._waited > PATIENCE:
                self._go(offer)
        self._tell()

    def _tell(self) -> None:
        part = self._part
        if part is None or (part.host.up and part.host.incarnation == self._seen and self._lost_ns is None):
            return
        now_ns = time.monotonic_ns()
        if self._lost_ns is None:
            self._lose(part, now_ns)
        if part.host.up:
            self._found(part, now_ns)
        else:
            self.gave_up = self._fleet.gave_up

    def _lose(self, part: Part, now_ns: int) -> None:
        last = part.host.events[-1].t_ns if part.host.events else now_ns
        self._lost_ns = part.host.lost_ns or last
        self._owed.clear()
        self.events.append(HostEvent(self._lost_ns, "lost", 0.0, part.member.decoder))

    def _found(self, part: Part, now_ns: int) -> None:
        self._seen = part.host.incarnation
        self.incarnation += 1
        seconds = (now_ns - (self._lost_ns or now_ns)) / 1e9
        self.events.append(HostEvent(now_ns, "restarted", seconds, part.member.decoder))
        self._lost_ns = None

    def _go(self, other: Part) -> None:
        part, now_ns = self._part, time.monotonic_ns()
        assert part is not None, "who goes over was somewhere"
        if part.host.lost_ns is not None and self._lost_ns is None:  # not where it was ended, and nobody missed it
            self._lose(part, now_ns)
        if other.model == part.model:  # what its decisions take is known
            other.host.shares.extend(part.host.shares)
        if (gone := self._before) is not None:  # lost while its successor was on trial
            self._fleet.leave(gone)
        tried = other.model != part.model and part.host.up
        self._before, self._left, self._back = (part, TRIAL, False) if tried else (None, 0, False)
        self._seen, self.moved_s = other.host.incarnation, now_ns / 1e9
        self._part, self._offer, self.going = other, None, None
        self._owed.clear()
        if self._lost_ns is None:
            self.events.append(HostEvent(now_ns, "moved", 0.0, other.member.decoder))
        else:
            self._found(other, now_ns)
        log.info("%s goes from %s to %s", self.session, part.member.decoder, other.member.decoder)
        if not tried:
            self._fleet.leave(part)

    def _return(self) -> None:
        tried, before = self._part, self._before
        assert tried is not None and before is not None, "it is on trial"
        self._before, self._back, self._left = None, False, 0
        self._part, self._seen = before, before.host.incarnation
        self._owed.clear()
        self.events.append(HostEvent(time.monotonic_ns(), "moved", 0.0, before.member.decoder))
        self._fleet.leave(tried)

    def _judge(self, reply: DecisionReply) -> None:
        failed, self._failed = self._failed, reply.error is not None
        if self._before is None:
            return
        if not self._before.host.up:  # there is no way back
            before, self._before = self._before, None
            self._fleet.leave(before)
            return
        if reply.error is not None and not failed:
            self._back = True
            self._fleet.doubt(self, reply.error)
            return
        self._left -= 1
        if self._left <= 0 and not self._back:
            before, self._before = self._before, None
            self._fleet.leave(before)
