"""The command `rtcontrol settings`; `python -m rtcontrol.cli.settings` writes docs/settings.md."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import MISSING
from pathlib import Path
from typing import Annotated

import typer

from rtcontrol.cli.command import command, settings_by_group
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
    group: Annotated[str | None, typer.Argument(help=f"List only this group: {', '.join(GROUPS)}.")] = None,
) -> None:
    """List all settings with defaults, as a TOML file for `--config`. Settings without a default are comments.

    Examples: `rtcontrol settings loop`; `rtcontrol settings > run.toml`
    """
    if group not in (None, *GROUPS):
        raise UserError(f"There is no group {group}.", f"The groups are {', '.join(GROUPS)}.")
    for name, each in settings_by_group().items():
        if group in (None, name):
            print(f"[{name}]  # {GROUPS[name]}")
            print("\n".join(map(_toml_line, each)) + "\n")


def _toml_line(entry: Setting) -> str:
    default = _toml_default(entry)
    return f"{'' if default else '# '}{entry.leaf} = {default}  # {_help_text(entry)}"


def _toml_default(entry: Setting) -> str:
    """Return the default of a setting as TOML, or an empty text if TOML cannot express the default."""
    return "" if entry.default in (None, MISSING, Path()) else json.dumps(entry.default)


def _help_text(entry: Setting) -> str:
    return f"{entry.help} ({entry.legal_values()})" if entry.legal_values() else entry.help


def page() -> Iterator[str]:
    """Yield the lines of the page docs/settings.md."""
    yield TITLE.rstrip()
    for name, each in settings_by_group().items():
        yield from ("", f"## {name}", "", GROUPS[name], "", HEAD, "|---|---|---|")
        for entry in each:
            python = "" if entry.name == entry.leaf else f" ({entry.name})"
            default = _toml_default(entry) and f"`{_toml_default(entry)}`"
            cells = (f"`{entry.path}`{python}", default, _help_text(entry))
            yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    PAGE.write_text("\n".join(page()) + "\n", "utf-8")
