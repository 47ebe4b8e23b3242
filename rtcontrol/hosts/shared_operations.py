"""What people, and the load, do with the decoders of a fleet that several servers share: whichever server is asked does
it, one at a time, and all servers follow."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rtcontrol.hosts.fleet_door import FleetDoor
from rtcontrol.hosts.fleet_leaving import GONE_S
from rtcontrol.hosts.fleet_operations import FAILED
from rtcontrol.hosts.fleet_roster import LAPSED, TIDY
from rtcontrol.hosts.protocol import DecoderUnavailable
from rtcontrol.models.errors import UserError

log = logging.getLogger("rtcontrol.host")

LOOK_S = 0.1
# So long the fleet's book may be away while decoders are changed; and all servers may take for one step.
AWAY_S, STEP_S = 10.0, GONE_S + 5.0

Report = Mapping[str, Any]


class SharedOperations:
    """As `FleetOperations`. Each changes the fleet's list in its book, step by step, and waits until every server that
    is heard has followed. A server that is silent is not waited for. One that dies while it changes something has given
    it up: the book goes back, and the server that operates puts the decoders in order (`tidy`)."""

    def __init__(self, fleet: Any, door: FleetDoor) -> None:
        self._fleet, self._door = fleet, door
        self._busy = threading.Lock()

    @property
    def busy(self) -> bool:
        return self._busy.locked() or self._door.roster.change is not None

    @property
    def tidy_due(self) -> bool:
        """Whether something is left of a change that was given up."""
        return not self.busy and not self._door.roster.tidy

    def grow(self, by: int) -> None:
        """So many decoders more."""
        with self._alone("starts another one") as token:
            for _ in range(by):
                self._start(token, self._door.roster.model, more=True)

    def drain(self, name: str) -> None:
        """Move a decoder's sessions to others, and end it. Another one is started first, where there would be fewer
        than there may be."""
        self._end(name, f"drains {name}", replace=False)

    def replace(self, name: str) -> None:
        """The same, with another decoder in its place in any case: its machine goes."""
        self._end(name, f"replaces {name}", replace=True)

    def change(self, name: str, to: str) -> None:
        """Serve the model `to` in the place of the one that is asked for as `name`, decoder by decoder."""
        with self._alone(f"changes the model to {to}") as token:
            roster = self._door.roster
            now = roster.served[roster.model]
            before = now.get(name, name)
            kept = {asked: to if served == before else served for asked, served in now.items()}
            number = self._door.operate("serve", token, {**kept, name: to, before: to, to: to})
            try:
                for old in roster.takes:
                    made = self._start(token, number, spare=True)
                    self._wait(token, _joined(made))
                    self._door.operate("drain", token, old, made)
                    self._leave(token, old)
            except UserError as error:
                raise UserError(f"All sessions stay with the model before: {error.what}", error.remedy) from error

    def tidy(self) -> None:
        """Start what is missing after a change that was given up, and end what was made for it."""
        with self._by_itself():
            self._tidy()

    def _tidy(self) -> None:
        token = self._begin(TIDY)
        try:
            while True:
                roster = self._door.roster
                missing = len(roster.takes) < roster.wanted
                going = [name for name, one in roster.decoders.items() if one.state == "draining"]
                if missing and len(roster.decoders) <= roster.most:
                    self._start(token, roster.model)
                elif going:
                    self._leave(token, going[0], patient=True)
                elif surplus := roster.surplus:
                    self._door.operate("drain", token, surplus[0])
                else:
                    return
        finally:
            self._close("end", token)

    def _end(self, name: str, what: str, replace: bool) -> None:
        with self._alone(what) as token:
            model = self._fleet.named(name).model
            others = [other for other in self._fleet.members if other.takes and other.decoder != name]
            fewer = not replace and self._door.roster.wanted > self._door.roster.least and bool(others)
            if not fewer:
                made = self._start(token, model, spare=True)
                self._wait(token, _joined(made))
            self._door.operate("drain", token, name, fewer=fewer)
            self._leave(token, name)

    def _start(self, token: str, model: int, *, spare: bool = False, more: bool = False) -> str:
        """One more decoder, up at this server; gives its name."""
        name: str = self._door.operate("enter", token, model, spare=spare)
        self._fleet.follow_models(self._door.roster.served, self._door.roster.model)
        try:
            if self._fleet.admit(name, model, lambda: name not in self._door.roster.decoders) is None:
                raise UserError(LAPSED, "Look at the decoders, and try again.")
        except BaseException:
            with contextlib.suppress(UserError):
                self._door.operate("remove", token, name)
            raise
        self._door.operate("started", token, name, more=more)
        return name

    def _leave(self, token: str, name: str, patient: bool = False) -> None:
        """Until no server has sessions at a decoder that drains; then it ends."""
        self._wait(token, _clear(name), patient)
        self._door.operate("remove", token, name)

    def _wait(self, token: str, done: Callable[[Report], bool], patient: bool = False) -> None:
        """Until every server that is heard has followed the list as it is now, and is `done`. Raises UserError where it
        failed at one of them (`patient`: that is waited for), or takes too long."""
        since, began = self._door.roster.version, time.monotonic()
        heard_s = began
        while not self._fleet.closed.wait(LOOK_S):
            reports: Mapping[str, Report] = {}
            try:
                reports, heard_s = self._door.progress(), time.monotonic()
            except DecoderUnavailable:
                if time.monotonic() - heard_s > AWAY_S:
                    raise
            change = self._door.roster.change
            if change is None or change.token != token:
                raise UserError(LAPSED, "Look at the decoders, and try again.")
            of_this = [report for report in reports.values() if report["change"] == token]
            failed = next((report["failed"] for report in of_this if report["failed"] is not None), None)
            if failed is not None and not patient:
                raise UserError(failed, FAILED)
            late = [server for server, one in reports.items() if one["version"] < since or not done(one)]
            if self._door.id in reports and not late:
                return
            if time.monotonic() - began > STEP_S:
                raise UserError(f"{len(late)} servers of the fleet did not follow in {STEP_S:g} s.", "Try again.")
        raise UserError("The server is ending.", "Nothing is to be done.")

    def _put_in_order(self) -> None:
        """After a change that was given up; another server may do it. Raises UserError where that takes too long."""
        began = time.monotonic()
        while not self._door.roster.tidy or self._door.roster.change is not None:
            try:
                self._tidy()
            except UserError:
                if time.monotonic() - began > STEP_S or self._fleet.closed.wait(LOOK_S):
                    raise
                self._door.progress()
        self._followed()

    def _followed(self) -> None:
        """Until all servers that are heard know that it is done; for a while."""
        began, version = time.monotonic(), self._door.roster.version
        with contextlib.suppress(UserError):
            while any(report["version"] < version for report in self._door.progress().values()):
                if time.monotonic() - began > AWAY_S or self._fleet.closed.wait(LOOK_S):
                    return

    @contextlib.contextmanager
    def _alone(self, what: str) -> Iterator[str]:
        with self._by_itself():
            token = self._begin(what)
            try:
                yield token
            except BaseException:
                with contextlib.suppress(UserError):
                    self._close("give_up", token)
                with contextlib.suppress(UserError):
                    self._put_in_order()
                raise
            self._close("end", token)
            self._followed()

    @contextlib.contextmanager
    def _by_itself(self) -> Iterator[None]:
        """Raises UserError where this server changes something already."""
        if not self._busy.acquire(blocking=False):
            raise UserError("The decoders are being changed just now.", "Wait until that is done.")
        try:
            yield
        finally:
            self._busy.release()

    def _begin(self, what: str) -> str:
        token: str = self._door.operate("begin", self._door.id, what)
        self._door.change = token
        return token

    def _close(self, what: str, token: str) -> None:
        """`end` the change, or `give_up`: again until the book answers; where it does not for long it gives the change
        up by itself. Raises UserError."""
        began, again = time.monotonic(), False
        try:
            while True:
                try:
                    self._door.operate(what, token)
                    return
                except DecoderUnavailable:
                    again = True
                    if time.monotonic() - began > AWAY_S or self._fleet.closed.wait(LOOK_S):
                        raise
                except UserError:
                    self._door.progress()
                    if again and self._door.roster.tidy:  # it was done the first time, and the answer was late
                        return
                    raise
        finally:
            self._door.change = None


def _joined(name: str) -> Callable[[Report], bool]:
    return lambda report: name in report["joined"]


def _clear(name: str) -> Callable[[Report], bool]:
    return lambda report: name in report["clear"]
