"""`python -m rtcontrol.bench.page`: fill the tables of docs/benchmarks.md from the JSON files in docs/benchmarks."""

from __future__ import annotations

import json
import re
from pathlib import Path

from rtcontrol.bench.tables import TABLES
from rtcontrol.telemetry.table import format_markdown

PAGE = Path("docs/benchmarks.md")
BLOCK = re.compile(r"<!-- ([\w-]+) -->\n(.*?)<!-- /\1 -->", re.DOTALL)


def fill_page(text: str, folder: Path) -> str:
    """Replace the content of each block `<!-- NAME -->` of a page by the table and the machine that NAME.json has."""
    return BLOCK.sub(lambda match: f"<!-- {match[1]} -->\n{_content(folder / match[1])}\n<!-- /{match[1]} -->", text)


def _content(path: Path) -> str:
    document = json.loads(path.with_suffix(".json").read_text("utf-8"))
    machine = document["machine"]
    gpu = f"{machine['gpu']}; " if "gpu" in machine else ""
    return (
        f"{format_markdown(TABLES[document['bench']](document))}\n\n"
        f"{gpu}{machine['cores']} cores of {machine['cpu']}, {machine['system']}, Python {machine['python']}, "
        f"torch {machine['torch']}, {document['measured']}, load at the start {machine['load']}."
    )


if __name__ == "__main__":
    PAGE.write_text(fill_page(PAGE.read_text("utf-8"), PAGE.with_suffix("")), "utf-8")
