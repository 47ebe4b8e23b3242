"""`rtcontrol bench` of many: what a crowd costs and each of it gets, and what a second decoder brings."""

from __future__ import annotations

from typing import Annotated

import typer

from rtcontrol.cli.bench_group import Document
from rtcontrol.cli.figures import Shown


def crowd(
    shown: Shown,
    members: Annotated[int, typer.Option(min=1, max=4096, help="Of the crowd that a model decides for.")] = 64,
    hz: Annotated[float, typer.Option(min=0.1, help="Decisions a second of each.")] = 5.0,
    seconds: Annotated[float, typer.Option(min=1, help="Of the crowd's run.")] = 60.0,
    model: Annotated[str, typer.Option(help="What decides: one that knows the lander.")] = "lander",
    door: Annotated[int, typer.Option(min=1, max=4096, help="Members of the crowd that nothing is decided for.")] = 500,
    door_hz: Annotated[float, typer.Option(min=0.1, help="And how often a second each is answered.")] = 5.0,
    door_seconds: Annotated[float, typer.Option(min=1, help="Of their run.")] = 60.0,
    rounds: Annotated[int, typer.Option(min=3, help="How often each size of batch is decided.")] = 20,
) -> Document:
    """A crowd by one decoder; the door alone, with a decoder that decides nothing; and a batch of 64 beside one alone.

    Every member sees something new before each of its ticks. Latency is from a member's release to its call's
    departure; the server's processor time is its own process's, without the decoder's.

    Example:

      rtcontrol bench crowd --members 64 --hz 5 --seconds 60 --json crowd.json
    """
    from rtcontrol.bench import everything

    return everything.crowd(members, hz, seconds, model, (door, door_hz, door_seconds), rounds, shown)


def fleet(
    shown: Shown,
    sessions: Annotated[int, typer.Option(min=2, help="Sessions, each of which asks again at once.")] = 8,
    seconds: Annotated[float, typer.Option(min=0.5, help="Of each turn.")] = 5.0,
    rounds: Annotated[int, typer.Option(min=1, help="How often the two ways take turns.")] = 4,
    model: Annotated[
        str | None, typer.Option(help="What decides. (default: random weights of 15 M parameters)")
    ] = None,
) -> Document:
    """Decisions a second of two decoders beside one (docs/scaling.md): as many sessions on one of them, then half of
    them on each, in turns. Each has one thread; the sessions ask from a process of their own.

    Examples:

      rtcontrol bench fleet

      rtcontrol bench fleet --sessions 2 --seconds 10 --json fleet.json
    """
    from rtcontrol.bench import everything

    return everything.fleet(sessions, seconds, rounds, model, shown)


BENCHES = (crowd, fleet)
