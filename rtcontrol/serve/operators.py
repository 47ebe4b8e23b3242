"""What the operator of a server does with its decoders while sessions go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from rtcontrol.hosts.deciders import PLAIN
from rtcontrol.hosts.load import Need
from rtcontrol.hosts.protocol import DecoderPool
from rtcontrol.hosts.remote_api import is_endpoint
from rtcontrol.models.errors import UserError
from rtcontrol.run import assembly
from rtcontrol.serve.options import ServeOptions
from rtcontrol.serve.session import Session


class ManagedSessions(Protocol):
    """What is changed: a server's sessions, and where they decide."""

    options: ServeOptions
    pool: DecoderPool
    say: Callable[[str], None]

    def all(self) -> list[Session]: ...


FLEET = "Start the server with --decoders N, N above 1."


def decoders_of(pool: DecoderPool) -> list[dict[str, Any]]:
    """The decoders of a server that has several; of others none."""
    shown = getattr(pool, "decoders", None)
    return [] if shown is None else list(shown())


def needs_elsewhere(pool: DecoderPool) -> Sequence[Need]:
    """What sessions of other servers need of the decoders of this one."""
    told = getattr(pool, "needs_elsewhere", None)
    return () if told is None else told()


def operations_of(pool: DecoderPool) -> Any:
    """`drain` and `change`. UserError for a server that has not several decoders."""
    found = getattr(pool, "operations", None)
    if found is None:
        raise UserError("This server has one decoder, which can neither be drained nor changed.", FLEET)
    return found


def served_model(options: ServeOptions) -> str | None:
    """The model of clients that name none, where there is one; None where it depends on their tools."""
    if options.model is not None or options.agent is None:
        return options.model
    return assembly.agent(options.agent).model


def drain(server: ManagedSessions, decoder: str) -> None:
    """Move its sessions, and end it; blocks meanwhile. Raises UserError."""
    operations_of(server.pool).drain(decoder)
    server.say(f"{decoder}: drained, and ended")


def change_model(server: ManagedSessions, model: str) -> None:
    """Serve another model from now on, to sessions that are there and to those that come; blocks until all have it.
    Raises UserError, and then all is as before."""
    operations, before = operations_of(server.pool), served_model(server.options)
    if before is None or before in PLAIN or is_endpoint(before):
        raise UserError(
            f"The server serves {before or 'no model of its own'}: there is nothing to change.",
            "Start it with `--model CHECKPOINT`.",
        )
    if model in PLAIN or is_endpoint(model):
        raise UserError(
            f"{model} is no checkpoint that the decoders could load.", "Give a checkpoint's folder or name."
        )
    replace(server.options, model=model).check()
    if model != before:
        operations.change(before, model)
    take_model(server, before, model)


def take_model(server: ManagedSessions, before: str, model: str) -> None:
    """The server serves another model from now on: its decoders do so already."""
    if served_model(server.options) == model and model != before:
        return
    server.options = replace(server.options, model=model)
    for session in server.all():
        if session.terms is not None and session.terms.model == before:
            session.terms = replace(session.terms, model=model)
    server.say(f"the model is {model} from now on")
