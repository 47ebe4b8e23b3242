"""What answers rows, and the options that say so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer


@dataclass(frozen=True)
class ModelOptions:
    """How a checkpoint answers: `way` "heads" (a chat model's own syntax, with what it forces written for it) or
    "json" (a call written token after token), the latter held to the tools' `grammar` or not."""

    model: Annotated[
        str, typer.Option(help="A checkpoint, as for run; or decisions:URL, systemone:URL, openai:URL#NAME.")
    ]
    way: Annotated[str, typer.Option(help="heads, or json: the same model writes the call token after token.")] = (
        "heads"
    )
    engine: Annotated[str, typer.Option(help="What runs the model.")] = "torch"
    dtype: Annotated[str, typer.Option(help="auto, fp32 or bf16.")] = "auto"
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda or cuda:NUMBER. (default: a GPU where there is one)")
    ] = None
    threads: Annotated[int | None, typer.Option(help="Of torch, on a CPU.")] = None
    value_tokens: Annotated[int, typer.Option(min=1, help="A free value has at most so many tokens.")] = 64
    arguments: Annotated[str, typer.Option(help="Of a chat model: sequential or parallel.")] = "sequential"
    grammar: Annotated[bool, typer.Option("--grammar", help="With --way json: held to the tools' grammar.")] = False
