"""A server's decoders are those of the fleet's list: it joins those that come, and its sessions leave those that go."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Protocol

from rtcontrol.hosts.fleet import FleetPool
from rtcontrol.hosts.fleet_door import FleetDoor
from rtcontrol.hosts.fleet_host import FleetHost
from rtcontrol.hosts.fleet_leaving import Leaving
from rtcontrol.hosts.fleet_member import FleetMember
from rtcontrol.hosts.fleet_roster import FleetRoster, ListedDecoder
from rtcontrol.models.errors import UserError

log = logging.getLogger("rtcontrol.host")

FOLLOW_S = 0.05
# So long after a decoder could not be joined, or left, it is tried again.
AGAIN_S = 1.0
DOUBTED = "trial"


class FollowedFleet(Protocol):
    """A `FleetPool` to which the list is applied."""

    def follow_models(self, served: Mapping[int, dict[str, str]], model: int) -> None:
        """What decoders serve by number, and the number in force."""

    def in_force(self, models: Mapping[str, str]) -> None:
        """What is served in the place of a model from now on: nothing is being changed any more."""


class FleetFollower:
    """A thread of its own, and one for each decoder that comes. `report` tells the fleet's book how far it is: the
    `version` of the list, the decoders that were `joined`, those that are `clear` of this server's sessions, and why
    what is being changed `failed` here."""

    def __init__(self, fleet: FleetPool, door: FleetDoor, follow: FollowedFleet) -> None:
        self._fleet, self._door, self._follow = fleet, door, follow
        self._leaving: dict[str, Leaving] = {}
        self._joining: dict[str, threading.Thread] = {}
        self._again: dict[str, float] = {}  # when it is tried again
        self._failed: dict[str, str] = {}  # by what is being changed, why it failed
        self._change: str | None = None
        self._settled = 0
        self._thread = threading.Thread(target=self._follow_on, name="fleet-follow", daemon=True)
        fleet.doubted = self._doubt

    def start(self) -> None:
        self.look(self._door.roster, time.monotonic())
        self._thread.start()

    def join(self) -> None:
        """Until it has seen that the fleet is closed."""
        for thread in (self._thread, *list(self._joining.values())):
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(AGAIN_S)

    def _follow_on(self) -> None:
        while not self._fleet.closed.wait(FOLLOW_S):
            try:
                self.look(self._door.roster, time.monotonic())
            except Exception:  # one fault must not end it
                log.exception("the fleet's list of decoders could not be followed")

    def look(self, roster: FleetRoster, now_s: float) -> None:
        """Do what is to be done by this list, and report."""
        token = None if roster.change is None else roster.change.token
        if token != self._change:
            self._change, self._failed = token, {}
        self._follow.follow_models(roster.served, roster.model)
        if token is None and roster.model != self._settled:
            self._settled = roster.model
            self._follow.in_force(roster.served[self._settled])
        listed = roster.decoders
        for member in list(self._fleet.members):
            self._follow_one(member, listed.get(member.decoder), roster.version)
        names = {member.decoder for member in list(self._fleet.members)}
        for name, one in listed.items():
            if one.state == "up" and name not in names and now_s >= self._again.get(name, 0.0):
                self._begin(name, one.model)
        for name in {*list(self._joining), *list(self._again)} - set(listed):
            self._again.pop(name, None)
            if name in self._joining and not self._joining[name].is_alive():
                del self._joining[name]
        self._tell(roster.version, self._clear(listed, now_s), token)

    def _follow_one(self, member: FleetMember, one: ListedDecoder | None, version: int) -> None:
        name = member.decoder
        if one is None:
            if version >= getattr(member, "since", 0):  # else it is newer than this list
                self._leaving.pop(name, None)
                self._fleet.remove(member)
        elif one.state == "draining" and member.state == "up":
            member.state = "draining"
        elif one.state == "up" and member.state == "draining":
            self._leaving.pop(name, None)
            member.state = "up"

    def _begin(self, name: str, model: int) -> None:
        thread = self._joining.get(name)
        if thread is None or not thread.is_alive():
            thread = threading.Thread(target=self._join, args=(name, model), name="fleet-join", daemon=True)
            self._joining[name] = thread
            thread.start()

    def _join(self, name: str, model: int) -> None:
        try:
            self._fleet.admit(name, model, lambda: name not in self._door.roster.decoders)
        except UserError as error:
            log.warning("%s is not joined: %s", name, error)
            self._failed.setdefault(f"join {name}", f"{name} cannot be used by a server: {error.what}")
        except Exception:
            log.exception("%s is not joined", name)
        finally:
            self._again[name] = time.monotonic() + AGAIN_S

    def _clear(self, listed: Mapping[str, ListedDecoder], now_s: float) -> list[str]:
        """Those that drain and that none of this server's sessions would miss."""
        clear, members = [], {member.decoder: member for member in list(self._fleet.members)}
        for name in [name for name, one in listed.items() if one.state == "draining"]:
            member, into = members.get(name), listed[name].to
            to = members.get(into or "")
            if member is None:
                clear.append(name)  # it was never joined
            elif into is not None and DOUBTED in self._failed:
                continue  # nobody is sent to that model again
            elif member.state == "draining" and (into is None) == (to is None) and now_s >= self._again.get(name, 0.0):
                leaving = self._leaving.get(name)
                if leaving is None or leaving.to is not to:
                    leaving = self._leaving[name] = Leaving(self._fleet, member, to)
                try:
                    clear += [name] if leaving.look() and not leaving.tried else []
                except UserError as error:
                    self._failed.setdefault(name, error.what)
                    self._again[name] = now_s + AGAIN_S
                    del self._leaving[name]
        return clear

    def _doubt(self, host: FleetHost, error: str) -> None:
        self._failed.setdefault(DOUBTED, f"{host.session} got no decision from it ({error}).")

    def _tell(self, version: int, clear: list[str], token: str | None) -> None:
        joined = [member.decoder for member in list(self._fleet.members) if member.state != "starting"]
        failed = next(iter(self._failed.values()), None)
        report = {"version": version, "joined": joined, "clear": clear, "failed": failed, "change": token}
        if report != self._door.report:
            self._door.report = report
            self._door.beat_soon()
