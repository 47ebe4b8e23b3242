"""Which decoders a shared fleet is to have, and who changes that: one server at a time. Nothing here has a clock or a
process of its own."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rtcontrol.models.errors import UserError

PLAIN = ("least", "most", "version", "wanted", "model", "newest", "models", "terms")
TIDY = "puts the decoders in order"
# A list that was restored is newer than any that a server may have from before.
RESTORED = 1000
LAPSED = "This server was silent for too long, or the fleet's book was lost: its change of the decoders was given up."


@dataclass
class ListedDecoder:
    """A decoder: the number of the model that it serves, and where its sessions go while it is `draining` (None: to any
    other that has room)."""

    model: int = 0
    state: Literal["starting", "up", "draining"] = "up"
    to: str | None = None


@dataclass
class RosterChange:
    """What a server does with the decoders, and what was there before it began."""

    token: str
    server: str
    what: str
    model: int
    wanted: int
    made: list[str] = field(default_factory=list)


class FleetRoster:
    """The decoders by their names, the models that are `served` by number, and the number in force.

    `terms` are those of the fleet's first server. `wanted` decoders, between `least` and `most`; one more while one is
    there for another. Whoever changes it has the token of the one change that is under way. What is left of one that
    was given up is not `tidy`, until somebody has put it in order. Raises UserError for what is refused, and then all
    stays as it is.
    """

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most
        self.version, self.wanted, self.model, self.newest = 1, least, 0, least
        self.terms: dict[str, Any] | None = None  # what its servers have in common; None before the first one
        self.served, self.models = dict[int, dict[str, str]]({0: {}}), 0
        self.decoders = {f"decoder-{number}": ListedDecoder() for number in range(1, least + 1)}
        self.change: RosterChange | None = None

    # -- as it goes through Ray ---------------------------------------------------------------------------------------

    def plain(self) -> dict[str, Any]:
        """In plain values."""
        listed = {name: asdict(one) for name, one in self.decoders.items()}
        change = None if self.change is None else asdict(self.change)
        served = {number: dict(models) for number, models in self.served.items()}
        return {**{name: getattr(self, name) for name in PLAIN}, "served": served, "decoders": listed, "change": change}

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> FleetRoster:
        """The same again."""
        roster = cls(plain["least"], plain["most"])
        for name in PLAIN:
            setattr(roster, name, plain[name])
        roster.served = {number: dict(models) for number, models in plain["served"].items()}
        roster.decoders = {name: ListedDecoder(**one) for name, one in plain["decoders"].items()}
        roster.change = None if plain["change"] is None else RosterChange(**plain["change"])
        return roster

    def restored(self) -> FleetRoster:
        """As the book goes on with it that was lost: a change that was under way is given up."""
        self.version += RESTORED
        if self.change is not None:
            self.give_up(self.change.token)
        return self

    # -- what there is ------------------------------------------------------------------------------------------------

    @property
    def takes(self) -> list[str]:
        """Those to which sessions may come."""
        return [name for name, one in self.decoders.items() if one.state == "up" and one.model == self.model]

    @property
    def surplus(self) -> list[str]:
        """Those that are up and not wanted, or with another model than the one in force."""
        takes = self.takes
        return [name for name, one in self.decoders.items() if one.state == "up" and name not in takes[: self.wanted]]

    @property
    def tidy(self) -> bool:
        """Whether there is what is wanted, and nothing else."""
        return len(self.takes) == len(self.decoders) == self.wanted

    # -- one change at a time -----------------------------------------------------------------------------------------

    def begin(self, server: str, what: str) -> str:
        """Gives the change's token."""
        if self.change is not None:
            whose = "this server" if self.change.server == server else "another server"
            raise UserError(
                f"The decoders are being changed just now: {whose} {self.change.what}.", "Wait until that is done."
            )
        if not self.tidy and what != TIDY:
            raise UserError(
                "The decoders are just being put in order, after a change that was given up.", "Try again in a minute."
            )
        self.change = RosterChange(secrets.token_hex(8), server, what, self.model, self.wanted)
        self.version += 1
        return self.change.token

    def enter(self, token: str, model: int | None = None, *, spare: bool = False) -> str:
        """One more decoder, which is being started; gives its name. A `spare` one is there for another that ends."""
        change = self._of(token)
        live = sum(one.state != "draining" for one in self.decoders.values())
        if live >= self.most + spare or len(self.decoders) > self.most:
            raise UserError(f"The fleet has {live} decoders, as many as it may have.", "Give a larger --decoders.")
        self.newest += 1
        name = f"decoder-{self.newest}"
        self.decoders[name] = ListedDecoder(self.model if model is None else model, "starting")
        change.made.append(name)
        self.version += 1
        return name

    def started(self, token: str, name: str, *, more: bool = False) -> None:
        """It is up; where there are to be `more` decoders it stays, whatever becomes of the rest of the change."""
        change, one = self._of(token), self._listed(name)
        if one.state != "starting":
            raise UserError(f"{name} is not being started.", "Look at the decoders.")
        one.state = "up"
        if more:
            self.wanted = min(self.wanted + 1, self.most)
            change.wanted = self.wanted
        if more or change.what == TIDY:
            change.made.remove(name)
        self.version += 1

    def drain(self, token: str, name: str, to: str | None = None, *, fewer: bool = False) -> None:
        """Its sessions leave it. With `to`, the model of that one is in force from now on. `fewer`: there are to be
        fewer decoders."""
        self._of(token)
        one, into = self._listed(name), None if to is None else self._listed(to)
        if any(each is not None and each.state != "up" for each in (one, into)) or to == name:
            raise UserError(f"{name} cannot be drained now.", "Look at the decoders.")
        if into is None and not [other for other in self.takes if other != name]:
            raise UserError(
                f"{name} is the only decoder that takes sessions.", "Start another one first, by more --decoders."
            )
        if fewer:
            if self.wanted <= self.least:
                raise UserError(f"The fleet has {self.wanted} decoders, and may not have fewer.", "Lower --decoders.")
            self.wanted -= 1
        one.state, one.to = "draining", to
        self.model = self.model if into is None else into.model
        self.version += 1

    def serve(self, token: str, models: Mapping[str, str]) -> int:
        """What is served in the place of a model by decoders to come; gives their number."""
        self._of(token)
        self.models += 1
        self.served[self.models] = dict(models)
        self.version += 1
        return self.models

    def remove(self, token: str, name: str) -> None:
        """Nobody is there any more, or it does not start. What was made in its place, with the same model, stays."""
        change = self._of(token)
        if self._listed(name).state == "up":
            raise UserError(f"{name} has sessions.", "Drain it first.")
        self._drop([name])
        stays = [made for made, one in self.decoders.items() if one.state == "up" and one.model == change.model]
        change.made = [made for made in change.made if made not in stays]
        self.version += 1

    def end(self, token: str) -> None:
        """The change is done; what is still being started is not waited for."""
        self._of(token)
        self.change = None
        self._drop([name for name, one in self.decoders.items() if one.state == "starting"])
        self._drop_models()
        self.version += 1

    def give_up(self, token: str) -> None:
        """Back to what was before: those that drain stay, and those that were made for them end. Where none with the
        model before is left, the new one stays."""
        change, self.change = self._of(token), None
        self._drop([name for name, one in self.decoders.items() if one.state == "starting"])
        back = any(one.model == change.model and name not in change.made for name, one in self.decoders.items())
        if back:
            self.model, self.wanted = change.model, change.wanted
        for name, one in self.decoders.items():
            leaves = one.model != self.model or (back and name in change.made)
            one.state, one.to = "draining" if leaves else "up", None
        self._drop_models()
        self.version += 1

    def lapse(self, server: str) -> bool:
        """The server is gone, or silent; whether it was changing something, which is given up."""
        if self.change is None or self.change.server != server:
            return False
        self.give_up(self.change.token)
        return True

    def _of(self, token: str) -> RosterChange:
        if self.change is None or self.change.token != token:
            raise UserError(LAPSED, "Look at the decoders, and try again.")
        return self.change

    def _listed(self, name: str) -> ListedDecoder:
        if (one := self.decoders.get(name)) is None:
            raise UserError(f"There is no decoder {name[:40]!r}.", f"There are {', '.join(self.decoders)}.")
        return one

    def _drop_models(self) -> None:
        """Those that are neither in force nor of a decoder; each keeps its number."""
        used = {self.model, *(one.model for one in self.decoders.values())}
        self.served = {number: models for number, models in self.served.items() if number in used}

    def _drop(self, names: list[str]) -> None:
        for name in names:
            del self.decoders[name]
        if self.change is not None:
            self.change.made = [name for name in self.change.made if name in self.decoders]
