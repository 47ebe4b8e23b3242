"""`python -m rtcontrol.bench.page`: fill the tables of docs/benchmarks.md from the JSON files in docs/benchmarks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from rtcontrol.bench.tables import TABLES
from rtcontrol.models.errors import UserError
from rtcontrol.telemetry.table import markdown

PAGE = Path("docs/benchmarks.md")
BLOCK = re.compile(r"<!-- ([\w-]+) -->\n(.*?)<!-- /\1 -->", re.DOTALL)


def fill(text: str, folder: Path) -> str:
    """Return a page whose blocks `<!-- NAME -->` have the tables of the folder's NAME.json. Raises UserError for a file
    that cannot be read."""
    return BLOCK.sub(
        lambda match: f"<!-- {match[1]} -->\n{_block(folder / f'{match[1]}.json')}\n<!-- /{match[1]} -->", text
    )


def _block(path: Path) -> str:
    try:
        document = json.loads(path.read_text("utf-8"))
        return f"{markdown(TABLES[document['bench']](document))}\n\n{_machine(document)}"
    except (OSError, ValueError, LookupError) as error:
        raise UserError(f"{path} cannot be read ({type(error).__name__}: {error}).", "Measure it again.") from None


def _machine(document: dict[str, Any]) -> str:
    """Return where and when, in one line."""
    machine = document["machine"]
    gpu = f"{machine['gpu']}; " if "gpu" in machine else ""
    return (
        f"{gpu}{machine['cores']} cores of {machine['cpu']}, {machine['system']}, Python {machine['python']}, "
        f"torch {machine['torch']}, {document['measured']}, load at the start {machine['load']}."
    )


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text("utf-8"), PAGE.with_suffix("")), "utf-8")
