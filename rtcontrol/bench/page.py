"""`python -m rtcontrol.bench.page`: fill the tables of docs/benchmarks.md from the JSON files in docs/benchmarks."""

from __future__ import annotations

import json
import re
from pathlib import Path

from rtcontrol.bench.tables import TABLES
from rtcontrol.telemetry.table import format_markdown

PAGE = Path("docs/benchmarks.md")
BLOCK = re.compile(r"<!-- ([\w-]+) -->\n(.*?)<!-- /\1 -->", re.DOTALL)


def fill(text: str, folder: Path) -> str:
    """Return the page with each block `<!-- NAME -->` filled with the table and the machine of NAME.json."""
    return BLOCK.sub(lambda match: f"<!-- {match[1]} -->\n{_block(folder / match[1])}\n<!-- /{match[1]} -->", text)


def _block(path: Path) -> str:
    document = json.loads(path.with_suffix(".json").read_text("utf-8"))
    machine = document["machine"]
    gpu = f"{machine['gpu']}; " if "gpu" in machine else ""
    return (
        f"{format_markdown(TABLES[document['bench']](document))}\n\n"
        f"{gpu}{machine['cores']} cores of {machine['cpu']}, {machine['system']}, Python {machine['python']}, "
        f"torch {machine['torch']}, {document['measured']}, load at the start {machine['load']}."
    )


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text("utf-8"), PAGE.with_suffix("")), "utf-8")
