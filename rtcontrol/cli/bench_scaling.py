"""`rtcontrol bench` of many: what a crowd costs and each of it gets."""

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


BENCHES = (crowd,)
