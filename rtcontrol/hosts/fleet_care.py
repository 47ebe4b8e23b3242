"""Looks after a fleet: sessions that wait for a place, decoders that are overloaded, too few or too many."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from rtcontrol.hosts.fleet import FleetPool
from rtcontrol.hosts.fleet_operations import FleetOperations
from rtcontrol.hosts.load import Scaling
from rtcontrol.models.errors import UserError

log = logging.getLogger("rtcontrol.host")

LOOK_S = 0.5
# A decoder is overloaded when it was so in so many looks, one after the other.
OVERLOADED = 4
# What could not be had counts as asked for, for so long.
UNMET_S = 30.0
# So long after a decoder could not leave its machine it is tried again.
LEAVE_AGAIN_S = 5.0


class DecoderOperations(Protocol):
    """What is done with decoders; each blocks until it is done. Raises UserError."""

    @property
    def busy(self) -> bool: ...

    def grow(self, by: int) -> None: ...

    def drain(self, name: str) -> None: ...

    def replace(self, name: str) -> None: ...


class FleetCare:
    """A thread of its own, and one more while a decoder is started or ended. Without a `scaling` the number of decoders
    stays."""

    def __init__(self, fleet: FleetPool, operations: DecoderOperations, scaling: Scaling | None = None) -> None:
        self._fleet, self._operations, self._scaling = fleet, operations, scaling
        self._thread = threading.Thread(target=self._look_after, name="fleet-care", daemon=True)
        self._changing: threading.Thread | None = None
        self._over = 0
        self._unmet, self._unmet_s = 0.0, 0.0
        self._requested = 0
        self._leave_s = 0.0

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        """Until it has seen that the fleet is closed."""
        for thread in (self._thread, self._changing):
            if thread is not None and thread.is_alive() and thread is not threading.current_thread():
                thread.join(LOOK_S)

    def _look_after(self) -> None:
        while not self._fleet.closed.wait(LOOK_S):
            try:
                self._look(time.monotonic())
            except Exception:  # one fault must not end it
                log.exception("the care of the decoders stumbled")

    def _look(self, now_s: float) -> None:
        fleet = self._fleet
        for host in list(fleet.hosts):
            part = host.part  # it may be closed meanwhile
            if part is not None and not host.heard:
                fleet.move(host, without=part.member.decoder)
        load = fleet.load()
        relief = load.relief(fleet.given_away, now_s)
        self._over = 0 if relief is None else self._over + 1
        if relief is not None and self._over >= OVERLOADED:
            session, to = relief
            for host in [host for host in list(fleet.hosts) if host.seated == session]:
                log.info("a decoder is overloaded: %s goes to %s", host.session, to)
                fleet.move(host, to)
            self._over = 0
        self._leave_machines(now_s)
        self._note_unmet(now_s)
        used = load.used + self._unmet_of_all()
        if self._scaling is not None and self._decides:
            self._scale(self._scaling, now_s, used)

    def _leave_machines(self, now_s: float) -> None:
        """Start others in the place of decoders whose machine Ray is about to take away, and move all there."""
        if not self._fleet.ray.joined or now_s < self._leave_s or self._is_changing:
            return
        going = draining_nodes()
        for member in [member for member in list(self._fleet.members) if member.takes]:
            if any(node.startswith(member.process.get("node") or "-") for node in going):
                log.warning("%s leaves its machine, which goes", member.decoder)
                self._leave_s = now_s + LEAVE_AGAIN_S
                self._begin(partial(self._operations.replace, member.decoder))
                return

    @property
    def _is_changing(self) -> bool:
        return self._operations.busy or (self._changing is not None and self._changing.is_alive())

    def _begin(self, what: Callable[[], Any]) -> None:
        self._changing = threading.Thread(target=self._try, args=(what,), name="fleet-change", daemon=True)
        self._changing.start()

    @property
    def _decides(self) -> bool:
        """Whether this is who decides how many decoders there are."""
        return True

    def _count(self) -> int:
        """The decoders that are there or on their way."""
        return sum(member.state in ("starting", "up") for member in self._fleet.members)

    def _note_unmet(self, now_s: float) -> None:
        fleet = self._fleet
        if fleet.unmet > 0:
            self._unmet, self._unmet_s, fleet.unmet = fleet.unmet, now_s, 0.0
        elif now_s - self._unmet_s > UNMET_S:
            self._unmet = 0.0

    def _unmet_of_all(self) -> float:
        """What was asked for lately that nobody had room for."""
        return self._unmet

    def _scale(self, scaling: Scaling, now_s: float, used: float) -> None:
        count = self._count()
        wanted = scaling.look(now_s, used, count)
        if wanted == count or self._is_changing:
            return
        self._request(wanted)
        self._unmet = 0.0 if wanted > count else self._unmet
        self._begin(partial(self._operations.grow, wanted - count) if wanted > count else self._shrink)

    def _try(self, what: Callable[[], None]) -> None:
        try:
            what()
        except UserError as error:
            log.warning("the number of decoders stays: %s", error)
        except Exception:
            log.exception("the number of decoders could not be changed")

    def _shrink(self) -> None:
        """Of those with the fewest sessions' needs: what nobody is at costs nobody anything."""
        load = self._fleet.load()
        takes = [decoder for decoder in load.decoders if decoder.takes]
        if len(takes) > 1:
            self._operations.drain(min(takes, key=lambda one: (len(one.seats), load.busy(one))).name)

    def _request(self, decoders: int) -> None:
        """Ask a cluster's autoscaler for room."""
        if not self._fleet.ray.joined or decoders == self._requested:
            return
        self._requested = decoders
        with contextlib.suppress(Exception):  # of a cluster without one
            from ray.autoscaler.sdk import request_resources

            request_resources(bundles=[self._fleet.bundle()] * decoders)


def draining_nodes() -> list[str]:
    """The machines that a cluster is about to give back, by Ray's names of them; none where it cannot say."""
    with contextlib.suppress(Exception):
        from ray._private.state import state

        return list(state.get_draining_nodes())
    return []


class ManagedFleet(FleetPool):
    """A fleet with all who look after it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.operations = FleetOperations(self)
        self.scaling = Scaling(self.count, self.most, self.given_away) if self.most > self.count else None
        self._care = FleetCare(self, self.operations, self.scaling)

    def start(self, stopped: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        info = super().start(stopped)
        if info:
            self._care.start()
        return info

    def close(self) -> None:
        self.closed.set()
        self._care.join()
        super().close()
