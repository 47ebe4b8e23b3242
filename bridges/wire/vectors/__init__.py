"""The conformance vectors of protocol 1.0: data for every client, whatever its language (docs/protocol.md, section 13).

`python -m rtcontrol.bridges.wire.vectors` writes them anew; a test compares.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
NAMES = ("valid", "invalid", "ttl", "clock")


def load(name: str) -> Any:
    """One of `NAMES`, parsed."""
    return json.loads((FOLDER / f"{name}.json").read_text("utf-8"))


def expand(part: str | list[list[Any]]) -> str:
    """The text (or hex) of a part that may be written as runs: `[[text, times], ...]`."""
    return part if isinstance(part, str) else "".join(text * times for text, times in part)
