"""Sessions of a fleet's servers: each server keeps what a session needs in the fleet's book, so that a client whose
server died goes on with it at another one, by its token."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from pydantic import ValidationError

from rtcontrol.envs.remote import RemoteEnvironment
from rtcontrol.serve.crowd.loop import CrowdLoop
from rtcontrol.serve.crowd.session import CrowdSession
from rtcontrol.serve.negotiate import Terms
from rtcontrol.serve.operators import ManagedSessions, served_model, take_model
from rtcontrol.serve.peer import Peer
from rtcontrol.serve.session import Session, SessionOwner
from rtcontrol.serve.stats import Run
from rtcontrol_client.wire import Code, WireError
from rtcontrol_client.wire.messages import Hello


class HandedOver(Session):
    """A hello that resumes a session that this server does not have asks the book for it. Its ticks go on from the time
    of day in microseconds wherever it is resumed: so they grow, whichever servers it was at."""

    def __init__(self, number: int, peer: Peer[Session], hello: Hello, owner: SessionOwner) -> None:
        super().__init__(number, peer, hello, owner)
        self._adopts = self._resumes = hello.resume is not None
        if hello.resume is not None:
            self.token = hello.resume

    def kept(self) -> dict[str, Any] | None:
        """What another server needs to go on with it; None while it cannot be resumed."""
        state = self._state() if self.welcomed and self.why is None else None
        return state and {"key": self.key, "paused": self.paused, "hello": self.hello, **state}

    def _state(self) -> dict[str, Any] | None:
        """What it needs of its kind, with the `instruction`; None: it has not begun."""
        raise NotImplementedError

    def _restore(self, kept: Mapping[str, Any]) -> None:
        """Go on with that."""
        raise NotImplementedError

    def _work(self) -> None:
        try:
            if self._adopts or self.runs:
                self._take_up()
        except WireError as error:
            self._owner.ended(self, error)
            return
        super()._work()

    def _take_up(self) -> None:
        """Go on with what the book has of it: of this server, or of one that had it meanwhile."""
        claim, self._resumes = getattr(self._owner.pool, "claim", None), True
        kept = None if claim is None else claim(self.token, self.key)
        if kept is None:
            if self._adopts:
                raise unknown()
            return  # the book does not know it (yet): it is this server's
        try:
            before = Hello.model_validate(kept["hello"])
        except ValidationError:
            raise unknown() from None
        if (before.crowd is None) != (self.hello.crowd is None):
            raise unknown()
        if self._adopts:
            told = {"t_client_ns": self.hello.t_client_ns, "resume": self.token}
            self.hello, self._adopts = before.model_copy(update=told), False
        elif not kept["elsewhere"]:
            return
        self.paused = bool(kept["paused"])
        self._instruction = self._proven = kept["instruction"]
        self._restore(kept)


class FleetSession(HandedOver):
    """Of one world."""

    _numbers = (0, -1)

    def _state(self) -> dict[str, Any] | None:
        env, loop = self.env, self.loop
        if env is None or loop is None:
            return None
        return {"instruction": self._instruction or loop.instruction, "epoch": env.epoch, "seq": env.last_seq}

    def _restore(self, kept: Mapping[str, Any]) -> None:
        self._numbers = kept["epoch"], kept["seq"]

    def make_env(self, terms: Terms) -> RemoteEnvironment:
        env = super().make_env(terms)
        if self._resumes:
            env.take_up(*self._numbers, time.time_ns() // 1000)
        return env


class FleetCrowd(HandedOver, CrowdSession):
    """Of many members, each of which goes on."""

    _restored: Mapping[str, Any] | None = None

    def _state(self) -> dict[str, Any] | None:
        if (roster := self.roster) is None:
            return None
        return {"instruction": self._instruction or roster.defaults.instruction, **roster.kept()}

    def _restore(self, kept: Mapping[str, Any]) -> None:
        self._restored = kept

    def _open(self) -> Run[CrowdLoop]:  # type: ignore[override]
        run = super()._open()
        kept, self._restored = self._restored, None
        if kept is not None and self.roster is not None:
            self.roster.take_up(kept)
            run.loop.replies.k = time.time_ns() // 1000
        return run


def unknown() -> WireError:
    """Neither here nor in the book, or of another client."""
    what = "There is no such session (any more) at the fleet's servers."
    return WireError(Code.SESSION, what, "Say hello without `resume`.", field="resume", retryable=True)


def open_session(number: int, peer: Peer[Session], hello: Hello, owner: SessionOwner) -> Session:
    """Of the kind that is asked for."""
    if hello.crowd is not None:
        return (CrowdSession if owner.options.fleet is None else FleetCrowd)(number, peer, hello, owner)
    return (Session if owner.options.fleet is None else FleetSession)(number, peer, hello, owner)


class HeldSessions(ManagedSessions, Protocol):
    """A server's sessions."""

    def moved(self, tokens: Iterable[str]) -> None:
        """These went on at other servers: they end here."""


class SessionKeeper:
    """What a server's door tells the book of its sessions, and hears of them."""

    def __init__(self, server: HeldSessions) -> None:
        self._server = server

    def kept(self) -> Mapping[str, Mapping[str, Any]]:
        """Of each that can be resumed, by its token."""
        fleet = [one for one in self._server.all() if isinstance(one, HandedOver)]
        found = ((one.token, one.kept()) for one in fleet)
        return {token: state for token, state in found if state is not None}

    def moved(self, tokens: Iterable[str]) -> None:
        """These went on at other servers."""
        self._server.moved(tokens)

    def serve(self, models: Mapping[str, str]) -> None:
        """What the fleet serves in the place of a model, from now on; it may have been changed at another server."""
        before = served_model(self._server.options)
        if before is not None and (model := models.get(before, before)) != before:
            take_model(self._server, before, model)
