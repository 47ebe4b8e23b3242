"""The command `rtcontrol settings`; `python -m rtcontrol.cli.settings` writes docs/settings.md."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import MISSING
from pathlib import Path
from typing import Annotated

import typer

from rtcontrol.cli.command import command, tree
from rtcontrol.cli.figures import group
from rtcontrol.models.errors import UserError
from rtcontrol.settings import GROUPS, Setting

PAGE = Path("docs/settings.md")
TITLE = """# Settings

Made by `python -m rtcontrol.cli.settings`. `--set loop.hold_ms=300` and a file (`--config FILE`, TOML, a table for each
group) set any of them; some have a flag, too (`rtcontrol run --help`). In Python they are keywords: the last part of
the path, or the name in brackets, as in `RunConfig(record_max="2G")`. `rtcontrol settings > run.toml` makes a file.
"""
HEAD = "| setting | default | meaning |"
app = group()


@command(app)
def settings(
    group: Annotated[str | None, typer.Argument(help=f"One group alone: {', '.join(GROUPS)}.")] = None,
) -> None:
    """List every setting with its default, as a TOML file for `--config`; those without a default are commented out.

    Examples: `rtcontrol settings loop`; `rtcontrol settings > run.toml`
    """
    if group not in (None, *GROUPS):
        raise UserError(f"There is no group {group}.", f"There are {', '.join(GROUPS)}.")
    for name, each in tree().items():
        if group in (None, name):
            print(f"[{name}]  # {GROUPS[name]}")
            print("\n".join(map(_line, each)) + "\n")


def _line(entry: Setting) -> str:
    default = _default(entry)
    return f"{'' if default else '# '}{entry.leaf} = {default}  # {_meaning(entry)}"


def _default(entry: Setting) -> str:
    """Return the default of a setting in TOML form; an empty text if there is none that TOML can express."""
    return "" if entry.default in (None, MISSING, Path()) else json.dumps(entry.default)


def _meaning(entry: Setting) -> str:
    return f"{entry.help} ({entry.legal()})" if entry.legal() else entry.help


def page() -> Iterator[str]:
    """Yield the lines of docs/settings.md."""
    yield TITLE.rstrip()
    for name, each in tree().items():
        yield from ("", f"## {name}", "", GROUPS[name], "", HEAD, "|---|---|---|")
        for entry in each:
            python = "" if entry.name == entry.leaf else f" ({entry.name})"
            default = _default(entry) and f"`{_default(entry)}`"
            cells = (f"`{entry.path}`{python}", default, _meaning(entry))
            yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    PAGE.write_text("\n".join(page()) + "\n", "utf-8")
