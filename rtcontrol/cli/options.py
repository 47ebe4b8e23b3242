"""What commands share: how they are made, and the options that several of them have."""

from __future__ import annotations

from typing import Annotated, Any

import typer

Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:NUMBER. (default: a GPU where there is one)")]


def group(**more: Any) -> typer.Typer:
    """A group of commands."""
    return typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        **more,
    )
