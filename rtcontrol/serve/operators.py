"""What the operator of a server does with its decoders while sessions go on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rtcontrol.hosts.deciders import PLAIN
from rtcontrol.hosts.protocol import DecoderPool
from rtcontrol.hosts.remote_api import is_endpoint
from rtcontrol.models.errors import UserError
from rtcontrol.run import assembly
from rtcontrol.serve.options import ServeOptions

FLEET = "Start the server with --decoders N, N above 1."


def decoders_of(pool: DecoderPool) -> list[dict[str, Any]]:
    """The decoders of a server that has several; of others none."""
    shown = getattr(pool, "decoders", None)
    return [] if shown is None else list(shown())


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


def changed(options: ServeOptions, pool: DecoderPool, model: str) -> ServeOptions:
    """Serve another model from now on, to sessions that are there and to those that come; gives the options for these.
    Raises UserError, and then all is as before."""
    operations, name = operations_of(pool), served_model(options)
    if name is None or name in PLAIN or is_endpoint(name):
        raise UserError(
            f"The server serves {name or 'no model of its own'}: there is nothing to change.",
            "Start it with `--model CHECKPOINT`.",
        )
    if model in PLAIN or is_endpoint(model):
        raise UserError(
            f"{model} is no checkpoint that the decoders could load.", "Give a checkpoint's folder or name."
        )
    after = replace(options, model=model)
    after.check()
    if model != name:
        operations.change(name, model)
    return after
